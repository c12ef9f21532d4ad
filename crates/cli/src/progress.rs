//! Progress on standard error, and the user's Ctrl-C.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use micpq::Watch;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The first Ctrl-C (or SIGTERM) asks the work to stop at the next safe place, the second ends the program.
pub fn catch_interrupts() {
    for signal in [SIGINT, SIGTERM] {
        // Registered in this order, the first signal finds the flag down and raises it, the second finds it up.
        // Refusal is possible only for signals no program may catch.
        let _ = flag::register_conditional_shutdown(signal, 1, Arc::clone(&INTERRUPTED));
        let _ = flag::register(signal, Arc::clone(&INTERRUPTED));
    }
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Bars on a terminal, a line every ten seconds in a log, nothing with `--quiet`.
pub struct Progress {
    quiet: bool,
    terminal: bool,
    state: Mutex<State>,
}

struct State {
    bar: ProgressBar,
    name: String,
    begun: Instant,
    said: Instant,
}

impl Progress {
    /// For one command.
    pub fn new(quiet: bool) -> Self {
        let state =
            State { bar: ProgressBar::hidden(), name: String::new(), begun: Instant::now(), said: Instant::now() };
        Progress { quiet, terminal: std::io::stderr().is_terminal(), state: Mutex::new(state) }
    }

    /// Whether `--quiet` was said.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Ends the present bar and leaves a line with the time it took.
    pub fn finish(&self) {
        let mut state = self.state.lock().expect("progress never panics while it is held");
        self.close(&mut state);
    }

    fn close(&self, state: &mut State) {
        if state.name.is_empty() {
            return;
        }
        let line = format!("{:<28} {:>7.1} s", state.name, state.begun.elapsed().as_secs_f64());
        state.bar.finish_and_clear();
        if !self.quiet && state.begun.elapsed() > Duration::from_millis(500) {
            eprintln!("{line}");
        }
        state.name.clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Watch for Progress {
    fn stage(&self, name: &str, total: Option<u64>) {
        let mut state = self.state.lock().expect("progress never panics while it is held");
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
        *state = State { bar, name: name.to_owned(), begun: Instant::now(), said: Instant::now() };
    }

    fn advance(&self, n: u64) {
        let mut state = self.state.lock().expect("progress never panics while it is held");
        state.bar.inc(n);
        if !self.quiet && !self.terminal && state.said.elapsed() > Duration::from_secs(10) {
            state.said = Instant::now();
            let (done, total) = (state.bar.position(), state.bar.length());
            let of = total.map_or_else(String::new, |t| format!("/{t}"));
            eprintln!(
                "{:<28} {done}{of} after {:.0} s {}",
                state.name,
                state.begun.elapsed().as_secs_f64(),
                state.bar.message()
            );
        }
    }

    fn detail(&self, text: &str) {
        self.state.lock().expect("progress never panics while it is held").bar.set_message(text.to_owned());
    }

    fn note(&self, text: &str) {
        if self.quiet {
            return;
        }
        let state = self.state.lock().expect("progress never panics while it is held");
        if self.terminal { state.bar.println(text) } else { eprintln!("{text}") }
    }

    fn interrupted(&self) -> bool {
        interrupted()
    }
}
