//! One simulated peer: its host, its trainer's schedule, and what is counted about it.

use std::time::Duration;

use dnode_gossip::testing::Host;
use dnode_protocol::{Clock, PeerId, Time};

use super::capacity::Line;
use super::checkpoint::Checkpoint;
use super::learn::Course;

/// A simulated peer, alive or dead.
#[derive(Debug)]
pub struct SimPeer {
    /// Core, replica and kept numbers; `None` while the process is dead.
    pub host: Option<Host>,
    /// Which start of the process this is, from 1.
    pub incarnation: u64,
    /// Largest clock of any of its lives.
    pub clock_max: Clock,
    /// Time its trainer needs for the steps of a round.
    pub round_time: Duration,
    /// Samples in one of its steps: what its numbers weigh, if samples weigh.
    pub batch: u32,
    /// Since when a commit of it is held back.
    pub held_since: Option<Time>,
    /// Whether it was told to leave.
    pub leaving: bool,
    /// Whether it has done all its rounds.
    pub finished: bool,
    /// Until when it is paused.
    pub paused_until: Time,
    /// Whether a round has begun and not ended.
    pub round_open: bool,
    /// What is counted.
    pub counts: Counts,
    /// How many times as long as at the start its work takes.
    pub(super) slowness: f64,
    /// Bits per second of its downlink at the start; 0 for no limit.
    pub(super) bandwidth: f64,
    pub(super) uplink: Line,
    pub(super) downlink: Line,
    pub(super) edges: Vec<(u32, u32)>,
    pub(super) wake_at: Time,
    pub(super) working: bool,
    pub(super) blocked: bool,
    /// At which clock the core was told that a commit is held back.
    pub(super) said: Option<Clock>,
    pub(super) ticking: bool,
    /// Where its local steps stand.
    pub(super) course: Course,
    pub(super) rounds_done_seen: u64,
    /// Its newest checkpoint, of any of its lives.
    pub(super) saved: Option<Checkpoint>,
}

/// What is counted about one peer since the start of the simulation, over all its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Control messages sent.
    pub messages: u64,
    /// Tensors sent.
    pub tensors: u64,
    /// Bytes of the control messages sent, frames and all.
    pub control_bytes: u64,
    /// Bytes of the tensors sent, frames and all.
    pub tensor_bytes: u64,
    /// Control messages and tensors that reached the core.
    pub received: u64,
    /// Local steps, of trainers of real models.
    pub steps: u64,
    /// Commits.
    pub commits: u64,
    /// Rounds begun.
    pub rounds: u64,
    /// Rounds ended.
    pub rounds_done: u64,
    /// Exchanges applied as initiator.
    pub applied: u64,
    /// Exchanges applied at either end.
    pub halves: u64,
    /// Own pushes that another has taken in.
    pub pushes: u64,
    /// Connections that came up.
    pub ups: u64,
    /// Times a replica was replaced by catching up.
    pub catch_ups: u64,
    /// Times it merged, or took over a clock by that.
    pub merges: u64,
}

impl Counts {
    /// Exchanges that took effect, whichever end this peer was.
    #[must_use]
    pub const fn exchanged(&self) -> u64 {
        self.halves + self.pushes
    }
}

impl SimPeer {
    pub(super) fn new(round_time: Duration, batch: u32) -> Self {
        Self {
            host: None,
            incarnation: 0,
            clock_max: Clock(0),
            round_time,
            batch,
            held_since: None,
            leaving: false,
            finished: false,
            paused_until: Time::ZERO,
            round_open: false,
            counts: Counts::default(),
            slowness: 1.0,
            bandwidth: 0.0,
            uplink: Line::default(),
            downlink: Line::default(),
            edges: Vec::new(),
            wake_at: Time::NEVER,
            working: false,
            blocked: false,
            said: None,
            ticking: false,
            course: Course::default(),
            rounds_done_seen: 0,
            saved: None,
        }
    }

    /// Whether the process lives and means to stay.
    #[must_use]
    pub const fn stays(&self) -> bool {
        self.host.is_some() && !self.leaving
    }

    /// Indices of the peers that it wants to be connected to.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> + '_ {
        self.edges.iter().map(|(other, _)| *other)
    }

    pub(super) fn edge_to(&self, other: u32) -> Option<u32> {
        let at = self.edges.binary_search_by_key(&other, |(peer, _)| *peer).ok()?;
        Some(self.edges[at].1)
    }
}

/// The index of a simulated peer, from its name (see [`dnode_gossip::testing::peer`]).
#[must_use]
pub fn index_of(peer: &PeerId) -> u32 {
    let [a, b, c, d, ..] = *peer.public_key();
    u32::from_be_bytes([a, b, c, d])
}
