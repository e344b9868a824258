//! An own exchange: one that this peer has proposed, and where it stands.

use std::time::Duration;

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, FragmentId, PeerId, Time};

use super::codec_choice::wanted;
use super::terms::{Agreed, Offered, RETRIES_PER_LEASE};
use crate::context::Context;
use crate::membership::Membership;
use crate::rounds::RoundFragment;

/// An exchange that this peer proposed.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) partner: PeerId,
    /// Where the fragment stood in its round.
    pub(super) entry: RoundFragment,
    /// What this end brought to it, and the codec that it wants.
    pub(super) offered: Offered,
    pub(super) codec: Codec,
    pub(super) state: OwnState,
    pub(super) began: Time,
    /// How long the partner's word took: a round trip of small messages. Zero before it has come.
    pub(super) round_trip: Duration,
    pub(super) deadline: Time,
    pub(super) retry_at: Time,
    /// The proposal was repeated after the offer and not yet answered.
    pub(super) reproposed: bool,
    /// What was agreed, once accepted.
    pub(super) agreed: Option<Agreed>,
}

impl Own {
    /// An exchange that is proposed to `partner` now.
    pub(super) fn proposed(
        context: &Context,
        membership: &Membership,
        entry: RoundFragment,
        partner: PeerId,
    ) -> Self {
        let (config, now, links) = (&context.config, context.now, membership.links());
        let lease = links.lease(config, &partner);
        Self {
            partner,
            entry,
            offered: Offered::now(context, membership.partition()),
            codec: wanted(context, membership, &partner),
            state: OwnState::Proposed,
            began: now,
            round_trip: Duration::ZERO,
            deadline: now + lease,
            retry_at: now + lease / RETRIES_PER_LEASE,
            reproposed: false,
            agreed: None,
        }
    }

    /// Whether it is a proposal of `fragment` to `partner` that is not answered yet.
    pub(super) fn is_proposed(&self, fragment: FragmentId, partner: PeerId) -> bool {
        self.entry.fragment() == fragment
            && self.partner == partner
            && self.state == OwnState::Proposed
    }

    /// Whether the answer of a neighbour is awaited that does no work.
    pub(super) fn asks_an_idle_one(&self, membership: &Membership) -> bool {
        self.state == OwnState::Proposed && membership.is_idle(&self.partner)
    }

    /// Whether it waits for the partner.
    pub(super) const fn expires(&self) -> bool {
        matches!(self.state, OwnState::Proposed | OwnState::Offered { .. })
    }

    /// Whether the partner may have applied its half.
    pub(super) const fn is_offered(&self) -> bool {
        matches!(self.state, OwnState::Offered { .. } | OwnState::Applying { .. })
    }

    /// Whether the partner's half is being applied: nothing can end the exchange any more.
    pub(super) const fn is_applying(&self) -> bool {
        matches!(self.state, OwnState::Applying { .. })
    }
}

/// Where an own exchange stands. The lease on the fragment is held in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnState {
    /// PROPOSE is out.
    Proposed,
    /// Accepted; the trainer is copying the fragment.
    Reading,
    /// The snapshot of this clock is out.
    Offered { snapshot: Clock },
    /// The reply is being applied.
    Applying { snapshot: Clock },
}
