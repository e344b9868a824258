//! What a property is, and what it is told.

use dnode_gossip::testing::Host;
use dnode_gossip::{Event, Input, Work};
use dnode_protocol::Clock;

use super::super::view::View;
use super::kept::Kept;

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
        /// The newest clock that its core believed before the commit.
        believed: Clock,
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
