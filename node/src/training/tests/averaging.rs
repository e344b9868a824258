//! The mean of the weights over the last part of a run.

use dnode_trainer::TailAverage;
use dnode_trainer::checkpoint;

use super::*;
use crate::training::Ending;

/// Weights are the number of steps that were taken.
fn ended(plan: Plan, from: (Position, Option<TailAverage>), x: f32) -> Box<Ending> {
    let mut layout = ParameterLayout::new();
    layout.push("x", &[2]).unwrap();
    let counter = Counter { layout, x: [x; 2], slope: 1.0, batch: 8, busy: None, measures: None };
    let replica = Replica::new(Box::new(counter), None);
    let mut thread = TrainingThread::start(replica, plan, from, Tracer::default()).unwrap();
    thread.allow(true);
    until(&mut thread, |report| matches!(report, Report::StepsDone));
    thread.command(Command::Stop { evaluate: true });
    let mut reports = until(&mut thread, |report| matches!(report, Report::Ended(_)));
    thread.join();
    let Some(Report::Ended(Ok(ending))) = reports.pop() else { panic!("{reports:?}") };
    ending
}

#[test]
fn the_end_of_a_run_is_averaged_measured_and_saved_beside_the_last_weights() {
    let folder = tempfile::tempdir().unwrap();
    let half = |steps| Plan { tail_average: 0.5, ..plan(folder.path(), steps) };
    let ending = ended(half(8), (Position::default(), None), 0.0);
    let loss = |evaluation: Option<Evaluation>| evaluation.map(|evaluation| evaluation.loss);
    assert_eq!(loss(ending.evaluation), Some(8.0));
    // After 5, 6, 7 and 8 steps.
    assert_eq!(loss(ending.averaged), Some(6.5));
    let path = ending.tail_average.unwrap();
    assert_eq!(path.parent(), ending.parameters.as_deref().unwrap().parent());
    assert!(path.is_file());

    let ending = ended(plan(folder.path(), 8), (Position::default(), None), 0.0);
    assert_eq!((ending.averaged, ending.tail_average), (None, None));
}

#[test]
fn an_average_goes_on_where_an_earlier_start_left_it() {
    let folder = tempfile::tempdir().unwrap();
    let half = Plan { tail_average: 0.5, checkpoint_every: 6, ..plan(folder.path(), 8) };
    ended(half.clone(), (Position::default(), None), 0.0);
    // As if it had been killed after 6 steps.
    std::fs::remove_dir_all(folder.path().join("000000000008")).unwrap();
    let mut layout = ParameterLayout::new();
    layout.push("x", &[2]).unwrap();
    let form = (&layout, dnode_protocol::Fragments::new(2, 1).unwrap());
    let loaded = checkpoint::load_latest(folder.path(), &half.run, form, &half.description);
    let loaded = loaded.unwrap().unwrap();
    let average = loaded.tail_average().unwrap();
    assert_eq!(average.as_ref().map(|average| average.mean()[0]), Some(5.5));
    let position = Position { step: 6, micro_steps: 6 * MICRO_STEPS, ..Position::default() };
    let ending = ended(half, (position, average), 6.0);
    assert_eq!(ending.averaged.map(|evaluation| evaluation.loss), Some(6.5));
}
