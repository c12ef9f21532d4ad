//! DHIM's steps on a GPU: filters over token states, codes of parts, texts and first states, and how they agree.
//!
//! `layer.cu` holds the kernels. Formulas and draws are those of the system's own file, which says what they mean:
//!
//! ```text
//! H [windows + 2 n, width]: max(0, filters) of every window, their mean of every text, the state of [CLS]
//! Z = H W + b;  B ~ Bernoulli(sigmoid(Z / sharpness));  Q [n, 2 bits] = B_text V
//! scores: Q_1 B_window^T [n, windows] and Q_2 B_first^T [n, n]
//! ```

use crate::device::Device;
use crate::layer::{Layer, Texts, places};
use crate::learned::{Learned, TrainingAdam};
use crate::library::guarded;
use crate::memory::Buffer;
use crate::training::View;
use crate::{Error, Result, compile::arguments};

/// What is learned behind the filters.
#[derive(Clone, Copy)]
pub struct InfoMaxHead<'a> {
    /// `W [width, bits]`.
    pub map: &'a [f32],
    /// `b [bits]`.
    pub bias: &'a [f32],
    /// `V` for windows, `[bits, bits]`.
    pub parts: &'a [f32],
    /// `V` for first states, `[bits, bits]`.
    pub whole: &'a [f32],
}

/// What a step needs beside its texts.
#[derive(Clone, Copy)]
pub struct InfoMaxStep<'a> {
    /// The texts' tokens but the first.
    pub texts: Texts<'a>,
    /// States of the first, `[texts, width]`.
    pub firsts: &'a [f32],
    /// Streams of the draws: codes of texts, of tokens, of first states.
    pub keys: [u64; 3],
}

/// DHIM in training.
pub struct InfoMax {
    layer: Layer,
    // W, b, and V [bits, 2 bits], that for windows left of the other.
    head: Learned,
    bits: usize,
    sharpness: f32,
    whole_weight: f32,
    room: Option<Room>,
}

/// What a step computes, for so many windows and texts at most.
struct Room {
    windows: usize,
    texts: usize,
    // [windows + 2 texts, width], and the gradient there of windows and texts.
    values: Buffer,
    slopes: Buffer,
    // [windows + 2 texts, bits]
    logits: Buffer,
    codes: Buffer,
    steepness: Buffer,
    dcodes: Buffer,
    // [texts, 2 bits]
    asked: Buffer,
    dasked: Buffer,
    // [texts, windows] and [texts, texts], and the sums of their blocks' losses with the whole before them.
    scores: Buffer,
    losses: Buffer,
    // Per window and per text.
    tokens: Buffer,
    places: Buffer,
}

const BLOCK: usize = 256;

impl Room {
    fn new(device: &Device, windows: usize, texts: usize, width: usize, bits: usize) -> Result<Self> {
        let floats = |count: usize| Buffer::new(device, 4 * count, "training");
        let rows = windows + 2 * texts;
        let blocks = (texts * windows).div_ceil(BLOCK) + (texts * texts).div_ceil(BLOCK);
        Ok(Room {
            windows,
            texts,
            values: floats(rows * width)?,
            slopes: floats(rows * width)?,
            logits: floats(rows * bits)?,
            codes: floats(rows * bits)?,
            steepness: floats(rows * bits)?,
            dcodes: floats(rows * bits)?,
            asked: floats(texts * 2 * bits)?,
            dasked: floats(texts * 2 * bits)?,
            scores: floats(texts * (windows + texts))?,
            losses: Buffer::new(device, 8 * (1 + blocks), "training")?,
            tokens: Buffer::new(device, 8 * windows, "training")?,
            places: Buffer::new(device, 8 * texts, "training")?,
        })
    }
}

