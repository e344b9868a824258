//! How peers come and go: starts, crashes, departures, and the other faults.

use std::collections::BTreeSet;
use std::time::Duration;

use dnode_gossip::testing::{Host, Replica, Toy, ToyRule, peer as name};
use dnode_gossip::{Balance, Input, Start};
use dnode_protocol::{Clock, Message, Time};
use rand::RngExt;

use super::capacity::Line;
use super::checkpoint::Checkpoint;
use super::invariants::Moment;
use super::learn::Course;
use super::peer::SimPeer;
use super::queue::Happening;
use super::world::World;
use crate::scenario::fault::{Fault, LEAVE_GRACE, Return};

impl World {
    /// Draws how fast the trainer and the lines of the next peer are.
    pub(super) fn draw_peer(&mut self, peer: u32) {
        let (scenario, count) = (&self.scenario, self.scenario.peers);
        let factor = scenario.speed.draw(peer, count, &mut self.rng);
        let batch = scenario.rule.draw_batch(&mut self.rng);
        let mut sim = SimPeer::new(scenario.round_time.mul_f64(factor), batch);
        let link = &scenario.link;
        if link.bandwidth > 0.0 {
            let bandwidth = link.bandwidth * link.spread.draw(peer, count, &mut self.rng);
            sim.bandwidth = bandwidth;
            sim.uplink = Line::new(bandwidth * link.uplink);
            sim.downlink = Line::new(bandwidth);
        }
        self.peers.push(sim);
    }

