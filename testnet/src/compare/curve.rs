//! The held-out loss of a run over time, samples and bytes, from what its peers said on the way.

use crate::metrics::{Log, Stamp};

/// A moment of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Seconds since the first peer began its first step.
    pub seconds: f64,
    /// Samples of all peers together.
    pub samples: f64,
    /// Bytes sent, mean over the peers.
    pub bytes: f64,
    /// Held-out loss, mean over the peers, nats.
    pub loss: f64,
    /// Held-out accuracy, mean over the peers, in `[0, 1]`.
    pub accuracy: f64,
}

impl CurvePoint {
    /// The point `share` of the way from `self` to `other`.
    fn towards(self, other: Self, share: f64) -> Self {
        let mix = |from: f64, to: f64| from + share * (to - from);
        Self {
            seconds: mix(self.seconds, other.seconds),
            samples: mix(self.samples, other.samples),
            bytes: mix(self.bytes, other.bytes),
            loss: mix(self.loss, other.loss),
            accuracy: mix(self.accuracy, other.accuracy),
        }
    }
}

/// What a run has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// A held-out loss, nats.
    Loss(f64),
    /// A held-out accuracy, in `[0, 1]`.
    Accuracy(f64),
}

impl Goal {
    /// What the point lacks of it; negative beyond it.
    fn lacks(self, point: &CurvePoint) -> f64 {
        match self {
            Self::Loss(loss) => point.loss - loss,
            Self::Accuracy(accuracy) => accuracy - point.accuracy,
        }
    }
}

/// A run over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// From the start of the first process to the first step of any peer, seconds.
    pub startup_s: f64,
    /// By time.
    pub points: Vec<CurvePoint>,
}

/// Values of one peer at its own moments.
struct Line {
    loss: Vec<(f64, f64)>,
    accuracy: Vec<(f64, f64)>,
    samples: Vec<(f64, f64)>,
    bytes: Vec<(f64, f64)>,
}

impl Curve {
    /// The curve of peers' logs: a point at each moment at which one of them was measured, from the
    /// moment on at which all have been; between its own moments a peer is on a straight line.
    ///
    /// A killed peer counts as it was last, until it comes back.
    ///
    /// `began_unix_s`: when the first process was started, if that is known; else the first peer's word
    /// counts.
    #[must_use]
    pub fn of(logs: &[&Log], began_unix_s: Option<f64>) -> Self {
        let started = |log: &&&Log| log.start.as_ref().map(|start| start.unix_s);
        let first = logs.iter().filter_map(|log| started(&log)).fold(f64::INFINITY, f64::min);
        let first = began_unix_s.unwrap_or(first);
        let late = |log: &Log| log.start.as_ref().map_or(0.0, |start| start.unix_s - first);
        let begin = logs.iter().filter_map(|log| Some(late(log) + first_step(log)?));
        let begin = begin.fold(f64::INFINITY, f64::min);
        if !begin.is_finite() {
            return Self::default();
        }
        let lines: Vec<Line> = logs.iter().map(|log| line(log, late(log) - begin)).collect();
        let mut moments: Vec<f64> =
            lines.iter().flat_map(|line| line.loss.iter().map(|point| point.0)).collect();
        moments.sort_by(f64::total_cmp);
        moments.dedup();
        let all_measured =
            lines.iter().map(|line| line.loss.first().map_or(f64::INFINITY, |p| p.0));
        let from = all_measured.fold(0.0, f64::max);
        moments.retain(|moment| *moment >= from);
        #[expect(clippy::cast_precision_loss, reason = "a swarm has few peers")]
        let count = lines.len() as f64;
        let points = moments.into_iter().map(|seconds| {
            let sum = |part: fn(&Line) -> &[(f64, f64)]| -> f64 {
                lines.iter().map(|line| at(part(line), seconds)).sum()
            };
            CurvePoint {
                seconds,
                samples: sum(|line| &line.samples),
                bytes: sum(|line| &line.bytes) / count,
                loss: sum(|line| &line.loss) / count,
                accuracy: sum(|line| &line.accuracy) / count,
            }
        });
        Self { startup_s: begin, points: points.collect() }
    }

    /// Where the goal is first reached, on a straight line between two points.
    #[must_use]
    pub fn reach(&self, goal: Goal) -> Option<CurvePoint> {
        let index = self.points.iter().position(|point| goal.lacks(point) <= 0.0)?;
        let (point, before) = (self.points[index], index.checked_sub(1).map(|i| self.points[i]));
        let Some(before) = before else { return Some(point) };
        let (lacked, lacks) = (goal.lacks(&before), goal.lacks(&point));
        Some(before.towards(point, lacked / (lacked - lacks)))
    }

