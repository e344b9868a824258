//! Says how often this peer mixes, and why.

use std::time::{Duration, Instant};

use dnode_gossip::IntervalCause;

use super::Telemetry;

/// Shortest time between two intervals in the log and the metrics file: with steps shorter than a millisecond
/// it changes many times a second.
const TOLD_EVERY: Duration = Duration::from_secs(10);

impl Telemetry {
    /// The core has chosen another interval between rounds; more steps may be `wanted` than a commit
    /// has.
    pub(super) fn interval(&mut self, steps: u64, wanted: u64, cause: IntervalCause) {
        let text = sentence(steps, wanted, cause);
        let now = Instant::now();
        if self.interval_told.is_some_and(|told| now.duration_since(told) < TOLD_EVERY) {
            return tracing::debug!(steps, "{text}");
        }
        self.interval_told = Some(now);
        tracing::info!(steps, "{text}");
        self.event("interval", &text);
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
