//! What happened to the packets of an emulated network, line by line.

use std::fmt;

use super::link::LinkCounts;

/// Counts of one directed line between two machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineStats {
    /// Index of the sender.
    pub from: usize,
    /// Index of the receiver.
    pub to: usize,
    /// Counts of the line.
    pub link: LinkCounts,
    /// Packets that a partition kept off the line.
    pub cut: u64,
}

/// Counts of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Its way out.
    pub up: LinkCounts,
    /// Its way in.
    pub down: LinkCounts,
    /// Outer ports of its NAT in use.
    pub nat_mappings: usize,
    /// Packets that its NAT could not translate: no room, or neither TCP nor UDP.
    pub nat_refused: u64,
    /// Packets that its NAT let not in.
    pub nat_filtered: u64,
    /// Packets that it sent to or from an address that leads nowhere.
    pub no_route: u64,
    /// Packets for everybody that were not passed on.
    pub no_multicast: u64,
    /// Packets that it sent and that are not IPv4.
    pub not_ipv4: u64,
    /// Packets for it that the network or its kernel had no memory for.
    pub no_room: u64,
}

/// Counts of a network since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Every directed line, those from a machine to itself included.
    pub lines: Vec<LineStats>,
    /// Every machine.
    pub nodes: Vec<NodeCounts>,
    /// Packets under way now.
    pub under_way: usize,
}

impl Stats {
    /// The counts of the line from one machine to another.
    #[must_use]
    pub fn line(&self, from: usize, to: usize) -> LineStats {
        let found = self.lines.iter().find(|line| (line.from, line.to) == (from, to));
        found.copied().unwrap_or_default()
    }
}

impl fmt::Display for Stats {
    /// One line of `key=value` for each line and each machine that saw anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for LineStats { from, to, link, cut } in &self.lines {
            if *link != LinkCounts::default() || *cut > 0 {
                writeln!(f, "link {from} {to} {} cut={cut}", Counts(link))?;
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if *node == NodeCounts::default() {
                continue;
            }
            writeln!(f, "up {index} {}", Counts(&node.up))?;
            writeln!(f, "down {index} {}", Counts(&node.down))?;
            writeln!(
                f,
                "node {index} nat_mappings={} nat_refused={} nat_filtered={} no_route={} \
                 no_multicast={} not_ipv4={} no_room={}",
                node.nat_mappings,
                node.nat_refused,
                node.nat_filtered,
                node.no_route,
                node.no_multicast,
                node.not_ipv4,
                node.no_room,
            )?;
        }
        writeln!(f, "under_way packets={}", self.under_way)
    }
}

/// The counts of a line as text.
struct Counts<'a>(&'a LinkCounts);

impl fmt::Display for Counts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkCounts { packets, bytes, lost, full } = self.0;
        write!(f, "packets={packets} bytes={bytes} lost={lost} full={full}")
    }
}
