//! The network between the peers: connections, their losses and delays, and what travels on them.

use std::time::Duration;

use dnode_gossip::testing::Effect;
use dnode_protocol::{Clock, Time};
use rand::seq::SliceRandom;

use super::capacity::Capacity;
use super::context::Context;
use super::link::{Edge, Lane};
use super::peer::SimPeer;
use super::queue::{Arrival, Happening};
use crate::scenario::Scenario;

/// Orders in which free places are joined; after these, next to none is left.
const EDGE_PASSES: u32 = 8;

/// What joins one peer to the network.
#[derive(Debug, Default)]
struct Port {
    /// Bits per second of its downlink at the start; 0 for no limit.
    bandwidth: f64,
    uplink: Capacity,
    downlink: Capacity,
    /// The peers that it wants to be connected to, sorted, each with the edge.
    edges: Vec<(u32, u32)>,
}

/// All connections of a world.
#[derive(Debug, Default)]
pub(super) struct Network {
    ports: Vec<Port>,
    edges: Vec<Edge>,
}

impl Network {
    /// Draws how fast the lines of the next peer are.
    pub(super) fn add_port(&mut self, context: &mut Context) {
        let peer = u32::try_from(self.ports.len()).unwrap_or(u32::MAX);
        let mut port = Port::default();
        context.draw(|Scenario { link, peers, .. }, rng| {
            if link.bandwidth > 0.0 {
                port.bandwidth = link.bandwidth * link.spread.draw(peer, *peers, rng);
                port.uplink = Capacity::new(port.bandwidth * link.uplink);
                port.downlink = Capacity::new(port.bandwidth);
            }
        });
        self.ports.push(port);
    }

