//! Shows progress of work that takes over a second: a bar on a terminal, a line now and then in a file or a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two lines, and before the first.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Counts steps of long work.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The name of a step, in the plural.
    unit: &'static str,
    start: Instant,
    /// The time of the bar or of the next line. `None` if the bar is shown.
    due: Cell<Option<Instant>>,
    is_terminal: bool,
    what: RefCell<String>,
    next: u64,
}

impl Progress {
    /// Creates a hidden bar of `steps` steps.
    pub(crate) fn new(steps: usize, unit: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        let template = format!("{{bar:24}} {{pos}} of {{len}} {unit}, {{eta}} left  {{wide_msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        let (start, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        let due = Cell::new(Some(start + if is_terminal { Duration::from_secs(1) } else { BETWEEN_LINES }));
        Self { bar, unit, start, due, is_terminal, what: RefCell::default(), next: 0 }
    }

    /// Creates a visible bar, for work that surely takes longer.
    pub(crate) fn shown(steps: usize, unit: &'static str) -> Self {
        let progress = Self::new(steps, unit);
        if progress.is_terminal {
            progress.show();
        }
        progress
    }

    fn show(&self) {
        self.due.set(None);
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
    }

    /// Ends the step before, and names the next one, which counts for `steps`.
    pub(crate) fn doing(&mut self, what: &str, steps: usize) {
        let done = std::mem::replace(&mut self.next, steps as u64);
        self.about(what);
        self.advance(done);
    }

    /// Names the work that the next steps belong to.
    pub(crate) fn about(&self, what: &str) {
        what.clone_into(&mut self.what.borrow_mut());
        self.bar.set_message(what.to_owned());
    }

    /// Ends a step.
    #[cfg(feature = "models")]
    pub(crate) fn step(&self) {
        self.advance(1);
    }

    fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        if self.due.get().is_none_or(|due| Instant::now() < due) {
            return;
        }
        if self.is_terminal {
            return self.show();
        }
        self.due.set(Some(Instant::now() + BETWEEN_LINES));
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let line = line(done, all, self.unit, self.start.elapsed(), &self.what.borrow());
        anstream::eprintln!("{line}");
    }
}

/// Says how much is done, and how long the rest takes at the same pace.
fn line(done: u64, all: u64, unit: &str, elapsed: Duration, what: &str) -> String {
    let left = elapsed.as_secs_f64() * all.saturating_sub(done) as f64 / done.max(1) as f64;
    let left = match left.ceil() as u64 {
        _ if done == 0 => String::new(),
        seconds @ ..120 => format!(", about {seconds} s left"),
        seconds @ ..7200 => format!(", about {} min left", seconds.div_ceil(60)),
        seconds => format!(", about {} h left", seconds.div_ceil(3600)),
    };
    format!("progress: {done} of {all} {unit}{left}: {what}")
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_is_left() {
        let of = |done, seconds| line(done, 100, "layers", Duration::from_secs(seconds), "f16 cache");
        assert_eq!(of(0, 9), "progress: 0 of 100 layers: f16 cache");
        assert_eq!(of(50, 9), "progress: 50 of 100 layers, about 9 s left: f16 cache");
        assert_eq!(of(10, 60), "progress: 10 of 100 layers, about 9 min left: f16 cache");
        assert_eq!(of(1, 600), "progress: 1 of 100 layers, about 17 h left: f16 cache");
        assert_eq!(of(100, 600), "progress: 100 of 100 layers, about 0 s left: f16 cache");
    }
}
