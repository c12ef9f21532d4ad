//! DHIM's training steps on a GPU: filters over token states, codes of windows, texts and first states, and their agreement.
//!
//! `layer.cu` has the kernels. Formulas and draws equal those of the method on the CPU:
//!
//! ```text
//! H [windows + 2 n, width]: max(0, filters) of every window, its mean over every text, the state of [CLS]
//! Z = H W + b;  B ~ Bernoulli(sigmoid(Z / sharpness));  Q [n, 2 bits] = B_text V + d
//! scores: Q_1 B_window^T [n, windows] and Q_2 B_first^T [n, n]
//! ```

use crate::driver::device::Device;
use crate::driver::layer::{Layer, text_ranges};
use crate::driver::learned::Learned;
use crate::driver::library::guarded;
use crate::driver::memory::Buffer;
use crate::driver::training::View;
use crate::{Error, InfoMaxHead, InfoMaxStep, Result, TrainingAdam, driver::compile::arguments};

/// DHIM in training.
pub struct InfoMax {
    layer: Layer,
    // W, b, V [bits, 2 bits] and d [2 bits]: those for windows left of those for first states.
    head: Learned,
    bits: usize,
    sharpness: f32,
    whole_weight: f32,
    workspace: Option<Workspace>,
}

/// Buffers of a step, for up to `windows` windows and `texts` texts.
struct Workspace {
    windows: usize,
    texts: usize,
    // [windows + 2 texts, width]: values, and the gradients of windows and texts.
    values: Buffer,
    slopes: Buffer,
    // [windows + 2 texts, bits]
    logits: Buffer,
    codes: Buffer,
    steepness: Buffer,
    dcodes: Buffer,
    // [texts, 2 bits]
    queries: Buffer,
    dqueries: Buffer,
    // [texts, windows] and [texts, texts], and the losses per block with their total first.
    scores: Buffer,
    losses: Buffer,
    // Per window: its text and token number. Per text: its windows.
    tokens: Buffer,
    text_ranges: Buffer,
}

const BLOCK: usize = 256;

/// Blocks of threads, a thread for each of `count`.
fn blocks(count: usize) -> usize {
    count.div_ceil(BLOCK)
}

impl Workspace {
    fn new(device: &Device, windows: usize, texts: usize, width: usize, bits: usize) -> Result<Self> {
        let floats = |count: usize| Buffer::new(device, 4 * count, "training");
        let rows = windows + 2 * texts;
        let blocks = (texts * windows).div_ceil(BLOCK) + (texts * texts).div_ceil(BLOCK);
        Ok(Workspace {
            windows,
            texts,
            values: floats(rows * width)?,
            slopes: floats(rows * width)?,
            logits: floats(rows * bits)?,
            codes: floats(rows * bits)?,
            steepness: floats(rows * bits)?,
            dcodes: floats(rows * bits)?,
            queries: floats(texts * 2 * bits)?,
            dqueries: floats(texts * 2 * bits)?,
            scores: floats(texts * (windows + texts))?,
            losses: Buffer::new(device, 8 * (1 + blocks), "training")?,
            tokens: Buffer::new(device, 8 * windows, "training")?,
            text_ranges: Buffer::new(device, 8 * texts, "training")?,
        })
    }
}

impl InfoMax {
    /// `head` has the initial parameters after the filters of `layer`. `whole_weight` is the weight of the agreement with first
    /// states.
    pub fn new(layer: Layer, head: InfoMaxHead, sharpness: f32, whole_weight: f32) -> Result<Self> {
        let (bits, width) = (head.bias.len(), layer.outputs);
        let sizes = [head.map, head.parts[0], head.whole[0], head.parts[1], head.whole[1]].map(<[f32]>::len);
        if bits == 0 || sizes != [width * bits, bits * bits, bits * bits, bits, bits] {
            return Err(Error::Input(format!("{sizes:?} weights after {width} filters do not fit {bits} bits")));
        }
        let mut values = [head.map, head.bias].concat();
        for i in 0..2 {
            for (left, right) in head.parts[i].chunks_exact(bits).zip(head.whole[i].chunks_exact(bits)) {
                values.extend_from_slice(left);
                values.extend_from_slice(right);
            }
        }
        let head = guarded("preparing training on the GPU", || Learned::new(&layer.device, &values))?;
        Ok(InfoMax { layer, head, bits, sharpness, whole_weight, workspace: None })
    }

