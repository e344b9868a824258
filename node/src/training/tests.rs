//! Tests of the training thread, with a trainer whose numbers can be computed by hand.

mod averaging;
mod joining;
mod rack;
mod sums;
mod together;

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use dnode_collective::Place;
use dnode_gossip::{
    ContributionId, Input, Load, Reading, RefusedMix, Role, SnapshotContents, Tolerance, Work,
};
use dnode_protocol::frame::Codec;
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Information, ParameterLayout, PeerId, Versions,
};
use dnode_trainer::codec::decode;
use dnode_trainer::{
    Encoded, Evaluation, OuterStep, Replica, StepId, StepReport, TrainError, Trainer, TrainerState,
    encode,
};

use crate::telemetry::traces::Tracer;

use super::{
    Adoption, Answer, COMMANDS_MAX, Command, Commits, MICRO_STEPS, Plan, Position, Report,
    TrainingProgress, TrainingThread,
};

/// Adds its slope to both of its parameters at every step.
struct Counter {
    layout: ParameterLayout,
    x: [f32; 2],
    /// Added to both parameters at every step.
    slope: f32,
    /// Samples of a step.
    batch: u64,
    /// Its first step, or its first evaluation, lasts until the other end of this channel is dropped.
    busy: Option<mpsc::Receiver<()>>,
    /// Told when the first evaluation begins. If set, the evaluation waits for `busy`, and no step
    /// does.
    measures: Option<mpsc::Sender<()>>,
}

impl Trainer for Counter {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let step = at.index;
        if let (Some(busy), None) = (&self.busy, &self.measures) {
            let _ = busy.recv();
        }
        if step == 1000 {
            return Err(TrainError::NotFinite { step, what: "loss" });
        }
        self.x.iter_mut().for_each(|x| *x += self.slope);
        Ok(StepReport {
            loss: 1.0,
            samples: self.batch,
            learning_rate: at.position as f32,
            gradient_norm: 1.0,
        })
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.x[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.x[range].iter_mut().zip(delta).for_each(|(x, d)| *x += weight * d);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        if let (Some(busy), Some(measures)) = (&self.busy, &self.measures) {
            let _ = measures.send(());
            let _ = busy.recv();
        }
        Ok(Evaluation { loss: f64::from(self.x[0]), accuracy: 0.5, count: 1 })
    }

    fn set_batch(&mut self, samples: usize) -> bool {
        self.batch = samples as u64;
        true
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }

