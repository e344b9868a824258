//! The peers of a world: who is drawn how, and how a process begins.

use std::ops::{Index, IndexMut};

use dnode_gossip::testing::{Host, Replica, Toy, ToyRule, peer as name};
use dnode_gossip::{Balance, Input, Start};
use dnode_protocol::Clock;
use rand::RngExt;

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::learning::{Learning, LocalSteps};
use super::peer::SimPeer;

/// All peers of a world.
#[derive(Debug, Default)]
pub(super) struct Processes {
    peers: Vec<SimPeer>,
    /// The values that all replicas start from, if they must: `[fragments][width]`.
    initial: Vec<Vec<f64>>,
}

impl Index<u32> for Processes {
    type Output = SimPeer;

    fn index(&self, peer: u32) -> &SimPeer {
        &self.peers[peer as usize]
    }
}

impl IndexMut<u32> for Processes {
    fn index_mut(&mut self, peer: u32) -> &mut SimPeer {
        &mut self.peers[peer as usize]
    }
}

impl Processes {
    /// All peers, by index.
    pub(super) fn all(&self) -> &[SimPeer] {
        &self.peers
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (u32, &mut SimPeer)> {
        (0..).zip(&mut self.peers)
    }

    /// Draws how fast the trainer of the next peer is.
    pub(super) fn add(&mut self, context: &mut Context) {
        let peer = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        let sim = context.draw(|scenario, rng| {
            let factor = scenario.speed.draw(peer, scenario.peers, rng);
            let batch = scenario.rule.draw_batch(rng);
            SimPeer::new(scenario.round_time.mul_f64(factor), batch)
        });
        self.peers.push(sim);
    }

    /// A process begins, with nothing or with its newest checkpoint.
    pub(super) fn start(
        &mut self,
        context: &mut Context,
        learning: Option<&mut Learning>,
        peer: u32,
        saved: Option<&Checkpoint>,
    ) {
        let values = self.draw_values(context);
        let (learns, sim) = (learning.is_some(), &mut self.peers[peer as usize]);
        let (replica, steps): (Box<dyn Replica>, _) = match (learning, saved) {
            (Some(learning), _) => (learning.fleet.replica(peer), LocalSteps::new(learning)),
            (None, Some(saved)) => (saved.replica(), LocalSteps::default()),
            (None, None) => {
                let toy = Toy::new(context.scenario().rule.toy(), values);
                (Box::new(toy), LocalSteps::default())
            }
        };
        let incarnation = sim.next_life();
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&context.seed().to_le_bytes());
        seed[8..12].copy_from_slice(&peer.to_le_bytes());
        seed[12..20].copy_from_slice(&incarnation.to_le_bytes());
        let clock = saved.map_or(Clock(0), |saved| saved.clock);
        let fragments = context.scenario().fragments;
        let start = Start { me: name(peer), incarnation, fragments, clock, seed };
        let mut config = context.config().clone();
        if !learns && config.pace.balance == Balance::Off {
            config.pace.batch = sim.trainer().batch();
        }
        let mut host = Host::boxed(start, config, replica, context.now());
        if let Some(saved) = saved {
            host.core = host.core.containing(&saved.contents);
        }
        if saved.is_none() && (learns || context.scenario().untrained) {
            // As the product's driver does.
            host.handle(Input::Untrained, context.now());
        }
        sim.begin(host, steps);
        if !context.scenario().wait.is_zero() {
            sim.wait(context.now());
        }
    }

    /// The values that a toy replica starts from.
    fn draw_values(&mut self, context: &mut Context) -> Vec<Vec<f64>> {
        let set = context.scenario().rule.toy() == ToyRule::Set;
        // Replicas are sums of contributions only if all start from one model.
        if set && !self.initial.is_empty() {
            return self.initial.clone();
        }
        let values: Vec<Vec<f64>> = context.draw(|scenario, rng| {
            let mut draw = || (0..scenario.width).map(|_| rng.random_range(-1.0..1.0)).collect();
            (0..scenario.fragments).map(|_| draw()).collect()
        });
        if set {
            self.initial.clone_from(&values);
        }
        values
    }
}
