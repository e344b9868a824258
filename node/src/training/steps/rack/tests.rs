//! A small simulator of racks: ranks in one process, whose groups fail at every operation in turn.
//! An operation may end at some ranks only. Still nothing is lost or counted twice, and all ranks end
//! alike.

mod group;
mod trainer;

use std::sync::{Arc, mpsc as blocking};
use std::time::Instant;

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, FragmentId, Fragments};
use dnode_trainer::{Mixer, OuterStep, Replica, ReplicaConfig, encode};
use tokio::sync::mpsc;

use super::*;
use crate::training::giving::Giving;
use crate::training::mailbox::Mailbox;
use crate::training::steps::{Averaging, Cursor, Queues, SavingShared, Training};
use crate::training::{Command, Meter, Plan, Position, REPORTS_MAX};
use group::{Fault, Member, group};
use trainer::{PARAMETERS, Slope};

const RANKS: usize = 3;
const STEPS: u64 = 8;
const BATCH: u32 = 4;
/// Operations of [`RackMember::equalize`] here: a table, four tensors, a sum.
const EQUALIZE: usize = 6;
/// Operations of a commit of two steps: a sum for each, a vote, the sum of what moved.
const ROUND: usize = 4;
/// The element that nothing but training moves.
const QUIET: usize = PARAMETERS - 1;

/// When mixing moves a rank's weights. Each event moves an element of its own by one.
#[derive(Clone, Copy)]
enum Event {
    /// Before the rank ever was in a group.
    Alone,
    /// Between the steps of one of the first two commits.
    Between(u64),
    /// While training waits for another group, the first or second time.
    Waiting(usize),
}

impl Event {
    fn element(self, rank: usize) -> usize {
        let kind = match self {
            Self::Alone => 0,
            Self::Between(clock) => 1 + clock as usize,
            Self::Waiting(time) => 3 + time,
        };
        kind * RANKS + rank
    }
}

/// How a rank ended.
struct Ended {
    rank: usize,
    at: Position,
    /// Weights, live weights, outer momentum, the trainer's own.
    tensors: [Vec<f32>; 4],
    /// What mixing has moved at it, by [`Event::element`].
    mixed: Vec<usize>,
    /// Why it ended, unless it did all of its steps.
    error: Option<String>,
}

/// One rank that uses each of its groups until it fails, then the next one.
struct Rank {
    rank: usize,
    training: Training,
    reports: mpsc::Receiver<Report>,
    mixed: Vec<usize>,
    waited: usize,
    /// Keeps the queue open.
    _commands: Arc<blocking::SyncSender<Command>>,
}

impl Rank {
    fn new(rank: usize, slope: Slope) -> Self {
        let (commands, of_driver) = blocking::sync_channel(1);
        let (to_driver, reports) = mpsc::channel(REPORTS_MAX);
        let (_, ring) = blocking::sync_channel(1);
        let commands = Arc::new(commands);
        let config = ReplicaConfig {
            mixer: Mixer::Exchange,
            outer: Some(OuterStep { learning_rate: 0.5, momentum: 0.5 }),
            fragments: Fragments::new(PARAMETERS, 1).unwrap(),
            clip: None,
        };
        let mut replica = Replica::with(Box::new(slope), config);
        let mailbox = Mailbox::new(&commands);
        mailbox.change(|permission| permission.allowed = true);
        let meter = Arc::new(Meter::new(Instant::now()));
        let read = (meter, Giving::new());
        let queues = Queues::new(of_driver, mailbox, read, to_driver, ring);
        let shared = SavingShared::new(&mut replica, 0);
        // One rank was started with fewer steps: all end where the last one does.
        let plan = Plan { steps: STEPS - u64::from(rank == 1), ..plan() };
        let cursor = Cursor::new(Position::default(), Arc::default(), &plan);
        let averaging = Averaging::new(0.0, None, (Position::default(), plan.steps));
        let mut training = Training::new(replica, plan, (cursor, averaging), queues, shared);
        training.on_permission().unwrap();
        Self { rank, training, reports, mixed: Vec::new(), waited: 0, _commands: commands }
    }

    fn mix(&mut self, event: Event) {
        let element = event.element(self.rank);
        if element >= QUIET || self.mixed.contains(&element) {
            return;
        }
        let mut moved = [0.0; PARAMETERS];
        moved[element] = 1.0;
        let moved = encode(Codec::F32, &moved);
        self.training.context.shared.lock().undo(FragmentId(0), 1.0, &moved);
        self.mixed.push(element);
    }

