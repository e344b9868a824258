//! What acknowledgements and losses say about the path: is a queue building, are losses many?

use std::time::Duration;

/// A queue counts as building when the least round trip of a whole round exceeds the least ever
/// by this part of it, and by [`QUEUE_SLACK`]. The least of many packets is free of jitter, so
/// little suffices; the smaller it is, the shorter the queues that are shared fairly.
const QUEUE_PART: f64 = 1.0 / 32.0;
/// What schedulers and radio links add to a whole round (guess), at most [`SLACK_PART`] of the path.
const QUEUE_SLACK: Duration = Duration::from_millis(2);
/// On a short path less counts: there a queue is short as well.
const SLACK_PART: f64 = 0.25;
/// Where machines are busy, rounds are long without a queue. A loss of a full queue comes in one of
/// the longest rounds: it must be longer than the least by this part of what the longest one was.
const MOST_DIVISOR: u32 = 2;
/// What a round leaves of the memory of the longest one: half is gone after 44.
const MOST_MEMORY: f64 = 63.0 / 64.0;
/// Losses beyond this part of the packets are congestion whatever the delay says: a queue too short
/// to be seen. Twice what radio and long-distance links lose at random.
const LOSS_PART: f64 = 0.02;
/// Packets that may be lost beyond [`LOSS_PART`]: with few packets, one loss is a large part.
const LOSS_ALLOWANCE: f64 = 4.0;
/// What a round leaves of earlier counts: eight rounds are remembered.
const MEMORY: f64 = 7.0 / 8.0;

/// Why a loss is answered, or that it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The path lost it at random.
    Chance,
    /// A queue is building.
    Queue,
    /// More is lost than chance explains.
    Rate,
}

/// One round trip after the other: a round ends when a packet sent after its begin arrives.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    began: Duration,
    /// Least round trip of this round, and of how many packets.
    pub(super) least: Option<Duration>,
    pub(super) samples: u32,
    /// Least round trip of the last round.
    pub(super) last: Option<Duration>,
}

impl Rounds {
    /// A packet arrived; whether it begins a round.
    pub(super) fn acked(&mut self, now: Duration, sent: Duration) -> bool {
        let ended = sent >= self.began && self.least.is_some();
        if ended {
            self.last = self.least.take();
            self.samples = 0;
            self.began = now;
        }
        let rtt = now.saturating_sub(sent);
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        self.samples = self.samples.saturating_add(1);
        ended
    }
}

/// What one connection has seen of its path.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    pub(super) rounds: Rounds,
    /// Least round trip since the connection began. It does not age: on a path that became longer
    /// every loss counts as congestion, which is CUBIC.
    least: Option<Duration>,
    /// By how much the longest of the last rounds exceeded that.
    most: Duration,
    /// Bytes of the last rounds.
    acked: f64,
    lost: f64,
}

impl Evidence {
    /// A packet of `bytes` arrived; whether it begins a round.
    pub(super) fn acked(&mut self, now: Duration, sent: Duration, bytes: f64) -> bool {
        let begins = self.rounds.acked(now, sent);
        if begins {
            self.acked *= MEMORY;
            self.lost *= MEMORY;
            let queue = self.round_trips().map(|(least, last)| last.saturating_sub(least));
            self.most = self.most.mul_f64(MOST_MEMORY).max(queue.unwrap_or_default());
        }
        self.acked += bytes;
        let rtt = now.saturating_sub(sent);
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        begins
    }

    /// `bytes` in packets of `segment` bytes were lost: why?
    pub(super) fn lost(&mut self, bytes: f64, segment: f64) -> Cause {
        self.lost += bytes;
        if self.queue_builds() {
            Cause::Queue
        } else if self.lost > LOSS_PART * (self.acked + self.lost) + LOSS_ALLOWANCE * segment {
            Cause::Rate
        } else {
            Cause::Chance
        }
    }

    /// An event was answered: what comes is judged anew.
    pub(super) const fn answered(&mut self) {
        self.acked = 0.0;
        self.lost = 0.0;
    }

    /// Least round trip since the connection began, and of the last round.
    pub(super) fn round_trips(&self) -> Option<(Duration, Duration)> {
        self.least.zip(self.rounds.last)
    }

    fn queue_builds(&self) -> bool {
        let Some((least, last)) = self.round_trips() else { return false };
        let slack = QUEUE_SLACK.min(least.mul_f64(SLACK_PART));
        let shortest = (least.mul_f64(QUEUE_PART) + slack).max(self.most / MOST_DIVISOR);
        last > least + shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: f64 = 1200.0;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Rounds of `packets` packets each, with that round trip.
    fn rounds(evidence: &mut Evidence, now: &mut Duration, rtt: Duration, packets: u32) {
        for _ in 0..4 {
            let sent = *now;
            *now += rtt;
            for _ in 0..packets {
                evidence.acked(*now, sent, SEGMENT);
            }
        }
    }

    #[test]
    fn one_loss_in_a_hundred_is_chance_and_three_are_not() {
        let mut evidence = Evidence::default();
        let mut now = ms(0);
        rounds(&mut evidence, &mut now, ms(50), 1000);
        for _ in 0..40 {
            assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
        }
        assert_eq!(evidence.lost(60.0 * SEGMENT, SEGMENT), Cause::Rate);
        evidence.answered();
        rounds(&mut evidence, &mut now, ms(50), 1000);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
    }

    #[test]
    fn few_packets_allow_four_losses() {
        let mut evidence = Evidence::default();
        let mut now = ms(0);
        rounds(&mut evidence, &mut now, ms(50), 10);
        let causes: Vec<_> = (0..5).map(|_| evidence.lost(SEGMENT, SEGMENT)).collect();
        assert_eq!(causes, [[Cause::Chance; 4].as_slice(), &[Cause::Rate]].concat());
    }

    #[test]
    fn a_round_trip_that_stays_longer_is_a_queue() {
        let mut evidence = Evidence::default();
        let mut now = ms(0);
        rounds(&mut evidence, &mut now, ms(100), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
        rounds(&mut evidence, &mut now, ms(105), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
        rounds(&mut evidence, &mut now, ms(106), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Queue);
        rounds(&mut evidence, &mut now, ms(100), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
    }

    #[test]
    fn where_rounds_vary_only_the_longest_are_a_queue() {
        let mut evidence = Evidence::default();
        let mut now = ms(0);
        rounds(&mut evidence, &mut now, ms(50), 100);
        rounds(&mut evidence, &mut now, ms(90), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Queue);
        rounds(&mut evidence, &mut now, ms(60), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
        for _ in 0..20 {
            rounds(&mut evidence, &mut now, ms(60), 100);
        }
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Queue, "long ago");
    }

    #[test]
    fn on_a_short_path_a_short_queue_counts() {
        let mut evidence = Evidence::default();
        let mut now = ms(0);
        rounds(&mut evidence, &mut now, ms(2), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
        rounds(&mut evidence, &mut now, ms(3), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Queue);
    }

    #[test]
    fn one_late_packet_in_a_round_is_jitter() {
        let mut evidence = Evidence::default();
        let mut now = ms(0);
        rounds(&mut evidence, &mut now, ms(20), 100);
        evidence.acked(now + ms(90), now, SEGMENT);
        rounds(&mut evidence, &mut now, ms(20), 100);
        assert_eq!(evidence.lost(SEGMENT, SEGMENT), Cause::Chance);
    }
}
