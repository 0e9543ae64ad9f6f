//! Shows the progress of long work: a bar on a terminal, a line every five seconds in a file or a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two lines, and before the first.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Counts the steps of long work: [`about`](Self::about) says what begins, [`step`](Self::step) that steps are done.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The name of a step, in the plural.
    unit: &'static str,
    /// When the next line is due; `None` on a terminal, which shows the bar.
    next_line: Option<Cell<Instant>>,
}

impl Progress {
    pub(crate) fn new(steps: usize, unit: &'static str) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let template = format!("{{bar:24}} {{pos}} of {{len}} {unit}, {{eta}} left  {{wide_msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        let next_line = (!is_terminal).then(|| Cell::new(Instant::now() + BETWEEN_LINES));
        Self { bar, unit, next_line }
    }

    /// Names the work that the next steps belong to.
    pub(crate) fn about(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Counts steps that are done.
    pub(crate) fn step(&self, steps: usize) {
        self.bar.inc(steps as u64);
        let Some(due) = self.next_line.as_ref().filter(|due| Instant::now() >= due.get()) else { return };
        due.set(Instant::now() + BETWEEN_LINES);
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let line = line(done, all, self.unit, self.bar.elapsed(), &self.bar.message());
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