    /// Trains in these groups until the steps are done, or no group is left.
    fn run(mut self, groups: Vec<(u64, Member)>) -> Ended {
        self.mix(Event::Alone);
        let end = self.train(groups);
        let state = self.training.context.replica.save();
        let outer = state.outer.unwrap();
        let own = state.trainer.tensors[0].values.f32().unwrap().to_vec();
        Ended {
            rank: self.rank,
            at: self.training.context.cursor.position(),
            tensors: [state.parameters, outer.live, outer.momentum, own],
            mixed: self.mixed,
            error: match end {
                Ok(()) => None,
                Err(End::Failed(error)) => Some(error.to_string()),
                Err(End::Stopped { .. } | End::Abandoned) => Some("abandoned".to_owned()),
            },
        }
    }

    fn train(&mut self, groups: Vec<(u64, Member)>) -> Result<(), End> {
        for (id, group) in groups {
            if self.training.rack.is_waiting() {
                self.mix(Event::Waiting(self.waited));
                self.waited += 1;
            }
            self.training.on_rack(Some(RankGroup { id, group: Box::new(group) }))?;
            while !self.lost() {
                if self.training.context.cursor.is_finished() {
                    return Ok(());
                }
                let clock = self.training.context.cursor.position().clock.0;
                if self.training.context.cursor.since_commit() == 1 && clock < 2 {
                    self.mix(Event::Between(clock));
                }
                self.training.advance()?;
            }
        }
        Err(End::Abandoned)
    }

    /// Whether the group has failed since the last call.
    fn lost(&mut self) -> bool {
        let mut lost = false;
        while let Ok(report) = self.reports.try_recv() {
            lost |= matches!(report, Report::RackLost { .. });
        }
        lost
    }
}

fn plan() -> Plan {
    Plan { steps: STEPS, batch: BATCH, mix_every: 0, ..Plan::for_tests() }
}

/// Which ranks of a group see an operation end that fails at all others, and who dies of it.
#[derive(Clone, Debug)]
struct Course {
    /// One for each group but the last, which does not fail.
    faults: Vec<Fault>,
    dies: Option<usize>,
}

/// Runs three ranks through this course; how each of them ended.
fn run(course: &Course, slopes: impl Fn(usize) -> Slope) -> Vec<Ended> {
    let mut groups: Vec<Vec<(u64, Member)>> = (0..RANKS).map(|_| Vec::new()).collect();
    for attempt in 0..=course.faults.len() {
        let lives = |rank: &usize| attempt == 0 || course.dies != Some(*rank);
        let ranks: Vec<usize> = (0..RANKS).filter(lives).collect();
        let fault = course.faults.get(attempt);
        for (member, rank) in group(&ranks, fault).into_iter().zip(&ranks) {
            groups[*rank].push((attempt as u64 + 1, member));
        }
    }
    run_in(groups, slopes)
}

