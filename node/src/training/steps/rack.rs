//! Steps and commits of a rack: ranks that act as one replica (design: racks).
//!
//! Every local step takes the mean gradient of all ranks, so their live weights stay equal to the bit.
//! Each rank mixes its own part of the slow weights with other racks; a commit adds up what that moved
//! at all ranks and makes it everywhere, then every rank takes the same outer step.
//! When ranks get together, or together anew, they take over the state of the most advanced of them.

use std::cmp::Reverse;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use dnode_collective::{Collective, Place, Reduction};
use dnode_protocol::Clock;
use dnode_trainer::{ReplicaState, StepId, StepReport, TrainError};

use super::gradient::mean_gradient;
use super::together::SLOWER_MAX;
use super::{End, Training};
use crate::training::{Activity, Command, Loss, Report, Together};

/// How long a rank may be silent, beside the time of its steps and evaluations.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks at a bound that holds the commit of some rank.
const HOLD: Duration = Duration::from_millis(5);
/// Numbers by which ranks tell each other where they stand.
const STANDING: usize = 7;

/// The rack as one rank sees it.
#[derive(Debug)]
pub(super) struct Rack {
    /// `None` until the ranks have got together anew: training waits.
    group: Option<Box<dyn Collective>>,
    /// Whether its ranks reduce gradients in parts; `None` before the first.
    in_parts: Option<bool>,
    /// The group in which the ranks had equal weights last.
    lineage: u64,
    /// The slow weights that all had then, `[P]`.
    base: Vec<f32>,
}

impl Rack {
    /// `None` while training waits.
    pub(super) fn group_mut(&mut self) -> Option<&mut dyn Collective> {
        // The type of the box's own lifetime is longer than that of this borrow.
        self.group.as_mut().map(|group| &mut **group as _)
    }

    /// The place of this rank; `None` while training waits.
    pub(super) fn place(&self) -> Option<Place> {
        self.group.as_ref().map(|group| group.place())
    }
}

/// What the ranks have agreed on.
#[derive(Clone, Copy, Debug)]
struct Vote {
    /// The bounds of all ranks allow a commit.
    may_commit: bool,
    /// All exchanges of the last round have ended at all ranks.
    all_exchanged: bool,
    /// An evaluation is due at some rank.
    evaluates: bool,
    /// Local steps per commit.
    local_steps: u64,
}

/// Where a rank stands, in the order in which it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    clock: u64,
    micro_steps: u64,
    since_commit: u64,
    since_round: u64,
    local_steps: u64,
    /// 0 for a rank that was alone.
    lineage: u64,
    parameters: u64,
}

impl Standing {
    fn numbers(self) -> [u64; STANDING] {
        let Self { clock, micro_steps, since_commit, since_round, .. } = self;
        let Self { local_steps, lineage, parameters, .. } = self;
        [clock, micro_steps, since_commit, since_round, local_steps, lineage, parameters]
    }

    /// As values that are moved and not computed with.
    fn write(self, out: &mut [f32]) {
        for (pair, number) in out.chunks_exact_mut(2).zip(self.numbers()) {
            pair[0] = f32::from_bits((number >> 32) as u32);
            pair[1] = f32::from_bits(number as u32);
        }
    }

    fn read(values: &[f32]) -> Self {
        let mut numbers = values
            .chunks_exact(2)
            .map(|pair| (u64::from(pair[0].to_bits()) << 32) | u64::from(pair[1].to_bits()));
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            clock: next(),
            micro_steps: next(),
            since_commit: next(),
            since_round: next(),
            local_steps: next(),
            lineage: next(),
            parameters: next(),
        }
    }

    /// Whether what mixing moved at this rank is not part of the other's weights yet.
    const fn is_in_step_with(self, other: Self) -> bool {
        self.trained_with(other) && self.clock == other.clock
    }

    /// Whether the last steps of both were those of one group.
    const fn trained_with(self, other: Self) -> bool {
        self.lineage != 0 && self.lineage == other.lineage
    }
}

/// Where ranks that get together go on in the run, micro-steps: at their mean, so that together they
/// take the steps that all would have taken alone. A step that the lead has finished was taken by
/// every rank of its group, as it holds the gradients of all.
fn meeting(ranks: &[Standing], lead: Standing) -> u64 {
    let of = |rank: &Standing| if rank.trained_with(lead) { lead } else { *rank };
    let sum: u128 = ranks.iter().map(|rank| u128::from(of(rank).micro_steps)).sum();
    u64::try_from(sum / ranks.len().max(1) as u128).unwrap_or(u64::MAX)
}

