//! How the processes of a world come and go, and the other faults.

use std::collections::BTreeSet;
use std::time::Duration;

use dnode_gossip::testing::{Effect, peer as name};
use dnode_protocol::Message;

use super::World;
use crate::scenario::fault::{Fault, LEAVE_GRACE, Return};
use crate::sim::checkpoint::Checkpoint;
use crate::sim::context::Phase;
use crate::sim::invariants::property::Moment;
use crate::sim::queue::Happening;

impl World {
    /// A process begins, with nothing or with its newest checkpoint.
    pub(super) fn start(&mut self, peer: u32, saved: Option<&Checkpoint>) {
        let context = &mut self.context;
        self.processes.start(context, self.learning.as_mut(), peer, saved);
        self.network.clear_lines(peer);
        self.observe(&Moment::Joined { peer });
        let (context, sim) = (&mut self.context, &mut self.processes[peer]);
        let first = match &self.learning {
            Some(learning) => learning.first_round(peer),
            None => sim.round_interval(context),
        };
        let mut first = context.part_of(first);
        let wait = context.scenario().wait;
        if !wait.is_zero() {
            first += context.part_of(wait);
        }
        sim.schedule_tick(peer, first, context);
        for edge in self.network.edges_of(peer) {
            self.network.schedule_dial(context, edge, Duration::ZERO);
        }
        self.settle(peer);
    }

    /// The process is gone at once; neighbours notice later.
    fn vanish(&mut self, peer: u32) {
        let Some(host) = self.processes[peer].end() else {
            return;
        };
        self.observe(&Moment::Gone { peer, host: &host });
        for edge in self.network.edges_of(peer) {
            self.network.lose_end(&mut self.context, edge, peer);
        }
    }

    /// The process begins to leave, and is gone when its time for that is over.
    fn leave(&mut self, peer: u32) {
        let sim = &mut self.processes[peer];
        if sim.host().is_none() {
            return;
        }
        if sim.is_leaving() {
            for other in self.network.neighbours(peer).collect::<Vec<_>>() {
                let effect = Effect::Message { to: name(other), message: Message::Goodbye };
                self.carry_out(peer, effect);
            }
            return self.vanish(peer);
        }
        sim.leave(self.context.now());
        self.context.after(LEAVE_GRACE, Happening::Fault(Fault::Leave { peer }));
        self.settle(peer);
    }

    /// A fault happens. In the calm none does, but that who is about to leave still leaves.
    pub(super) fn fault(&mut self, fault: Fault) {
        let leaves = |peer: u32| self.processes[peer].is_leaving();
        let over = !matches!(&fault, Fault::Heal {}) && !fault.peers().any(leaves);
        if over && self.context.reached(Phase::Calm) {
            return;
        }
        let context = &mut self.context;
        match fault {
            Fault::Crash { peer } => self.vanish(peer),
            Fault::Join { peer } => self.start_again(peer, Return::Name),
            Fault::Restart { peer, with } => self.start_again(peer, with),
            Fault::Leave { peer } => self.leave(peer),
            Fault::Pause { peer, time } => self.processes[peer].pause(context.now() + time),
            Fault::Cut { side, both } => {
                let side: BTreeSet<u32> = side.into_iter().collect();
                self.network.cut(context, |peer| side.contains(&peer), both);
            }
            Fault::Split { percent, both } => {
                let end = u64::from(context.scenario().peers) * u64::from(percent) / 100;
                self.network.cut(context, |peer| u64::from(peer) < end, both);
            }
            Fault::Heal {} => self.network.heal(),
            Fault::Slow { peer, factor } => self.processes[peer].trainer_mut().slow_down(factor),
            Fault::Line { peer, delay, loss, bandwidth } => {
                let uplink = context.scenario().link.uplink;
                self.network.set_line(peer, (delay, loss, bandwidth), uplink);
            }
            // Simulated peers have no addresses.
            Fault::Nat { .. } => {}
        }
    }

    /// A dead process starts; one that returns with its checkpoint has none where none is written.
    fn start_again(&mut self, peer: u32, with: Return) {
        let sim = &self.processes[peer];
        if sim.host().is_some() {
            return;
        }
        let saved = sim.saved().filter(|_| with == Return::Checkpoint).cloned();
        self.start(peer, saved.as_ref());
    }
}
