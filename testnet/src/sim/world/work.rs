//! What trainers do in a world: commits, rounds, and the work that cores ask for.

use dnode_gossip::{Role, Work};
use rand::RngExt;

use super::World;
use crate::sim::context::Phase;
use crate::sim::defect::Defect;
use crate::sim::invariants::property::Moment;
use crate::sim::names::index_of;

impl World {
    /// The steps of a round are done: commit if one is due, and begin a round of exchanges.
    ///
    /// A commit that is held back, and a replica that is being replaced, block the trainer.
    pub(super) fn tick(&mut self, peer: u32, incarnation: u64) {
        let (sim, context) = (&mut self.processes[peer], &mut self.context);
        if !sim.takes_tick(incarnation)
            || context.reached(Phase::Stopped)
            || sim.is_leaving()
            || sim.finished()
        {
            return;
        }
        sim.begin_training(context.now());
        if let Some(learning) = &mut self.learning {
            sim.local_step(peer, learning, context);
            return self.settle(peer);
        }
        let rounds = sim.counts().rounds;
        if rounds > 0 && rounds.is_multiple_of(context.scenario().rounds_per_commit) {
            let still = context.reached(Phase::Still);
            let size = if still { 0.0 } else { context.scenario().increment };
            let increment = size * (context.draw(|_, rng| rng.random::<f64>()) - 0.3);
            let Some((increment, believed)) = sim.commit(peer, increment, context) else {
                sim.trainer_mut().block();
                return self.settle(peer);
            };
            self.observe(&Moment::Committed { peer, increment, believed });
        }
        self.processes[peer].begin_round(peer, &mut self.context);
        self.settle(peer);
    }

    /// A piece of work for a core is done.
    pub(super) fn work(&mut self, peer: u32, incarnation: u64) {
        let (sim, context) = (&mut self.processes[peer], &self.context);
        let (mass, commits) = (f64::from(sim.trainer().batch()), sim.counts().commits);
        let Some(host) = sim.takes_work(incarnation) else {
            return;
        };
        if context.reached(Phase::Stopped) && context.has(Defect::LosesLastWork) {
            return;
        }
        if let (Some(defect), Some(task)) = (context.defect(), host.next_work_mut()) {
            defect.bend(task);
            let mixes = matches!(task, Work::Mix { role: Role::Responder, .. });
            if mixes && defect == Defect::RepeatsWork && host.works() == 1 {
                host.repeat_next_work();
            }
        }
        let Some(task) = host.next_work().cloned() else {
            return;
        };
        if self.learning.is_some() {
            host.work(context.now());
            return self.settle(peer);
        }
        let (exchange, fragment) = (task.exchange(), task.fragment());
        if matches!(task, Work::Read { .. }) && index_of(&exchange.initiator) == peer {
            self.checks.on_read(&exchange, commits, host.clock);
        }
        let before = host.replica.values(fragment);
        let Some(answer) = host.work(context.now()) else {
            return;
        };
        if let Some(defect) = context.defect() {
            let mut spoilt = host.replica.values(fragment);
            defect.spoil((&task, &answer), &before, &mut spoilt);
            host.replica.overwrite(fragment, &spoilt);
        }
        let after = host.replica.values(fragment);
        let (before, after) = (&before[..], &after[..]);
        let worker = (peer, incarnation, mass);
        self.checks.on_work(worker, (&task, &answer), (before, after), context.now());
        self.observe(&Moment::Worked { peer, task: &task, answer: &answer, before, after });
        self.checks.close(&task);
        self.settle(peer);
    }
}