impl Training {
    /// Ranks have got together, or this one is to train alone from now on.
    pub(super) fn change_rack(&mut self, together: Option<Together>) -> Result<(), End> {
        let Some(Together { id, mut group }) = together else {
            self.leave_rack();
            return Ok(());
        };
        if self.steps_done || !self.allowed {
            return Ok(());
        }
        group.set_patience(self.rank_patience());
        match self.equalize(&mut *group) {
            Ok(base) => {
                self.rack = Some(Rack { group: Some(group), in_parts: None, lineage: id, base });
                self.replica.defer(true);
                self.held = false;
                Ok(())
            }
            Err(Failed::Group(error)) => self.lose_group(id, (&error).into()),
            Err(Failed::End(end)) => Err(end),
        }
    }

    /// Trains alone from now on.
    pub(super) fn leave_rack(&mut self) {
        if self.rack.take().is_some() {
            self.replica.defer(false);
        }
    }

    /// Whether training waits until ranks have got together anew.
    pub(super) fn waits_for_rack(&self) -> bool {
        self.rack.as_ref().is_some_and(|rack| rack.group.is_none())
    }

    /// A local step with the mean gradient of all ranks; `None` when it is to be done again, because a
    /// rank was lost.
    pub(super) fn step_in_rack(&mut self, at: StepId) -> Result<Option<StepReport>, End> {
        let patience = self.rank_patience();
        let Some(Rack { group: Some(group), in_parts, .. }) = &mut self.rack else {
            return Ok(None);
        };
        let trainer = self.replica.trainer_mut().split().ok_or_else(unsplittable)?;
        group.set_patience(patience);
        let gradient = mean_gradient(trainer, (&mut **group, in_parts), at, &self.queues.meter)?;
        self.wait_seconds += gradient.waited;
        if let Err(error) = gradient.reduced {
            self.lose_rack((&error).into())?;
            return Ok(None);
        }
        let updated = trainer.update(at)?;
        let StepReport { loss, samples, .. } = gradient.report;
        Ok(Some(StepReport { loss, samples, ..updated }))
    }

    /// Commits when all ranks may.
    pub(super) fn commit_in_rack_when_due(&mut self) -> Result<(), End> {
        let Some(vote) = self.vote()? else { return Ok(()) };
        self.stride.set(vote.local_steps);
        let longest = self.since_commit >= self.stride.longest();
        let last = self.at.run_steps() >= self.plan.steps;
        if !vote.may_commit || !(vote.all_exchanged || longest || last) {
            return Ok(());
        }
        self.evaluation_due = vote.evaluates;
        self.commit_in_rack()
    }

    /// Waits a moment while a bound holds back the commit of some rank, and looks again.
    pub(super) fn hold_in_rack(&mut self) -> Result<(), End> {
        let began = Instant::now();
        self.queues.meter.enter(Activity::Held, began);
        if self.at.clock >= self.limit && !self.held {
            self.held = true;
            self.tell(Report::CommitHeld)?;
        }
        let command = self.queues.commands.recv_timeout(HOLD);
        self.wait_seconds += began.elapsed().as_secs_f64();
        match command {
            Ok(command) => self.obey(command)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(End::Abandoned),
        }
        if self.rack.is_some() && !self.waits_for_rack() {
            self.commit_in_rack_when_due()?;
            self.evaluate_when_due()?;
        }
        Ok(())
    }

    /// Asks all ranks; `None` when one was lost.
    fn vote(&mut self) -> Result<Option<Vote>, End> {
        let (patience, limit) = (self.rank_patience(), self.limit);
        let wanted = self.wanted_steps.unwrap_or_else(|| self.stride.local_steps());
        let [allowed, exchanged] = [self.at.clock < limit, !self.round_open].map(truth);
        let mut votes =
            [allowed, exchanged, truth(self.evaluation_due), wanted.min(1 << 20) as f32];
        let Some(group) = self.rack.as_mut().and_then(|rack| rack.group.as_mut()) else {
            return Ok(None);
        };
        group.set_patience(patience);
        if let Err(error) = group.all_reduce(&mut votes, Reduction::Sum) {
            self.lose_rack((&error).into())?;
            return Ok(None);
        }
        let ranks = group.place().size as f32;
        let [may_commit, all_exchanged, evaluates, local_steps] = votes.map(|sum| sum / ranks);
        let all = |part: f32| part > 1.0 - 0.5 / ranks;
        Ok(Some(Vote {
            may_commit: all(may_commit),
            all_exchanged: all(all_exchanged),
            evaluates: evaluates > 0.0,
            local_steps: (local_steps.round() as u64).max(1),
        }))
    }

