//! Tests of replicas that are sums of contributions: their checkpoints and their commits.

use dnode_protocol::{Fragments, Origin, Versions};
use dnode_trainer::{Mixer, ReplicaConfig, checkpoint};

use super::*;

/// Tells when a step begins, which then lasts as long as the counter's.
pub(super) struct Announced(pub(super) Counter, pub(super) mpsc::Sender<()>);

impl Trainer for Announced {
    fn layout(&self) -> &ParameterLayout {
        self.0.layout()
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        // An error means that no test listens any more.
        let _ = self.1.send(());
        self.0.step(at)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.0.read(range, out);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.0.displace(range, delta, weight);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.0.evaluate()
    }

    fn save(&self) -> TrainerState<'_> {
        self.0.save()
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.0.restore(state)
    }
}

fn fragments() -> Fragments {
    Fragments::new(2, 1).unwrap()
}

fn layout() -> ParameterLayout {
    let mut layout = ParameterLayout::new();
    layout.push("x", &[2]).unwrap();
    layout
}

fn sum(busy: Option<mpsc::Receiver<()>>) -> (Replica, mpsc::Receiver<()>) {
    let (begins, begun) = mpsc::channel();
    let counter =
        Counter { layout: layout(), x: [0.0; 2], slope: 1.0, batch: 8, busy, measures: None };
    let mixer = Mixer::DeltaSet { codec: Codec::F32, feedback: false };
    let config = ReplicaConfig { mixer, outer: None, fragments: fragments(), clip: None };
    (Replica::with(Box::new(Announced(counter, begins)), config), begun)
}

fn start_sum(plan: Plan, busy: Option<mpsc::Receiver<()>>) -> (TrainingThread, mpsc::Receiver<()>) {
    let (replica, begun) = sum(busy);
    let thread =
        TrainingThread::start(replica, plan, (Position::default(), None), Tracer::default());
    (thread.unwrap(), begun)
}

const fn is_commit(report: &Report) -> bool {
    matches!(report, Report::Committed { .. })
}

#[test]
fn a_checkpoint_contains_what_was_reported_before_it_and_nothing_later() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { mix_every: 0, checkpoint_every: 2, ..plan(folder.path(), 2) };
    let (mut thread, _begun) = start_sum(plan.clone(), None);
    thread.allow(true);
    let mut reports = until(&mut thread, |report| matches!(report, Report::Contents { .. }));
    assert_eq!(count(&reports, is_commit), 1, "the commit before it is known");
    let Some(Report::Contents { answer }) = reports.pop() else { panic!("{reports:?}") };
    let numbers = encode(Codec::F32, &[4.0, 8.0]);
    let origin = Origin { peer: PeerId::from_public_key([1; 32]), incarnation: 1 << 24 };
    let contribution = ContributionId { origin, number: 1, fragment: FragmentId(0) };
    let work = Work::Include { exchange: exchange(0), contribution };
    thread.command(Command::Work(work, Some(numbers)));
    let contents = vec![Versions { entries: vec![(origin, 1)] }];
    answer.send(contents.clone()).unwrap();
    let reports = until(&mut thread, |report| matches!(report, Report::Answer(_)));
    let written = |report: &Report| matches!(report, Report::Checkpointed { .. });
    assert_eq!(count(&reports, written), 1, "{reports:?}");
    let loaded = checkpoint::load_latest(
        folder.path(),
        &plan.run,
        (&layout(), fragments()),
        &plan.description,
    );
    let mut loaded = loaded.unwrap().unwrap();
    let (mut resumed, _begun) = sum(None);
    loaded.restore(&mut resumed).unwrap();
    assert_eq!((loaded.contents, resumed.save().parameters), (contents, vec![2.0, 2.0]));
}

#[test]
fn a_driver_that_is_gone_answers_no_question_and_the_thread_ends() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { mix_every: 0, checkpoint_every: 2, ..plan(folder.path(), 100) };
    let (mut thread, begun) = start_sum(plan, None);
    thread.allow(true);
    // The question of the second step waits among the reports, or comes after their end.
    begun.iter().take(2).for_each(drop);
    thread.join();
}

#[test]
fn a_commit_that_was_forbidden_during_its_step_waits_until_it_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { mix_every: 0, local_steps: 1, metrics_every: 1, ..plan(folder.path(), 3) };
    let (end_step, busy) = mpsc::channel();
    let (mut thread, begun) = start_sum(plan, Some(busy));
    thread.allow(true);
    begun.recv().unwrap();
    thread.allow(false);
    drop(end_step);
    let reports = until(&mut thread, |report| matches!(report, Report::Progress(_)));
    assert_eq!(count(&reports, is_commit), 0, "the replica may be half replaced");
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    assert_eq!(count(&reports, is_commit), 2, "what was done is in the next one");
}
