//! Rule `delta-set`: every contribution reaches everybody, by version vectors and fetching.
//!
//! A replica is the sum of the contributions it contains, whatever the order: an operation-based
//! grow-only set CRDT (Shapiro et al. 2011). So two replicas with equal [`Versions`] are equal bit by
//! bit. Peers tell their neighbours what they have; who lacks something asks one that has it. Loss and
//! duplication change nothing: what is lacking is asked for again, what is contained is never added
//! twice.

mod advance;
mod conflict_order;
mod contribution_sequence;
mod fetches;
mod version_vector;

use std::collections::BTreeMap;

use dnode_protocol::limits::VERSIONS_MAX;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, Origin, PeerId, Time, Versions};

use crate::context::{Context, Step};
use crate::membership::{Member, Members, Membership};
use crate::{ContributionId, Mixing, Offence, Output};
use advance::{ADVANCE_MAX, Advance};
use contribution_sequence::ContributionSequence;
pub use fetches::FETCHES_MAX;
use fetches::{Fetch, KEPT_MAX, REPEAT};
use version_vector::VersionVector;

/// Commits whose contributions a counting neighbour may lack before the next commit waits: without
/// this, queues on slow links grow without end and the run diverges.
const BACKLOG_MAX: u64 = 2;

/// What this peer knows of contributions.
#[derive(Clone, Debug)]
pub(crate) struct DeltaSet {
    own: ContributionSequence,
    /// Of each fragment, what the replica contains.
    versions: Vec<BTreeMap<Origin, u64>>,
    /// The contributions that the driver keeps, with their authors' clocks.
    kept: BTreeMap<ContributionId, Clock>,
    /// What each neighbour has said that it contains.
    heard: BTreeMap<PeerId, VersionVector>,
    /// Asked for, by sequence number.
    open: BTreeMap<u64, Fetch>,
    advance: Advance,
    /// When to tell the neighbours what there is.
    tell_at: Option<Time>,
    /// Since when a fragment lacks something that no neighbour keeps.
    lost_since: BTreeMap<FragmentId, Time>,
}

/// Which fragments a neighbour speaks of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) first: FragmentId,
    pub(crate) count: u32,
}

impl DeltaSet {
    pub(crate) fn new(fragments: u32) -> Self {
        Self {
            own: ContributionSequence::default(),
            versions: vec![BTreeMap::new(); fragments as usize],
            kept: BTreeMap::new(),
            heard: BTreeMap::new(),
            open: BTreeMap::new(),
            advance: Advance::default(),
            tell_at: None,
            lost_since: BTreeMap::new(),
        }
    }

    /// When something of it is due next.
    pub(crate) fn next_deadline(&self) -> Time {
        let waiting = self.open.values().filter(|fetch| fetch.waits());
        let fetch = waiting.map(Fetch::deadline).min().unwrap_or(Time::NEVER);
        fetch.min(self.tell_at.unwrap_or(Time::NEVER))
    }

    /// The most that can be asked for at a time.
    pub(crate) const OPEN_MAX: usize = FETCHES_MAX + ADVANCE_MAX;

    /// What `fragment` contains.
    pub(crate) fn versions(&self, fragment: FragmentId) -> Versions {
        let versions = self.versions.get(fragment.0 as usize);
        let entries = versions.into_iter().flatten().map(|(origin, number)| (*origin, *number));
        Versions { entries: entries.take(VERSIONS_MAX).collect() }
    }

    /// What every fragment contains, in their order.
    pub(crate) fn contents(&self) -> Vec<Versions> {
        let entries =
            |versions: &BTreeMap<Origin, u64>| versions.iter().map(|(o, n)| (*o, *n)).collect();
        self.versions.iter().map(|versions| Versions { entries: entries(versions) }).collect()
    }

    /// The number of the newest contribution of `origin` that `fragment` contains.
    fn contained(&self, fragment: FragmentId, origin: &Origin) -> u64 {
        let versions = self.versions.get(fragment.0 as usize);
        versions.and_then(|v| v.get(origin)).copied().unwrap_or(0)
    }

    /// `fragment` contains exactly this.
    pub(crate) fn set_versions(&mut self, fragment: FragmentId, versions: &Versions) {
        if let Some(known) = self.versions.get_mut(fragment.0 as usize) {
            *known = versions.entries.iter().copied().collect();
        }
    }

