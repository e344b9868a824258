//! Fetches in advance: a neighbour's next contribution is asked for before there is one.
//!
//! It then comes one delay of the line after its commit, in place of three: told, asked for, sent.

use std::collections::{BTreeMap, BTreeSet};

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, Origin, PeerId, Time};

use super::DeltaSet;
use super::fetches::Fetch;
use crate::context::Context;
use crate::membership::Membership;
use crate::{ContributionId, Mixing, Output};

/// Fetches in advance at a time: with 8 neighbours 8 fragments of each (guess).
pub(super) const ADVANCE_MAX: usize = 64;

/// What neighbours have asked for in advance, and who declined to be asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Advance {
    /// The exchange under which each neighbour waits for the next contribution to a fragment. Bounded
    /// by neighbours and fragments: a newer one replaces the one before.
    waiting: BTreeMap<(PeerId, FragmentId), ExchangeId>,
    /// Neighbours that have declined since they last said what they have. They are asked for nothing.
    declined: BTreeSet<PeerId>,
}

impl Advance {
    /// A neighbour is gone.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.waiting.retain(|(waits, _), _| waits != peer);
        self.declined.remove(peer);
    }

    /// `peer` says what it has: it may be asked again.
    pub(super) fn hear(&mut self, peer: &PeerId) {
        self.declined.remove(peer);
    }

    /// `peer` has declined.
    pub(super) fn decline(&mut self, peer: PeerId) {
        self.declined.insert(peer);
    }

    pub(super) fn has_declined(&self, peer: &PeerId) -> bool {
        self.declined.contains(peer)
    }

    /// `peer` waits for the next contribution to a fragment.
    pub(super) fn wait(&mut self, peer: PeerId, fragment: FragmentId, exchange: ExchangeId) {
        self.waiting.insert((peer, fragment), exchange);
    }

    /// Takes out all that wait.
    pub(super) fn take(&mut self) -> BTreeMap<(PeerId, FragmentId), ExchangeId> {
        std::mem::take(&mut self.waiting)
    }
}

impl DeltaSet {
    /// Asks neighbours that count for their next contributions, where nothing of theirs is lacking.
    pub(super) fn fetch_in_advance(&mut self, context: &mut Context, membership: &Membership) {
        let progress = &context.progress;
        let set = context.config.mixing == Mixing::Set;
        if !set || progress.is_replacing() || progress.is_leaving() {
            return;
        }
        let authors: Vec<PeerId> = self
            .heard_of(membership.members())
            .filter(|(_, member, _)| member.counts())
            .map(|(peer, ..)| *peer)
            .filter(|peer| !self.advance.has_declined(peer))
            .filter(|peer| membership.links().is_ready(peer, context.now))
            .collect();
        for author in authors {
            for fragment in context.all_fragments() {
                if self.open.values().filter(|fetch| fetch.is_in_advance()).count() >= ADVANCE_MAX {
                    return;
                }
                if let Some(next) = self.next_of(fragment, author) {
                    self.ask_in_advance(context, next);
                }
            }
        }
    }

    /// The contribution to `fragment` that `author` will make next, where it has said what it has made,
    /// all of that is here, and nothing is asked for.
    fn next_of(&self, fragment: FragmentId, author: PeerId) -> Option<ContributionId> {
        let theirs = self.heard.get(&author)?.of(fragment)?;
        let own = theirs.entries.iter().filter(|(origin, _)| origin.peer == author);
        // Its present name is the newest: names of earlier lives sort before.
        let (origin, number) = own.max_by_key(|(origin, _)| origin.incarnation)?;
        let contained = self.contained(fragment, origin);
        let lacks = contained != *number || self.is_asked_for(fragment, origin);
        (!lacks).then_some(ContributionId { origin: *origin, number: number + 1, fragment })
    }

    fn ask_in_advance(&mut self, context: &mut Context, contribution: ContributionId) {
        let ContributionId { origin, number, fragment } = contribution;
        let donor = origin.peer;
        let sequence = context.take_sequence();
        let exchange = context.exchange_id(sequence);
        self.open.insert(sequence, Fetch::in_advance(contribution, context.now));
        let leg = Leg::Contribution;
        context.output(Output::Expect { exchange, from: donor, leg, fragment });
        context.send(donor, Message::Fetch { exchange, fragment, origin, number });
    }

    /// Whether this is the next contribution that this peer will make.
    pub(super) fn is_next(&self, context: &Context, contribution: &ContributionId) -> bool {
        let (origin, newest) = (self.own.origin(context), self.own.number());
        // Before the first one the own name may still change.
        contribution.origin == origin && contribution.number == newest + 1 && newest > 0
    }

    /// Sends the contributions of a commit to those who wait for them.
    pub(super) fn send_awaited(
        &mut self,
        context: &mut Context,
        (origin, number): (Origin, u64),
        clock: Clock,
    ) {
        for ((to, fragment), exchange) in self.advance.take() {
            let contribution = ContributionId { origin, number, fragment };
            context.output(Output::SendContribution { to, exchange, contribution, clock });
        }
    }

    /// There will be no contributions of the name under which they were asked for.
    pub(super) fn decline_awaited(&mut self, context: &mut Context) {
        for ((to, _), exchange) in self.advance.take() {
            context.send(to, Message::Busy { exchange });
        }
    }

    /// Somebody has what was asked for in advance: it is on its way, or lost.
    pub(super) fn expect_awaited(&mut self, context: &Context, membership: &Membership) {
        let exists = |id: &ContributionId| {
            let mut heard = self.heard_of(membership.members());
            heard.any(|(.., theirs)| theirs.number(id.fragment, &id.origin) >= id.number)
        };
        let there = |fetch: &Fetch| fetch.is_in_advance() && exists(&fetch.contribution());
        let open = self.open.iter().filter(|(_, fetch)| there(fetch));
        let there: Vec<u64> = open.map(|(sequence, _)| *sequence).collect();
        for sequence in there {
            if let Some(fetch) = self.open.get_mut(&sequence) {
                let lease = membership.links().lease(&context.config, &fetch.donor());
                fetch.expect_by(context.now, context.now + lease);
            }
        }
    }
}

/// The deadline of a fetch in advance.
pub(super) const WHENEVER: Time = Time::NEVER;