    /// A process begins, with nothing or with its newest checkpoint.
    pub(super) fn start(&mut self, peer: u32, saved: Option<&Checkpoint>) {
        let (fragments, width) = (self.scenario.fragments, self.scenario.width);
        let rule = self.scenario.rule.toy();
        let mut draw = || (0..width).map(|_| self.rng.random_range(-1.0..1.0)).collect();
        // Replicas are sums of contributions only if all start from one model.
        let values = match (rule, self.initial.is_empty()) {
            (ToyRule::Set, false) => self.initial.clone(),
            _ => (0..fragments).map(|_| draw()).collect(),
        };
        if rule == ToyRule::Set {
            self.initial.clone_from(&values);
        }
        let replica: Box<dyn Replica> = match (&mut self.learning, saved) {
            (Some(learning), _) => learning.fleet.replica(peer),
            (None, Some(saved)) => saved.replica(),
            (None, None) => Box::new(Toy::new(rule, values)),
        };
        let clock = saved.map_or(Clock(0), |saved| saved.clock);
        let sim = &mut self.peers[peer as usize];
        sim.incarnation += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&peer.to_le_bytes());
        seed[12..20].copy_from_slice(&sim.incarnation.to_le_bytes());
        let incarnation = sim.incarnation;
        let start = Start { me: name(peer), incarnation, fragments, clock, seed };
        let mut config = self.config.clone();
        if self.learning.is_none() && config.pace.balance == Balance::Off {
            config.pace.batch = sim.batch;
        }
        let mut host = Host::boxed(start, config, replica, self.now);
        if let Some(saved) = saved {
            host.core = host.core.containing(&saved.contents);
        }
        sim.host = Some(host);
        (sim.wake_at, sim.working, sim.blocked) = (Time::NEVER, false, false);
        (sim.leaving, sim.finished, sim.round_open) = (false, false, false);
        (sim.held_since, sim.rounds_done_seen, sim.ticking) = (None, 0, false);
        sim.said = None;
        sim.course = self.learning.as_ref().map(Course::new).unwrap_or_default();
        (sim.uplink, sim.downlink) = (sim.uplink.idle(), sim.downlink.idle());
        self.observe(&Moment::Joined { peer });
        let first = self.first_round(peer).mul_f64(self.rng.random());
        self.schedule_tick(peer, first);
        let edges: Vec<u32> = self.peers[peer as usize].edges.iter().map(|(_, e)| *e).collect();
        for edge in edges {
            self.schedule_dial(edge, Duration::ZERO);
        }
        self.settle(peer);
    }

    /// A dead process starts; one that returns with its checkpoint has none where none is written.
    fn start_again(&mut self, peer: u32, with: Return) {
        let sim = &mut self.peers[peer as usize];
        if sim.host.is_some() {
            return;
        }
        let saved = sim.saved.clone().filter(|_| with == Return::Checkpoint);
        self.start(peer, saved.as_ref());
    }

    /// The process is gone at once; neighbours notice later.
    fn vanish(&mut self, peer: u32) {
        let Some(host) = self.peers[peer as usize].host.take() else {
            return;
        };
        self.observe(&Moment::Gone { peer, host: &host });
        let edges = self.peers[peer as usize].edges.clone();
        for (_, edge) in edges {
            self.lose_end(edge, peer);
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        // Dead peers stay dead once it is calm; who is about to leave still does.
        let leaves = |peer: &u32| self.peers[*peer as usize].leaving;
        let over = !matches!(&fault, Fault::Heal {}) && !fault.peers().any(|peer| leaves(&peer));
        if self.calm && over {
            return;
        }
        match fault {
            Fault::Crash { peer } => self.vanish(peer),
            Fault::Join { peer } => self.start_again(peer, Return::Name),
            Fault::Restart { peer, with } => self.start_again(peer, with),
            Fault::Leave { peer } => self.leave(peer),
            Fault::Pause { peer, time } => {
                let sim = &mut self.peers[peer as usize];
                sim.paused_until = sim.paused_until.max(self.now + time);
            }
            Fault::Cut { side, both } => {
                let side: BTreeSet<u32> = side.into_iter().collect();
                self.cut(|peer| side.contains(&peer), both);
            }
            Fault::Split { percent, both } => {
                let end = u64::from(self.scenario.peers) * u64::from(percent) / 100;
                self.cut(|peer| u64::from(peer) < end, both);
            }
            Fault::Heal {} => self.heal(),
            Fault::Slow { peer, factor } => self.peers[peer as usize].slowness = factor,
            Fault::Line { peer, delay, loss, bandwidth } => {
                self.set_line(peer, delay, loss, bandwidth);
            }
            // Simulated peers have no addresses.
            Fault::Nat { .. } => {}
        }
    }

    /// Changes a peer's own line beside what all have; bandwidth 0 is that of the start.
    pub(super) fn set_line(&mut self, peer: u32, delay: Duration, loss: f64, bandwidth: f64) {
        let uplink = self.scenario.link.uplink;
        let sim = &mut self.peers[peer as usize];
        let bandwidth = if bandwidth > 0.0 { bandwidth } else { sim.bandwidth };
        sim.uplink = sim.uplink.at_rate(bandwidth * uplink);
        sim.downlink = sim.downlink.at_rate(bandwidth);
        let rate = sim.downlink.rate;
        for (_, index) in self.peers[peer as usize].edges.clone() {
            let edge = &mut self.edges[index as usize];
            let end = edge.end_of(peer);
            edge.downlinks[end] = rate;
            (edge.delays[end], edge.losses[end]) = (delay, loss);
        }
    }

    fn leave(&mut self, peer: u32) {
        let sim = &mut self.peers[peer as usize];
        let Some(host) = sim.host.as_mut() else {
            return;
        };
        if sim.leaving {
            let neighbours: Vec<u32> = sim.edges.iter().map(|(other, _)| *other).collect();
            for other in neighbours {
                self.send_message(peer, other, Message::Goodbye);
            }
            return self.vanish(peer);
        }
        sim.leaving = true;
        host.handle(Input::Leave, self.now);
        self.queue.push(self.now + LEAVE_GRACE, Happening::Fault(Fault::Leave { peer }));
        self.settle(peer);
    }
}
