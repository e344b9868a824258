//! Keeps a queue that is the flow's own short, for the sake of everything else on the link.
//!
//! CUBIC fills whatever queue the bottleneck has: on a home line of 20 Mbit/s that is a tenth of a
//! second and more for every message beside it. Here, once a queue stands longer than [`Patience`]
//! allows, the window is cut to what the path carries without it. Two things may follow: the queue
//! drains, so it was this flow's own, and the window grows from there as after a congestion event;
//! or it stays, so others hold it, and who cut would only make room for them: the window is
//! restored, and the flow is plain CUBIC, which tries again when the queue overflows. Several flows
//! of this kind can drain a queue only together, so they try when others seem to.
//!
//! Idea: the two modes of Copa (Arun and Balakrishnan, "Copa: Practical Delay-Based Congestion
//! Control for the Internet", NSDI 2018, §3), told apart by whether the queue empties.

use std::time::Duration;

/// A queue that may stand: this long, or this part of the path, whichever is longer.
const QUEUE: Duration = Duration::from_millis(25);
const QUEUE_DIVISOR: u32 = 4;
/// Part of the queue that a cut leaves, so that the link does not run dry.
const LEFT: f64 = 1.0 / 8.0;
/// A cut has worked when no more than this part of the queue is left: others who hold as much of it
/// as this flow does leave more. Not all of it goes, because who came late takes a part of the
/// queue for the path.
const DRAINED_DIVISOR: u32 = 2;
/// The same after a loss, to which others give way as well.
const DRAINED_DIVISOR_LOST: u32 = 4;
/// Rounds until then: one for packets sent before the cut, two for others of this kind to notice
/// and to cut as well, and two to drain.
const ROUNDS: u32 = 5;
/// Time until the next attempt after one that failed, doubled for each that failed before: what an
/// attempt costs beside others is a few rounds of this.
const AGAIN: Duration = Duration::from_secs(3);
const DOUBLINGS_MAX: u32 = 3;
/// A queue that shrinks by this part within a round or two may be another's attempt.
const SHRUNK_DIVISOR: u32 = 8;

/// What is to be done with the window at the begin of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing.
    Keep,
    /// Cut it to this part.
    Cut(f64),
    /// Undo the cut.
    Restore,
}

/// Whether a cut is being tried, and when one may be.
#[derive(Clone, Debug, Default)]
pub(super) struct Patience {
    /// What must be left of the queue for the cut to have worked, and rounds since.
    cut: Option<(Duration, u32)>,
    /// Attempts that failed since one that worked.
    failures: u32,
    /// No attempt before.
    not_before: Duration,
    /// The queue in the last two rounds.
    queues: [Duration; 2],
}

impl Patience {
    /// A round ended. `least`: of the path; `last`: least round trip of the round.
    pub(super) fn round(&mut self, now: Duration, least: Duration, last: Duration) -> Verdict {
        let allowed = allowed(least);
        let queue = last.saturating_sub(least);
        let [first, second] = self.queues;
        self.queues = [second, queue];
        match &mut self.cut {
            None => {
                // One round may be a machine that was busy with something else.
                let stands = queue.min(second) > allowed;
                let before = first.max(second);
                let shrinks = queue > allowed && queue < before - before / SHRUNK_DIVISOR;
                let wanted = if self.failures == 0 { stands } else { shrinks };
                if !wanted || now < self.not_before {
                    return Verdict::Keep;
                }
                self.cut = Some((queue / DRAINED_DIVISOR, 0));
                Verdict::Cut(part(least, queue))
            }
            Some((drained, _)) if queue <= *drained => {
                (self.cut, self.failures) = (None, 0);
                Verdict::Keep
            }
            Some((_, rounds)) => {
                *rounds += 1;
                if *rounds < ROUNDS {
                    return Verdict::Keep;
                }
                self.cut = None;
                self.not_before = now + AGAIN * (1 << self.failures);
                self.failures = (self.failures + 1).min(DOUBLINGS_MAX);
                Verdict::Restore
            }
        }
    }

    /// The window shrinks because of a loss; that the queue shrinks then says nothing. Whether it
    /// is a good moment for an attempt, with the part that it would leave: all flows that lose
    /// packets of a full queue learn of it at the same time.
    pub(super) fn lost(&mut self, now: Duration, least: Duration, last: Duration) -> Option<f64> {
        self.queues = [Duration::ZERO; 2];
        let queue = last.saturating_sub(least);
        let tried = self.cut.take().is_some();
        if tried || now < self.not_before || queue <= allowed(least) {
            return None;
        }
        self.cut = Some((queue / DRAINED_DIVISOR_LOST, 0));
        Some(part(least, queue))
    }
}

