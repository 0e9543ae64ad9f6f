//! A progress bar for what takes over a second, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Counts steps of something that may take long.
pub(crate) struct Progress {
    bar: ProgressBar,
    hidden_until: Option<Instant>,
    next: u64,
}

impl Progress {
    /// A hidden bar of `steps` steps.
    pub(crate) fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}, {eta} left  {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, hidden_until: Some(Instant::now() + Duration::from_secs(1)), next: 0 }
    }

    /// A bar for what surely takes longer.
    pub(crate) fn shown(steps: usize) -> Self {
        let mut progress = Self::new(steps);
        progress.bar.set_draw_target(ProgressDrawTarget::stderr());
        progress.hidden_until = None;
        progress
    }

    /// Ends the step before, and says what the next one is and how many it counts for.
    pub(crate) fn doing(&mut self, what: &str, steps: usize) {
        self.bar.inc(std::mem::replace(&mut self.next, steps as u64));
        if self.hidden_until.is_some_and(|time| Instant::now() >= time) {
            self.hidden_until = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(what.to_owned());
    }

    /// Says what the steps from now on belong to.
    #[cfg(feature = "models")]
    pub(crate) fn about(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Ends a step.
    #[cfg(feature = "models")]
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
