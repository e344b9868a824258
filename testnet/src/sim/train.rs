//! The trainers: rounds, commits, and the work that the cores ask for, which takes time.

use std::time::Duration;

use dnode_gossip::{Balance, Input, Role, Work};
use rand::RngExt;

use super::book::Deal;
use super::checkpoint::Checkpoint;
use super::defect::Defect;
use super::invariants::Moment;
use super::peer::index_of;
use super::queue::Happening;
use super::world::World;
use crate::scenario::rules::Rule;

impl World {
    pub(super) fn schedule_tick(&mut self, peer: u32, after: Duration) {
        let sim = &mut self.peers[peer as usize];
        if !sim.ticking {
            sim.ticking = true;
            let incarnation = sim.incarnation;
            self.queue.push(self.now + after, Happening::Tick { peer, incarnation });
        }
    }

    /// The steps of a round are done: commit if one is due, and begin a round of exchanges.
    ///
    /// A commit that is held back, and a replica that is being replaced, block the trainer.
    pub(super) fn tick(&mut self, peer: u32, incarnation: u64) {
        let sim = &mut self.peers[peer as usize];
        if sim.incarnation != incarnation || sim.host.is_none() {
            return;
        }
        sim.ticking = false;
        if self.stopped || sim.leaving || sim.finished {
            return;
        }
        if self.learning.is_some() {
            self.local_step(peer);
            return self.settle(peer);
        }
        let rounds = sim.counts.rounds;
        let due = rounds > 0 && rounds.is_multiple_of(self.scenario.rounds_per_commit);
        if due && !self.commit(peer) {
            self.peers[peer as usize].blocked = true;
            return self.settle(peer);
        }
        let sim = &mut self.peers[peer as usize];
        let Some(host) = sim.host.as_mut() else {
            return;
        };
        sim.counts.rounds += 1;
        if host.training {
            sim.round_open = true;
            host.handle(Input::RoundDue, self.now);
        }
        if self.scenario.rounds > 0 && sim.counts.rounds >= self.scenario.rounds {
            sim.finished = true;
            host.handle(Input::Finished, self.now);
        } else {
            let interval = self.round_interval(peer);
            self.schedule_tick(peer, interval);
        }
        self.settle(peer);
    }

    /// Does a commit unless it is held back; returns whether it was done.
    fn commit(&mut self, peer: u32) -> bool {
        let size = if self.still { 0.0 } else { self.scenario.increment };
        let increment = size * (self.rng.random::<f64>() - 0.3);
        let ignores_limit = self.defect == Some(Defect::IgnoresCommitLimit);
        let sim = &mut self.peers[peer as usize];
        // What a commit of this many rounds takes, step by step.
        let rounds = u32::try_from(self.scenario.rounds_per_commit).unwrap_or(u32::MAX);
        let steps = u32::try_from(self.config.pace.local_steps).unwrap_or(u32::MAX);
        let mut step_time = sim.round_time * rounds / steps;
        if let (Balance::Batch, Some(host)) = (self.config.pace.balance, &sim.host) {
            step_time = step_time * host.load.batch / self.config.pace.batch;
        }
        let Some(host) = sim.host.as_mut() else {
            return false;
        };
        if ignores_limit {
            host.limit = dnode_protocol::Clock(u64::MAX);
        }
        let doubted = host.core.doubted().map(|peer| index_of(&peer));
        if !host.commit_after(increment, step_time, self.now) {
            sim.said = host.training.then_some(host.clock);
            return false;
        }
        (sim.said, sim.held_since) = (None, None);
        sim.counts.commits += 1;
        sim.clock_max = sim.clock_max.max(host.clock);
        self.save(peer);
        self.observe(&Moment::Committed { peer, increment, doubted });
        true
    }

    /// Writes a checkpoint when one is due.
    fn save(&mut self, peer: u32) {
        let sim = &mut self.peers[peer as usize];
        let due = Checkpoint::is_due(peer, sim.counts.commits);
        let sums = self.scenario.rule.kind == Rule::DeltaSet && self.learning.is_none();
        let Some(host) = sim.host.as_ref().filter(|_| due && sums) else {
            return;
        };
        sim.saved = Some(Checkpoint::of(host));
    }

    /// Lets a blocked trainer go on when what blocked it is over.
    pub(super) fn resume(&mut self, peer: u32) {
        let now = self.now;
        let sim = &mut self.peers[peer as usize];
        let Some(host) = &sim.host else {
            return;
        };
        if !host.training {
            // A replica that is being replaced has no commit to hold.
            (sim.held_since, sim.said) = (None, None);
        } else if sim.blocked && (host.limit > host.clock || sim.said != Some(host.clock)) {
            (sim.blocked, sim.held_since) = (false, None);
            self.schedule_tick(peer, Duration::ZERO);
        } else if sim.blocked {
            // The core was told once that this commit is wanted and has to remember it.
            sim.held_since.get_or_insert(now);
        }
    }

    /// A piece of trainer work is done.
    pub(super) fn work(&mut self, peer: u32, incarnation: u64) {
        let sim = &mut self.peers[peer as usize];
        if sim.incarnation != incarnation {
            return;
        }
        sim.working = false;
        let Some(host) = sim.host.as_mut() else {
            return;
        };
        if self.stopped && self.defect == Some(Defect::LosesLastWork) {
            return;
        }
        if let (Some(defect), Some(task)) = (self.defect, host.next_work_mut()) {
            defect.bend(task);
            let mixes = matches!(task, Work::Mix { role: Role::Responder, .. });
            if mixes && defect == Defect::RepeatsWork && host.works() == 1 {
                host.repeat_next_work();
            }
        }
        let Some(task) = host.next_work().cloned() else {
            return;
        };
        let (exchange, fragment) = (task.exchange(), task.fragment());
        if self.learning.is_some() {
            host.work(self.now);
            return self.settle(peer);
        }
        let mass = f64::from(sim.batch);
        if matches!(task, Work::Read { .. }) && index_of(&exchange.initiator) == peer {
            self.book.read(&exchange, sim.counts.commits, host.clock);
        }
        let before = host.replica.values(fragment);
        let Some(answer) = host.work(self.now) else {
            return;
        };
        if let Some(defect) = self.defect {
            let mut spoilt = host.replica.values(fragment);
            defect.spoil((&task, &answer), &before, &mut spoilt);
            host.replica.overwrite(fragment, &spoilt);
        }
        let after = host.replica.values(fragment);
        let work = (&task, &answer);
        let masses = self.book.get(&exchange).and_then(Deal::merging_masses);
        self.journal.merging(&task, masses);
        self.journal.worked((peer, incarnation, mass), work, (&before, &after));
        self.observe(&Moment::Worked {
            peer,
            task: &task,
            answer: &answer,
            before: &before,
            after: &after,
        });
        if matches!(task, Work::Mix { role: Role::Initiator, .. }) {
            self.journal.prune(&exchange);
            self.book.close(&exchange);
        } else if matches!(task, Work::Absorb { .. }) {
            self.journal.drop_push(&exchange);
            self.book.close(&exchange);
        }
        self.settle(peer);
    }
}
