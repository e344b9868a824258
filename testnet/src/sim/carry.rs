//! The network between the peers: sending, losing, arriving, connecting and dropping.

use std::time::Duration;

use dnode_gossip::Input;
use dnode_gossip::testing::{Effect, Host, peer as name};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Message, Time};
use rand::RngExt;
use rand::seq::SliceRandom;

use super::book::told;
use super::capacity::Sizes;
use super::defect::{CHATTER, Defect};
use super::link::{Edge, Lane};
use super::peer::index_of;
use super::queue::Happening;
use super::world::World;

/// Orders in which free places are joined; after these, next to none is left.
const EDGE_PASSES: u32 = 8;

impl World {
    /// Draws who wants to be connected to whom: the ring, and random others, until every peer has
    /// the neighbours that the scenario asks for, and none has more.
    pub(super) fn draw_edges(&mut self) {
        let count = self.scenario.peers;
        let most = u32::try_from(dnode_gossip::VIEW_MAX).unwrap_or(u32::MAX);
        let wanted = self.scenario.neighbours.clamp(2, most) as usize;
        for peer in 0..count {
            self.add_edge(peer, (peer + 1) % count);
        }
        if wanted + 1 >= count as usize {
            for peer in 0..count {
                (0..peer).for_each(|other| self.add_edge(peer, other));
            }
            return;
        }
        // The configuration model: free places in random order are joined in pairs. A pair that is
        // joined already, or one peer twice, waits for the next order.
        for _ in 0..EDGE_PASSES {
            let free = |peer: &u32| wanted - self.peers[*peer as usize].edges.len();
            let mut places: Vec<u32> =
                (0..count).flat_map(|peer| (0..free(&peer)).map(move |_| peer)).collect();
            places.shuffle(&mut self.rng);
            for pair in places.chunks_exact(2) {
                self.add_edge(pair[0], pair[1]);
            }
        }
    }

