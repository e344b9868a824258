//! Tests of peers of a ring that step or commit together.

use dnode_trainer::GradientStep;

use super::*;

/// Adds the mean of all slopes to both parameters at every step.
struct Split {
    counter: Counter,
    gradient: [f32; 2],
}

impl Trainer for Split {
    fn layout(&self) -> &ParameterLayout {
        self.counter.layout()
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.counter.step(at)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.counter.read(range, out);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.counter.displace(range, delta, weight);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.counter.evaluate()
    }

    fn save(&self) -> TrainerState<'_> {
        self.counter.save()
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.counter.restore(state)
    }

    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        Some(self)
    }
}

impl GradientStep for Split {
    fn gradient(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        self.gradient = [self.counter.slope; 2];
        Ok(StepReport { loss: 1.0, samples: self.counter.batch, ..StepReport::default() })
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn update(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        self.counter.displace(0..2, &self.gradient, 1.0);
        Ok(StepReport::default())
    }
}

/// A peer of a run of mean gradients.
fn start_split(plan: Plan) -> TrainingThread {
    let mut layout = ParameterLayout::new();
    layout.push("x", &[2]).unwrap();
    let (x, slope) = ([0.0; 2], 1.0);
    let counter = Counter { layout, x, slope, batch: 8, busy: None, measures: None };
    let replica = Replica::new(Box::new(Split { counter, gradient: [0.0; 2] }), None);
    TrainingThread::start(replica, plan, (Position::default(), None), Tracer::default()).unwrap()
}

/// Trains peers of these slopes in one ring until their steps are done. Returns each one's clock and
/// weights.
fn ring_of(plan: &Plan, outer: Option<OuterStep>, slopes: &[f32]) -> Vec<(Clock, Vec<f32>)> {
    let mut peers: Vec<TrainingThread> =
        slopes.iter().map(|slope| start_counter(plan.clone(), outer, (*slope, None))).collect();
    train_in_ring(&mut peers);
    peers.iter_mut().map(read).collect()
}

/// Trains these peers in one ring until their steps are done. Returns the steps at which each has evaluated.
fn train_in_ring(peers: &mut [TrainingThread]) -> Vec<Vec<u64>> {
    let rings: Vec<_> = peers.iter().map(|peer| peer.ring.clone().unwrap()).collect();
    let count = peers.len();
    std::thread::scope(|scope| {
        let threads = peers.iter_mut().enumerate().map(|(rank, peer)| {
            let next = rings[(rank + 1) % count].clone();
            scope.spawn(move || {
                peer.ring(Place { rank, size: count }, None);
                peer.allow(true);
                let mut evaluated = Vec::new();
                loop {
                    let report = peer.reports.blocking_recv().unwrap();
                    if matches!(report, Report::StepsDone) {
                        return evaluated;
                    }
                    assert!(!matches!(report, Report::Ended(_)), "{report:?}");
                    if let Report::Evaluated { position, .. } = report {
                        evaluated.push(position.step);
                    } else if let Report::RingSend(chunk) = report {
                        next.send(chunk.into()).unwrap();
                    }
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn peers_that_commit_together_take_one_outer_step_on_their_mean_progress() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { commits: Commits::Together, mix_every: 0, ..plan(folder.path(), 5) };
    let outer = OuterStep { learning_rate: 0.7, momentum: 0.8 };
    let ends = ring_of(&plan, Some(outer), &[1.0, 2.0, 6.0]);
    // Two rounds of two steps and one of one step: the mean progress is 6, 6, 3.
    let (mut phi, mut v) = (0.0, 0.0);
    for progress in [6.0, 6.0, 3.0] {
        v = 0.8 * v + progress;
        phi += 0.7 * (progress + 0.8 * v);
    }
    let (clock, values) = &ends[0];
    assert_eq!(*clock, Clock(3));
    assert!((values[0] - phi).abs() < 1e-4, "{values:?} {phi}");
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (other, theirs) in &ends {
        assert_eq!((other, bits(theirs)), (clock, bits(values)));
    }
}

#[test]
fn a_bound_does_not_hold_peers_that_commit_together() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { commits: Commits::Together, mix_every: 0, ..plan(folder.path(), 4) };
    let outer = OuterStep { learning_rate: 1.0, momentum: 0.0 };
    let mut alone = start(plan, Some(outer));
    alone.limit_commits(Clock(0));
    alone.ring(Place { rank: 0, size: 1 }, None);
    alone.allow(true);
    until(&mut alone, |report| matches!(report, Report::StepsDone));
    assert_eq!(read(&mut alone), (Clock(2), vec![4.0, 4.0]));
}

#[test]
fn peers_of_a_synchronous_run_evaluate_and_end_at_the_same_steps_whatever_each_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let of = |commits, every: [u64; 3]| {
        let plan = Plan { commits, mix_every: 0, ..plan(folder.path(), 8) };
        let outer = OuterStep { learning_rate: 0.7, momentum: 0.8 };
        // All end where the last one does.
        let peers: [TrainingThread; 3] = std::array::from_fn(|rank| {
            let (evaluate_every, steps) = (every[rank], [4, 8, 6][rank]);
            let plan = Plan { evaluate_every, steps, ..plan.clone() };
            if commits == Commits::Never {
                start_split(plan)
            } else {
                start_counter(plan, Some(outer), (1.0, None))
            }
        });
        train_in_ring(&mut { peers })
    };
    for every in [[3, 5, 0], [0, 5, 3], [3, 3, 3]] {
        assert_eq!(of(Commits::Never, every), [[3, 6], [3, 6], [3, 6]], "{every:?}");
        // Two steps are a commit.
        assert_eq!(of(Commits::Together, every), [[4, 6], [4, 6], [4, 6]], "{every:?}");
    }
    let none: [Vec<u64>; 3] = [const { Vec::new() }; 3];
    assert_eq!(of(Commits::Never, [0; 3]), none);
    assert_eq!(of(Commits::Together, [0; 3]), none);
}
