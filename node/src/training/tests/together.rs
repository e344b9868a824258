//! Tests of peers of a ring that commit together.

use super::*;

/// Trains peers of these slopes in one ring until their steps are done. Returns each one's clock and
/// weights.
fn ring_of(plan: &Plan, outer: Option<OuterStep>, slopes: &[f32]) -> Vec<(Clock, Vec<f32>)> {
    let mut peers: Vec<TrainingThread> =
        slopes.iter().map(|slope| start_counter(plan.clone(), outer, (*slope, None))).collect();
    let rings: Vec<_> = peers.iter().map(|peer| peer.ring.clone().unwrap()).collect();
    let count = peers.len();
    std::thread::scope(|scope| {
        for (rank, peer) in peers.iter_mut().enumerate() {
            let next = rings[(rank + 1) % count].clone();
            scope.spawn(move || {
                peer.command(Command::Ring(Place { rank, size: count }, None));
                peer.allow(true);
                loop {
                    let report = peer.reports.blocking_recv().unwrap();
                    if matches!(report, Report::StepsDone) {
                        return;
                    }
                    if let Report::RingSend(chunk) = report {
                        next.send(chunk.into()).unwrap();
                    }
                }
            });
        }
    });
    peers.iter_mut().map(read).collect()
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
    alone.command(Command::Ring(Place { rank: 0, size: 1 }, None));
    alone.allow(true);
    until(&mut alone, |report| matches!(report, Report::StepsDone));
    assert_eq!(read(&mut alone), (Clock(2), vec![4.0, 4.0]));
}