/// The part of the window that leaves little of the queue.
fn part(least: Duration, queue: Duration) -> f64 {
    (least.as_secs_f64() + LEFT * queue.as_secs_f64()) / (least + queue).as_secs_f64()
}

/// The queue that may stand on a path.
fn allowed(least: Duration) -> Duration {
    QUEUE.max(least / QUEUE_DIVISOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(20);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A queue of 80 ms for two rounds, after which the window is cut.
    fn stand(patience: &mut Patience) {
        let verdicts = [(); 2].map(|()| patience.round(ms(0), LEAST, ms(100)));
        assert_eq!(verdicts, [Verdict::Keep, Verdict::Cut(0.3)]);
    }

    #[test]
    fn a_short_queue_may_stand() {
        let mut patience = Patience::default();
        for _ in 0..9 {
            assert_eq!(patience.round(ms(0), LEAST, ms(45)), Verdict::Keep);
        }
        let (far, mut patience) = (ms(200), Patience::default());
        for _ in 0..9 {
            assert_eq!(patience.round(ms(0), far, ms(250)), Verdict::Keep, "a quarter of the path");
        }
    }

    #[test]
    fn a_long_one_is_cut_to_the_path_and_a_drained_one_stays_cut() {
        let mut patience = Patience::default();
        stand(&mut patience);
        assert_eq!(patience.round(ms(100), LEAST, ms(100)), Verdict::Keep);
        assert_eq!(patience.round(ms(130), LEAST, ms(30)), Verdict::Keep);
        stand(&mut patience);
    }

    /// Five rounds, 400 ms, in which the queue stays.
    fn fail(patience: &mut Patience) {
        let verdicts = [80, 160, 240, 320, 400].map(|at| patience.round(ms(at), LEAST, ms(100)));
        assert_eq!(verdicts[..4], [Verdict::Keep; 4]);
        assert_eq!(verdicts[4], Verdict::Restore);
    }

    fn failed() -> Patience {
        let mut patience = Patience::default();
        stand(&mut patience);
        fail(&mut patience);
        patience
    }

    #[test]
    fn one_long_round_is_no_queue() {
        let mut patience = Patience::default();
        for last in [100, 21, 100, 30, 100] {
            assert_eq!(patience.round(ms(0), LEAST, ms(last)), Verdict::Keep);
        }
    }

    #[test]
    fn a_queue_that_others_hold_gives_the_window_back_until_it_overflows() {
        let mut patience = failed();
        assert_eq!(patience.lost(ms(3_000), LEAST, ms(100)), None, "too early");
        assert_eq!(patience.round(ms(60_000), LEAST, ms(100)), Verdict::Keep);
        assert_eq!(patience.lost(ms(60_100), LEAST, ms(40)), None, "a short queue");
        assert_eq!(patience.lost(ms(60_200), LEAST, ms(100)), Some(0.3));
    }

    #[test]
    fn a_shrinking_queue_is_joined() {
        let mut patience = failed();
        assert_eq!(patience.round(ms(3_000), LEAST, ms(80)), Verdict::Keep, "too early");
        assert_eq!(patience.round(ms(6_000), LEAST, ms(100)), Verdict::Keep, "it grows");
        assert_eq!(patience.round(ms(6_080), LEAST, ms(100)), Verdict::Keep, "it stays");
        assert!(matches!(patience.round(ms(6_160), LEAST, ms(80)), Verdict::Cut(_)));
    }

    #[test]
    fn a_queue_that_shrinks_after_a_loss_is_not_joined() {
        let mut patience = failed();
        patience.round(ms(3_000), LEAST, ms(100));
        patience.lost(ms(3_100), LEAST, ms(100));
        assert_eq!(patience.round(ms(3_500), LEAST, ms(80)), Verdict::Keep);
    }

    #[test]
    fn after_a_loss_there_is_nothing_to_give_back() {
        let mut patience = Patience::default();
        stand(&mut patience);
        assert_eq!(patience.lost(ms(50), LEAST, ms(100)), None);
        assert_eq!(patience.round(ms(100), LEAST, ms(30)), Verdict::Keep);
    }
}
