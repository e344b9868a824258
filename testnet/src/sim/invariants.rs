//! What must hold after every event: one file per property, and the table of all of them.

mod atomic;
mod consensus;
mod convex;
mod gate;
mod information;
mod information_age;
mod kept;
mod lag;
mod lease;
mod limits;
mod liveness;
mod mass;
mod mean;
mod progress_gap;
mod same_set;
mod snapshot_age;
mod traffic;
mod weight;

use dnode_gossip::testing::Host;
use dnode_gossip::{Balance, Config, Event, Input, Weighting, Work};
use dnode_protocol::{Clock, Time};

pub use consensus::distance_squared;
pub(super) use consensus::within_parts;
pub use kept::Kept;

use super::book::Book;
use super::journal::Journal;
use super::link::Edge;
use super::peer::SimPeer;
use crate::scenario::Scenario;
use crate::scenario::rules::Rule;

/// Everything a property may look at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Virtual time.
    pub now: Time,
    /// Events so far.
    pub events: u64,
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The gossip configuration of every peer.
    pub config: &'a Config,
    /// All peers, by index.
    pub peers: &'a [SimPeer],
    /// What happened to the exchanges.
    pub journal: &'a Journal,
    /// What the world has seen of them.
    pub book: &'a Book,
    pub(super) edges: &'a [Edge],
}

impl View<'_> {
    /// The host of a peer, if it lives.
    #[must_use]
    pub fn host(&self, peer: u32) -> Option<&Host> {
        self.peers.get(peer as usize)?.host.as_ref()
    }

    /// What the numbers of `peer` weigh against those of others.
    #[must_use]
    pub fn mass(&self, peer: u32) -> f64 {
        f64::from(self.peers[peer as usize].batch)
    }

    /// The newest clock of `other` that has reached `peer` on their connection.
    #[must_use]
    pub fn heard(&self, peer: u32, other: u32) -> Option<Clock> {
        let edge = &self.edges[self.peers[peer as usize].edge_to(other)? as usize];
        edge.heard[edge.end_of(peer)]
    }

    /// All living hosts with their indices.
    pub fn hosts(&self) -> impl Iterator<Item = (u32, &Host)> {
        (0..).zip(self.peers).filter_map(|(index, peer)| Some((index, peer.host.as_ref()?)))
    }
}

/// Something that has just happened.
#[derive(Clone, Copy, Debug)]
pub enum Moment<'a> {
    /// A replica came to life.
    Joined {
        /// Index of the peer.
        peer: u32,
    },
    /// A replica is gone.
    Gone {
        /// Index of the peer.
        peer: u32,
        /// The host as it was.
        host: &'a Host,
    },
    /// An outer step was done.
    Committed {
        /// Index of the peer.
        peer: u32,
        /// What it added to every parameter.
        increment: f64,
        /// The neighbour whose clock its core did not believe, before the commit.
        doubted: Option<u32>,
    },
    /// A piece of trainer work was done; the journal knows it already.
    Worked {
        /// Index of the peer.
        peer: u32,
        /// What was asked.
        task: &'a Work,
        /// What was answered.
        answer: &'a Input,
        /// The fragment before.
        before: &'a [f64],
        /// The fragment after.
        after: &'a [f64],
    },
    /// A core reported something.
    Said {
        /// Index of the peer.
        peer: u32,
        /// What.
        event: &'a Event,
    },
    /// A core was called and everything it asked for is under way.
    Handled {
        /// Index of the peer.
        peer: u32,
    },
    /// The run has reached a stage.
    Reached(Stage),
}

/// The stages of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Faults have stopped.
    Calm,
    /// The settling time is over, or all rounds are done.
    Settled,
    /// Commits add nothing from here on.
    Still,
    /// The swarm has had time to agree.
    Agreed,
    /// Trainers have stopped and every exchange has had time to end.
    Rest,
}

/// One property.
pub trait Property: std::fmt::Debug {
    /// Its name, as in the table of docs/testing.md.
    fn name(&self) -> &'static str;

    /// Looks at what has just happened.
    ///
    /// # Errors
    /// What is wrong, in one sentence.
    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String>;

    /// How exactly it has held so far, where that is a number.
    fn kept(&self) -> Option<Kept> {
        None
    }
}

/// Every property; `small` worlds get the expensive ones too.
#[must_use]
pub fn table(scenario: &Scenario, small: bool) -> Vec<Box<dyn Property>> {
    let mut table: Vec<Box<dyn Property>> = vec![
        Box::new(atomic::Atomic),
        Box::new(lease::OneLease),
        Box::new(progress_gap::ProgressGap),
        Box::new(lag::Lag),
        Box::new(snapshot_age::SnapshotAge),
        Box::new(gate::Gate::default()),
        Box::new(weight::Weight),
        Box::new(limits::Limits),
        Box::new(traffic::Traffic),
        Box::new(liveness::Liveness::default()),
        Box::new(information_age::InformationAge),
        Box::new(consensus::Consensus::default()),
    ];
    // What weighs as samples keeps no sum while the samples of a commit follow measured speeds.
    let weighs_as_measured = scenario.rule.weighting == Weighting::Samples
        && scenario.gossip.pace.balance != Balance::Off;
    let of_the_rule: Option<Box<dyn Property>> = match scenario.rule.kind {
        Rule::Exchange if weighs_as_measured => None,
        Rule::Exchange => Some(Box::new(mean::MeanKept::new(small, scenario.rule.weighting))),
        Rule::Epidemic => Some(Box::new(convex::Convex::default())),
        Rule::PushSum => Some(Box::new(mass::MassKept::new(small))),
        Rule::DeltaSet => Some(Box::new(same_set::SameSet { often: small })),
    };
    table.extend(of_the_rule);
    if small {
        table.push(Box::new(information::InformationTrue::default()));
    }
    table
}
