//! HyStart++: leaves slow start when the round trip grows, before the queue overflows.
//!
//! Source: RFC 9406; section numbers below are its own.

use std::time::Duration;

use super::evidence::Rounds;

/// Packets of a round before its least round trip counts, `N_RTT_SAMPLE` (§4.3).
const SAMPLES_MIN: u32 = 8;
/// Growth of the round trip that counts: an eighth, between these, `MIN_RTT_THRESH` and
/// `MAX_RTT_THRESH` (§4.3).
const GROWTH: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
const GROWTH_DIVISOR: u32 = 8;
/// Part of slow start's growth while it is in doubt, `CSS_GROWTH_DIVISOR` = 4 (§4.3).
const DOUBTFUL_SHARE: f64 = 0.25;
/// Rounds of doubt, `CSS_ROUNDS` (§4.3).
const DOUBTFUL_ROUNDS: u32 = 5;

/// Slow start is in doubt since the round trip was this long.
#[derive(Clone, Debug)]
struct Doubt {
    baseline: Duration,
    rounds: u32,
}

/// Where slow start is.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    doubt: Option<Doubt>,
}

impl SlowStart {
    /// Part of acknowledged bytes that the window grows by; `None` when slow start is to end.
    /// `begins`: the packet begins a round.
    pub(super) fn acked(&mut self, rounds: &Rounds, begins: bool) -> Option<f64> {
        if begins && let Some(doubt) = &mut self.doubt {
            doubt.rounds += 1;
            if doubt.rounds >= DOUBTFUL_ROUNDS {
                self.doubt = None;
                return None;
            }
        }
        let (Some(least), Some(last)) = (rounds.least, rounds.last) else {
            return Some(1.0);
        };
        if rounds.samples >= SAMPLES_MIN {
            let growth = (last / GROWTH_DIVISOR).clamp(GROWTH.0, GROWTH.1);
            match &self.doubt {
                // The growth was a passing one.
                Some(doubt) if least < doubt.baseline => self.doubt = None,
                None if least >= last + growth => {
                    self.doubt = Some(Doubt { baseline: least, rounds: 0 });
                }
                Some(_) | None => {}
            }
        }
        Some(if self.doubt.is_some() { DOUBTFUL_SHARE } else { 1.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of `packets` packets with that round trip; the last answer.
    fn round(
        slow: &mut SlowStart,
        rounds: &mut Rounds,
        now: &mut Duration,
        rtt: u64,
    ) -> Option<f64> {
        let sent = *now;
        *now += Duration::from_millis(rtt);
        let mut share = Some(0.0);
        for _ in 0..20 {
            let begins = rounds.acked(*now, sent);
            share = slow.acked(rounds, begins);
            if share.is_none() {
                break;
            }
        }
        share
    }

    #[test]
    fn a_longer_round_trip_slows_and_then_ends_it() {
        let (mut slow, mut rounds, mut now) = Default::default();
        let shares: Vec<_> = [50, 50, 57, 57, 57, 57, 57, 57]
            .into_iter()
            .map(|rtt| round(&mut slow, &mut rounds, &mut now, rtt))
            .collect();
        let doubtful = Some(DOUBTFUL_SHARE);
        let mut want = vec![Some(1.0), Some(1.0)];
        want.extend([doubtful; 5]);
        want.push(None);
        assert_eq!(shares, want);
    }

    #[test]
    fn a_passing_delay_does_not_end_it() {
        let (mut slow, mut rounds, mut now) = Default::default();
        for rtt in [50, 60, 50, 50, 50, 50, 50, 50, 50] {
            assert!(round(&mut slow, &mut rounds, &mut now, rtt).is_some());
        }
        assert_eq!(round(&mut slow, &mut rounds, &mut now, 50), Some(1.0));
    }
}
