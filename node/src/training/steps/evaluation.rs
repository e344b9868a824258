//! Evaluations on held-out data: alone, or shared out among ranks whose weights are equal.

use std::time::{Duration, Instant};

use dnode_collective::Place;
use dnode_trainer::{Evaluation, Replica, Score};

use super::Training;
use super::context::Context;
use super::cursor::Advance;
use super::end::End;
use super::rack::RackMember;
use super::synchronous::Ranks;
use crate::training::{Commits, Report};

/// Numbers of one rank's part: loss, right answers, all answers, and whether it is missing. Each count
/// is two numbers.
const PART: usize = 6;
/// A count is sent as the multiple of this and the rest, so that sums over all ranks are exact.
const HALF: u64 = 1 << 16;

/// Evaluations that take this long are made more seldom than was asked for, so that training has the rest.
const LONG: Duration = Duration::from_secs(2);
/// Training between two such evaluations, times what one takes: a tenth of the time is theirs.
const TRAINING_BETWEEN: u32 = 9;

/// When evaluations are due.
#[derive(Debug)]
pub(super) struct Evaluations {
    /// Steps of the run between two; 0 is only at the end.
    every: u64,
    due: bool,
    /// Whether the steps between two are over, while this peer may be resting from a long one. Ranks at equal
    /// steps find the same.
    passed: bool,
    /// When the next one may be due.
    not_before: Option<Instant>,
}

impl Evaluations {
    pub(super) const fn new(every: u64) -> Self {
        Self { every, due: false, passed: false, not_before: None }
    }

    pub(super) const fn every(&self) -> u64 {
        self.every
    }

    /// Ranks that evaluate together have agreed on the steps between two.
    pub(super) const fn set_every(&mut self, every: u64) {
        self.every = every;
    }

    /// A local step was taken, until `now`.
    pub(super) fn stepped(&mut self, advance: Advance, now: Instant) {
        let rested = self.not_before.is_none_or(|time| now >= time);
        let passed = advance.is_due(self.every);
        self.passed |= passed;
        self.due |= rested && passed;
    }

    /// Whether the steps between two are over, since this was asked last.
    pub(super) const fn take_passed(&mut self) -> bool {
        std::mem::replace(&mut self.passed, false)
    }

    /// One was made.
    pub(super) fn made(&mut self, began: Instant, now: Instant) {
        let took = now - began;
        self.due = false;
        self.not_before = (took >= LONG).then(|| now + took * TRAINING_BETWEEN);
    }

    pub(super) const fn is_due(&self) -> bool {
        self.due
    }

    /// Sets whether an evaluation is due: ranks have agreed on it, or the run ends.
    pub(super) const fn set_due(&mut self, due: bool) {
        self.due = due;
    }
}

impl Training {
    /// Evaluates if that is due, at the end of a round only: there live and replica weights are equal.
    pub(super) fn evaluate_when_due(&mut self) -> Result<(), End> {
        if self.commits != Commits::Never && self.context.cursor.since_commit() > 0 {
            return Ok(());
        }
        self.ask_ranks()?;
        if !self.evaluations.is_due() {
            return Ok(());
        }
        let began = Instant::now();
        let expected = self.context.pace.evaluation();
        let work =
            |this: &mut Self| evaluate(&mut this.context, &mut this.rack, this.ranks.as_mut());
        let Some(evaluation) = self.in_trainer(expected, work)? else { return Ok(()) };
        let now = Instant::now();
        self.evaluations.made(began, now);
        self.context.pace.evaluated((now - began).as_secs_f64());
        let position = self.context.cursor.position();
        self.context.queues.tell(Report::Evaluated { position, evaluation })
    }

    /// Asks the ranks of a run without commits whether an evaluation is due at any of them. They ask wherever
    /// the steps between two are over: each rests by its own clock, and an evaluation needs all of them.
    fn ask_ranks(&mut self) -> Result<(), End> {
        let Some(ranks) = self.ranks.as_mut().filter(|_| self.commits == Commits::Never) else {
            return Ok(());
        };
        if self.evaluations.take_passed() {
            let due = ranks.any(self.evaluations.is_due(), &mut self.context)?;
            self.evaluations.set_due(due);
        }
        Ok(())
    }
}

