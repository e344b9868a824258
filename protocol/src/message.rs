//! Every sentence a peer can say on the control stream, one variant each.

use wincode::{SchemaRead, SchemaWrite};

use crate::frame::Codec;
use crate::{Clock, ContentHash, ExchangeId, FragmentId, PeerId, RunSpec, Stripe, Summary};

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
    /// Steps of the run that the sender has come to. Bounds stretch commits, so its clock does not say that.
    pub position: u64,
    /// Median wall time of one local step, microseconds; 0 when not yet measured.
    pub step_micros: u32,
    /// Samples in one local step; 0 when not known.
    pub batch: u32,
    /// What the peer is doing.
    pub phase: Phase,
}

/// What the sender does in the run where peers may differ: where it ends, and what it draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Part {
    /// Steps of the run at which the sender ends, at least 1; none while it has yet to hear of others'.
    pub steps: Option<u64>,
    /// Whether a person has set them.
    pub steps_given: bool,
    /// Shards that its training data are cut into, at most [`crate::limits::SHARDS_MAX`]; 0 when it
    /// does not tell.
    pub shards: u32,
    /// The shard that it draws from, below `shards`; none while it has yet to choose.
    pub shard: Option<u32>,
    /// Whether a person has set it.
    pub shard_given: bool,
}

/// For one fragment: the newest commit of each known peer whose effect the fragment contains.
///
/// Sorted by peer, at most [`crate::limits::INFORMATION_MAX`] entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Information {
    /// `(peer, newest commit contained)`.
    pub entries: Vec<(PeerId, Clock)>,
}

/// What one end of an exchange brings to it.
#[derive(Clone, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Terms {
    /// The sender's clock.
    pub clock: Clock,
    /// How much the sender's numbers weigh against the other end's, unitless, at least 1.
    pub mass: u32,
    /// Samples that the sender has processed in a thousand seconds, at least 1: what its numbers
    /// weigh when an end merges.
    pub work: u32,
    /// Whether the sender has trained apart from some of its neighbours and now merges with them.
    pub merges: bool,
    /// In a proposal the finest code of the difference that the sender wants, in an acceptance the
    /// one that is used: that or a coarser one.
    pub codec: Codec,
    /// What the sender's fragment contains.
    pub information: Information,
}

/// One start of a peer's process as the author of contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SchemaRead, SchemaWrite)]
pub struct Origin {
    /// The peer.
    pub peer: PeerId,
    /// Which start of its process.
    pub incarnation: u64,
}

/// Which contributions a replica contains: of each origin all up to this number.
///
/// Sorted by origin, at most [`crate::limits::VERSIONS_MAX`] entries. A version vector
/// (Parker et al. 1983).
#[derive(Clone, Debug, Default, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Versions {
    /// `(origin, number of its newest contribution contained)`.
    pub entries: Vec<(Origin, u64)>,
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
        /// What should agree: differences are told, and refused when they are large.
        settings: RunSpec,
        /// Which start of the sender's process this is; larger is later.
        incarnation: u64,
        /// TCP port at which the sender takes direct paths; 0 when it takes none there.
        direct_port: u16,
        /// How the sender came into a run that has owners: the bytes of a [`crate::invitation::Chain`];
        /// empty in a run without them.
        chain: Vec<u8>,
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
        /// What the sender brings.
        terms: Terms,
    },
    /// Grants the lease: answer to [`Message::Propose`].
    Accept {
        /// The exchange.
        exchange: ExchangeId,
        /// What the sender brings.
        terms: Terms,
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
    /// The initiator, which is the last to apply, has applied.
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
    /// Announces the snapshot that follows: answer to [`Message::Pull`].
    Snapshot {
        /// The exchange.
        exchange: ExchangeId,
        /// The sender's clock when it read the fragment.
        clock: Clock,
        /// Of the bytes that follow.
        hash: ContentHash,
        /// What the sender's fragment contains.
        information: Information,
        /// Which contributions it contains; empty where numbers are exchanged.
        versions: Versions,
    },
    /// Which contributions some fragments of the sender contain, all of them the same ones.
    Have {
        /// The first of the fragments.
        first: FragmentId,
        /// How many follow each other, at least 1.
        count: u32,
        /// The version vector.
        versions: Versions,
    },
    /// Asks for a contribution.
    Fetch {
        /// The exchange, named by the sender.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// The contribution's author.
        origin: Origin,
        /// Its number, counted by the author from 1.
        number: u64,
    },
    /// Asks whether a peer lives: the receiver, or a neighbour of the receiver.
    Probe {
        /// Named by the sender; the answer repeats it.
        number: u64,
        /// Whose word is wanted.
        target: PeerId,
    },
    /// Answer to [`Message::Probe`]: the target has spoken to the sender since, or is the sender.
    Alive {
        /// The probe's.
        number: u64,
        /// Who lives.
        target: PeerId,
    },
    /// Which rack the sender is of, and its part of what that exchanges.
    Rack {
        /// Part of a hash of the rack's name, not 0.
        name: u64,
        /// The sender's part.
        stripe: Stripe,
    },
    /// How the sender and others do.
    Summaries {
        /// Sorted by peer, no peer twice, 1 to [`crate::limits::SUMMARIES_MAX`].
        summaries: Vec<Summary>,
    },
    /// What the sender does in the run: after Hello, and whenever that changes.
    Part(Part),
    /// The sender mixes with nothing of the receiver for now, because its weights were unlike all others'.
    LeftOut {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Who was removed from a run that has owners: after Hello, and when the sender hears of more.
    Revocations {
        /// The bytes of one or more [`crate::invitation::Revocation`]s, at most
        /// [`crate::limits::REVOCATION_BYTES_MAX`].
        statements: Vec<u8>,
    },
}

impl Message {
    /// The exchange this message speaks of, if any.
    #[must_use]
    pub const fn exchange(&self) -> Option<ExchangeId> {
        match self {
            Self::Hello { .. }
            | Self::Refuse { .. }
            | Self::Heartbeat(_)
            | Self::Goodbye
            | Self::Have { .. }
            | Self::Probe { .. }
            | Self::Alive { .. }
            | Self::Rack { .. }
            | Self::Summaries { .. }
            | Self::Revocations { .. }
            | Self::Part(_) => None,
            Self::Propose { exchange, .. }
            | Self::Accept { exchange, .. }
            | Self::Busy { exchange }
            | Self::LeftOut { exchange }
            | Self::Stale { exchange, .. }
            | Self::Ack { exchange }
            | Self::Abort { exchange }
            | Self::Aborted { exchange }
            | Self::Pull { exchange, .. }
            | Self::Snapshot { exchange, .. }
            | Self::Fetch { exchange, .. } => Some(*exchange),
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
            Self::Snapshot { .. } => "snapshot",
            Self::Have { .. } => "have",
            Self::Fetch { .. } => "fetch",
            Self::Probe { .. } => "probe",
            Self::Alive { .. } => "alive",
            Self::Rack { .. } => "rack",
            Self::Summaries { .. } => "summaries",
            Self::Part(_) => "part",
            Self::LeftOut { .. } => "left-out",
            Self::Revocations { .. } => "revocations",
        }
    }
}
