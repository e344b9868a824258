//! The network between the peers: sending, losing, arriving, connecting and dropping.

use std::time::Duration;

use dnode_gossip::Input;
use dnode_gossip::testing::{Effect, peer as name};
use dnode_protocol::{Message, Time};
use rand::RngExt;

use super::defect::{CHATTER, Defect};
use super::link::{Edge, Lane};
use super::peer::index_of;
use super::queue::Happening;
use super::world::World;

impl World {
    /// Draws who wants to be connected to whom: the ring, and random others.
    pub(super) fn draw_edges(&mut self) {
        let count = self.scenario.peers;
        let wanted = self.scenario.neighbours.min(count.saturating_sub(1));
        let most = dnode_gossip::VIEW_MAX / 2;
        for peer in 0..count {
            self.add_edge(peer, (peer + 1) % count);
        }
        for peer in 0..count {
            let mut tries = 0;
            while self.peers[peer as usize].edges.len() < wanted as usize && tries < 20 * wanted {
                tries += 1;
                let other = self.rng.random_range(0..count);
                if self.peers[other as usize].edges.len() < most {
                    self.add_edge(peer, other);
                }
            }
        }
    }

    fn add_edge(&mut self, a: u32, b: u32) {
        if a == b || self.peers[a as usize].edge_to(b).is_some() {
            return;
        }
        let edge = u32::try_from(self.edges.len()).unwrap_or(u32::MAX);
        self.edges.push(Edge::new(a.min(b), a.max(b)));
        for (peer, other) in [(a, b), (b, a)] {
            let edges = &mut self.peers[peer as usize].edges;
            edges.push((other, edge));
            edges.sort_unstable();
        }
    }

    /// Carries out one effect of `peer`'s host.
    pub(super) fn carry(&mut self, peer: u32, effect: Effect) {
        match effect {
            Effect::Event(event) => self.said(peer, &event),
            Effect::Disconnect { peer: other, back_off } => {
                self.disconnect(peer, index_of(&other), back_off);
            }
            Effect::Message { to, .. } => {
                if let Some(edge) = self.peers[peer as usize].edge_to(index_of(&to)) {
                    let times = if self.defect == Some(Defect::Chatters) { CHATTER } else { 1 };
                    for _ in 1..times {
                        self.peers[peer as usize].counts.messages += 1;
                        self.transmit(edge, peer, Lane::Control, effect.clone());
                    }
                    self.peers[peer as usize].counts.messages += 1;
                    self.transmit(edge, peer, Lane::Control, effect);
                }
            }
            Effect::Tensor { to, .. } => {
                if let Some(edge) = self.peers[peer as usize].edge_to(index_of(&to)) {
                    self.peers[peer as usize].counts.tensors += 1;
                    self.transmit(edge, peer, Lane::Bulk, effect);
                }
            }
        }
    }

    pub(super) fn send_message(&mut self, from: u32, to: u32, message: Message) {
        self.carry(from, Effect::Message { to: name(to), message });
    }

    fn transmit(&mut self, index: u32, from: u32, lane: Lane, payload: Effect) {
        let edge = &mut self.edges[index as usize];
        let end = edge.end_of(from);
        let toward = 1 - end;
        if !edge.up[end] {
            return;
        }
        let link = &self.scenario.link;
        let lost = edge.cut[toward] || link.loss > 0.0 && self.rng.random_bool(link.loss);
        let twice = link.duplicate > 0.0 && self.rng.random_bool(link.duplicate);
        if lost {
            if self.trace.is_on() {
                self.trace.line(format_args!("  p{from} lost on e{index}"));
            }
            return;
        }
        let generation = edge.generation;
        if twice {
            let delay = link.draw_delay(&mut self.rng);
            let payload = payload.clone();
            let again = Happening::Arrive { edge: index, toward, generation, payload };
            self.queue.push(self.now + delay, again);
        }
        let mut arrival = self.now + link.draw_delay(&mut self.rng);
        if !link.reorder {
            arrival = edge.in_order(toward, lane, arrival);
        }
        self.queue.push(arrival, Happening::Arrive { edge: index, toward, generation, payload });
    }

    pub(super) fn arrive(&mut self, index: u32, toward: usize, generation: u32, payload: Effect) {
        let edge = &self.edges[index as usize];
        let (peer, from) = (edge.ends[toward], name(edge.ends[1 - toward]));
        if edge.generation != generation || !edge.up[toward] {
            return;
        }
        let sim = &mut self.peers[peer as usize];
        let Some(host) = sim.host.as_mut() else {
            return;
        };
        sim.counts.received += 1;
        match payload {
            Effect::Message { mut message, .. } => {
                if let Some(defect) = self.defect {
                    defect.distort(&mut message);
                }
                host.handle(Input::Received { from, message }, self.now);
            }
            Effect::Tensor { exchange, leg, clock, numbers, .. } => {
                host.tensor(from, (exchange, leg, clock, numbers), self.now);
            }
            Effect::Disconnect { .. } | Effect::Event(_) => {}
        }
        self.settle(peer);
    }