    fn commit_in_rack(&mut self) -> Result<(), End> {
        let patience = self.rank_patience();
        let commons = self.commons.clone();
        let mut turn = commons.turn();
        let Some(rack) = self.rack.as_mut() else { return Ok(()) };
        let Some(group) = rack.group.as_mut() else { return Ok(()) };
        let mut moved = turn.moved_since(&rack.base);
        let began = Instant::now();
        let before = self.queues.meter.enter(Activity::Ranks, began);
        group.set_patience(patience);
        let reduced = group.all_reduce(&mut moved, Reduction::Sum);
        self.wait_seconds += began.elapsed().as_secs_f64();
        self.queues.meter.enter(before, Instant::now());
        if let Err(error) = reduced {
            drop(turn);
            return self.lose_rack((&error).into());
        }
        self.replica.displace_together(&mut turn, &rack.base, &moved);
        let contributions = self.replica.commit_in(&mut turn, 1.0).contributions;
        rack.base.copy_from_slice(&turn.weights());
        self.committed();
        self.tell_committed(contributions)
    }

    /// Takes over the state of the most advanced rank, with what mixing moved at the others that are
    /// in step with it; those that were alone count as much as it, and all take the mean. Returns the
    /// slow weights that all ranks have then.
    fn equalize(&mut self, group: &mut dyn Collective) -> Result<Vec<f32>, Failed> {
        let place = group.place();
        let commons = self.commons.clone();
        let turn = commons.turn();
        let own = self.standing(turn.weights().len());
        let mut table = vec![0.0; place.size * STANDING * 2];
        own.write(&mut table[place.rank * STANDING * 2..][..STANDING * 2]);
        group.all_gather(&mut table)?;
        let ranks: Vec<Standing> = table.chunks(STANDING * 2).map(Standing::read).collect();
        if ranks.iter().any(|rank| rank.parameters != own.parameters) {
            let error = TrainError::Other("the ranks of the rack train different models: `dnode config show` on each tells in what".into());
            return Err(Failed::End(End::Failed(error)));
        }
        let first = |index: &usize| {
            let rank = &ranks[*index];
            (rank.clock, rank.micro_steps, rank.lineage != 0, Reverse(*index))
        };
        let root = (0..ranks.len()).max_by_key(first).unwrap_or(0);
        let lead = ranks[root];
        let alone = |rank: &Standing| !rank.is_in_step_with(lead);
        let others = (0..ranks.len()).filter(|index| *index != root);
        let units = 1 + others.filter(|index| alone(&ranks[*index])).count();
        let mut moved = match &self.rack {
            Some(rack) if own.is_in_step_with(lead) => turn.moved_since(&rack.base),
            _ => turn.weights().to_vec(),
        };
        let (mut state, mut turn) = self.replica.save_in(turn);
        share(group, root, &mut state)?;
        if place.rank == root {
            moved.fill(0.0);
        } else if alone(&own) {
            let scale = 1.0 / units as f32;
            for (value, theirs) in moved.iter_mut().zip(&state.parameters) {
                *value = (*value - theirs) * scale;
            }
        }
        group.all_reduce(&mut moved, Reduction::Sum)?;
        add(&mut state.parameters, &moved);
        if let Some(outer) = &mut state.outer {
            add(&mut outer.live, &moved);
        }
        let restored = self.replica.restore_in(&mut turn, &state);
        restored.map_err(|error| Failed::End(End::Failed(error)))?;
        let base = turn.weights().to_vec();
        self.stand_with((&ranks, own), lead).map_err(Failed::End)?;
        drop(turn);
        Ok(base)
    }

    fn standing(&self, parameters: usize) -> Standing {
        Standing {
            clock: self.at.clock.0,
            micro_steps: self.at.micro_steps,
            since_commit: self.since_commit,
            since_round: self.since_round,
            local_steps: self.stride.local_steps(),
            lineage: self.rack.as_ref().map_or(0, |rack| rack.lineage),
            parameters: parameters as u64,
        }
    }