    /// Computes the loss of the texts of a step and its gradient; returns the loss.
    pub fn step(&mut self, step: &InfoMaxStep) -> Result<f64> {
        let (n, width, bits) = (step.texts.windows.len(), self.layer.outputs, self.bits);
        if n < 2 || step.firsts.len() != n * width {
            return Err(Error::Input(format!(
                "{} values of first states for {n} texts; a step needs at least 2 texts and {width} values per text",
                step.firsts.len()
            )));
        }
        let windows = self.layer.load(&step.texts)?;
        if (windows + 2 * n) * width.max(n).max(bits) >= 1 << 31 {
            return Err(Error::Input(format!(
                "{windows} windows of {n} texts are too many for one step; use fewer texts"
            )));
        }
        let workspace = match self.workspace.take() {
            Some(workspace) if workspace.windows >= windows && workspace.texts >= n => workspace,
            // A quarter more: batches of texts differ in length.
            _ => Workspace::new(&self.layer.device, windows * 5 / 4, n, width, bits)?,
        };
        let buffers = &*self.workspace.insert(workspace);
        let (sharpness, whole_weight) = (self.sharpness, self.whole_weight);
        let pass =
            Pass { layer: &self.layer, head: &self.head, buffers, windows, n, width, bits, sharpness, whole_weight };
        pass.upload(step)?;
        pass.draw_codes(step.keys)?;
        let blocks = pass.agree()?;
        pass.query_gradient()?;
        pass.code_gradient(blocks)?;
        pass.filter_gradient()?;
        let stream = &self.layer.stream;
        let mut loss = [0.0f64];
        stream.download(&mut loss, buffers.losses.at())?;
        stream.wait()?;
        Ok(loss[0])
    }

    /// Queues an update by the last step's gradient.
    pub fn update(&mut self, by: TrainingAdam) -> Result<()> {
        self.layer.device.bind()?;
        self.layer.update(by)?;
        self.head.update(&self.layer.kernels.adam, &self.layer.stream, by)
    }

    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The current parameters after the filters: `W`, `b`, and `V` with its bias for windows and for first states.
    pub fn head(&self) -> Result<[Vec<f32>; 6]> {
        self.layer.device.bind()?;
        Ok(self.split_head(self.head.read(&self.layer.stream)?))
    }

    /// The last step's gradient, in the same parts.
    pub fn head_gradient(&self) -> Result<[Vec<f32>; 6]> {
        self.layer.device.bind()?;
        Ok(self.split_head(self.head.read_gradient(&self.layer.stream)?))
    }

    fn split_head(&self, mut values: Vec<f32>) -> [Vec<f32>; 6] {
        let (bits, width) = (self.bits, self.layer.outputs);
        let mut pairs = values.split_off(width * bits + bits);
        let pairs_bias = pairs.split_off(2 * bits * bits);
        let bias = values.split_off(width * bits);
        let half = |of: &[f32], from: usize| {
            let rows = of.chunks_exact(2 * bits);
            rows.flat_map(|row| row[from..from + bits].iter().copied()).collect::<Vec<f32>>()
        };
        let [parts, whole] = [0, bits].map(|from| [half(&pairs, from), half(&pairs_bias, from)]);
        let ([v_parts, d_parts], [v_whole, d_whole]) = (parts, whole);
        [values, bias, v_parts, d_parts, v_whole, d_whole]
    }
}

/// A step under way. Its launches are sound because every argument has the type of the kernel's parameter, and [`Workspace`]
/// has the sizes for these windows and texts.
struct Pass<'a> {
    layer: &'a Layer,
    head: &'a Learned,
    buffers: &'a Workspace,
    windows: usize,
    // Texts.
    n: usize,
    width: usize,
    bits: usize,
    sharpness: f32,
    whole_weight: f32,
}