fn run_in(groups: Vec<Vec<(u64, Member)>>, slopes: impl Fn(usize) -> Slope) -> Vec<Ended> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .enumerate()
            .map(|(rank, groups)| {
                let rank = Rank::new(rank, slopes(rank));
                scope.spawn(move || rank.run(groups))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Checks that all living ranks ended alike, did every step once, and have what mixing moved once.
fn check(ended: &[Ended], trained: &[Vec<f32>; 4], what: &str) {
    let first = &ended[0];
    let [weights, ..] = &first.tensors;
    for end in ended {
        assert_eq!(end.error, None, "{what}: rank {}", end.rank);
        let Position { step, samples, clock, .. } = end.at;
        let done = (STEPS, STEPS * u64::from(BATCH), Clock(STEPS / 2));
        assert_eq!((step, samples, clock), done, "{what}: rank {}", end.rank);
        assert_eq!(end.at.micro_steps, first.at.micro_steps, "{what}");
        for ((tensor, theirs), expected) in end.tensors.iter().zip(&first.tensors).zip(trained) {
            assert_eq!(bits(tensor), bits(theirs), "{what}: rank {}", end.rank);
            assert_eq!(tensor[QUIET].to_bits(), expected[QUIET].to_bits(), "{what}: trained");
        }
        for element in end.mixed.iter().filter(|element| **element >= RANKS) {
            let counts = weights[*element] - weights[QUIET];
            assert!((counts - 1.0).abs() < 1e-5, "{what}: {element} counts {counts}");
        }
    }
    let alone: Vec<f32> = (0..RANKS).map(|rank| weights[rank] - weights[QUIET]).collect();
    let sum: f32 = alone.iter().sum();
    assert!((sum - 1.0).abs() < 1e-5, "{what}: the means of all sum up to {alone:?}");
    let own: Vec<f32> = ended.iter().map(|end| alone[end.rank]).collect();
    assert!(own.iter().all(|own| (own - alone[ended[0].rank]).abs() < 1e-5), "{what}: {alone:?}");
}

fn trained() -> [Vec<f32>; 4] {
    let course = Course { faults: Vec::new(), dies: None };
    let mut ended = run(&course, |_| Slope::default());
    let trained = ended[0].tensors.clone();
    check(&ended, &trained, "no fault");
    ended.swap_remove(0).tensors
}

fn living(mut ended: Vec<Ended>, dies: Option<usize>) -> Vec<Ended> {
    ended.retain(|end| dies != Some(end.rank));
    ended
}

/// All subsets of `ranks`.
fn some_of(ranks: &[usize]) -> Vec<Vec<usize>> {
    let chosen = |set: usize| {
        let is_in = |(bit, _): &(usize, &usize)| set & (1 << bit) != 0;
        ranks.iter().enumerate().filter(is_in).map(|(_, rank)| *rank).collect()
    };
    (0..1 << ranks.len()).map(chosen).collect()
}

#[test]
fn an_operation_that_ends_at_some_ranks_while_another_dies_is_neither_lost_nor_done_twice() {
    let trained = trained();
    for operation in 0..=EQUALIZE + 2 * ROUND {
        for dies in 0..RANKS {
            let others: Vec<usize> = (0..RANKS).filter(|rank| *rank != dies).collect();
            for ends_at in some_of(&others) {
                let faults = vec![Fault { operation, ends_at }];
                let course = Course { faults, dies: Some(dies) };
                let ended = living(run(&course, |_| Slope::default()), course.dies);
                check(&ended, &trained, &format!("{course:?}"));
            }
        }
    }
}

#[test]
fn a_second_group_that_fails_half_way_changes_nothing_either() {
    let trained = trained();
    for first in 0..EQUALIZE + ROUND {
        for dies in [None, Some(0), Some(RANKS - 1)] {
            let others: Vec<usize> = (0..RANKS).filter(|rank| dies != Some(*rank)).collect();
            for second in 0..EQUALIZE + ROUND {
                for ends_at in [&others[..1], &others[others.len() - 1..]] {
                    let fault = |operation, ends_at: &[usize]| Fault {
                        operation,
                        ends_at: ends_at.to_vec(),
                    };
                    let faults = vec![fault(first, &others[..1]), fault(second, ends_at)];
                    let course = Course { faults, dies };
                    let ended = living(run(&course, |_| Slope::default()), dies);
                    check(&ended, &trained, &format!("{course:?}"));
                }
            }
        }
    }
}

/// A group of three ranks, then a group of the first and last of them.
fn without_the_middle_one(far: bool) -> Vec<Vec<(u64, Member)>> {
    let mut groups: Vec<Vec<(u64, Member)>> = (0..RANKS).map(|_| Vec::new()).collect();
    for (id, ranks) in [(1, [0, 1, 2].as_slice()), (2, &[0, 2])] {
        for (mut member, rank) in group(ranks, None).into_iter().zip(ranks) {
            member.far = far;
            groups[*rank].push((id, member));
        }
    }
    groups
}

#[test]
fn a_gradient_that_is_not_finite_ends_its_own_rank_alone() {
    let trained = trained();
    for (far, checks, gradient) in [
        (false, true, f32::INFINITY),
        (false, false, f32::NEG_INFINITY),
        (true, true, f32::NAN),
        (true, false, f32::INFINITY),
    ] {
        let slope = |rank| match rank {
            1 => Slope::with((3, gradient), checks),
            _ => Slope::default(),
        };
        let mut ended = run_in(without_the_middle_one(far), slope);
        let guilty = ended.remove(1).error.unwrap_or_default();
        assert!(guilty.contains("the gradient is not finite"), "{far} {checks}: {guilty}");
        check(&ended, &trained, &format!("{far} {checks} {gradient}"));
    }
}

#[test]
fn gradients_that_are_too_large_together_end_all_ranks() {
    for far in [false, true] {
        let slope = |_| Slope::with((3, f32::MAX / 2.0), true);
        for end in run_in(without_the_middle_one(far), slope) {
            let error = end.error.unwrap_or_default();
            assert!(error.contains("the gradient is not finite"), "{far} {}: {error}", end.rank);
        }
    }
}