    /// Draws who wants to be connected to whom: the ring, and random others, until every peer has
    /// the neighbours that the scenario asks for, and none has more.
    pub(super) fn draw_edges(&mut self, context: &mut Context) {
        let count = context.scenario().peers;
        let most = u32::try_from(dnode_gossip::VIEW_MAX).unwrap_or(u32::MAX);
        let wanted = context.scenario().neighbours.clamp(2, most) as usize;
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
            let free = |peer: &u32| wanted - self.ports[*peer as usize].edges.len();
            let mut places: Vec<u32> =
                (0..count).flat_map(|peer| (0..free(&peer)).map(move |_| peer)).collect();
            context.draw(|_, rng| places.shuffle(rng));
            for pair in places.chunks_exact(2) {
                self.add_edge(pair[0], pair[1]);
            }
        }
    }

    fn add_edge(&mut self, a: u32, b: u32) {
        if a == b || self.edge_to(a, b).is_some() {
            return;
        }
        let edge = u32::try_from(self.edges.len()).unwrap_or(u32::MAX);
        let ends = [a.min(b), a.max(b)];
        let downlinks = ends.map(|peer| self.ports[peer as usize].downlink.rate());
        self.edges.push(Edge::new(ends, downlinks));
        for (peer, other) in [(a, b), (b, a)] {
            let edges = &mut self.ports[peer as usize].edges;
            edges.push((other, edge));
            edges.sort_unstable();
        }
    }

    /// The edge between two peers, if they want to be connected.
    pub(super) fn edge_to(&self, peer: u32, other: u32) -> Option<u32> {
        let edges = &self.ports[peer as usize].edges;
        let at = edges.binary_search_by_key(&other, |(peer, _)| *peer).ok()?;
        Some(edges[at].1)
    }

    /// The peers that `peer` wants to be connected to.
    pub(super) fn neighbours(&self, peer: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.ports[peer as usize].edges.iter().map(|(other, _)| *other)
    }

    /// The edges of `peer`.
    pub(super) fn edges_of(&self, peer: u32) -> Vec<u32> {
        self.ports[peer as usize].edges.iter().map(|(_, edge)| *edge).collect()
    }

    /// The peers at both ends of an edge: the one that sends to the end `toward`, and the one there.
    pub(super) fn way(&self, edge: u32, toward: usize) -> [u32; 2] {
        let ends = self.edges[edge as usize].ends;
        [ends[1 - toward], ends[toward]]
    }

    /// The line of a peer towards the network.
    pub(super) fn uplink(&self, peer: u32) -> Capacity {
        self.ports[peer as usize].uplink
    }

    /// The newest clock of `other` that has reached `peer` on their connection.
    pub(super) fn heard(&self, peer: u32, other: u32) -> Option<Clock> {
        let edge = &self.edges[self.edge_to(peer, other)? as usize];
        edge.heard[edge.end_of(peer)]
    }

    /// The same, for who is about to receive something.
    pub(super) fn heard_before(&self, arrival: &Arrival) -> Option<Clock> {
        self.edges[arrival.edge as usize].heard[arrival.toward]
    }

    /// The receiver of a message learns a clock of its sender from it.
    pub(super) fn hear(&mut self, arrival: &Arrival, clock: Clock) {
        let heard = &mut self.edges[arrival.edge as usize].heard[arrival.toward];
        *heard = Some(heard.map_or(clock, |known| known.max(clock)));
    }

    /// A peer that starts has nothing under way on its lines.
    pub(super) fn clear_lines(&mut self, peer: u32) {
        let port = &mut self.ports[peer as usize];
        (port.uplink, port.downlink) = (port.uplink.idle(), port.downlink.idle());
    }

    /// Changes a peer's own line beside what all have; bandwidth 0 is that of the start.
    pub(super) fn set_line(&mut self, peer: u32, own: (Duration, f64, f64), uplink: f64) {
        let (delay, loss, bandwidth) = own;
        let port = &mut self.ports[peer as usize];
        let bandwidth = if bandwidth > 0.0 { bandwidth } else { port.bandwidth };
        port.uplink = port.uplink.at_rate(bandwidth * uplink);
        port.downlink = port.downlink.at_rate(bandwidth);
        for (_, index) in &port.edges {
            let edge = &mut self.edges[*index as usize];
            let end = edge.end_of(peer);
            edge.downlinks[end] = port.downlink.rate();
            (edge.delays[end], edge.losses[end]) = (delay, loss);
        }
    }

    /// Sends a message or tensor off, if its sender believes to be connected.
    pub(super) fn transmit(
        &mut self,
        context: &mut Context,
        (index, from): (u32, u32),
        (lane, bytes): (Lane, u64),
        payload: Effect,
    ) {
        let edge = &self.edges[index as usize];
        let end = edge.end_of(from);
        let toward = 1 - end;
        if !edge.up[end] {
            return;
        }
        let uplink = &mut self.ports[from as usize].uplink;
        let sent = match lane {
            Lane::Control => uplink.control(bytes, context.now()),
            Lane::Bulk => uplink.bulk(bytes, context.now()),
        };
        let (loss, duplicate) = (context.scenario().link.loss, context.scenario().link.duplicate);
        let lost = edge.cut[toward] || context.chance(loss) || context.chance(edge.own_loss());
        let twice = context.chance(duplicate);
        if lost {
            return context.note(format_args!("  p{from} lost on e{index}"));
        }
        let arrival = Arrival { edge: index, toward, generation: edge.generation, payload };
        if twice {
            self.deliver(context, (lane, bytes), sent, arrival.clone());
        }
        self.deliver(context, (lane, bytes), sent, arrival);
    }

    /// Schedules the arrival of what has left its sender at `sent`.
    fn deliver(
        &mut self,
        context: &mut Context,
        (lane, bytes): (Lane, u64),
        sent: Time,
        arrival: Arrival,
    ) {
        let delay = context.delay();
        let edge = &mut self.edges[arrival.edge as usize];
        let toward = arrival.toward;
        let mut time = sent + delay + edge.delays[0] + edge.delays[1];
        let (from, downlink) = (edge.ends[1 - toward], edge.downlinks[toward]);
        if lane == Lane::Control {
            time = time + downlink.time(bytes);
        }
        if !context.scenario().link.reorder {
            time = edge.in_order(toward, lane, time);
        }
        let happening = if lane == Lane::Bulk && !downlink.time(bytes).is_zero() {
            let whole = self.ports[from as usize].uplink.rate().time(bytes);
            let whole = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
            let first = time.as_micros().saturating_sub(whole);
            let head = Time::from_micros(first).max(context.now());
            Happening::Land { arrival, bytes, head }
        } else {
            Happening::Arrive(arrival)
        };
        context.at(time, happening);
    }

    /// Whether the connection that something was sent on is still up at its receiver.
    pub(super) fn is_current(&self, arrival: &Arrival) -> bool {
        let edge = &self.edges[arrival.edge as usize];
        edge.generation == arrival.generation && edge.up[arrival.toward]
    }

    /// The last byte of a tensor is at the receiver's line: it arrives when its turn is over.
    ///
    /// Returns what arrives at once.
    pub(super) fn land(
        &mut self,
        context: &mut Context,
        arrival: Arrival,
        (bytes, head): (u64, Time),
    ) -> Option<Arrival> {
        if !self.is_current(&arrival) {
            return None;
        }
        let [_, to] = self.way(arrival.edge, arrival.toward);
        let end = self.ports[to as usize].downlink.bulk(bytes, head).max(context.now());
        if end == context.now() {
            return Some(arrival);
        }
        context.at(end, Happening::Arrive(arrival));
        None
    }

    /// The ends of an edge will try to connect.
    pub(super) fn schedule_dial(&mut self, context: &mut Context, index: u32, after: Duration) {
        let edge = &mut self.edges[index as usize];
        if !edge.dialling {
            edge.dialling = true;
            context.after(after, Happening::Dial { edge: index });
        }
    }

    /// Makes a new connection if both ends live, nothing is cut and no back-off is running.
    ///
    /// Returns its number.
    pub(super) fn dial(
        &mut self,
        context: &mut Context,
        index: u32,
        peers: &[SimPeer],
    ) -> Option<u32> {
        let edge = &mut self.edges[index as usize];
        edge.dialling = false;
        if edge.up == [true; 2] {
            return None;
        }
        let possible = edge.ends.into_iter().all(|peer| peers[peer as usize].stays())
            && edge.cut == [false; 2]
            && context.now() >= edge.back_off_until;
        if !possible {
            let after = context.scenario().redial;
            self.schedule_dial(context, index, after);
            return None;
        }
        edge.generation += 1;
        // What the other end still says on the connection before goes nowhere.
        edge.up[1] = false;
        Some(edge.generation)
    }

    /// A living peer at one end learns that a connection is up.
    ///
    /// Returns that peer and the other, unless the connection is no longer the newest, or has ended
    /// at this end meanwhile: one that a process has made is none of the next process there.
    pub(super) fn up(
        &mut self,
        index: u32,
        (end, generation): (usize, u32),
        peers: &[SimPeer],
    ) -> Option<[u32; 2]> {
        let [other, peer] = self.way(index, end);
        let edge = &mut self.edges[index as usize];
        let ended = edge.generation != generation || edge.ended[end] == generation;
        if ended || peers[peer as usize].host().is_none() {
            return None;
        }
        edge.up[end] = true;
        let incarnation = peers[other as usize].incarnation();
        if edge.heard_life[end] != incarnation {
            (edge.heard[end], edge.heard_life[end]) = (None, incarnation);
        }
        Some([peer, other])
    }

    /// One end learns that a connection is gone. Returns the peer there and the other.
    pub(super) fn down(&mut self, index: u32, end: usize, generation: u32) -> Option<[u32; 2]> {
        let [other, peer] = self.way(index, end);
        let edge = &mut self.edges[index as usize];
        if edge.generation != generation {
            return None;
        }
        edge.up[end] = false;
        edge.heard[end] = None;
        Some([peer, other])
    }

    /// One end of the connection is gone; the other notices later.
    pub(super) fn lose_end(&mut self, context: &mut Context, index: u32, peer: u32) {
        let edge = &mut self.edges[index as usize];
        let end = edge.end_of(peer);
        edge.up[end] = false;
        edge.heard[end] = None;
        let generation = edge.generation;
        edge.ended[end] = generation;
        let (drop_after, redial) = (context.scenario().drop_after, context.scenario().redial);
        let notice = context.part_of(drop_after);
        context.after(notice, Happening::Down { edge: index, end: 1 - end, generation });
        self.schedule_dial(context, index, redial);
    }

    /// A peer disconnects from another, and connects to it again after `back_off` at the earliest.
    ///
    /// Returns whether there is such a connection.
    pub(super) fn disconnect(
        &mut self,
        context: &mut Context,
        (peer, other): (u32, u32),
        back_off: Duration,
    ) -> bool {
        let Some(index) = self.edge_to(peer, other) else {
            return false;
        };
        self.lose_end(context, index, peer);
        let edge = &mut self.edges[index as usize];
        edge.back_off_until = edge.back_off_until.max(context.now() + back_off);
        true
    }

    /// Messages from the peers of `side` to the others get lost, and back when `both`.
    pub(super) fn cut(&mut self, context: &mut Context, side: impl Fn(u32) -> bool, both: bool) {
        let drop_after = context.scenario().drop_after;
        for (index, edge) in (0..).zip(&mut self.edges) {
            let [a, b] = edge.ends.map(&side);
            if a == b {
                continue;
            }
            let toward = usize::from(a);
            edge.cut[toward] = true;
            edge.cut[1 - toward] |= both;
            let generation = edge.generation;
            context.after(drop_after, Happening::Idle { edge: index, generation });
        }
    }

    /// Nothing is cut any more.
    pub(super) fn heal(&mut self) {
        for edge in &mut self.edges {
            edge.cut = [false; 2];
        }
    }

    /// The ends at which the transport gives up a connection that has been cut for too long.
    pub(super) fn ends_to_drop(&self, index: u32, generation: u32) -> [bool; 2] {
        let edge = &self.edges[index as usize];
        if edge.generation == generation && edge.cut != [false; 2] { edge.up } else { [false; 2] }
    }
}