/// Evaluates the replica, alone or with ranks whose weights are equal and that evaluate now, too.
/// `None` when a rank of the rack was lost meanwhile.
fn evaluate(
    context: &mut Context,
    rack: &mut RackMember,
    ranks: Option<&mut Ranks>,
) -> Result<Option<Evaluation>, End> {
    let equal =
        if rack.is_joined() { rack.place() } else { ranks.as_ref().and_then(|r| r.equal()) };
    let Some(place) = equal else { return Ok(Some(context.replica.evaluate()?)) };
    let began = Instant::now();
    let mut part = measure(&mut context.replica, place);
    context.pace.evaluated(began.elapsed().as_secs_f64());
    let wait = context.queues.begin_rank_wait();
    let reduced = match ranks {
        Some(ranks) if !rack.is_joined() => ranks.add_up(&mut part, context).map(|()| true),
        _ => rack.add_up(&mut part, context),
    };
    context.pace.waited(context.queues.end_rank_wait(wait));
    if !reduced? {
        return Ok(None);
    }
    Ok(Some(match whole(&part) {
        Some(evaluation) => evaluation,
        None => context.replica.evaluate()?,
    }))
}

/// This rank's part of an evaluation, to be added up over all ranks.
fn measure(replica: &mut Replica, Place { rank, size }: Place) -> [f32; PART] {
    // If a part fails, all ranks learn that it is missing. Then each measures everything, and says why
    // it cannot.
    let score = replica.evaluate_part(rank, size).ok().flatten();
    let missing = score.is_none();
    let Score { loss, correct, count } = score.unwrap_or_default();
    let halves = |count: u64| [(count / HALF) as f32, (count % HALF) as f32];
    let ([correct_high, correct_low], [high, low]) = (halves(correct), halves(count));
    [loss as f32, correct_high, correct_low, high, low, if missing { 1.0 } else { 0.0 }]
}

/// The evaluation from the sums of all parts; `None` when one is missing, or nothing was measured.
fn whole(sums: &[f32; PART]) -> Option<Evaluation> {
    let [loss, correct_high, correct_low, high, low, missing] = *sums;
    let count = |high: f32, low: f32| high.round() as u64 * HALF + low.round() as u64;
    let (correct, count) = (count(correct_high, correct_low), count(high, low));
    let score = Score { loss: f64::from(loss), correct, count };
    (missing < 0.5 && count > 0).then(|| score.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_evaluations_leave_nine_tenths_of_the_time_to_training() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut evaluations = Evaluations::new(10);
        for (steps, seconds, due) in [(9, 1, false), (10, 2, true), (11, 3, true)] {
            evaluations.stepped(Advance::new(steps - 1, steps), at(seconds));
            assert_eq!(evaluations.is_due(), due, "{steps}");
        }
        evaluations.made(at(3), at(4));
        evaluations.stepped(Advance::new(19, 20), at(4));
        assert!(evaluations.is_due(), "it took a second");
        evaluations.made(at(4), at(14));
        for (steps, seconds, due) in [(30, 15, false), (40, 103, false), (50, 104, true)] {
            evaluations.stepped(Advance::new(steps - 1, steps), at(seconds));
            assert_eq!(evaluations.is_due(), due, "{steps}");
        }
    }

    #[test]
    fn a_rank_that_rests_from_a_long_one_asks_the_others_all_the_same() {
        let began = Instant::now();
        let mut evaluations = Evaluations::new(10);
        evaluations.made(began, began + Duration::from_secs(10));
        for (steps, passed) in [(19, false), (20, true), (21, false), (30, true)] {
            evaluations.stepped(Advance::new(steps - 1, steps), began + Duration::from_secs(11));
            assert_eq!((evaluations.take_passed(), evaluations.is_due()), (passed, false));
        }
    }

    #[test]
    fn parts_add_up_to_the_whole_and_a_missing_one_spoils_it() {
        let sum = |parts: &[[f32; PART]]| {
            let mut sums = [0.0; PART];
            parts.iter().for_each(|part| sums.iter_mut().zip(part).for_each(|(s, p)| *s += p));
            sums
        };
        let parts = [[1.5, 0.0, 2.0, 0.0, 3.0, 0.0], [0.5, 1.0, 0.0, 1.0, 1.0, 0.0]];
        let evaluation = whole(&sum(&parts)).unwrap();
        assert_eq!(evaluation.count, 3 + 65_537);
        assert!((evaluation.loss * 65_540.0 - 2.0).abs() < 1e-9, "{evaluation:?}");
        assert!((evaluation.accuracy * 65_540.0 - 65_538.0).abs() < 1e-6, "{evaluation:?}");
        let missing = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        assert_eq!(whole(&sum(&[parts[0], missing])), None);
        assert_eq!(whole(&[0.0; PART]), None);
    }
}