    fn add_edge(&mut self, a: u32, b: u32) {
        if a == b || self.peers[a as usize].edge_to(b).is_some() {
            return;
        }
        let edge = u32::try_from(self.edges.len()).unwrap_or(u32::MAX);
        let ends = [a.min(b), a.max(b)];
        let downlinks = ends.map(|peer| self.peers[peer as usize].downlink.rate);
        self.edges.push(Edge::new(ends, downlinks));
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
            Effect::Message { to, ref message } => {
                self.book.sent(message);
                if let Some(edge) = self.peers[peer as usize].edge_to(index_of(&to)) {
                    if self.defect == Some(Defect::Chatters) {
                        (1..CHATTER).for_each(|_| self.transmit(edge, peer, effect.clone()));
                    }
                    self.transmit(edge, peer, effect);
                }
            }
            Effect::Tensor { to, .. } => {
                if let Some(edge) = self.peers[peer as usize].edge_to(index_of(&to)) {
                    self.transmit(edge, peer, effect);
                }
            }
        }
    }

    pub(super) fn send_message(&mut self, from: u32, to: u32, message: Message) {
        self.carry(from, Effect::Message { to: name(to), message });
    }

    /// Counts a message or tensor and sends it off, if its sender believes to be connected.
    fn transmit(&mut self, index: u32, from: u32, payload: Effect) {
        let sim = &mut self.peers[from as usize];
        let (lane, bytes) = match &payload {
            Effect::Message { message, .. } => {
                let bytes = Sizes::control(message);
                sim.counts.messages += 1;
                sim.counts.control_bytes += bytes;
                (Lane::Control, bytes)
            }
            Effect::Tensor { numbers, .. } => {
                let bytes = match &self.learning {
                    Some(learning) => learning.fleet.tensor_bytes(numbers),
                    None => self.sizes.tensor(numbers.len() / size_of::<f64>()),
                };
                sim.counts.tensors += 1;
                sim.counts.tensor_bytes += bytes;
                (Lane::Bulk, bytes)
            }
            Effect::Disconnect { .. } | Effect::Event(_) => return,
        };
        let edge = &mut self.edges[index as usize];
        let end = edge.end_of(from);
        let toward = 1 - end;
        if !edge.up[end] {
            return;
        }
        let sent = match lane {
            Lane::Control => sim.uplink.control(bytes, self.now),
            Lane::Bulk => sim.uplink.bulk(bytes, self.now),
        };
        let link = &self.scenario.link;
        let own = edge.own_loss();
        let lost = edge.cut[toward]
            || link.loss > 0.0 && self.rng.random_bool(link.loss)
            || own > 0.0 && self.rng.random_bool(own.min(1.0));
        let twice = link.duplicate > 0.0 && self.rng.random_bool(link.duplicate);
        if lost {
            if self.trace.is_on() {
                self.trace.line(format_args!("  p{from} lost on e{index}"));
            }
            return;
        }
        if twice {
            self.deliver((index, toward), (lane, bytes), sent, payload.clone());
        }
        self.deliver((index, toward), (lane, bytes), sent, payload);
    }

    /// Schedules the arrival of what has left its sender at `sent`.
    fn deliver(
        &mut self,
        (index, toward): (u32, usize),
        (lane, bytes): (Lane, u64),
        sent: Time,
        payload: Effect,
    ) {
        let delay = self.scenario.link.draw_delay(&mut self.rng);
        let edge = &mut self.edges[index as usize];
        let generation = edge.generation;
        let mut arrival = sent + delay + edge.delays[0] + edge.delays[1];
        let (from, downlink) = (edge.ends[1 - toward], edge.downlinks[toward]);
        if lane == Lane::Control {
            arrival = arrival + downlink.time(bytes);
        }
        if !self.scenario.link.reorder {
            arrival = edge.in_order(toward, lane, arrival);
        }
        let edge = index;
        let happening = if lane == Lane::Bulk && !downlink.time(bytes).is_zero() {
            let uplink = self.peers[from as usize].uplink.rate;
            let time = u64::try_from(uplink.time(bytes).as_micros()).unwrap_or(u64::MAX);
            let first = arrival.as_micros().saturating_sub(time);
            let head = Time::from_micros(first).max(self.now);
            Happening::Land { edge, toward, generation, payload, bytes, head }
        } else {
            Happening::Arrive { edge, toward, generation, payload }
        };
        self.queue.push(arrival, happening);
    }

    /// The last byte of a tensor is at the receiver's line: it arrives when its turn is over.
    pub(super) fn land(
        &mut self,
        (index, toward): (u32, usize),
        generation: u32,
        payload: Effect,
        (bytes, head): (u64, Time),
    ) {
        let edge = &self.edges[index as usize];
        if edge.generation != generation || !edge.up[toward] {
            return;
        }
        let downlink = &mut self.peers[edge.ends[toward] as usize].downlink;
        let end = downlink.bulk(bytes, head).max(self.now);
        if end == self.now {
            return self.arrive(index, toward, generation, payload);
        }
        self.queue.push(end, Happening::Arrive { edge: index, toward, generation, payload });
    }

    pub(super) fn arrive(&mut self, index: u32, toward: usize, generation: u32, payload: Effect) {
        let edge = &mut self.edges[index as usize];
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
                if let Some(clock) = told(&message, sim.incarnation) {
                    let heard = &mut edge.heard[toward];
                    *heard = Some(heard.map_or(clock, |known| known.max(clock)));
                }
                if let Some(defect) = self.defect {
                    defect.distort(&mut message, host.clock);
                }
                host.handle(Input::Received { from, message }, self.now);
            }
            Effect::Tensor { exchange, leg, mut clock, numbers, .. } => {
                if leg == Leg::Offer {
                    let known = edge.heard[toward].unwrap_or_default();
                    self.book.offered(&exchange, known);
                    if self.defect == Some(Defect::FreshensOffers) {
                        clock = clock.max(known);
                    }
                }
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
        // What the other end still says on the connection before goes nowhere.
        edge.up[1] = false;
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
        if edge.heard_life[end] != incarnation {
            (edge.heard[end], edge.heard_life[end]) = (None, incarnation);
        }
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
        edge.heard[end] = None;
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
        edge.heard[end] = None;
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
    pub(super) fn cut(&mut self, side: impl Fn(u32) -> bool, both: bool) {
        for (index, edge) in (0..).zip(&mut self.edges) {
            let [a, b] = edge.ends.map(&side);
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

    /// Whether nothing is on its way at `peer`, and no exchange and no round of it is open: a round
    /// may wait for a busy neighbour without one.
    #[must_use]
    pub fn rests(&self, peer: u32) -> bool {
        let sim = &self.peers[peer as usize];
        let open = |host: &Host| host.core.open() > 0 || sim.round_open && sim.stays();
        sim.host
            .as_ref()
            .is_none_or(|host| !open(host) && host.kept() == 0 && !host.has_work() && host.training)
    }

    /// The latest time that anything can matter at.
    #[must_use]
    pub fn end_after(&self, time: Duration) -> Time {
        self.now + time
    }
}
