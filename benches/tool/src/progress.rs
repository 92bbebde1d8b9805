//! The progress of a size that runs for a duration, as a bar on standard error: without it `-D 60` looks dead. Nothing
//! is drawn, and no thread started, where standard error is no terminal.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::options::Settings;
use crate::workload::{format_bytes, Limit};

/// Rarely enough to leave the CPUs to the measurement.
const INTERVAL: Duration = Duration::from_millis(250);
const STEPS: u64 = 1_000;

/// A bar that follows the clock until it is dropped.
#[derive(Debug)]
pub struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// Starts the bar of a size, if there is a duration to show and a terminal to show it on.
    pub fn start(settings: &Settings, warm_up: Option<Limit>, bytes: usize) -> Progress {
        match seconds(settings.limit, warm_up) {
            Some(seconds) if io::stderr().is_terminal() => {
                Progress::draw(seconds, format_bytes(bytes), ProgressDrawTarget::stderr())
            }
            _ => Progress(None),
        }
    }

    fn draw(seconds: f64, what: String, target: ProgressDrawTarget) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(STEPS), target);
        let style = ProgressStyle::with_template(" {msg:>8} [{bar:40}] {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what);
        let (sender, over) = channel();
        let follow = move || {
            let start = Instant::now();
            while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                bar.set_position(position(start.elapsed().as_secs_f64(), seconds));
            }
            bar.finish_and_clear();
        };
        Progress(Some((sender, thread::spawn(follow))))
    }
}

impl Drop for Progress {
    /// Returns when the bar is gone: the row takes its line.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// Returns how long a size takes, if it runs for a duration.
fn seconds(limit: Limit, warm_up: Option<Limit>) -> Option<f64> {
    let Limit::Seconds(counted) = limit else { return None };
    match warm_up {
        Some(Limit::Seconds(cold)) => Some(counted + cold),
        _ => Some(counted),
    }
}

/// The bar's place; a run that takes longer than it should stays at the end.
fn position(elapsed: f64, seconds: f64) -> u64 {
    (elapsed / seconds * STEPS as f64).min(STEPS as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_at_the_end_and_stays_so() {
        assert_eq!([0.0, 5.0, 10.0, 11.0].map(|elapsed| position(elapsed, 10.0)), [0, 500, 1_000, 1_000]);
    }

    #[test]
    fn only_durations_have_a_bar_and_the_warm_up_belongs_to_it() {
        assert_eq!(seconds(Limit::Transfers(5), Some(Limit::Seconds(1.0))), None);
        assert_eq!(seconds(Limit::Seconds(5.0), Some(Limit::Seconds(1.0))), Some(6.0));
        assert_eq!(seconds(Limit::Seconds(5.0), Some(Limit::Transfers(100))), Some(5.0));
        assert_eq!(seconds(Limit::Seconds(5.0), None), Some(5.0));
    }

    #[test]
    fn the_bar_appears_and_is_gone_afterwards() {
        let terminal = indicatif::InMemoryTerm::new(4, 80);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let progress = Progress::draw(0.001, "64 KiB".to_owned(), target);
        while !terminal.contents().contains("64 KiB [=====") {
            thread::yield_now();
        }
        drop(progress);
        assert_eq!(terminal.contents(), "");
    }
}
