//! Progress for a person: one line on a terminal, else a log line now and then.

use std::fmt;
use std::time::Duration;

use dnode_protocol::Time;

use crate::process::console::Console;

/// Time between two updates of the line on a terminal: as fast as one can read.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
/// Time between two log lines: a day makes less than 10,000 of them.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How training goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgressLine {
    /// Where the swarm stands in the run, steps of the run.
    pub step: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Mean training loss of late, nats.
    pub loss: f64,
    /// Samples per second of late.
    pub samples_per_s: f64,
    /// Connected peers of the run.
    pub peers: usize,
    /// Largest clock lag of late, commits.
    pub staleness: u64,
    /// Bytes sent and received per second of late.
    pub bytes_per_s: f64,
}

impl fmt::Display for ProgressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.step.saturating_mul(100).checked_div(self.steps).unwrap_or(100);
        write!(
            f,
            "{percent}% step {}/{} · loss {} · {} samples/s · {} peer{} · lag {} · {}B/s",
            self.step,
            self.steps,
            Significant(self.loss),
            Scaled(self.samples_per_s),
            self.peers,
            if self.peers == 1 { "" } else { "s" },
            self.staleness,
            Scaled(self.bytes_per_s),
        )
    }
}

/// A number with three digits and a decimal prefix: `12.3k`; below 10 in thousandths: `0.059`.
pub(crate) struct Scaled(pub(crate) f64);

impl fmt::Display for Scaled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut prefix) = (self.0, "");
        for next in ["k", "M", "G", "T"] {
            // 999.5 would be shown as 1000.
            if value < 999.5 {
                break;
            }
            (value, prefix) = (value / 1000.0, next);
        }
        if prefix.is_empty() && value < 9.995 {
            return Significant(thousandths(value)).fmt(f);
        }
        let decimals = if prefix.is_empty() || value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        };
        write!(f, "{value:.decimals$}{prefix}")
    }
}

/// A number with five significant digits, and with all digits of its whole part: `2.4918`, `0.001`.
#[derive(Clone, Copy, Debug)]
pub struct Significant(pub f64);

impl fmt::Display for Significant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        if !value.is_finite() || value == 0.0 {
            return write!(f, "{value}");
        }
        // The place of the first digit after rounding: 9.99996 is shown as 10.
        let rounded = format!("{value:.4e}");
        let (digits, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
        let place: i32 = exponent.parse().unwrap_or(0);
        if !(-4..16).contains(&place) {
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            return write!(f, "{digits}e{place}");
        }
        let decimals = usize::try_from(4 - place).unwrap_or(0);
        let text = format!("{value:.decimals$}");
        let short = match text.split_once('.') {
            Some(_) => text.trim_end_matches('0').trim_end_matches('.'),
            None => &text,
        };
        f.write_str(short)
    }
}

/// Shows progress, but not too often.
#[derive(Debug)]
pub struct Reporter {
    console: Console,
    live: bool,
    next: Time,
}

impl Reporter {
    /// A reporter for `console`. `live`: draw the progress line if `console` is a terminal.
    #[must_use]
    pub fn new(console: Console, live: bool) -> Self {
        let live = live && console.is_terminal();
        Self { console, live, next: Time::ZERO }
    }

    /// Whether [`Reporter::report`] would show anything at `now`.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Shows `progress` if it is time.
    pub fn report(&mut self, progress: &ProgressLine, now: Time) {
        if !self.is_due(now) {
            return;
        }
        if self.live {
            self.console.show(&progress.to_string());
            self.next = now + TERMINAL_EVERY;
        } else {
            tracing::info!(
                step = progress.step,
                steps = progress.steps,
                loss = progress.loss,
                samples_per_s = thousandths(progress.samples_per_s),
                peers = progress.peers,
                staleness = progress.staleness,
                bytes_per_s = progress.bytes_per_s.round(),
                "training"
            );
            self.next = now + LOG_EVERY;
        }
    }
}

/// A rate in whole samples, or below 10 in thousandths: a large model's steps take minutes.
fn thousandths(rate: f64) -> f64 {
    if rate < 10.0 { (rate * 1000.0).round() / 1000.0 } else { rate.round() }
}

impl Drop for Reporter {
    /// Removes the line, so that what follows starts on a clean one.
    fn drop(&mut self) {
        if self.live {
            self.console.show("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::console::tests::Buffer;

    #[test]
    fn numbers_keep_three_digits() {
        for (number, want) in [
            (0.0, "0"),
            (0.0586, "0.059"),
            (7.4, "7.4"),
            (999.4, "999"),
            (999.9, "1.00k"),
            (1234.0, "1.23k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (1e6, "1.00M"),
            (5e15, "5000T"),
        ] {
            assert_eq!(Scaled(number).to_string(), want);
        }
    }

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        for (number, want) in [
            (2.491_838_159_561_157, "2.4918"),
            (42.812_345, "42.812"),
            (123_456.4, "123456"),
            (0.001, "0.001"),
            (-0.012_345_67, "-0.012346"),
            (0.000_123_456, "0.00012346"),
            (0.000_012_345_6, "1.2346e-5"),
            (9.999_96, "10"),
            (300.0, "300"),
            (1e20, "1e20"),
            (0.0, "0"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(Significant(number).to_string(), want);
        }
    }

    #[test]
    fn the_line_fits_a_usual_terminal() {
        let progress = ProgressLine {
            step: 1999,
            steps: 20_000,
            loss: 2.345_678,
            samples_per_s: 123_456.0,
            peers: 31,
            staleness: 4,
            bytes_per_s: 12_345_678.0,
        };
        let line = progress.to_string();
        assert_eq!(
            line,
            "9% step 1999/20000 · loss 2.3457 · 123k samples/s · 31 peers · lag 4 · 12.3MB/s"
        );
        assert!(line.chars().count() <= 80, "{}", line.chars().count());
    }

    #[test]
    fn updates_are_spaced_and_the_line_is_removed_at_the_end() {
        let buffer = Buffer::default();
        let console = Console::new(Box::new(buffer.clone()), true);
        let mut reporter = Reporter::new(console, true);
        let mut progress = ProgressLine { steps: 10, ..ProgressLine::default() };
        for (step, millis) in [(1, 0), (2, 100), (3, 199), (4, 200), (5, 399)] {
            progress.step = step;
            reporter.report(&progress, Time::from_millis(millis));
        }
        drop(reporter);
        let text = buffer.text();
        let shown: Vec<bool> =
            (1..=5).map(|step| text.contains(&format!("step {step}/10"))).collect();
        assert_eq!(shown, [true, false, false, true, false]);
        assert!(text.ends_with("\r\x1b[2K"), "{text:?}");
    }
}