    fn restore(&mut self, _state: TrainerState<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}

fn plan(folder: &Path, steps: u64) -> Plan {
    Plan { steps, checkpoints: folder.to_owned(), ..Plan::for_tests() }
}

fn start(plan: Plan, outer: Option<OuterStep>) -> TrainingThread {
    start_counter(plan, outer, (1.0, None))
}

fn start_counter(
    plan: Plan,
    outer: Option<OuterStep>,
    (slope, busy): (f32, Option<mpsc::Receiver<()>>),
) -> TrainingThread {
    start_measuring(plan, outer, (slope, busy), None)
}

fn start_measuring(
    plan: Plan,
    outer: Option<OuterStep>,
    (slope, busy): (f32, Option<mpsc::Receiver<()>>),
    measures: Option<mpsc::Sender<()>>,
) -> TrainingThread {
    let mut layout = ParameterLayout::new();
    layout.push("x", &[2]).unwrap();
    let counter = Counter { layout, x: [0.0; 2], slope, batch: 8, busy, measures };
    let replica = Replica::new(Box::new(counter), outer);
    TrainingThread::start(replica, plan, (Position::default(), None), Tracer::default()).unwrap()
}

fn exchange(sequence: u64) -> ExchangeId {
    ExchangeId { initiator: PeerId::from_public_key([1; 32]), incarnation: 1, sequence }
}

/// Reports until (and with) the first for which `last` holds.
fn until(thread: &mut TrainingThread, last: impl Fn(&Report) -> bool) -> Vec<Report> {
    let mut reports = Vec::new();
    loop {
        let report = thread.reports.blocking_recv().expect("the thread reports before it ends");
        let done = last(&report);
        reports.push(report);
        if done {
            return reports;
        }
    }
}

fn count(reports: &[Report], of: impl Fn(&Report) -> bool) -> usize {
    reports.iter().filter(|report| of(report)).count()
}

fn progress_of(report: &Report) -> Option<&TrainingProgress> {
    if let Report::Progress(progress) = report { Some(progress) } else { None }
}

fn read(thread: &mut TrainingThread) -> (Clock, Vec<f32>) {
    // As an offer, so that an initiator's half can follow.
    let what = Reading::Offer(Codec::F32);
    let work = Work::Read { exchange: exchange(99), fragment: FragmentId(0), what };
    thread.command(Command::Work(work, None));
    let answer = answer_of(thread, |input| matches!(input, Input::FragmentRead { .. }));
    let (Input::FragmentRead { clock, .. }, Some(numbers)) = (answer.input, answer.tensor) else {
        panic!("a read yields a tensor")
    };
    let mut values = vec![0.0; numbers.elements];
    decode(&numbers, &mut values).unwrap();
    (clock, values)
}

/// The next answer to a piece of work with such an input.
fn answer_of(thread: &mut TrainingThread, wanted: impl Fn(&Input) -> bool) -> Answer {
    let is_it = |report: &Report| matches!(report, Report::Answer(answer) if wanted(&answer.input));
    match until(thread, is_it).pop() {
        Some(Report::Answer(answer)) => *answer,
        other => panic!("{other:?}"),
    }
}

fn mix(sequence: u64, role: Role, clock_max: Clock) -> Work {
    Work::Mix {
        exchange: exchange(sequence),
        fragment: FragmentId(0),
        role,
        weight: 0.5,
        codec: Codec::F32,
        clock_max,
        tolerance: Tolerance::ANY,
    }
}

#[test]
fn steps_and_commits_come_at_their_intervals_and_the_end_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(Plan { mix_every: 0, ..plan(folder.path(), 7) }, None);
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    assert_eq!(count(&reports, |report| matches!(report, Report::RoundDue)), 0);
    assert_eq!(count(&reports, |report| matches!(report, Report::Committed { .. })), 4);
    assert_eq!(read(&mut thread), (Clock(4), vec![7.0, 7.0]));
    thread.command(Command::Stop { evaluate: true });
    let reports = until(&mut thread, |report| matches!(report, Report::Ended(_)));
    let Some(Report::Ended(Ok(ending))) = reports.last() else { panic!("{reports:?}") };
    assert_eq!(
        ending.position,
        Position { step: 7, micro_steps: 7 * MICRO_STEPS, samples: 56, clock: Clock(4) }
    );
    assert_eq!(ending.evaluation.map(|evaluation| evaluation.count), Some(1));
    assert!(ending.parameters.as_ref().is_some_and(|path| path.is_file()));
    // Who waits for the last checkpoint must hear that it is being written.
    let [Report::Saving { position }, Report::Checkpointed { .. }, _] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(*position, ending.position);
    thread.join();
}

#[test]
fn a_held_commit_stretches_the_round_fourfold_and_then_waits_for_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(plan(folder.path(), 100), None);
    thread.limit_commits(Clock(1));
    thread.allow(true);
    let held = until(&mut thread, |report| matches!(report, Report::CommitHeld));
    assert_eq!(count(&held, |report| matches!(report, Report::Committed { .. })), 1);
    // Where steps take long, what was shown before the last one is read until the thread has come to wait.
    let stands = (0..1000).any(|_| read(&mut thread) == (Clock(1), vec![10.0, 10.0]));
    assert!(stands, "2 steps, then 4·2 more");
    thread.limit_commits(Clock(u64::MAX));
    until(&mut thread, |report| matches!(report, Report::StepsDone));
}

#[test]
fn news_of_the_limit_that_come_faster_than_steps_wait_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let (end_step, busy) = mpsc::channel();
    let mut thread = start_counter(plan(folder.path(), 20), None, (1.0, Some(busy)));
    thread.allow(true);
    for news in 0..10 * COMMANDS_MAX as u64 {
        thread.allow(news % 2 == 0);
        thread.limit_commits(Clock(news));
    }
    thread.limit_commits(Clock(3));
    thread.allow(true);
    drop(end_step);
    let held = until(&mut thread, |report| matches!(report, Report::CommitHeld));
    assert_eq!(count(&held, |report| matches!(report, Report::Committed { .. })), 3);
}

#[test]
fn what_happens_while_a_step_does_not_end_waits_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let (end_step, busy) = mpsc::channel();
    let mut thread = start_counter(plan(folder.path(), 20), None, (1.0, Some(busy)));
    thread.allow(true);
    for _ in 0..10 * COMMANDS_MAX {
        thread.round_done();
        thread.end_at(18);
        thread.draw_from(0);
        thread.mailbox.adopt(Adoption { clock: Clock(3), position: 0, replaced: false });
    }
    drop(end_step);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    let mut clocks = reports.iter().filter_map(|report| {
        if let Report::Committed { at, .. } = report { Some(at.clock) } else { None }
    });
    assert_eq!(clocks.next(), Some(Clock(4)));
}

