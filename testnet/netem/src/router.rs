//! The network between the machines, without any I/O: packets and moments in, packets out.
//!
//! ```text
//! accept ─▶ NAT of the sender ─▶ its way up ─▶ cut? ─▶ line sender→receiver ─▶ (waits)
//!        ─▶ way down of the receiver ─▶ (waits) ─▶ NAT of the receiver ─▶ next
//! ```
//! Machine `i` has the address `10.77.0.(i+1)`; behind a NAT it is `10.77.1.(i+1)` to others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use super::command::{Command, Lines, Who};
use super::link::Link;
use super::nat::{Nat, NatKind};
use super::packet::Header;
use super::stats::{LineStats, NodeCounts, Stats};

/// Most machines of one network; their lines grow with the square.
pub const NODES_MAX: usize = 64;
/// Bytes under way on all lines together; 1 Gbit/s for two seconds. Beyond it packets are dropped.
pub const UNDER_WAY_BYTES_MAX: usize = 256 << 20;
/// Packets under way on all lines together.
const UNDER_WAY_PACKETS_MAX: usize = 1 << 20;

/// The address of machine `index`.
#[must_use]
pub fn address(index: usize) -> Ipv4Addr {
    in_subnet(0, index)
}

/// The address that others see of machine `index` when it is behind a NAT.
#[must_use]
pub fn outer_address(index: usize) -> Ipv4Addr {
    in_subnet(1, index)
}

fn in_subnet(subnet: u8, index: usize) -> Ipv4Addr {
    let host = u8::try_from(index + 1).unwrap_or(u8::MAX);
    Ipv4Addr::new(10, 77, subnet, host)
}

/// The machine with an address, and whether the address is its outer one.
fn machine(address: Ipv4Addr) -> Option<(usize, bool)> {
    match address.octets() {
        [10, 77, subnet @ 0..=1, host] => Some((usize::from(host).checked_sub(1)?, subnet == 1)),
        _ => None,
    }
}

/// A command names a machine that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no machine {index}; there are 0 to {last}")]
pub struct NoSuchNode {
    index: usize,
    last: usize,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Machine `to` gets the packet.
    Packet {
        /// Index of the machine.
        to: usize,
        /// The IPv4 packet.
        packet: Vec<u8>,
    },
    /// A scheduled `stats`.
    Report,
}

/// One machine's side of the network.
#[derive(Clone, Debug)]
struct Node {
    up: Link,
    down: Link,
    nat: Option<Nat>,
    side: Option<usize>,
    counts: NodeCounts,
}

/// Where a packet under way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// At the end of the line, before the receiver's way down.
    Line,
    /// At the receiver's door.
    Door,
}

/// A packet under way; ordered by when it gets where it goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    at: Duration,
    sequence: u64,
    place: Place,
    to: usize,
    packet: Vec<u8>,
}

/// The network. Moments are durations since its start and must not go back.
#[derive(Clone, Debug)]
pub struct Router {
    nodes: Vec<Node>,
    /// Line from `a` to `b` at `a · nodes + b`.
    lines: Vec<Link>,
    /// Packets that each line refused because of a partition.
    cut: Vec<u64>,
    multicast: bool,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    under_way_bytes: usize,
    sequence: u64,
    schedule: VecDeque<(Duration, Command)>,
}

