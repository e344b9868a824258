//! The training thread's position in the run, in the round of local steps and in that of exchanges.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dnode_gossip::{Load, MICRO_STEPS, Stride};
use dnode_protocol::Clock;
use dnode_trainer::StepId;

use super::rack::standing::{Standing, WeightsMark, meeting};
use crate::training::{Adoption, Plan, Position};

/// A position, and what follows from it.
#[derive(Debug)]
pub(in crate::training) struct Cursor {
    at: Position,
    /// The replica's clock for the mixing thread; changes only under the replica's lock.
    clock: Arc<AtomicU64>,
    stride: Stride,
    /// Steps of the run.
    end: u64,
    since_commit: u64,
    since_round: u64,
    /// Whether exchanges of the last round go on.
    round_open: bool,
    steps_done: bool,
    /// Whether no step is taken: the position is that of what was taken over.
    observes: bool,
}

/// The whole steps of the run that one local step has led past.
#[derive(Clone, Copy, Debug)]
pub(super) struct Advance {
    before: u64,
    now: u64,
}

impl Advance {
    #[cfg(test)]
    pub(super) const fn new(before: u64, now: u64) -> Self {
        Self { before, now }
    }

    /// Whether something that comes every `every` steps of the run is due; never if `every` is 0.
    pub(super) fn is_due(self, every: u64) -> bool {
        self.before.checked_div(every) != self.now.checked_div(every)
    }
}

impl Cursor {
    pub(in crate::training) fn new(at: Position, clock: Arc<AtomicU64>, plan: &Plan) -> Self {
        let stride = Stride::new(plan.local_steps, plan.mix_every);
        Self {
            at,
            clock,
            stride: if plan.contributes { stride.of_contributions() } else { stride },
            end: if plan.observes { u64::MAX } else { plan.steps },
            since_commit: 0,
            since_round: at.step.checked_rem(plan.mix_every).unwrap_or(0),
            round_open: false,
            steps_done: false,
            observes: plan.observes,
        }
    }

    pub(super) const fn position(&self) -> Position {
        self.at
    }

    /// The next local step.
    pub(super) const fn step_id(&self) -> StepId {
        StepId { index: self.at.step, position: self.at.run_steps() }
    }

    /// The run ends at this step.
    pub(super) const fn set_end(&mut self, steps: u64) {
        self.end = steps;
    }

    /// Steps of the run.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Whether the run has no steps left.
    pub(super) const fn is_at_end(&self) -> bool {
        self.at.run_steps() >= self.end
    }

    /// The last step, commit and evaluation are done.
    pub(super) const fn finish(&mut self) {
        self.steps_done = true;
    }

    pub(super) const fn is_finished(&self) -> bool {
        self.steps_done
    }

    /// Local steps per commit.
    pub(super) const fn local_steps(&self) -> u64 {
        self.stride.local_steps()
    }

    pub(super) fn set_load(&mut self, load: Load) {
        self.stride.set_load(load);
    }

    pub(super) fn set_local_steps(&mut self, steps: u64) {
        self.stride.set(steps);
    }

    pub(super) fn set_round_every(&mut self, steps: u64) {
        self.stride.set_round_every(steps);
    }

    /// Local steps since the last commit.
    pub(super) const fn since_commit(&self) -> u64 {
        self.since_commit
    }

    /// Local steps until the next commit is due; 0 when it is overdue.
    pub(super) const fn until_commit(&self) -> u64 {
        self.stride.local_steps().saturating_sub(self.since_commit)
    }

    /// Whether the local steps of a commit are done.
    pub(super) const fn is_commit_due(&self) -> bool {
        self.since_commit >= self.stride.local_steps()
    }

    /// Whether a commit can be put off no longer.
    pub(super) const fn is_stretched(&self) -> bool {
        self.since_commit >= self.stride.longest()
    }

    pub(super) const fn is_round_open(&self) -> bool {
        self.round_open
    }

    /// Whether a commit waits for the end of the open round.
    pub(super) fn waits_for_round(&self) -> bool {
        self.round_open && !self.stride.rounds_overlap()
    }

    /// A local step was taken.
    pub(super) fn stepped(&mut self, samples: u64) -> Advance {
        let before = self.at.run_steps();
        self.at.step += 1;
        self.at.micro_steps = self.at.micro_steps.saturating_add(self.stride.advance());
        self.at.samples += samples;
        self.since_commit += 1;
        self.since_round += 1;
        Advance { before, now: self.at.run_steps() }
    }

    /// Whether a round of exchanges is due after this step; the next is counted from here.
    pub(super) fn take_round(&mut self) -> bool {
        let every = self.stride.mix_every();
        let due = every > 0 && self.since_round >= every;
        self.since_round = if due { 0 } else { self.since_round };
        due
    }

    /// A round of exchanges begins; `false` when the last one still goes on and they do not overlap.
    pub(super) fn open_round(&mut self) -> bool {
        let opens = !self.round_open || self.stride.rounds_overlap();
        self.round_open = true;
        opens
    }

    /// All exchanges of the round have ended.
    pub(super) const fn close_round(&mut self) {
        self.round_open = false;
    }

