//! Evaluations on held-out data: alone, or shared out among ranks whose weights are equal.

use std::time::Instant;

use dnode_collective::{Place, Reduction};
use dnode_trainer::{Evaluation, Replica, Score};

use super::rack::Rack;
use super::together::Ranks;
use super::{End, Training};
use crate::training::{Activity, Commits, Report};

/// Numbers of a part: loss, right ones, all, each count in two parts, and whether it is missing.
const PART: usize = 6;
/// Counts travel as multiples of this and the rest, so that sums over all ranks are exact.
const HALF: u64 = 1 << 16;

impl Training {
    /// Evaluation waits for the end of a round, when live and replica weights are one.
    pub(super) fn evaluate_when_due(&mut self) -> Result<(), End> {
        if !self.evaluation_due || self.plan.commits != Commits::Never && self.since_commit > 0 {
            return Ok(());
        }
        let began = Instant::now();
        let expected = self.pause_seconds;
        let Some(evaluation) = self.in_trainer(expected, Self::evaluation)? else { return Ok(()) };
        self.evaluation_due = false;
        self.pause_seconds = self.pause_seconds.max(began.elapsed().as_secs_f64());
        let position = self.at;
        self.tell(Report::Evaluated { position, evaluation })
    }

    /// `None` when a rank was lost meanwhile.
    fn evaluation(&mut self) -> Result<Option<Evaluation>, End> {
        let Some(place) = self.equals() else { return Ok(Some(self.replica.evaluate()?)) };
        let began = Instant::now();
        let mut part = measure(&mut self.replica, place);
        let measured = Instant::now();
        self.pause_seconds = self.pause_seconds.max((measured - began).as_secs_f64());
        let before = self.queues.meter.enter(Activity::Ranks, measured);
        let reduced = self.add_up(&mut part);
        self.wait_seconds += measured.elapsed().as_secs_f64();
        self.queues.meter.enter(before, Instant::now());
        if !reduced? {
            return Ok(None);
        }
        Ok(Some(match whole(&part) {
            Some(evaluation) => evaluation,
            None => self.replica.evaluate()?,
        }))
    }

    /// The place among ranks whose weights are equal now, and that evaluate now, too.
    fn equals(&self) -> Option<Place> {
        match &self.rack {
            Some(rack) => rack.place(),
            None => self.ring.as_ref().and_then(Ranks::equals),
        }
    }

    /// Adds up the parts of all ranks; `false` when a rank of the rack was lost.
    fn add_up(&mut self, part: &mut [f32; PART]) -> Result<bool, End> {
        if self.rack.is_none() {
            return self.add_up_together(part).map(|()| true);
        }
        let patience = self.rank_patience();
        let Some(group) = self.rack.as_mut().and_then(Rack::group_mut) else { return Ok(false) };
        group.set_patience(patience);
        match group.all_reduce(part, Reduction::Sum) {
            Ok(()) => Ok(true),
            Err(error) => self.lose_rack((&error).into()).map(|()| false),
        }
    }
}

/// This rank's part of an evaluation, to be added up over all ranks.
fn measure(replica: &mut Replica, Place { rank, size }: Place) -> [f32; PART] {
    // A part that fails is missing at all ranks: each measures everything, and says why it cannot.
    let score = replica.evaluate_part(rank, size).ok().flatten();
    let missing = score.is_none();
    let Score { loss, correct, count } = score.unwrap_or_default();
    let halves = |count: u64| [(count / HALF) as f32, (count % HALF) as f32];
    let ([correct_high, correct_low], [high, low]) = (halves(correct), halves(count));
    [loss as f32, correct_high, correct_low, high, low, if missing { 1.0 } else { 0.0 }]
}

/// What all parts say together; `None` when one is missing, or nothing was measured.
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