    /// Neighbours that are not suspected, with what they have said.
    fn heard_of<'a>(
        &'a self,
        members: &'a Members,
    ) -> impl Iterator<Item = (&'a PeerId, &'a Member, &'a VersionVector)> {
        members.heard().filter_map(|(peer, member)| Some((peer, member, self.heard.get(peer)?)))
    }

    /// Whether every neighbour that is not silent contains the same contributions, as far as it has
    /// said.
    pub(crate) fn agrees(&self, members: &Members) -> bool {
        self.heard_of(members).all(|(_, _, theirs)| {
            let mut own = (0..).map(FragmentId).zip(&self.versions);
            own.all(|(fragment, versions)| {
                let theirs = theirs.of(fragment).map_or(&[][..], |theirs| &theirs.entries);
                theirs.iter().map(|(origin, number)| (origin, number)).eq(versions)
            })
        })
    }

    /// A neighbour is here: tells it what every fragment contains.
    pub(crate) fn on_peer_up(&mut self, context: &mut Context, peer: PeerId) {
        self.heard.insert(peer, VersionVector::default());
        self.introduce(context, peer);
    }

    /// A neighbour is gone.
    pub(crate) fn on_peer_down(&mut self, peer: &PeerId) {
        self.heard.remove(peer);
        self.advance.forget(peer);
    }

    /// The commit just reported contributes to every fragment.
    pub(crate) fn on_commit(&mut self, context: &mut Context, members: &Members) {
        if context.config.mixing != Mixing::Set {
            return;
        }
        let (origin, number) = self.own.next(context);
        let clock = context.progress.clock();
        for fragment in context.all_fragments() {
            self.kept.insert(ContributionId { origin, number, fragment }, clock);
            if let Some(versions) = self.versions.get_mut(fragment.0 as usize) {
                versions.insert(origin, number);
            }
        }
        context.output(Output::Publish { origin, number });
        self.send_awaited(context, (origin, number), clock);
        self.tell(context, members);
        self.drop_contributions(context, members);
    }

    /// Tells all neighbours what every fragment contains.
    fn tell(&mut self, context: &mut Context, members: &Members) {
        self.tell_at = Some(context.now + REPEAT);
        for (peer, _) in members.iter() {
            self.introduce(context, *peer);
        }
    }

    /// Tells `to` what every fragment contains, of neighbouring fragments that are alike at once.
    fn introduce(&self, context: &mut Context, to: PeerId) {
        if context.config.mixing != Mixing::Set {
            return;
        }
        let mut first = 0;
        while first < context.fragments {
            let at = |fragment: u32| self.versions.get(fragment as usize);
            let alike = (first..context.fragments).take_while(|next| at(*next) == at(first));
            let count = u32::try_from(alike.count()).unwrap_or(1).max(1);
            let versions = self.versions(FragmentId(first));
            context.send(to, Message::Have { first: FragmentId(first), count, versions });
            first += count;
        }
    }

    /// A neighbour says what its fragments contain.
    pub(crate) fn on_have(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        from: PeerId,
        (span, versions): (Span, Versions),
    ) {
        let end = span.first.0.saturating_add(span.count);
        if context.config.mixing != Mixing::Set || end > context.fragments {
            return context.then(Step::Offence(from, Offence::Garbage));
        }
        self.own.avoid(context, &versions);
        let fragments = context.fragments as usize;
        if let Some(mut heard) = self.heard.remove(&from) {
            heard.hear(fragments, span.first.0 as usize..end as usize, versions);
            heard.forget_gone(|fragment, origin| self.contained(fragment, origin));
            self.heard.insert(from, heard);
        }
        self.advance.hear(&from);
        self.expect_awaited(context, membership);
        self.drop_contributions(context, membership.members());
        context.then(Step::Fetch(FragmentId(0), false));
        context.then(Step::Limit);
    }

    /// A neighbour asks for a contribution.
    pub(crate) fn on_fetch(
        &mut self,
        context: &mut Context,
        from: PeerId,
        exchange: ExchangeId,
        contribution: ContributionId,
    ) {
        let set = context.config.mixing == Mixing::Set;
        let stranger = exchange.initiator != from;
        if stranger || contribution.fragment.0 >= context.fragments || !set {
            return context.then(Step::Offence(from, Offence::Garbage));
        }
        if let Some(clock) = self.kept.get(&contribution).copied() {
            let to = from;
            context.output(Output::SendContribution { to, exchange, contribution, clock });
            return;
        }
        let had = self.contained(contribution.fragment, &contribution.origin);
        if had >= contribution.number {
            // It is in the replica and no longer kept by itself.
            let clock = context.progress.clock();
            context.send(from, Message::Stale { exchange, clock });
        } else if self.is_next(context, &contribution) && self.heard.contains_key(&from) {
            self.advance.wait(from, contribution.fragment, exchange);
        } else {
            context.send(from, Message::Busy { exchange });
        }
    }

    /// Drops what every neighbour contains, and what is beyond the bound.
    fn drop_contributions(&mut self, context: &mut Context, members: &Members) {
        // Who joins or is replaced counts as well: it would lack at once what is dropped meanwhile.
        let heard: Vec<&VersionVector> =
            self.heard_of(members).map(|(_, _, theirs)| theirs).collect();
        let everywhere = |id: &ContributionId| {
            heard.iter().map(|theirs| theirs.number(id.fragment, &id.origin)).min().unwrap_or(0)
        };
        let (own, number) = (self.own.origin(context), self.own.number());
        let dropped: Vec<ContributionId> = self
            .kept
            .keys()
            .filter(|id| {
                let contained = self.contained(id.fragment, &id.origin);
                let newest = if id.origin == own { number } else { contained };
                let needed = id.number > contained;
                !needed && id.number <= everywhere(id) || id.number + KEPT_MAX <= newest
            })
            .copied()
            .collect();
        for contribution in dropped {
            self.kept.remove(&contribution);
            context.output(Output::Drop { contribution });
        }
    }

    /// A counting neighbour that lacks more of this peer's contributions than it may.
    pub(crate) fn backlogged(&self, context: &Context, members: &Members) -> Option<PeerId> {
        if context.config.mixing != Mixing::Set {
            return None;
        }
        let counting = members.iter().filter(|(_, member)| member.counts());
        let mut behind = counting.filter(|(peer, _)| self.lacks_too_much(context, peer));
        behind.next().map(|(peer, _)| *peer)
    }

    /// How many contributions `peer` has said that it made to `fragment` and this replica lacks.
    pub(crate) fn lacks_of(&self, fragment: FragmentId, peer: &PeerId) -> u64 {
        let versions = self.heard.get(peer).and_then(|theirs| theirs.of(fragment));
        let entries = versions.into_iter().flat_map(|versions| &versions.entries);
        let lacks = entries
            .filter(|(origin, _)| origin.peer == *peer)
            .map(|(origin, number)| number.saturating_sub(self.contained(fragment, origin)));
        lacks.fold(0, u64::saturating_add)
    }

    /// How many of this peer's contributions the counting neighbours lack, all of them together, as far
    /// as they have said.
    pub(crate) fn lacking(&self, context: &Context, members: &Members) -> u64 {
        if context.config.mixing != Mixing::Set {
            return 0;
        }
        let counting = members.iter().filter(|(_, member)| member.counts());
        counting
            .filter_map(|(peer, _)| self.lacks_of_own(context, peer))
            .fold(0, u64::saturating_add)
    }

    /// How many of this peer's contributions `peer` lacks, as far as it has said; `None` before it said
    /// anything.
    fn lacks_of_own(&self, context: &Context, peer: &PeerId) -> Option<u64> {
        let theirs = self.heard.get(peer)?;
        let origin = self.own.origin(context);
        let least = context.all_fragments().map(|fragment| theirs.number(fragment, &origin)).min();
        Some(self.own.number().saturating_sub(least.unwrap_or(0)))
    }

    /// Whether the neighbour `peer` lacks more of this peer's contributions than a counting one may.
    pub(crate) fn lacks_too_much(&self, context: &Context, peer: &PeerId) -> bool {
        let set = context.config.mixing == Mixing::Set;
        set && self.lacks_of_own(context, peer).is_some_and(|lacks| lacks > BACKLOG_MAX)
    }

    /// Goes on with a replica that contains `contents`, one entry for each fragment. The peer begins as
    /// a new author.
    pub(crate) fn resume(&mut self, context: &Context, contents: &[Versions]) {
        for (known, versions) in self.versions.iter_mut().zip(contents) {
            *known = versions.entries.iter().copied().collect();
        }
        contents.iter().for_each(|versions| self.own.avoid(context, versions));
    }

    /// Whether every fragment contains all own contributions.
    pub(crate) fn contains_own(&self, context: &Context) -> bool {
        let (origin, number) = (self.own.origin(context), self.own.number());
        let mut fragments = context.all_fragments();
        fragments.all(|fragment| self.contained(fragment, &origin) >= number)
    }

    /// The replica was replaced: what it lacks of the own contributions is added again if it is
    /// still kept, else this peer begins anew as an author, so that its numbers have no gap.
    pub(crate) fn on_replaced(&mut self, context: &mut Context) {
        if context.config.mixing != Mixing::Set {
            return;
        }
        self.tell_at = Some(context.now + context.config.announce_min);
        let (origin, number) = (self.own.origin(context), self.own.number());
        let whole = context.all_fragments().all(|fragment| {
            let first = self.contained(fragment, &origin) + 1;
            let id = |number| ContributionId { origin, number, fragment };
            (first..=number).all(|number| self.kept.contains_key(&id(number)))
        });
        if whole {
            return;
        }
        let lost = |id: &ContributionId| {
            id.origin == origin && id.number > self.contained(id.fragment, &origin)
        };
        let lost: Vec<ContributionId> = self.kept.keys().filter(|id| lost(id)).copied().collect();
        for contribution in lost {
            self.kept.remove(&contribution);
            context.output(Output::Drop { contribution });
        }
        self.decline_awaited(context);
        self.own.begin_anew();
    }

    /// Tells what there is, when it is time to, and looks after what was asked for.
    pub(crate) fn on_deadline(&mut self, context: &mut Context, membership: &mut Membership) {
        if context.config.mixing != Mixing::Set {
            return;
        }
        if self.tell_at.is_some_and(|time| context.now >= time) {
            self.tell(context, membership.members());
        }
        self.end_late(context, membership);
        context.then(Step::Fetch(FragmentId(0), false));
    }
}
