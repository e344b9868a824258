//! The mean of the weights over the last part of the run.

use dnode_gossip::MICRO_STEPS;
use dnode_trainer::{Replica, TailAverage};

use crate::training::Position;

/// Moments of the last part of a run that its mean is of.
const MOMENTS: f64 = 20.0;

/// Counts the weights at moments that are spread evenly over the last part of the run.
#[derive(Debug)]
pub(in crate::training) struct Averaging {
    /// Of the run; 0 for none.
    share: f64,
    /// Steps of the run.
    end: u64,
    average: Option<TailAverage>,
    /// The last moment that was counted.
    counted: u32,
}

impl Averaging {
    /// Goes on from `position` with what was averaged before.
    pub(in crate::training) fn new(
        share: f64,
        average: Option<TailAverage>,
        (position, end): (Position, u64),
    ) -> Self {
        let at = moment(share, position, end).filter(|at| *at > 0);
        let (average, counted) = average.zip(at).unzip();
        Self { share, end, average, counted: counted.unwrap_or(0) }
    }

    /// The run ends at this step. If it did not before, what was averaged was another part of it.
    pub(super) fn set_end(&mut self, end: u64) {
        if end != self.end {
            (self.end, self.average, self.counted) = (end, None, 0);
        }
    }

    /// A local step has led to `position`.
    pub(super) fn stepped(&mut self, replica: &Replica, position: Position) {
        let at = moment(self.share, position, self.end).filter(|at| *at > self.counted);
        let Some(at) = at else { return };
        self.counted = at;
        match &mut self.average {
            Some(average) => average.add(replica),
            None => self.average = Some(TailAverage::begin(replica)),
        }
    }

    /// The mean so far; `None` before the last part of the run.
    pub(super) const fn average(&self) -> Option<&TailAverage> {
        self.average.as_ref()
    }
}

/// The moment, from 1 to [`MOMENTS`], that `position` of a run of `end` steps has come to; `None` before
/// the last `share` of it.
fn moment(share: f64, position: Position, end: u64) -> Option<u32> {
    let part = share * end as f64;
    let into = position.micro_steps as f64 / MICRO_STEPS as f64 - (end as f64 - part);
    let at = (MOMENTS * into / part).min(MOMENTS);
    (part > 0.0 && at >= 0.0).then_some(at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(steps: f64) -> Position {
        Position { micro_steps: (steps * MICRO_STEPS as f64) as u64, ..Position::default() }
    }

    #[test]
    fn moments_are_spread_over_the_last_part_of_the_run() {
        let of = |steps| moment(0.1, at(steps), 800);
        assert_eq!((of(719.0), of(720.0), of(723.9)), (None, Some(0), Some(0)));
        assert_eq!((of(724.0), of(796.0), of(800.0)), (Some(1), Some(19), Some(20)));
        assert_eq!(of(801.0), Some(20), "a step may lead past the end");
        assert_eq!(moment(0.0, at(800.0), 800), None);
        // Of a short run every step counts.
        let short: Vec<_> = (0..=10).map(|steps| moment(0.2, at(f64::from(steps)), 10)).collect();
        assert_eq!(short[7..], [None, Some(0), Some(10), Some(20)]);
    }

    #[test]
    fn a_mean_from_before_the_last_part_of_a_longer_run_is_dropped() {
        let replica =
            Replica::new(Box::new(dnode_trainer::IdleTrainer::new(vec![0.0; 2]).unwrap()), None);
        let kept = || Some(TailAverage::begin(&replica));
        assert!(Averaging::new(0.1, kept(), (at(95.0), 100)).average().is_some());
        assert!(Averaging::new(0.1, kept(), (at(95.0), 200)).average().is_none());
        assert!(Averaging::new(0.0, kept(), (at(95.0), 100)).average().is_none());
        let mut averaging = Averaging::new(0.1, kept(), (at(95.0), 100));
        averaging.stepped(&replica, at(95.2));
        assert_eq!(averaging.average().map(TailAverage::moments), Some(1), "it was counted");
        averaging.stepped(&replica, at(95.5));
        assert_eq!(averaging.average().map(TailAverage::moments), Some(2));
    }

    #[test]
    fn another_end_begins_the_mean_anew() {
        let replica =
            Replica::new(Box::new(dnode_trainer::IdleTrainer::new(vec![0.0; 2]).unwrap()), None);
        let mut averaging = Averaging::new(0.1, None, (at(90.0), 100));
        let moments = |averaging: &Averaging| averaging.average().map(TailAverage::moments);
        for steps in [95.0, 96.0] {
            averaging.stepped(&replica, at(steps));
        }
        averaging.set_end(100);
        assert_eq!(moments(&averaging), Some(2), "nothing has changed");
        averaging.set_end(105);
        assert_eq!(moments(&averaging), None);
        averaging.stepped(&replica, at(97.0));
        assert_eq!(moments(&averaging), Some(1));
        averaging.set_end(200);
        averaging.stepped(&replica, at(98.0));
        assert_eq!(moments(&averaging), None, "the last part has not begun");
    }
}