impl InfoMax {
    /// Takes a layer of filters and first values of what is behind them. `whole_weight` is what the agreement with first states
    /// counts for.
    pub fn new(layer: Layer, head: InfoMaxHead, sharpness: f32, whole_weight: f32) -> Result<Self> {
        let (bits, width) = (head.bias.len(), layer.outputs);
        let sizes = [head.map.len(), head.parts.len(), head.whole.len()];
        if bits == 0 || sizes != [width * bits, bits * bits, bits * bits] {
            return Err(Error::Input(format!("{sizes:?} weights behind {width} filters for {bits} bits")));
        }
        let mut values = [head.map, head.bias].concat();
        for (left, right) in head.parts.chunks_exact(bits).zip(head.whole.chunks_exact(bits)) {
            values.extend_from_slice(left);
            values.extend_from_slice(right);
        }
        let head = guarded("preparing training on the GPU", || Learned::new(&layer.device, &values))?;
        Ok(InfoMax { layer, head, bits, sharpness, whole_weight, room: None })
    }

    /// The loss of some texts, and its gradient.
    pub fn step(&mut self, step: &InfoMaxStep) -> Result<f64> {
        let (n, width, bits) = (step.texts.windows.len(), self.layer.outputs, self.bits);
        if n < 2 || step.firsts.len() != n * width {
            return Err(Error::Input(format!("{} values of first states for {n} texts", step.firsts.len())));
        }
        let windows = self.layer.load(&step.texts)?;
        if (windows + 2 * n) * width.max(n).max(bits) >= 1 << 31 {
            return Err(Error::Input(format!(
                "{windows} windows of {n} texts are too many for a step; take fewer texts"
            )));
        }
        let room = match self.room.take() {
            Some(room) if room.windows >= windows && room.texts >= n => room,
            // A quarter more: batches of texts differ in length.
            _ => Room::new(&self.layer.device, windows * 5 / 4, n, width, bits)?,
        };
        let room = self.room.insert(room);
        let (layer, head) = (&self.layer, &self.head);
        let (stream, k) = (&layer.stream, &layer.kernels);
        // A text and a number for every window; no text for those of no token.
        let mut tokens = vec![[u32::MAX, 0]; windows];
        let mut count = 0u32;
        for (text, own) in step.texts.windows.iter().enumerate() {
            for token in &mut tokens[own.clone()] {
                *token = [text as u32, count];
                count += 1;
            }
        }
        let texts = places(step.texts.windows);
        stream.upload(room.tokens.at(), &tokens)?;
        stream.upload(room.places.at(), &texts)?;
        let row = |buffer: &Buffer, row: usize, columns: usize| buffer.at() + 4 * (row * columns) as u64;
        stream.upload(row(&room.values, windows + n, width), step.firsts)?;

        layer.forward(room.values.at())?;
        layer.mean(room.values.at(), row(&room.values, windows, width), &room.places, n)?;
        let rows = windows + 2 * n;
        let (map, bias) = (View::rows(head.values.at(), bits), head.values.at() + 4 * (width * bits) as u64);
        let pairs_at = 4 * (width * bits + bits) as u64;
        let pairs = View::rows(head.values.at() + pairs_at, 2 * bits);
        let values = View::rows(room.values.at(), width);
        layer.multiply((room.logits.at(), bits), values, map, [rows, bits, width], bias)?;
        let [key_text, key_token, key_first] = step.keys;
        let each = |count: usize| count.div_ceil(BLOCK);
        let (windows32, n32, bits32, width32) = (windows as u32, n as u32, bits as u32, width as u32);
        // SAFETY: every argument has the type of the kernel's parameter, and `Room` the sizes for so many windows and texts.
        unsafe {
            k.draw_codes.launch(
                stream,
                each(rows * bits),
                BLOCK as u32,
                arguments![
                    room.logits.at(),
                    room.codes.at(),
                    room.steepness.at(),
                    room.tokens.at(),
                    key_text,
                    key_token,
                    key_first,
                    windows32,
                    n32,
                    bits32,
                    self.sharpness
                ],
            )?;
        }
        let code = |from: usize| View::rows(row(&room.codes, from, bits), bits);
        layer.multiply((room.asked.at(), 2 * bits), code(windows), pairs, [n, 2 * bits, bits], 0)?;
        // What the halves of `asked` are compared with: codes from a row on, how many, whose they are, what one counts for.
        let sides = [
            (0, 0, windows, room.tokens.at(), 1.0 / count.max(1) as f32),
            (bits, windows + n, n, 0u64, self.whole_weight / n as f32),
        ];
        let (mut scores, mut block) = (room.scores.at(), 1);
        for (half, from, others, owners, share) in sides {
            let asked = View::rows(room.asked.at() + 4 * half as u64, 2 * bits);
            layer.multiply((scores, others), asked, code(from).turned(), [n, others, bits], 0)?;
            let losses = room.losses.at() + 8 * block as u64;
            // SAFETY: as above.
            unsafe {
                k.agree.launch(
                    stream,
                    each(n * others),
                    BLOCK as u32,
                    arguments![scores, losses, owners, n32, others as u32, share],
                )?;
            }
            let slope = View::rows(scores, others);
            let dasked = room.dasked.at() + 4 * half as u64;
            layer.multiply((dasked, 2 * bits), slope, code(from), [n, bits, others], 0)?;
            layer.multiply((row(&room.dcodes, from, bits), bits), slope.turned(), asked, [others, bits, n], 0)?;
            scores += 4 * (n * others) as u64;
            block += each(n * others);
        }
        let (to, dasked) = (head.gradient.at(), View::rows(room.dasked.at(), 2 * bits));
        layer.multiply((to + pairs_at, 2 * bits), code(windows).turned(), dasked, [bits, 2 * bits, n], 0)?;
        layer.multiply((row(&room.dcodes, windows, bits), bits), dasked, pairs.turned(), [n, bits, 2 * bits], 0)?;
        let (blocks, losses) = ((block - 1) as u32, room.losses.at());
        // SAFETY: as above.
        unsafe {
            k.sum_losses.launch(stream, 1, BLOCK as u32, arguments![losses + 8, losses, blocks])?;
            // From here on the gradient at the logits.
            let (x, y) = (room.dcodes.at(), room.steepness.at());
            k.scale_by.launch(stream, each(rows * bits), BLOCK as u32, arguments![x, y, (rows * bits) as u32])?;
        }
        let dlogits = View::rows(room.dcodes.at(), bits);
        layer.multiply((to, bits), values.turned(), dlogits, [width, bits, rows], 0)?;
        layer.sums(room.dcodes.at(), to + 4 * (width * bits) as u64, rows, bits)?;
        layer.multiply((room.slopes.at(), width), dlogits, map.turned(), [windows + n, width, bits], 0)?;
        // SAFETY: as above.
        unsafe {
            k.filter_slopes.launch(
                stream,
                each(windows * width),
                BLOCK as u32,
                arguments![room.slopes.at(), room.values.at(), room.tokens.at(), room.places.at(), windows32, width32],
            )?;
        }
        layer.backward(room.slopes.at())?;
        let mut loss = [0.0f64];
        stream.download(&mut loss, room.losses.at())?;
        stream.wait()?;
        Ok(loss[0])
    }

