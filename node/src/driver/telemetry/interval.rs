//! Says how often this peer mixes, and why.

use std::time::{Duration, Instant};

use dnode_gossip::IntervalCause;

use super::Telemetry;

/// Shortest time between two intervals in the log and the metrics file: with steps shorter than a millisecond
/// it changes many times a second.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The interval that is to be told, and when one was.
#[derive(Debug, Default)]
pub(super) struct IntervalNews {
    untold: Option<(u64, String)>,
    told: Option<Instant>,
}

impl IntervalNews {
    /// The newest interval that is not told yet, if it may be told now.
    fn take(&mut self, now: Instant) -> Option<(u64, String)> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD_EVERY) {
            return None;
        }
        let news = self.untold.take()?;
        self.told = Some(now);
        Some(news)
    }
}

impl Telemetry {
    /// The core has chosen another interval between rounds; more steps may be `wanted` than a commit
    /// has.
    pub(super) fn interval(&mut self, steps: u64, wanted: u64, cause: IntervalCause) {
        let text = sentence(steps, wanted, cause);
        self.interval.untold = Some((steps, text));
        self.tell_interval(Instant::now());
        if let Some((steps, text)) = &self.interval.untold {
            tracing::debug!(steps, "{text}");
        }
    }

    /// Tells the newest interval, if it may be told now.
    pub(super) fn tell_interval(&mut self, now: Instant) {
        if let Some((steps, text)) = self.interval.take(now) {
            tracing::info!(steps, "{text}");
            self.event("interval", &text);
        }
    }
}

fn sentence(steps: u64, wanted: u64, cause: IntervalCause) -> String {
    let often = match steps {
        1 => "mixes after every local step".to_owned(),
        _ => format!("mixes after every {steps} local steps"),
    };
    let why = match cause {
        IntervalCause::EveryStep => "the link carries that".to_owned(),
        IntervalCause::Link { busy } => {
            format!("the exchanges of a round keep the link busy for {busy:.1?}")
        }
        IntervalCause::Budget { round_bytes } => {
            format!("a round sends {round_bytes} bytes, and gossip.budget bounds those of a step")
        }
    };
    let more = if wanted > steps {
        format!(
            "; {wanted} steps would keep to gossip.budget, and a commit has {steps}: raise \
             gossip.local_steps, or allow a coarser gossip.codecs"
        )
    } else {
        String::new()
    };
    format!("{often}: {why}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_interval_is_told_in_time() {
        let (mut news, begun) = (IntervalNews::default(), Instant::now());
        assert_eq!(news.take(begun), None);
        for steps in 1..=3 {
            news.untold = Some((steps, steps.to_string()));
            let told = news.take(begun);
            assert_eq!(told.map(|it| it.0), (steps == 1).then_some(1), "{steps}");
        }
        assert_eq!(news.take(begun + TOLD_EVERY / 2), None);
        assert_eq!(news.take(begun + TOLD_EVERY), Some((3, "3".to_owned())));
        assert_eq!(news.take(begun + TOLD_EVERY * 2), None, "it was told");
    }

    #[test]
    fn the_sentence_says_how_often_and_why_and_what_to_do_when_that_is_too_often() {
        assert_eq!(
            sentence(1, 1, IntervalCause::EveryStep),
            "mixes after every local step: the link carries that"
        );
        let busy = Duration::from_micros(1_234_567);
        assert_eq!(
            sentence(4, 4, IntervalCause::Link { busy }),
            "mixes after every 4 local steps: the exchanges of a round keep the link busy for 1.2s"
        );
        let text = sentence(25, 40, IntervalCause::Budget { round_bytes: 1000 });
        assert!(text.contains("40 steps would keep to gossip.budget"), "{text}");
    }
}