impl Router {
    /// Perfect lines between `nodes` machines, at most [`NODES_MAX`]; chances follow from `seed`.
    #[must_use]
    pub fn new(nodes: usize, seed: u64) -> Self {
        let nodes = nodes.min(NODES_MAX);
        // Each line has chances of its own, so that traffic on one does not change another's.
        let link = |number: usize| {
            Link::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number as u64))
        };
        let node = |index: usize| Node {
            up: link(nodes * nodes + 2 * index),
            down: link(nodes * nodes + 2 * index + 1),
            nat: None,
            side: None,
            counts: NodeCounts::default(),
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            lines: (0..nodes * nodes).map(link).collect(),
            cut: vec![0; nodes * nodes],
            multicast: true,
            under_way: BinaryHeap::new(),
            under_way_bytes: 0,
            sequence: 0,
            schedule: VecDeque::new(),
        }
    }

    /// Applies `command` at the moment `at`; those for one moment in the order of the calls.
    ///
    /// # Errors
    /// [`NoSuchNode`]; nothing is scheduled.
    pub fn schedule(&mut self, at: Duration, command: Command) -> Result<(), NoSuchNode> {
        self.check(&command)?;
        let place = self.schedule.partition_point(|(before, _)| *before <= at);
        self.schedule.insert(place, (at, command));
        Ok(())
    }

    /// Applies a command at `now`; `stats` changes nothing.
    ///
    /// # Errors
    /// [`NoSuchNode`]; nothing has changed.
    pub fn apply(&mut self, command: &Command, now: Duration) -> Result<(), NoSuchNode> {
        self.check(command)?;
        match command {
            Command::Lines(lines, change) => {
                self.each_line(lines, |link| link.set(change.apply(link.settings()), now));
            }
            Command::Part(sides) => self.part(sides),
            Command::Heal => self.nodes.iter_mut().for_each(|node| node.side = None),
            Command::Nat(who, nat) => self.set_nat(who, *nat),
            Command::Multicast(on) => self.multicast = *on,
            Command::Stats => {}
        }
        Ok(())
    }

    fn check(&self, command: &Command) -> Result<(), NoSuchNode> {
        let named = match command {
            Command::Lines(Lines::Between(from, to), _) => from.last().max(to.last()),
            Command::Lines(Lines::Up(who) | Lines::Down(who), _) | Command::Nat(who, _) => {
                who.last()
            }
            Command::Part(sides) => sides.iter().filter_map(Who::last).max(),
            Command::Heal | Command::Multicast(_) | Command::Stats => None,
        };
        match named {
            Some(index) if index >= self.nodes.len() => {
                Err(NoSuchNode { index, last: self.nodes.len().saturating_sub(1) })
            }
            _ => Ok(()),
        }
    }

    fn each_line(&mut self, lines: &Lines, mut change: impl FnMut(&mut Link)) {
        let count = self.nodes.len();
        match lines {
            Lines::Between(from, to) => {
                let pairs = self.lines.iter_mut().enumerate();
                pairs
                    .filter(|(at, _)| from.contains(at / count) && to.contains(at % count))
                    .for_each(|(_, link)| change(link));
            }
            Lines::Up(who) => {
                named(&mut self.nodes, who).for_each(|(_, node)| change(&mut node.up));
            }
            Lines::Down(who) => {
                named(&mut self.nodes, who).for_each(|(_, node)| change(&mut node.down));
            }
        }
    }

    fn part(&mut self, sides: &[Who]) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let named = sides.iter().position(|side| *side != Who::All && side.contains(index));
            node.side = named.or_else(|| sides.iter().position(|side| *side == Who::All));
        }
    }

    fn set_nat(&mut self, who: &Who, nat: Option<(NatKind, Duration)>) {
        for (index, node) in named(&mut self.nodes, who) {
            node.nat = nat.map(|(kind, idle)| Nat::new(kind, idle, outer_address(index)));
        }
    }

    /// Takes a packet that machine `from` sends at `now`.
    pub fn accept(&mut self, from: usize, mut packet: Vec<u8>, now: Duration) {
        let Some(node) = self.nodes.get_mut(from) else { return };
        let Some(header) = Header::read(&packet) else {
            node.counts.not_ipv4 += 1;
            return;
        };
        if header.source != address(from) {
            node.counts.no_route += 1;
            return;
        }
        if header.is_multicast() {
            self.flood(from, &packet, now);
            return;
        }
        let Some(to) = self.route(header.target).filter(|to| *to != from) else {
            self.nodes[from].counts.no_route += 1;
            return;
        };
        let node = &mut self.nodes[from];
        if let Some(nat) = &mut node.nat {
            let outer = header.ports.and_then(|(transport, source, target)| {
                let source = SocketAddrV4::new(header.source, source);
                let target = SocketAddrV4::new(header.target, target);
                nat.outbound(transport, source, target, now).ok()
            });
            let Some(outer) = outer else {
                node.counts.nat_refused += 1;
                return;
            };
            header.set_source(&mut packet, outer);
        }
        if let Ok(sent_at) = node.up.send(packet.len(), now) {
            self.send(from, to, packet, sent_at);
        }
    }

    /// The machine that an address leads to; the inner address of one behind a NAT leads nowhere.
    fn route(&self, target: Ipv4Addr) -> Option<usize> {
        let (index, outer) = machine(target)?;
        let node = self.nodes.get(index)?;
        (node.nat.is_some() == outer).then_some(index)
    }

    /// Sends a copy to everybody; nothing for everybody passes a NAT.
    fn flood(&mut self, from: usize, packet: &[u8], now: Duration) {
        let node = &mut self.nodes[from];
        if !self.multicast || node.nat.is_some() {
            node.counts.no_multicast += 1;
            return;
        }
        let Ok(sent_at) = node.up.send(packet.len(), now) else { return };
        for to in 0..self.nodes.len() {
            if to != from && self.nodes[to].nat.is_none() {
                self.send(from, to, packet.to_vec(), sent_at);
            }
        }
    }

    /// Puts a packet on the line between two machines.
    ///
    /// Packets of one machine reach its lines in order, so the moment may be in the future.
    fn send(&mut self, from: usize, to: usize, packet: Vec<u8>, sent_at: Duration) {
        let line = from * self.nodes.len() + to;
        let (ours, theirs) = (self.nodes[from].side, self.nodes[to].side);
        if ours.is_some() && theirs.is_some() && ours != theirs {
            self.cut[line] += 1;
            return;
        }
        if let Ok(at) = self.lines[line].send(packet.len(), sent_at) {
            self.wait(UnderWay { at, sequence: 0, place: Place::Line, to, packet });
        }
    }

    fn wait(&mut self, mut packet: UnderWay) {
        let bytes = self.under_way_bytes + packet.packet.len();
        if bytes > UNDER_WAY_BYTES_MAX || self.under_way.len() >= UNDER_WAY_PACKETS_MAX {
            self.nodes[packet.to].counts.no_room += 1;
            return;
        }
        packet.sequence = self.sequence;
        self.sequence += 1;
        self.under_way_bytes = bytes;
        self.under_way.push(Reverse(packet));
    }

    /// When [`Router::next`] has something to do again.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let packet = self.under_way.peek().map(|Reverse(packet)| packet.at);
        let command = self.schedule.front().map(|(at, _)| *at);
        packet.into_iter().chain(command).min()
    }

    /// The next thing to do at `now`; call until `None`. Scheduled commands come before packets.
    pub fn next(&mut self, now: Duration) -> Option<Due> {
        while let Some(at) = self.deadline().filter(|at| *at <= now) {
            if self.schedule.front().is_some_and(|(command, _)| *command == at) {
                let (_, command) = self.schedule.pop_front()?;
                // Checked when it was scheduled.
                let _ = self.apply(&command, at);
                if command == Command::Stats {
                    return Some(Due::Report);
                }
                continue;
            }
            let Reverse(mut packet) = self.under_way.pop()?;
            self.under_way_bytes -= packet.packet.len();
            let to = packet.to;
            match packet.place {
                Place::Line => {
                    let down = &mut self.nodes[to].down;
                    let Ok(at) = down.send(packet.packet.len(), packet.at) else { continue };
                    packet.at = at;
                    packet.place = Place::Door;
                    self.wait(packet);
                }
                Place::Door => {
                    let at = packet.at;
                    if let Some(packet) = self.enter(to, packet.packet, at) {
                        return Some(Due::Packet { to, packet });
                    }
                }
            }
        }
        None
    }

    /// The packet as the receiver sees it; `None` when its NAT lets it not in.
    fn enter(&mut self, to: usize, mut packet: Vec<u8>, now: Duration) -> Option<Vec<u8>> {
        let node = &mut self.nodes[to];
        let Some(nat) = &node.nat else { return Some(packet) };
        let inside = Header::read(&packet).and_then(|header| {
            let (transport, source, port) = header.ports?;
            let source = SocketAddrV4::new(header.source, source);
            // A packet for the inner address was under way when the NAT came.
            let outer = machine(header.target) == Some((to, true));
            let inner = nat.inbound(transport, source, port, now).filter(|_| outer)?;
            Some((header, inner))
        });
        let Some((header, inner)) = inside else {
            node.counts.nat_filtered += 1;
            return None;
        };
        header.set_target(&mut packet, inner);
        Some(packet)
    }

    /// Counts a packet that machine `to` did not take.
    pub fn refused(&mut self, to: usize) {
        if let Some(node) = self.nodes.get_mut(to) {
            node.counts.no_room += 1;
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let count = self.nodes.len();
        let lines = self.lines.iter().zip(&self.cut).enumerate();
        Stats {
            lines: lines
                .map(|(at, (link, cut))| LineStats {
                    from: at / count,
                    to: at % count,
                    link: *link.counts(),
                    cut: *cut,
                })
                .collect(),
            nodes: self
                .nodes
                .iter()
                .map(|node| NodeCounts {
                    up: *node.up.counts(),
                    down: *node.down.counts(),
                    nat_mappings: node.nat.as_ref().map_or(0, Nat::len),
                    ..node.counts
                })
                .collect(),
            under_way: self.under_way.len(),
        }
    }
}

/// The machines that `who` names, with their numbers.
fn named<'a>(nodes: &'a mut [Node], who: &'a Who) -> impl Iterator<Item = (usize, &'a mut Node)> {
    nodes.iter_mut().enumerate().filter(|(index, _)| who.contains(*index))
}

#[cfg(test)]
mod tests;
