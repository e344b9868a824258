//! Every sentence a peer can say on the control stream, one variant each.

use wincode::{SchemaRead, SchemaWrite};

use crate::{Clock, ExchangeId, FragmentId, PeerId, RunSpec};

/// What a peer is doing, as it tells its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub enum Phase {
    /// It pulls the current model and is no partner yet.
    Joining,
    /// It trains and exchanges.
    Training,
    /// It has done all its steps and only answers and mixes.
    Finished,
}

/// What a peer tells its neighbours at intervals and after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Heartbeat {
    /// Commits so far.
    pub clock: Clock,
    /// Samples processed so far.
    pub samples: u64,
    /// Median wall time of one local step, microseconds; 0 when not yet measured.
    pub step_micros: u32,
    /// What the peer is doing.
    pub phase: Phase,
}

/// For one fragment: the newest commit of each known peer whose effect the fragment contains.
///
/// Sorted by peer, at most [`crate::limits::INFORMATION_MAX`] entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Information {
    /// `(peer, newest commit contained)`.
    pub entries: Vec<(PeerId, Clock)>,
}

/// A control message.
///
/// Every exchange message names its exchange; one that names an unknown or finished exchange is
/// answered or ignored as `docs/protocol.md` says and never changes parameters.
#[derive(Clone, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub enum Message {
    /// First message in each direction: which run the sender is in.
    Hello {
        /// Everything that must agree.
        run: RunSpec,
        /// Which start of the sender's process this is; larger is later.
        incarnation: u64,
    },
    /// The receiver is of another run; the connection closes after this.
    Refuse {
        /// The differing field.
        field: String,
        /// The refusing peer's value.
        ours: String,
        /// The refused peer's value.
        theirs: String,
    },
    /// The sender's clock and state.
    Heartbeat(Heartbeat),
    /// The sender leaves for good; nothing it began will be finished.
    Goodbye,
    /// Asks to exchange a fragment.
    Propose {
        /// The exchange, named by the sender.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// The sender's clock.
        clock: Clock,
        /// What the sender's fragment contains.
        information: Information,
    },
    /// Grants the lease (answer to [`Message::Propose`]) or announces a snapshot (to [`Message::Pull`]).
    Accept {
        /// The exchange.
        exchange: ExchangeId,
        /// The sender's clock.
        clock: Clock,
        /// What the sender's fragment contains.
        information: Information,
    },
    /// The fragment is leased, or too much is open: choose another partner.
    Busy {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// The clocks are further apart than the progress bound allows.
    Stale {
        /// The exchange.
        exchange: ExchangeId,
        /// The sender's clock.
        clock: Clock,
    },
    /// The initiator has applied its half.
    Ack {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// The initiator will never apply its half: undo yours if you applied it.
    Abort {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// The exchange is undone, or was never applied, and never will be.
    Aborted {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Asks for a snapshot of a fragment, to join or to catch up.
    Pull {
        /// The exchange, named by the sender.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
    },
}

impl Message {
    /// The exchange this message speaks of, if any.
    #[must_use]
    pub const fn exchange(&self) -> Option<ExchangeId> {
        match self {
            Self::Hello { .. } | Self::Refuse { .. } | Self::Heartbeat(_) | Self::Goodbye => None,
            Self::Propose { exchange, .. }
            | Self::Accept { exchange, .. }
            | Self::Busy { exchange }
            | Self::Stale { exchange, .. }
            | Self::Ack { exchange }
            | Self::Abort { exchange }
            | Self::Aborted { exchange }
            | Self::Pull { exchange, .. } => Some(*exchange),
        }
    }

    /// The variant's name, for traces and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Refuse { .. } => "refuse",
            Self::Heartbeat(_) => "heartbeat",
            Self::Goodbye => "goodbye",
            Self::Propose { .. } => "propose",
            Self::Accept { .. } => "accept",
            Self::Busy { .. } => "busy",
            Self::Stale { .. } => "stale",
            Self::Ack { .. } => "ack",
            Self::Abort { .. } => "abort",
            Self::Aborted { .. } => "aborted",
            Self::Pull { .. } => "pull",
        }
    }
}
