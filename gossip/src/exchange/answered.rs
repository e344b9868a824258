//! An answered exchange: one that a neighbour has proposed and this peer has accepted, and where it stands.

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, PeerId, Terms, Time};

use super::terms::{Agreed, Offered};
use crate::context::Context;
use crate::membership::Membership;

/// An exchange that this peer answers.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) fragment: FragmentId,
    pub(super) state: AnsweredState,
    pub(super) agreed: Agreed,
    pub(super) began: Time,
    /// When the lease ends.
    pub(super) deadline: Time,
    /// When to ask the initiator how it ended.
    pub(super) retry_at: Time,
    /// When the reply may be sent again, should the initiator repeat its proposal.
    pub(super) resend_at: Time,
    /// When to stop asking.
    pub(super) until: Time,
    /// What this end brought to it.
    pub(super) offered: Offered,
    /// An own proposal of the fragment to the initiator has crossed the proposal and yielded.
    pub(super) crossed: bool,
    /// The fragment is being replaced, and with it what this exchange did to it.
    pub(super) replacing: bool,
    /// The initiator gave up while the trainer was mixing, or replacing the fragment.
    pub(super) abort_wanted: bool,
}

impl Answered {
    /// An exchange of `fragment` that is accepted now, on the initiator's terms and in this codec.
    pub(super) fn accepted(
        context: &Context,
        membership: &Membership,
        (initiator, fragment): (PeerId, FragmentId),
        (theirs, codec): (Terms, Codec),
        crossed: bool,
    ) -> Self {
        let (config, now) = (&context.config, context.now);
        let offered = Offered::now(context, membership.partition());
        let lease = membership.links().lease(config, &initiator);
        Self {
            fragment,
            state: AnsweredState::Accepted,
            agreed: offered.agree(config, theirs, codec),
            began: now,
            deadline: now + lease,
            retry_at: now + lease,
            resend_at: now,
            until: now + config.journal_window,
            offered,
            crossed,
            replacing: false,
            abort_wanted: false,
        }
    }
}

/// Where an answered exchange stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnsweredState {
    /// ACCEPT is out, the offer is awaited.
    Accepted,
    /// The trainer is mixing.
    Mixing,
    /// Applied and journalled: the difference is kept until ACK or ABORT.
    Applied,
    /// The trainer is taking it back.
    Undoing,
}