    /// The loss at `x` on an axis, on a straight line between two points; nothing outside.
    #[must_use]
    pub fn loss_at(&self, axis: fn(&CurvePoint) -> f64, x: f64) -> Option<f64> {
        let next = self.points.iter().position(|point| axis(point) >= x)?;
        let point = self.points[next];
        let Some(before) = next.checked_sub(1).map(|index| self.points[index]) else {
            let exact = axis(&point) <= x;
            return exact.then_some(point.loss);
        };
        let width = axis(&point) - axis(&before);
        let share = if width > 0.0 { (x - axis(&before)) / width } else { 1.0 };
        Some(before.towards(point, share).loss)
    }
}

/// When the first step of a peer began, seconds since its process started.
fn first_step(log: &Log) -> Option<f64> {
    let (at, train) = log.train.first()?;
    let speed = train.samples_per_s;
    #[expect(clippy::cast_precision_loss, reason = "samples stay far below 2^53")]
    let needed = if speed > 0.0 { at.samples as f64 / speed } else { 0.0 };
    Some((at.time_s - needed).max(0.0))
}

fn line(log: &Log, shift: f64) -> Line {
    let place = |at: &Stamp| at.time_s + shift;
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    let number = |count: u64| count as f64;
    let share = |accuracy: Option<f64>| accuracy.unwrap_or(f64::NAN);
    let end = log.end.as_ref();
    let trained = log.train.iter();
    let measured = log.evaluate.iter().map(|(at, on)| (place(at), on.loss, share(on.accuracy)));
    let measured = measured.chain(end.map(|(at, end)| (place(at), end.loss, share(end.accuracy))));
    let last_bytes = end.map(|(at, end)| (place(at), number(end.bytes_out)));
    let last_samples = end.map(|(at, _)| (place(at), number(at.samples)));
    let start = [(0.0, 0.0)].into_iter();
    Line {
        loss: measured.clone().map(|(at, loss, _)| (at, loss)).collect(),
        accuracy: measured.map(|(at, _, accuracy)| (at, accuracy)).collect(),
        samples: start
            .clone()
            .chain(trained.clone().map(|(at, _)| (place(at), number(at.samples))))
            .chain(last_samples)
            .collect(),
        bytes: start
            .chain(trained.map(|(at, train)| (place(at), number(train.bytes_out))))
            .chain(last_bytes)
            .collect(),
    }
}

/// The value at `x` of a line by rising x: straight between two points, constant outside.
fn at(line: &[(f64, f64)], x: f64) -> f64 {
    let Some(next) = line.iter().position(|point| point.0 >= x) else {
        return line.last().map_or(f64::NAN, |point| point.1);
    };
    let (right, above) = line[next];
    let Some((left, below)) = next.checked_sub(1).map(|index| line[index]) else { return above };
    if right > left { below + (x - left) / (right - left) * (above - below) } else { above }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected values are exact")]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_straight_between_its_points_and_constant_outside() {
        let line = [(1.0, 10.0), (3.0, 30.0)];
        for (x, want) in [(0.0, 10.0), (1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (9.0, 30.0)] {
            assert_eq!(at(&line, x), want);
        }
        assert!(at(&[], 1.0).is_nan());
    }

    #[test]
    fn a_loss_is_reached_between_two_points() {
        let point = |seconds, loss| {
            let accuracy = 1.0 - loss / 4.0;
            CurvePoint { seconds, samples: 10.0 * seconds, bytes: 0.0, loss, accuracy }
        };
        let curve = Curve { startup_s: 0.0, points: vec![point(1.0, 2.0), point(3.0, 1.0)] };
        let reached = curve.reach(Goal::Loss(1.5)).unwrap();
        assert_eq!((reached.seconds, reached.samples), (2.0, 20.0));
        assert_eq!(curve.reach(Goal::Loss(2.5)).unwrap().seconds, 1.0);
        assert_eq!(curve.reach(Goal::Loss(0.5)), None);
        assert_eq!(curve.reach(Goal::Accuracy(0.625)).unwrap().seconds, 2.0);
        assert_eq!(curve.reach(Goal::Accuracy(0.8)), None);
        assert_eq!(curve.loss_at(|point| point.samples, 25.0), Some(1.25));
        assert_eq!(curve.loss_at(|point| point.samples, 5.0), None);
        assert_eq!(curve.loss_at(|point| point.samples, 40.0), None);
    }
}