    /// Queues an update by the last step's gradient.
    pub fn update(&mut self, by: TrainingAdam) -> Result<()> {
        self.layer.device.bind()?;
        self.layer.update(by)?;
        self.head.update(&self.layer.kernels.adam, &self.layer.stream, by)
    }

    /// The filters.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// What is behind them as it is now: map, bias, and the two pairings.
    pub fn head(&self) -> Result<[Vec<f32>; 4]> {
        self.layer.device.bind()?;
        Ok(self.apart(self.head.read(&self.layer.stream)?))
    }

    /// The last step's gradient, in the same parts.
    pub fn head_gradient(&self) -> Result<[Vec<f32>; 4]> {
        self.layer.device.bind()?;
        Ok(self.apart(self.head.read_gradient(&self.layer.stream)?))
    }

    fn apart(&self, mut values: Vec<f32>) -> [Vec<f32>; 4] {
        let (bits, width) = (self.bits, self.layer.outputs);
        let pairs = values.split_off(width * bits + bits);
        let bias = values.split_off(width * bits);
        let half = |from: usize| {
            let rows = pairs.chunks_exact(2 * bits);
            rows.flat_map(|row| row[from..from + bits].iter().copied()).collect::<Vec<f32>>()
        };
        [values, bias, half(0), half(bits)]
    }
}