    pub(super) fn schedule_dial(&mut self, index: u32, after: Duration) {
        let edge = &mut self.edges[index as usize];
        if !edge.dialling {
            edge.dialling = true;
            self.queue.push(self.now + after, Happening::Dial { edge: index });
        }
    }

    /// Connects the two ends if both live, nothing is cut and no back-off is running.
    pub(super) fn dial(&mut self, index: u32) {
        let edge = &mut self.edges[index as usize];
        edge.dialling = false;
        if edge.up == [true; 2] {
            return;
        }
        let lives = |peer: u32| self.peers[peer as usize].stays();
        let possible = edge.ends.into_iter().all(lives)
            && edge.cut == [false; 2]
            && self.now >= edge.back_off_until;
        if !possible {
            return self.schedule_dial(index, self.scenario.redial);
        }
        edge.generation += 1;
        let generation = edge.generation;
        self.up(index, 0, generation);
        let delay = self.scenario.link.draw_delay(&mut self.rng);
        self.queue.push(self.now + delay, Happening::Up { edge: index, end: 1, generation });
    }

    pub(super) fn up(&mut self, index: u32, end: usize, generation: u32) {
        let edge = &mut self.edges[index as usize];
        let (peer, other) = (edge.ends[end], edge.ends[1 - end]);
        if edge.generation != generation || self.peers[peer as usize].host.is_none() {
            return;
        }
        edge.up[end] = true;
        let incarnation = self.peers[other as usize].incarnation;
        let sim = &mut self.peers[peer as usize];
        sim.counts.ups += 1;
        if let Some(host) = sim.host.as_mut() {
            host.handle(Input::PeerUp { peer: name(other), incarnation }, self.now);
        }
        self.settle(peer);
    }

    pub(super) fn down(&mut self, index: u32, end: usize, generation: u32) {
        let edge = &mut self.edges[index as usize];
        let (peer, other) = (edge.ends[end], edge.ends[1 - end]);
        if edge.generation != generation {
            return;
        }
        edge.up[end] = false;
        if let Some(host) = self.peers[peer as usize].host.as_mut() {
            host.handle(Input::PeerDown { peer: name(other) }, self.now);
        }
        self.schedule_dial(index, self.scenario.redial);
        self.settle(peer);
    }

    /// One end of the connection is gone; the other notices later.
    pub(super) fn lose_end(&mut self, index: u32, peer: u32) {
        let edge = &mut self.edges[index as usize];
        let end = edge.end_of(peer);
        edge.up[end] = false;
        let generation = edge.generation;
        let notice = self.scenario.drop_after.mul_f64(self.rng.random());
        let other = Happening::Down { edge: index, end: 1 - end, generation };
        self.queue.push(self.now + notice, other);
        self.schedule_dial(index, self.scenario.redial);
    }

    fn disconnect(&mut self, peer: u32, other: u32, back_off: Duration) {
        let Some(index) = self.peers[peer as usize].edge_to(other) else {
            return;
        };
        self.lose_end(index, peer);
        let edge = &mut self.edges[index as usize];
        edge.back_off_until = edge.back_off_until.max(self.now + back_off);
        if let Some(host) = self.peers[peer as usize].host.as_mut() {
            host.handle(Input::PeerDown { peer: name(other) }, self.now);
        }
    }

    /// Messages from the peers of `side` to the others get lost, and back when `both`.
    pub(super) fn cut(&mut self, side: &[u32], both: bool) {
        for (index, edge) in (0..).zip(&mut self.edges) {
            let [a, b] = edge.ends.map(|peer| side.contains(&peer));
            if a == b {
                continue;
            }
            let toward = usize::from(a);
            edge.cut[toward] = true;
            edge.cut[1 - toward] |= both;
            let generation = edge.generation;
            let idle = Happening::Idle { edge: index, generation };
            self.queue.push(self.now + self.scenario.drop_after, idle);
        }
    }

    pub(super) fn heal(&mut self) {
        for edge in &mut self.edges {
            edge.cut = [false; 2];
        }
    }

    /// The transport gives up a connection that has been cut for too long, at both ends.
    pub(super) fn idle(&mut self, index: u32, generation: u32) {
        let edge = &self.edges[index as usize];
        if edge.generation == generation && edge.cut != [false; 2] {
            let ends = [0, 1].map(|end| (end, edge.up[end]));
            for (end, up) in ends {
                if up {
                    self.down(index, end, generation);
                }
            }
        }
    }

    /// Whether nothing is on its way between living peers and no exchange is open.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.peers.iter().filter_map(|peer| peer.host.as_ref()).all(|host| {
            host.core.open() == 0 && host.kept() == 0 && !host.has_work() && host.training
        })
    }

    /// The latest time that anything can matter at.
    #[must_use]
    pub fn end_after(&self, time: Duration) -> Time {
        self.now + time
    }
}
