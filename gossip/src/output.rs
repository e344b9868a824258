//! The closed list of everything that leaves the core.

mod work;

use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, Origin, PeerId, Time};

use crate::{Grounds, Load, RefusedMix, Trust};
pub use work::{SnapshotContents, Work};

/// Name of bound B1.
pub(crate) const PROGRESS_GAP: &str = "progress gap";
/// Name of bound B2.
pub(crate) const SNAPSHOT_AGE: &str = "snapshot age";
/// Name of bound B3.
pub(crate) const INFORMATION_AGE: &str = "information age";

/// Which end of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Proposed it; applies `+w·d`.
    Initiator,
    /// Answered it; computes `d` and applies `−w·d`.
    Responder,
}

/// A contribution of one commit to one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContributionId {
    /// Its author.
    pub origin: Origin,
    /// Counted by the author from 1.
    pub number: u64,
    /// The fragment.
    pub fragment: FragmentId,
}

/// Something the driver must do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a control message; drop it when there is no connection.
    Send {
        /// The receiver.
        to: PeerId,
        /// The message.
        message: Message,
    },
    /// From now on accept the tensor of this leg from this peer, assemble it, check it, and answer
    /// with [`crate::Input::TensorReceived`]. Tensors that are not expected are thrown away.
    Expect {
        /// The exchange.
        exchange: ExchangeId,
        /// Its sender.
        from: PeerId,
        /// Which leg.
        leg: Leg,
        /// The fragment.
        fragment: FragmentId,
    },
    /// Work of the trainer on the replica, to be done in order and answered.
    Work(Work),
    /// Send the numbers kept under the exchange.
    SendTensor {
        /// The receiver.
        to: PeerId,
        /// The exchange.
        exchange: ExchangeId,
        /// Which leg.
        leg: Leg,
        /// The fragment.
        fragment: FragmentId,
        /// The own clock when the numbers were read.
        clock: Clock,
    },
    /// The contributions of the commit that was just reported are this number of `origin` (this
    /// peer): keep them, one for each fragment.
    Publish {
        /// This peer.
        origin: Origin,
        /// The number.
        number: u64,
    },
    /// Send a kept contribution.
    SendContribution {
        /// The receiver.
        to: PeerId,
        /// The exchange it asked under.
        exchange: ExchangeId,
        /// The contribution.
        contribution: ContributionId,
        /// The author's clock after the commit.
        clock: Clock,
    },
    /// Nobody will ask for this contribution any more: drop it.
    Drop {
        /// The contribution.
        contribution: ContributionId,
    },
    /// Do this much local work per commit from now on.
    Pace(Load),
    /// Begin a round after so many local steps from now on.
    RoundEvery(u64),
    /// Nothing more happens under this exchange: drop what is kept and no longer expect anything.
    Forget {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// The trainer may commit up to this clock, and must hold the next commit beyond it.
    CommitLimit(Clock),
    /// So many peers commit beside each other, this one included: rule `delta-set` divides a commit by
    /// their number.
    Peers(usize),
    /// Rule `delta-set`: the peers that others wait for lack so many of this peer's contributions,
    /// all of them together, as far as they have said.
    Lacking(u64),
    /// Whether the trainer may do local steps; it may not while it catches up.
    Training {
        /// May it?
        allowed: bool,
    },
    /// Go on from this clock.
    AdoptClock {
        /// The clock.
        clock: Clock,
        /// Steps of the run that belong to it at least, as others say where they stand; its commits alone may
        /// say more.
        position: u64,
        /// Whether the replica was replaced by one of this clock: its momentum is another's then. If
        /// not, the replica stays as it is.
        replaced: bool,
    },
    /// All exchanges of the round have ended.
    RoundDone,
    /// Close the connection and do not accept the peer before the back-off is over.
    Disconnect {
        /// The peer.
        peer: PeerId,
        /// For how long.
        back_off: Duration,
        /// Why, for the log.
        reason: &'static str,
    },
    /// Something worth reporting.
    Event(Event),
}

/// How an exchange ended without being applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The partner was busy.
    Busy,
    /// The clocks are further apart than a bound allows.
    Stale {
        /// The bound, which the policy names: `progress gap` or `snapshot age`.
        bound: &'static str,
    },
    /// The lease expired.
    Expired,
    /// The snapshot was older than the snapshot bound when it could be applied.
    TooOld,
    /// The partner's numbers were refused.
    BadParameters,
    /// The partner's numbers are further away than the guard lets in.
    Outlier,
    /// The connection went away, or the partner gave up.
    Lost,
}

impl From<RefusedMix> for Failure {
    fn from(reason: RefusedMix) -> Self {
        match reason {
            RefusedMix::TooOld => Self::TooOld,
            RefusedMix::Local => Self::Lost,
            RefusedMix::Outlier => Self::Outlier,
            RefusedMix::BadParameters | RefusedMix::OtherHash => Self::BadParameters,
        }
    }
}