    /// A commit was made.
    pub(super) fn committed(&mut self) {
        self.since_commit = 0;
        self.at.clock = self.at.clock.next();
        self.clock.fetch_max(self.at.clock.0, Ordering::Relaxed);
    }

    /// Goes on from the position that belongs to the clock, so that the learning rate follows the
    /// swarm's progress. A replaced replica is a donor's. One that was not replaced keeps the steps
    /// since its last commit.
    pub(super) fn adopt(&mut self, Adoption { clock, position, replaced }: Adoption) {
        if replaced {
            (self.since_commit, self.since_round) = (0, 0);
            self.round_open = false;
        }
        self.at.clock = self.at.clock.max(clock);
        let end = self.end.saturating_mul(MICRO_STEPS);
        let told = position.saturating_mul(MICRO_STEPS);
        let reached = self.stride.position(clock).max(told).min(end);
        self.at.micro_steps = self.at.micro_steps.max(reached);
        if self.observes {
            self.at.step = self.at.run_steps();
        }
    }

    /// The position as ranks tell it each other, for a model with so many parameters.
    pub(super) const fn standing(&self, parameters: u64) -> Standing {
        Standing {
            clock: self.at.clock.0,
            micro_steps: self.at.micro_steps,
            since_commit: self.since_commit,
            since_round: self.since_round,
            local_steps: self.stride.local_steps(),
            parameters,
            end: self.end,
            mark: WeightsMark::NONE,
            handed: [WeightsMark::NONE; super::rack::standing::HANDED_MAX],
        }
    }

    /// Takes over a step of so many samples that failed here and was finished at another rank.
    pub(super) const fn count_step(&mut self, samples: u64) {
        self.at.step += 1;
        self.at.samples += samples;
    }

    /// Takes over the state of the most advanced rank, at the position where all of them meet. Returns
    /// whether its clock is newer than this peer's.
    pub(super) fn meet(&mut self, ranks: &[Standing], lead: Standing) -> bool {
        // The clock of the lead, unless another rank has taken over a swarm's clock.
        let clock = ranks.iter().map(|rank| rank.clock).max().unwrap_or(lead.clock);
        let newer = Clock(clock) > self.at.clock;
        self.at.clock = Clock(clock);
        self.at.micro_steps = meeting(ranks, lead);
        (self.since_commit, self.since_round) = (lead.since_commit, lead.since_round);
        self.stride.restart(lead.local_steps);
        if newer {
            self.clock.fetch_max(clock, Ordering::Relaxed);
        }
        newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(local_steps: u64, mix_every: u64) -> Cursor {
        let plan = Plan { steps: 100, local_steps, mix_every, ..Plan::for_tests() };
        Cursor::new(Position::default(), Arc::default(), &plan)
    }

    #[test]
    fn commits_and_rounds_come_after_their_steps() {
        let mut cursor = cursor(2, 3);
        let mut events = Vec::new();
        for step in 1..=6_u64 {
            assert!(cursor.stepped(8).is_due(1), "{step}");
            if cursor.is_commit_due() {
                cursor.committed();
                events.push(('c', step));
            }
            if cursor.take_round() {
                assert_eq!(cursor.open_round(), step == 3, "the first round is not closed");
                events.push(('r', step));
            }
        }
        assert_eq!(events, [('c', 2), ('r', 3), ('c', 4), ('c', 6), ('r', 6)]);
        let Position { step, samples, clock, .. } = cursor.position();
        assert_eq!((step, samples, clock), (6, 48, Clock(3)));
    }

    #[test]
    fn ranks_that_meet_go_on_alike_to_the_millionth_of_a_step() {
        let mut ranks = [0, 1, 2].map(|steps| {
            // Twenty-five steps of the run in seven.
            let mut cursor = cursor(25, 0);
            cursor.set_local_steps(7);
            for _ in 0..steps {
                let _ = cursor.stepped(8);
            }
            cursor
        });
        let standings = ranks.each_ref().map(|rank| rank.standing(1));
        let after = ranks.each_mut().map(|rank| {
            rank.meet(&standings, standings[2]);
            [(); 7].map(|()| {
                let _ = rank.stepped(8);
                rank.position().micro_steps
            })
        });
        assert!(after.iter().all(|positions| *positions == after[0]), "{after:?}");
    }

    #[test]
    fn a_clock_is_taken_over_with_its_position_and_never_past_the_end() {
        let mut cursor = cursor(2, 0);
        let _ = cursor.stepped(8);
        let adoption = |clock, position, replaced| {
            let clock = Clock(clock);
            Adoption { clock, position, replaced }
        };
        cursor.adopt(adoption(10, 0, false));
        assert_eq!((cursor.position().run_steps(), cursor.since_commit()), (20, 1));
        cursor.adopt(adoption(5, 0, true));
        assert_eq!((cursor.position().clock, cursor.since_commit()), (Clock(10), 0));
        // Commits were longer than usual where others stand.
        cursor.adopt(adoption(12, 70, true));
        assert_eq!((cursor.position().run_steps(), cursor.position().clock), (70, Clock(12)));
        cursor.adopt(adoption(1_000, u64::MAX, false));
        assert!(cursor.is_at_end() && cursor.position().run_steps() == 100);
    }
}