#[cfg(test)]
mod tests {
    use dnode_gossip::testing::peer as name;
    use dnode_protocol::Message;

    use super::super::trace::Trace;
    use super::*;

    fn network(peers: u32) -> (Context, Network) {
        let scenario = Scenario { peers, neighbours: 2, ..Scenario::default() };
        let config = scenario.config();
        let mut context = Context::new(scenario, config, 1, Trace::off());
        let mut network = Network::default();
        (0..peers).for_each(|_| network.add_port(&mut context));
        network.draw_edges(&mut context);
        (context, network)
    }

    fn goodbye() -> Effect {
        Effect::Message { to: name(1), message: Message::Goodbye }
    }

    #[test]
    fn two_neighbours_each_are_a_ring() {
        let (_, network) = network(5);
        for peer in 0..5 {
            let mut ring = [(peer + 1) % 5, (peer + 4) % 5];
            ring.sort_unstable();
            assert_eq!(network.neighbours(peer).collect::<Vec<_>>(), ring);
        }
        assert_eq!(network.edge_to(0, 2), None);
    }

    #[test]
    fn what_was_sent_on_an_older_connection_is_not_current() {
        let (mut context, mut network) = network(3);
        let edge = network.edge_to(0, 1).unwrap();
        let arrival = |generation| Arrival { edge, toward: 1, generation, payload: goodbye() };
        assert!(!network.is_current(&arrival(0)), "nothing is up yet");
        network.edges[edge as usize].up = [true; 2];
        assert!(network.is_current(&arrival(0)) && !network.is_current(&arrival(1)));
        network.hear(&arrival(0), Clock(4));
        network.hear(&arrival(0), Clock(2));
        assert_eq!(network.heard(1, 0), Some(Clock(4)), "the newest clock counts");
        network.lose_end(&mut context, edge, 1);
        assert!(!network.is_current(&arrival(0)));
        assert_eq!(network.heard(1, 0), None);
    }

    #[test]
    fn messages_get_lost_in_the_direction_that_is_cut() {
        let (mut context, mut network) = network(3);
        let edge = network.edge_to(0, 1).unwrap();
        network.edges[edge as usize].up = [true; 2];
        network.cut(&mut context, |peer| peer == 0, false);
        let mut arrives = |network: &mut Network, from: u32| {
            let before = context.scheduled();
            network.transmit(&mut context, (edge, from), (Lane::Control, 10), goodbye());
            context.scheduled() > before
        };
        assert!(!arrives(&mut network, 0));
        assert!(arrives(&mut network, 1), "the other direction is open");
        network.heal();
        assert!(arrives(&mut network, 0));
    }
}