/// Address of a row of a buffer of f32.
fn row(buffer: &Buffer, row: usize, columns: usize) -> u64 {
    buffer.at() + 4 * (row * columns) as u64
}

impl Pass<'_> {
    fn rows(&self) -> usize {
        self.windows + 2 * self.n
    }

    /// Offsets in bytes of V and d in the parameters of the head.
    fn pairs_offsets(&self) -> (u64, u64) {
        let (width, bits) = (self.width, self.bits);
        let pairs = 4 * (width * bits + bits) as u64;
        (pairs, pairs + 4 * (2 * bits * bits) as u64)
    }

    fn map(&self) -> View {
        View::rows(self.head.values.at(), self.bits)
    }

    fn pairs(&self) -> View {
        View::rows(self.head.values.at() + self.pairs_offsets().0, 2 * self.bits)
    }

    /// The codes from a row on.
    fn code(&self, from: usize) -> View {
        View::rows(row(&self.buffers.codes, from, self.bits), self.bits)
    }

    /// Windows, texts and first states of the step.
    fn upload(&self, step: &InfoMaxStep) -> Result<()> {
        // (text, token number) of every window; windows without a token have no text.
        let mut tokens = vec![[u32::MAX, 0]; self.windows];
        let mut count = 0u32;
        for (text, windows) in step.texts.windows.iter().enumerate() {
            for token in &mut tokens[windows.clone()] {
                *token = [text as u32, count];
                count += 1;
            }
        }
        let (stream, buffers) = (&self.layer.stream, self.buffers);
        let ranges = text_ranges(step.texts.windows);
        stream.upload(buffers.tokens.at(), &tokens)?;
        stream.upload(buffers.text_ranges.at(), &ranges)?;
        stream.upload(row(&buffers.values, self.windows + self.n, self.width), step.firsts)
    }

    /// Filters, their logits and the codes drawn by them.
    fn draw_codes(&self, keys: [u64; 3]) -> Result<()> {
        let Pass { layer, head, buffers, windows, n, width, bits, .. } = *self;
        layer.forward(buffers.values.at())?;
        layer.mean(buffers.values.at(), row(&buffers.values, windows, width), &buffers.text_ranges, n)?;
        let (values, bias) = (View::rows(buffers.values.at(), width), head.values.at() + 4 * (width * bits) as u64);
        layer.multiply((buffers.logits.at(), bits), values, self.map(), [self.rows(), bits, width], bias)?;
        let [key_text, key_token, key_first] = keys;
        let (windows32, n32, bits32) = (windows as u32, n as u32, bits as u32);
        // SAFETY: see `Pass`.
        unsafe {
            layer.kernels.draw_codes.launch(
                &layer.stream,
                blocks(self.rows() * bits),
                BLOCK as u32,
                arguments![
                    buffers.logits.at(),
                    buffers.codes.at(),
                    buffers.steepness.at(),
                    buffers.tokens.at(),
                    key_text,
                    key_token,
                    key_first,
                    windows32,
                    n32,
                    bits32,
                    self.sharpness
                ],
            )
        }
    }

    /// The scores of queries against codes, their losses, and the gradients of queries and codes. Gives the number of blocks
    /// that losses are summed over.
    fn agree(&self) -> Result<usize> {
        let Pass { layer, head, buffers, windows, n, bits, .. } = *self;
        let pairs_bias = head.values.at() + self.pairs_offsets().1;
        let queries = (buffers.queries.at(), 2 * bits);
        layer.multiply(queries, self.code(windows), self.pairs(), [n, 2 * bits, bits], pairs_bias)?;
        // For each half of `queries`: its first column, the first row and the number of the codes it is compared with, the owners
        // of these codes, and the weight of one text.
        let sides = [
            (0, 0, windows, buffers.tokens.at(), 1.0 / n as f32),
            (bits, windows + n, n, 0u64, self.whole_weight / n as f32),
        ];
        let (text_ranges, n32) = (buffers.text_ranges.at(), n as u32);
        let (mut scores, mut block) = (buffers.scores.at(), 1);
        for (half, from, others, owners, share) in sides {
            let query = View::rows(buffers.queries.at() + 4 * half as u64, 2 * bits);
            layer.multiply((scores, others), query, self.code(from).transposed(), [n, others, bits], 0)?;
            let losses = buffers.losses.at() + 8 * block as u64;
            // SAFETY: see `Pass`.
            unsafe {
                layer.kernels.agree.launch(
                    &layer.stream,
                    blocks(n * others),
                    BLOCK as u32,
                    arguments![scores, losses, owners, text_ranges, n32, others as u32, share],
                )?;
            }
            let slope = View::rows(scores, others);
            let dquery = buffers.dqueries.at() + 4 * half as u64;
            layer.multiply((dquery, 2 * bits), slope, self.code(from), [n, bits, others], 0)?;
            let dcodes = (row(&buffers.dcodes, from, bits), bits);
            layer.multiply(dcodes, slope.transposed(), query, [others, bits, n], 0)?;
            scores += 4 * (n * others) as u64;
            block += blocks(n * others);
        }
        Ok(block - 1)
    }

    /// The gradients of V, d and the codes of texts.
    fn query_gradient(&self) -> Result<()> {
        let Pass { layer, buffers, windows, n, bits, .. } = *self;
        let (pairs, pairs_bias) = self.pairs_offsets();
        let (to, dqueries) = (self.head.gradient.at(), View::rows(buffers.dqueries.at(), 2 * bits));
        layer.multiply((to + pairs, 2 * bits), self.code(windows).transposed(), dqueries, [bits, 2 * bits, n], 0)?;
        layer.sums(buffers.dqueries.at(), to + pairs_bias, n, 2 * bits)?;
        let dcodes = (row(&buffers.dcodes, windows, bits), bits);
        layer.multiply(dcodes, dqueries, self.pairs().transposed(), [n, bits, 2 * bits], 0)
    }

    /// The total loss, and the gradients of W and b.
    fn code_gradient(&self, loss_blocks: usize) -> Result<()> {
        let Pass { layer, buffers, width, bits, .. } = *self;
        let (k, stream, rows) = (&layer.kernels, &layer.stream, self.rows());
        let (count, losses) = (loss_blocks as u32, buffers.losses.at());
        // SAFETY: see `Pass`.
        unsafe {
            k.sum_losses.launch(stream, 1, BLOCK as u32, arguments![losses + 8, losses, count])?;
            // From here on `dcodes` is the gradient of the logits.
            let (x, y) = (buffers.dcodes.at(), buffers.steepness.at());
            k.scale_by.launch(stream, blocks(rows * bits), BLOCK as u32, arguments![x, y, (rows * bits) as u32])?;
        }
        let (to, values) = (self.head.gradient.at(), View::rows(buffers.values.at(), width));
        let dlogits = View::rows(buffers.dcodes.at(), bits);
        layer.multiply((to, bits), values.transposed(), dlogits, [width, bits, rows], 0)?;
        layer.sums(buffers.dcodes.at(), to + 4 * (width * bits) as u64, rows, bits)
    }

    /// The gradient of the filters.
    fn filter_gradient(&self) -> Result<()> {
        let Pass { layer, buffers, windows, n, width, bits, .. } = *self;
        let (slopes, dlogits) = (buffers.slopes.at(), View::rows(buffers.dcodes.at(), bits));
        layer.multiply((slopes, width), dlogits, self.map().transposed(), [windows + n, width, bits], 0)?;
        let (windows32, width32) = (windows as u32, width as u32);
        // SAFETY: see `Pass`.
        unsafe {
            layer.kernels.filter_slopes.launch(
                &layer.stream,
                blocks(windows * width),
                BLOCK as u32,
                arguments![
                    slopes,
                    buffers.values.at(),
                    buffers.tokens.at(),
                    buffers.text_ranges.at(),
                    windows32,
                    width32
                ],
            )?;
        }
        layer.backward(slopes)
    }
}