impl Failure {
    /// The staleness bound that refused it, if one did.
    #[must_use]
    pub const fn bound(self) -> Option<&'static str> {
        match self {
            Self::Stale { bound } => Some(bound),
            Self::TooOld => Some(SNAPSHOT_AGE),
            Self::Busy | Self::Expired | Self::BadParameters | Self::Outlier | Self::Lost => None,
        }
    }
}

/// Why rounds come as often as they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalCause {
    /// The link carries one in every local step.
    EveryStep,
    /// One keeps the link busy for so long.
    Link {
        /// All exchanges of a round together.
        busy: Duration,
    },
    /// One takes so many bytes of the budget.
    Budget {
        /// Sent by this peer.
        round_bytes: u64,
    },
}

/// A decision worth reporting: simulator, metrics and logs see the same ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A neighbour came.
    PeerUp(PeerId),
    /// A neighbour went.
    PeerDown(PeerId),
    /// A neighbour has been silent for too long.
    Suspected(PeerId),
    /// A neighbour held up a commit for as long as the policy lets it, and no longer counts.
    Demoted {
        /// The neighbour.
        peer: PeerId,
        /// The bound that held the commit: one of those of [`Event::Held`].
        bound: &'static str,
    },
    /// A demoted or suspected neighbour counts again.
    Restored(PeerId),
    /// This end of an exchange is applied.
    Applied {
        /// The exchange.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// The partner.
        peer: PeerId,
        /// Which end this is.
        role: Role,
        /// The weight.
        weight: f32,
        /// Clock distance of the two ends when it was agreed, commits.
        lag: u64,
        /// Age of the applied snapshot in own commits.
        age: u64,
    },
    /// An applied exchange was taken back because the initiator aborted it.
    Undone {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// An exchange ended without effect here.
    Failed {
        /// The exchange.
        exchange: ExchangeId,
        /// The partner.
        peer: PeerId,
        /// Why.
        failure: Failure,
    },
    /// A neighbour's proposal was answered `Stale`: the clocks are further apart than a bound allows.
    /// Said again for each repetition of the proposal.
    Refused {
        /// The exchange.
        exchange: ExchangeId,
        /// The neighbour.
        peer: PeerId,
        /// The bound: `progress gap` or `snapshot age`.
        bound: &'static str,
    },
    /// The two ends could not agree within the journal window, or the other end has restarted; one
    /// of them may have applied alone.
    Undecided {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// A deadline has a new value.
    Deadline {
        /// `gate`, `lease` or `suspicion`.
        name: &'static str,
        /// The neighbour it is for, if it is for one.
        peer: Option<PeerId>,
        /// Its value.
        value: Duration,
        /// Where the value comes from.
        why: &'static str,
    },
    /// The interval between rounds has changed.
    Interval {
        /// Local steps from one round to the next.
        steps: u64,
        /// Those that the cause asks for; more than `steps` where a commit has fewer.
        wanted: u64,
        /// Why.
        cause: IntervalCause,
    },
    /// A contribution is in the replica.
    Included {
        /// The contribution.
        contribution: ContributionId,
        /// Commits that its author was ahead of it, as far as known here.
        age: u64,
    },
    /// A commit is held back by a bound.
    Held {
        /// `progress gap`, `information age` or `contributions not fetched`.
        bound: &'static str,
        /// The peer that is behind.
        peer: PeerId,
    },
    /// The replica is about to be replaced by that of the neighbours.
    CatchUpStarted {
        /// The clock to be reached.
        target: Clock,
    },
    /// The replica has been replaced.
    CatchUpDone {
        /// The new clock.
        clock: Clock,
    },
    /// Neighbours went without a goodbye: this peer sees so many of all.
    Split {
        /// Peers that it sees, itself included.
        seen: usize,
        /// The same, and those that it has lost.
        of: usize,
        /// When the first of them was last heard of.
        since: Time,
    },
    /// What [`Event::Split`] said is over.
    Whole {
        /// Peers that it sees, itself included.
        seen: usize,
        /// The same, and one that may still be missing.
        of: usize,
        /// How long it was so.
        lasted: Duration,
    },
    /// Peers that this one has trained apart from are here again: its work counts in the mean of all.
    Merging {
        /// The own clock, which may be taken over from them.
        clock: Clock,
        /// What it weighs: samples in a thousand seconds.
        work: u32,
    },
    /// The guard has changed its mind about a neighbour.
    Guarded {
        /// The neighbour.
        peer: PeerId,
        /// How much its numbers count from now on.
        trust: Trust,
        /// Why.
        grounds: Grounds,
    },
    /// A neighbour says that it leaves this peer out.
    LeftOutBy {
        /// The neighbour.
        peer: PeerId,
        /// How many neighbours say so now.
        partners: usize,
        /// Of how many.
        of: usize,
    },
    /// Nearly all neighbours leave this peer out, so its own replica must be the one that is unlike those of the
    /// run: it takes over another.
    Exiled {
        /// How many neighbours leave this peer out.
        partners: usize,
        /// Of how many.
        of: usize,
    },
    /// A peer broke the rules.
    Offended {
        /// The peer.
        peer: PeerId,
        /// For how long it is not spoken to.
        back_off: Duration,
    },
}