#[test]
fn a_peer_that_never_began_leaves_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(plan(folder.path(), 7), None);
    thread.command(Command::Stop { evaluate: false });
    let reports = until(&mut thread, |report| matches!(report, Report::Ended(_)));
    assert!(matches!(&reports[..], [Report::Ended(Ok(_))]), "{reports:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_open_round_puts_commits_off_and_never_stops_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(Plan { mix_every: 2, ..plan(folder.path(), 18) }, None);
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    // The round of step 2 is never done: commits at 2, at 2 + 4·2, at 10 + 4·2.
    assert_eq!(count(&reports, |report| matches!(report, Report::RoundDue)), 1);
    assert_eq!(count(&reports, |report| matches!(report, Report::Committed { .. })), 3);
}

#[test]
fn the_two_ends_of_a_mix_move_by_the_same_amount_and_an_undo_takes_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(plan(folder.path(), 1), None);
    let numbers = encode(Codec::F32, &[4.0, 8.0]);
    thread.command(Command::Work(mix(0, Role::Responder, Clock(0)), Some(numbers)));
    let answer = answer_of(&mut thread, |input| matches!(input, Input::Mixed { .. }));
    assert_eq!(answer.tensor, Some(encode(Codec::F32, &[-4.0, -8.0])));
    assert_eq!(read(&mut thread).1, [2.0, 4.0]);
    let undo = Work::Undo { exchange: exchange(0), fragment: FragmentId(0), weight: 0.5 };
    thread.command(Command::Work(undo, answer.tensor));
    assert_eq!(read(&mut thread).1, [0.0, 0.0]);
    let numbers = encode(Codec::F32, &[2.0, 2.0]);
    thread.command(Command::Work(mix(0, Role::Initiator, Clock(0)), Some(numbers)));
    assert_eq!(read(&mut thread).1, [1.0, 1.0]);
}

/// Answers an offer of the same numbers `times` times. Returns the difference in each reply.
fn answer(thread: &mut TrainingThread, times: u64) -> Vec<f32> {
    let answer_one = |sequence| {
        let numbers = encode(Codec::F32, &[8.0, 8.0]);
        let work = mix(sequence, Role::Responder, Clock(u64::MAX));
        thread.command(Command::Work(work, Some(numbers)));
        let answer = answer_of(thread, |input| matches!(input, Input::Mixed { .. }));
        let reply = answer.tensor.unwrap();
        let mut difference = [0.0; 2];
        decode(&reply, &mut difference).unwrap();
        difference[0]
    };
    (0..times).map(answer_one).collect()
}

#[test]
fn an_exchange_is_answered_during_a_step_where_slow_weights_are_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (end_step, busy) = mpsc::channel();
    let outer = OuterStep { learning_rate: 1.0, momentum: 0.0 };
    let mut thread = start_counter(plan(folder.path(), 2), Some(outer), (1.0, Some(busy)));
    thread.allow(true);
    assert_eq!(answer(&mut thread, 3), [-8.0, -4.0, -2.0]);
    drop(end_step);
    until(&mut thread, |report| matches!(report, Report::StepsDone));
    assert_eq!(read(&mut thread), (Clock(1), vec![9.0, 9.0]), "two steps, and 4, 2, 1 mixed in");
}

#[test]
fn exchanges_are_answered_during_a_step_where_live_weights_are_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (end_step, busy) = mpsc::channel();
    let mut thread = start_counter(plan(folder.path(), 2), None, (1.0, Some(busy)));
    thread.allow(true);
    // How long a step takes is known after the first one.
    end_step.send(()).unwrap();
    while read(&mut thread).1[0] < 1.0 {}
    assert_eq!(answer(&mut thread, 3), [-7.0, -3.5, -1.75]);
    drop(end_step);
    until(&mut thread, |report| matches!(report, Report::StepsDone));
    assert_eq!(
        read(&mut thread),
        (Clock(1), vec![8.125, 8.125]),
        "two steps, and all that was mixed in"
    );
}

#[test]
fn an_exchange_is_answered_during_an_evaluation_by_every_kind_of_weights() {
    let folder = tempfile::tempdir().unwrap();
    let outer = OuterStep { learning_rate: 1.0, momentum: 0.0 };
    for outer in [None, Some(outer)] {
        let ((end, busy), (measures, measuring)) = (mpsc::channel(), mpsc::channel());
        let plan = Plan { evaluate_every: 2, mix_every: 0, ..plan(folder.path(), 2) };
        let mut thread = start_measuring(plan, outer, (1.0, Some(busy)), Some(measures));
        thread.allow(true);
        measuring.recv().unwrap();
        assert_eq!(answer(&mut thread, 3), [-6.0, -3.0, -1.5], "{outer:?}");
        drop(end);
        let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
        let measured = reports.iter().find_map(|report| {
            let Report::Evaluated { evaluation, .. } = report else { return None };
            Some(evaluation.loss)
        });
        assert_eq!(measured, Some(2.0), "what was mixed meanwhile is not what is measured");
        assert_eq!(read(&mut thread), (Clock(1), vec![7.25, 7.25]));
    }
}

