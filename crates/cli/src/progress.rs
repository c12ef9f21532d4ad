//! Progress on standard error, and Ctrl-C.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use engine::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The first Ctrl-C (or SIGTERM) stops the work at the next safe point, the second ends the program.
pub fn catch_interrupts() {
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag unset and sets it, the second finds it set and exits.
        // Registration fails only for signals that no program may catch.
        let _ = flag::register_conditional_shutdown(signal, 1, Arc::clone(&INTERRUPTED));
        let _ = flag::register(signal, Arc::clone(&INTERRUPTED));
    }
}

/// SIGHUP sets a flag instead of ending the program.
#[cfg(unix)]
pub fn on_hangup(set: Arc<AtomicBool>) {
    let _ = flag::register(signal_hook::consts::SIGHUP, set);
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Progress bars on a terminal, a line every ten seconds in a log, nothing with `--quiet`.
pub struct TerminalProgress {
    quiet: bool,
    terminal: bool,
    state: Mutex<State>,
}

struct State {
    bar: ProgressBar,
    name: String,
    started: Instant,
    last_line: Instant,
}

impl TerminalProgress {
    pub fn new(quiet: bool) -> Self {
        let state = State {
            bar: ProgressBar::hidden(),
            name: String::new(),
            started: Instant::now(),
            last_line: Instant::now(),
        };
        TerminalProgress { quiet, terminal: std::io::stderr().is_terminal(), state: Mutex::new(state) }
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Ends the current bar and prints a line with its duration.
    pub fn finish(&self) {
        let mut state = self.state.lock();
        self.close(&mut state);
    }

    fn close(&self, state: &mut State) {
        if state.name.is_empty() {
            return;
        }
        let line = format!("{:<28} {:>7.1} s", state.name, state.started.elapsed().as_secs_f64());
        state.bar.finish_and_clear();
        if !self.quiet && state.started.elapsed() > Duration::from_millis(500) {
            eprintln!("{line}");
        }
        state.name.clear();
    }
}

impl Drop for TerminalProgress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Progress for TerminalProgress {
    fn stage(&self, name: &str, total: Option<u64>) {
        let mut state = self.state.lock();
        self.close(&mut state);
        let target = if self.quiet || !self.terminal {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(5)
        };
        let bar = ProgressBar::with_draw_target(total, target);
        let style = match total {
            Some(_) => "{prefix:<28} {bar:24} {pos}/{len} {elapsed} left {eta} {msg}",
            None => "{prefix:<28} {spinner} {pos} {elapsed} {msg}",
        };
        bar.set_style(ProgressStyle::with_template(style).expect("the template is well formed"));
        bar.set_prefix(name.to_owned());
        *state = State { bar, name: name.to_owned(), started: Instant::now(), last_line: Instant::now() };
    }

    fn advance(&self, n: u64) {
        let mut state = self.state.lock();
        state.bar.inc(n);
        if !self.quiet && !self.terminal && state.last_line.elapsed() > Duration::from_secs(10) {
            state.last_line = Instant::now();
            let (done, total) = (state.bar.position(), state.bar.length());
            let of = total.map_or_else(String::new, |t| format!("/{t}"));
            eprintln!(
                "{:<28} {done}{of} after {:.0} s {}",
                state.name,
                state.started.elapsed().as_secs_f64(),
                state.bar.message()
            );
        }
    }

    fn detail(&self, text: &str) {
        self.state.lock().bar.set_message(text.to_owned());
    }

    fn note(&self, text: &str) {
        if self.quiet {
            return;
        }
        let state = self.state.lock();
        if self.terminal { state.bar.println(text) } else { eprintln!("{text}") }
    }

    fn interrupted(&self) -> bool {
        interrupted()
    }
}