    /// Goes on from where the most advanced rank stands, at the position where all of them meet.
    fn stand_with(
        &mut self,
        (ranks, own): (&[Standing], Standing),
        lead: Standing,
    ) -> Result<(), End> {
        let newer = Clock(lead.clock) > self.at.clock;
        if own.trained_with(lead) && own.micro_steps < lead.micro_steps {
            // The step that failed here has this rank's gradient, and is taken over.
            self.at.step += 1;
            self.at.samples += u64::from(self.batch);
        }
        self.at.clock = Clock(lead.clock);
        self.at.micro_steps = meeting(ranks, lead);
        (self.since_commit, self.since_round) = (lead.since_commit, lead.since_round);
        self.stride.set(lead.local_steps);
        if !newer {
            return Ok(());
        }
        self.clock.fetch_max(lead.clock, std::sync::atomic::Ordering::Relaxed);
        self.tell_committed(Vec::new())
    }

    /// A rank was lost, or this one: nothing goes on until the ranks have got together anew.
    pub(super) fn lose_rack(&mut self, loss: Loss) -> Result<(), End> {
        let group = self.rack.as_ref().map_or(0, |rack| rack.lineage);
        self.lose_group(group, loss)
    }

    /// The same; the driver may have another group already, which this is not about.
    fn lose_group(&mut self, group: u64, loss: Loss) -> Result<(), End> {
        if self.queues.line.is_stopping() {
            return Err(self.stopped());
        }
        if let Some(rack) = &mut self.rack {
            rack.group = None;
        }
        self.tell(Report::RackLost { group, loss })
    }

    /// How long a rank may be silent.
    pub(super) fn rank_patience(&self) -> Duration {
        let seconds = SLOWER_MAX * self.step_time.mean() + 2.0 * self.pause_seconds;
        SILENCE_MAX + Duration::try_from_secs_f64(seconds).unwrap_or(SILENCE_MAX)
    }

    /// The order to stop, which is on its way.
    pub(super) fn stopped(&self) -> End {
        // It comes by way of the mixing thread.
        while let Ok(command) = self.queues.commands.recv() {
            if let Command::Stop { evaluate } = command {
                return End::Stopped { evaluate };
            }
        }
        End::Abandoned
    }
}

/// Why ranks could not become equal.
enum Failed {
    /// A rank was lost.
    Group(dnode_collective::Error),
    /// Training ends.
    End(End),
}

impl From<dnode_collective::Error> for Failed {
    fn from(error: dnode_collective::Error) -> Self {
        Self::Group(error)
    }
}

/// Replaces all tensors by those of rank `root`.
fn share(
    group: &mut dyn Collective,
    root: usize,
    state: &mut ReplicaState,
) -> Result<(), dnode_collective::Error> {
    group.broadcast(root, &mut state.parameters)?;
    if let Some(outer) = &mut state.outer {
        group.broadcast(root, &mut outer.live)?;
        group.broadcast(root, &mut outer.momentum)?;
    }
    for tensor in &mut state.trainer.tensors {
        group.broadcast(root, &mut tensor.values)?;
    }
    Ok(())
}

fn add(values: &mut [f32], sum: &[f32]) {
    for (value, sum) in values.iter_mut().zip(sum) {
        *value += sum;
    }
}

const fn truth(value: bool) -> f32 {
    if value { 1.0 } else { 0.0 }
}

fn unsplittable() -> TrainError {
    TrainError::Other("a rack needs a trainer whose step can be split: leave out --rack, or implement Trainer::split".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDING_OF_ONE: Standing = Standing {
        clock: u64::MAX,
        micro_steps: 0x7fc0_0001_ff80_0001,
        since_commit: 3,
        since_round: 0,
        local_steps: 25,
        lineage: 0xdead_beef_0000_0001,
        parameters: 7,
    };

    #[test]
    fn a_standing_survives_being_told() {
        let standing = STANDING_OF_ONE;
        let mut values = [0.0; STANDING * 2];
        standing.write(&mut values);
        assert_eq!(Standing::read(&values), standing);
    }
    #[test]
    fn ranks_that_meet_go_on_where_all_together_take_the_steps_of_each() {
        let at = |micro_steps, lineage| Standing { micro_steps, lineage, ..STANDING_OF_ONE };
        // Two that were alone, thirteen steps apart.
        assert_eq!(meeting(&[at(13, 0), at(0, 0)], at(13, 0)), 6);
        // A newcomer and a group of two.
        assert_eq!(meeting(&[at(90, 5), at(90, 5), at(60, 0)], at(90, 5)), 80);
        // A step that ended at one rank of a group and not at the other.
        assert_eq!(meeting(&[at(90, 5), at(91, 5)], at(91, 5)), 91);
        // One that never was in a group is like no other.
        assert_eq!(meeting(&[at(10, 0), at(20, 0), at(30, 0)], at(30, 0)), 20);
    }
}