#[test]
fn old_snapshots_and_numbers_that_are_not_finite_are_refused_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(plan(folder.path(), 2), None);
    thread.allow(true);
    until(&mut thread, |report| matches!(report, Report::StepsDone));
    read(&mut thread);
    for (numbers, clock_max, want) in [
        ([1.0, 1.0], Clock(0), RefusedMix::TooOld),
        ([1.0, f32::NAN], Clock(9), RefusedMix::BadParameters),
    ] {
        let work = mix(0, Role::Initiator, clock_max);
        thread.command(Command::Work(work, Some(encode(Codec::F32, &numbers))));
        let answer = answer_of(&mut thread, |input| matches!(input, Input::MixRefused { .. }));
        let refused = matches!(answer.input, Input::MixRefused { reason, .. } if reason == want);
        assert!(refused, "{answer:?}");
        assert_eq!(read(&mut thread).1, [2.0, 2.0]);
    }
}

#[test]
fn a_slow_peer_does_fewer_steps_per_commit_and_stands_where_the_others_do() {
    let folder = tempfile::tempdir().unwrap();
    for (local_steps, steps, round) in [(6, 24, 3), (2, 8, 1), (12, 48, 6), (1, 4, 1)] {
        let run = |mix_every, last: fn(&Report) -> bool| {
            let plan = plan(folder.path(), 24);
            let plan = Plan { local_steps: 6, mix_every, metrics_every: 1, ..plan };
            let mut thread = start(plan, None);
            thread.pace(Load::of_a_commit(1000, 8));
            thread.pace(Load::of_a_commit(local_steps, 8));
            thread.allow(true);
            until(&mut thread, last)
        };
        let reports = run(0, |report| matches!(report, Report::StepsDone));
        let progress = reports.iter().filter_map(progress_of).next_back().unwrap();
        let Position { step, micro_steps, clock, .. } = progress.position;
        assert_eq!((step, micro_steps, clock), (steps, 24 * MICRO_STEPS, Clock(4)));
        // The last step began one step's length before the end.
        assert!((progress.learning_rate - (24 - 24 / steps).min(23) as f64).abs() < 1e-9);
        let reports = run(3, |report| matches!(report, Report::RoundDue));
        assert_eq!(reports.iter().filter_map(progress_of).count(), round, "{local_steps}");
    }
}

#[test]
fn fewer_samples_per_step_are_taken_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { metrics_every: 1, mix_every: 0, ..plan(folder.path(), 6) };
    let mut thread = start(plan, None);
    thread.pace(Load::of_a_commit(2, 3));
    thread.allow(true);
    let mut reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    thread.pace(Load::of_a_commit(2, 8));
    let samples =
        |reports: &[Report]| reports.iter().filter_map(progress_of).map(|p| p.batch).collect();
    let told: Vec<u32> = samples(&reports);
    assert_eq!(told, [3; 6]);
    reports.retain(|report| matches!(report, Report::Committed { .. }));
    for (commit, report) in (1..).zip(&reports) {
        let Report::Committed { at, pace, .. } = report else { unreachable!() };
        assert_eq!((at.samples, pace.batch), (commit * 2 * 3, 3));
    }
    assert_eq!(reports.len(), 3);
}

#[test]
fn a_failing_step_ends_the_thread_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(plan(folder.path(), 2000), None);
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::Ended(_)));
    let Some(Report::Ended(Err(error))) = reports.last() else { panic!("{reports:?}") };
    assert!(error.to_string().contains("train step 1000"), "{error}");
}

#[test]
fn a_failing_checkpoint_is_reported_and_training_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("not-a-folder");
    std::fs::write(&file, "").unwrap();
    let mut thread = start(Plan { checkpoint_every: 5, ..plan(&file, 10) }, None);
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    assert_eq!(count(&reports, |report| matches!(report, Report::CheckpointFailed { .. })), 2);
    drop(thread);
}

#[test]
fn progress_tells_the_mean_loss_and_the_time_spent_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(Plan { metrics_every: 4, ..plan(folder.path(), 8) }, None);
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    let progress: Vec<&TrainingProgress> = reports.iter().filter_map(progress_of).collect();
    assert_eq!(progress.len(), 2);
    assert!((progress[1].loss - 1.0).abs() < 1e-12 && progress[1].position.samples == 64);
    assert!(Duration::from_secs_f64(progress[1].wait_s) < Duration::from_secs(60));
}
