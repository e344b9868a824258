//! The closed list of everything that enters the core.

use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ContentHash, ExchangeId, Message, PeerId, Stripe};

use crate::Evidence;

/// What a peer did wrong, found outside the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// Bytes that do not decode, an oversize frame, a message out of place.
    Garbage,
    /// NaN, infinite or absurdly large parameters.
    BadParameters,
    /// A snapshot whose bytes have another hash than it said.
    OtherSnapshot,
    /// An exchange with a peer that may only observe.
    Observer,
}

/// Why the trainer did not apply a mix; parameters are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedMix {
    /// The own clock has passed the mix's `clock_max` (bound B2).
    TooOld,
    /// This end's own numbers cannot be mixed; the peer is not at fault.
    Local,
    /// The remote numbers are not finite or far out of proportion.
    BadParameters,
    /// The bytes of a snapshot have another hash than its donor said.
    OtherHash,
    /// The remote numbers are sound, and further away than the [`crate::Tolerance`] of the work.
    Outlier,
}

/// Something that enters the core.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// An authenticated connection to a peer of the same run is up.
    PeerUp {
        /// The peer.
        peer: PeerId,
        /// Which start of its process this is.
        incarnation: u64,
    },
    /// The same of a peer that only observes: it is no neighbour, and is told what neighbours are told.
    WatcherUp {
        /// The peer.
        peer: PeerId,
    },
    /// The last connection to the peer is gone.
    PeerDown {
        /// The peer.
        peer: PeerId,
    },
    /// Something of the peer broke that breaks when its process dies: a path inside the host or the
    /// local network, for example. The peer is asked at once whether it lives.
    Alarm {
        /// The peer.
        peer: PeerId,
    },
    /// A control message arrived.
    Received {
        /// Its sender.
        from: PeerId,
        /// The message.
        message: Message,
    },
    /// A whole expected tensor arrived and is kept by the driver under its exchange.
    TensorReceived {
        /// Its sender.
        from: PeerId,
        /// The exchange.
        exchange: ExchangeId,
        /// Which leg of the exchange.
        leg: Leg,
        /// The sender's clock when it read the numbers.
        clock: Clock,
    },
    /// The peer broke the rules; what it sent was thrown away.
    Offence {
        /// The peer.
        peer: PeerId,
        /// What it did.
        offence: Offence,
    },
    /// Answer to [`crate::Work::Read`]: the driver keeps the numbers under the exchange.
    FragmentRead {
        /// The exchange.
        exchange: ExchangeId,
        /// The own clock at the moment of reading.
        clock: Clock,
    },
    /// Answer to [`crate::Work::Read`] of a snapshot, likewise.
    SnapshotRead {
        /// The exchange.
        exchange: ExchangeId,
        /// The own clock at the moment of reading.
        clock: Clock,
        /// Of the bytes that are kept.
        hash: ContentHash,
    },
    /// A part of an expected snapshot has arrived from this neighbour.
    SnapshotProgress {
        /// The donor.
        from: PeerId,
    },
    /// What was seen of the other replica by a [`crate::Work::Mix`]; said before its answer, or never
    /// where it is not known.
    Measured {
        /// The exchange.
        exchange: ExchangeId,
        /// What was seen.
        evidence: Evidence,
    },
    /// Answer to [`crate::Work::Mix`]: applied.
    Mixed {
        /// The exchange.
        exchange: ExchangeId,
        /// The own clock at the moment of applying.
        clock: Clock,
    },
    /// Answer to [`crate::Work::Mix`] or [`crate::Work::Adopt`]: not applied.
    MixRefused {
        /// The exchange.
        exchange: ExchangeId,
        /// Why.
        reason: RefusedMix,
    },
    /// Answer to [`crate::Work::Undo`]: undone.
    Undone {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Answer to [`crate::Work::Adopt`]: the fragment is replaced.
    Adopted {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// The weights are those that all begin from: no step was done with them, in this start or an earlier one.
    /// Until [`Self::StepMeasured`] or a commit this peer takes over the replica of whoever had done a commit
    /// before they met, however small its lead.
    Untrained,
    /// The trainer waits, for example for peers it requires. Neighbours that have begun run ahead of
    /// this peer by the progress gap and wait there, for at most the gate time: peers that begin
    /// together stay together. Until [`Input::Begin`] this peer does not catch up.
    Wait,
    /// The trainer begins.
    Begin,
    /// The trainer did so many local steps that a round of exchanges is due.
    RoundDue,
    /// The trainer did an outer step.
    Committed {
        /// The new clock.
        clock: Clock,
        /// Samples processed so far.
        samples: u64,
        /// Steps of the run that it has come to.
        position: u64,
        /// Wall time of one local step.
        step_time: Duration,
        /// Samples of that step.
        batch: u32,
    },
    /// What a local step takes, known before the first commit, so that nobody does more work for that
    /// one than its speed allows.
    StepMeasured {
        /// Wall time of one local step.
        step_time: Duration,
        /// Samples of that step.
        batch: u32,
    },
    /// The trainer wants to commit and [`crate::Output::CommitLimit`] forbids it. Said once; it holds
    /// until the trainer commits or adopts a clock.
    CommitHeld,
    /// The trainer has done all its steps; it goes on to answer and to mix.
    Finished,
    /// The trainer has become a rank of a rack, or is none any more.
    Stripe(Stripe),
    /// The process is about to leave: begin nothing, end what is open.
    Leave,
    /// The time of [`crate::Gossip::poll_deadline`] has come.
    Deadline,
}
