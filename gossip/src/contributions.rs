//! Rule `delta-set`: every contribution reaches everybody, by version vectors and fetching.
//!
//! A replica is the sum of the contributions it contains, whatever the order (a grow-only set,
//! Shapiro et al. 2011), so two replicas with equal [`Versions`] are equal bit by bit. Peers tell
//! their neighbours what they have; who lacks something asks one that has it. Loss and duplication
//! change nothing: what is lacking is asked for again, what is contained is never added twice.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::limits::VERSIONS_MAX;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, Origin, PeerId, Time, Versions};

use crate::gossip::Gossip;
use crate::has::Has;
use crate::membership::Standing;
use crate::{ContributionId, Event, Failure, Mixing, Offence, Output, RefusedMix, Work};

/// Contributions of one origin to one fragment that are kept for others, beyond which a peer that
/// lacks one pulls the whole fragment.
pub(crate) const KEPT_MAX: u64 = 8;
/// Contributions asked for at a time.
pub const FETCHES_MAX: usize = 16;
/// What there is is said again after this time, in case it was lost with a connection.
pub(crate) const REPEAT: Duration = Duration::from_secs(5);
/// Commits whose contributions a counting neighbour may lack before the next commit waits: without
/// this, queues on slow links grow without end and the run diverges (algorithms §2.3).
const BACKLOG_MAX: u64 = 2;

/// What a peer knows of contributions.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    /// Number of the own newest contribution.
    pub(crate) number: u64,
    /// How often this peer had to begin anew as an author, because contributions that nobody else
    /// had were lost when its replica was replaced.
    pub(crate) lives: u64,
    /// Of each fragment, what the replica contains.
    pub(crate) versions: Vec<BTreeMap<Origin, u64>>,
    /// The contributions that the driver keeps, with their authors' clocks.
    pub(crate) kept: BTreeMap<ContributionId, Clock>,
    /// Asked for, by sequence number.
    pub(crate) open: BTreeMap<u64, Fetch>,
    /// When to tell the neighbours what there is.
    pub(crate) tell_at: Option<Time>,
    /// Since when a fragment lacks something that no neighbour keeps.
    pub(crate) lost_since: BTreeMap<FragmentId, Time>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(crate) contribution: ContributionId,
    donor: PeerId,
    began: Time,
    deadline: Time,
    /// The author's clock, once the contribution is here and being added.
    pub(crate) adding: Option<Clock>,
}

impl Sharing {
    pub(crate) fn new(fragments: usize) -> Self {
        Self {
            number: 0,
            lives: 0,
            versions: vec![BTreeMap::new(); fragments],
            kept: BTreeMap::new(),
            open: BTreeMap::new(),
            tell_at: None,
            lost_since: BTreeMap::new(),
        }
    }

    pub(crate) fn next_deadline(&self) -> Time {
        let waiting = self.open.values().filter(|fetch| fetch.adding.is_none());
        let fetch = waiting.map(|fetch| fetch.deadline).min().unwrap_or(Time::NEVER);
        fetch.min(self.tell_at.unwrap_or(Time::NEVER))
    }

    /// What `fragment` contains.
    pub(crate) fn of(&self, fragment: FragmentId) -> Versions {
        let versions = self.versions.get(fragment.0 as usize);
        let entries = versions.into_iter().flatten().map(|(origin, number)| (*origin, *number));
        Versions { entries: entries.take(VERSIONS_MAX).collect() }
    }

    pub(crate) fn contained(&self, fragment: FragmentId, origin: &Origin) -> u64 {
        let versions = self.versions.get(fragment.0 as usize);
        versions.and_then(|v| v.get(origin)).copied().unwrap_or(0)
    }

    pub(crate) fn is_asked_for(&self, fragment: FragmentId, origin: &Origin) -> bool {
        self.open.values().any(|fetch| {
            fetch.contribution.fragment == fragment && fetch.contribution.origin == *origin
        })
    }
}

impl Gossip {
    /// The commit just reported contributes to every fragment.
    pub(crate) fn publish(&mut self, now: Time) {
        if self.config.mixing != Mixing::Set {
            return;
        }
        self.sharing.number += 1;
        let (origin, number, clock) = (self.origin(), self.sharing.number, self.clock);
        for fragment in (0..self.fragments).map(FragmentId) {
            self.sharing.kept.insert(ContributionId { origin, number, fragment }, clock);
            if let Some(versions) = self.sharing.versions.get_mut(fragment.0 as usize) {
                versions.insert(origin, number);
            }
        }
        self.output(Output::Publish { origin, number });
        self.tell_have(now);
        self.drop_contributions();
    }

    /// Tells all neighbours what every fragment contains.
    fn tell_have(&mut self, now: Time) {
        self.sharing.tell_at = Some(now + REPEAT);
        let peers: Vec<PeerId> = self.members.iter().map(|(peer, _)| *peer).collect();
        for peer in peers {
            self.introduce_versions(peer, now);
        }
    }

    /// Tells `to` what every fragment contains, of neighbouring fragments that are alike at once.
    pub(crate) fn introduce_versions(&mut self, to: PeerId, now: Time) {
        if self.config.mixing != Mixing::Set {
            return;
        }
        let mut first = 0;
        while first < self.fragments {
            let at = |fragment: u32| self.sharing.versions.get(fragment as usize);
            let alike = (first..self.fragments).take_while(|next| at(*next) == at(first)).count();
            let count = u32::try_from(alike).unwrap_or(1).max(1);
            let versions = self.sharing.of(FragmentId(first));
            self.send(to, Message::Have { first: FragmentId(first), count, versions }, now);
            first += count;
        }
    }

    pub(crate) fn heard_have(
        &mut self,
        from: PeerId,
        (first, count): (FragmentId, u32),
        versions: Versions,
        now: Time,
    ) {
        let end = first.0.saturating_add(count);
        if self.config.mixing != Mixing::Set || end > self.fragments {
            return self.offended(from, Offence::Garbage, now);
        }
        self.avoid_name(&versions);
        let fragments = self.fragments as usize;
        if let Some(member) = self.members.get_mut(&from) {
            member.has.hear(fragments, first.0 as usize..end as usize, versions);
            member.has.forget_gone(&self.sharing);
        }
        self.drop_contributions();
        self.fetch_missing(now);
        self.update_limit();
    }

    /// Asks for what neighbours have and this replica lacks, oldest first, from its author if that is
    /// a neighbour, else from one that the schedule draws.
    pub(crate) fn fetch_missing(&mut self, now: Time) {
        if self.config.mixing != Mixing::Set || self.catch_up.is_some() || self.leaving {
            return;
        }
        for fragment in (0..self.fragments).map(FragmentId) {
            if self.leases.contains_key(&fragment) {
                continue;
            }
            if self.replace_when_needed(fragment, now) {
                return;
            }
            for (contribution, donors) in self.missing(fragment, now) {
                if self.sharing.open.len() >= FETCHES_MAX {
                    return;
                }
                self.fetch(contribution, &donors, now);
            }
        }
    }

    /// The next contribution of each origin that `fragment` lacks, with who has it.
    pub(crate) fn missing(
        &self,
        fragment: FragmentId,
        now: Time,
    ) -> Vec<(ContributionId, Vec<PeerId>)> {
        let mut missing: BTreeMap<Origin, Vec<PeerId>> = BTreeMap::new();
        for (peer, member) in self.members.iter() {
            if member.standing == Standing::Suspected || now < member.back_off_until {
                continue;
            }
            let has = member.has.of(fragment);
            for (origin, number) in has.into_iter().flat_map(|versions| &versions.entries) {
                let contained = self.sharing.contained(fragment, origin);
                if *number > contained && !member.has.is_gone(fragment, origin, contained + 1) {
                    missing.entry(*origin).or_default().push(*peer);
                }
            }
        }
        // A snapshot may lack what this peer had before and still keeps.
        for id in self.sharing.kept.keys().filter(|id| id.fragment == fragment) {
            if id.number == self.sharing.contained(fragment, &id.origin) + 1 {
                missing.entry(id.origin).or_default().push(self.me);
            }
        }
        let known = self.sharing.versions.get(fragment.0 as usize);
        let room = |origin: &Origin| {
            known.is_some_and(|v| v.contains_key(origin) || v.len() < VERSIONS_MAX)
        };
        missing
            .into_iter()
            .filter(|(origin, _)| room(origin) && !self.sharing.is_asked_for(fragment, origin))
            .map(|(origin, donors)| {
                let number = self.sharing.contained(fragment, &origin) + 1;
                (ContributionId { origin, number, fragment }, donors)
            })
            .collect()
    }

    fn fetch(&mut self, contribution: ContributionId, donors: &[PeerId], now: Time) {
        let Some(donor) = self.choose_donor(contribution.origin.peer, donors) else { return };
        let sequence = self.take_sequence();
        let exchange = self.exchange_id(sequence);
        let deadline = now + self.lease(&donor);
        let ContributionId { origin, number, fragment } = contribution;
        let adding = self.sharing.kept.get(&contribution).copied();
        self.sharing
            .open
            .insert(sequence, Fetch { contribution, donor, began: now, deadline, adding });
        if adding.is_some() {
            return self.work(Work::Include { exchange, contribution });
        }
        let leg = dnode_protocol::frame::Leg::Contribution;
        self.output(Output::Expect { exchange, from: donor, leg, fragment });
        self.send(donor, Message::Fetch { exchange, fragment, origin, number }, now);
    }

    /// A neighbour asks for a contribution.
    pub(crate) fn fetched(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        contribution: ContributionId,
        now: Time,
    ) {
        let set = self.config.mixing == Mixing::Set;
        if exchange.initiator != from || contribution.fragment.0 >= self.fragments || !set {
            return self.offended(from, Offence::Garbage, now);
        }
        if let Some(clock) = self.sharing.kept.get(&contribution).copied() {
            let to = from;
            return self.output(Output::SendContribution { to, exchange, contribution, clock });
        }
        let had = self.sharing.contained(contribution.fragment, &contribution.origin);
        if had >= contribution.number {
            // It is in the replica and no longer kept by itself.
            let clock = self.clock;
            self.send(from, Message::Stale { exchange, clock }, now);
        } else {
            self.send(from, Message::Busy { exchange }, now);
        }
    }

    pub(crate) fn contribution_received(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        clock: Clock,
        now: Time,
    ) {
        if exchange != self.exchange_id(exchange.sequence) {
            return;
        }
        let open = self.sharing.open.get_mut(&exchange.sequence);
        let Some(fetch) = open.filter(|fetch| fetch.donor == from && fetch.adding.is_none()) else {
            return;
        };
        fetch.adding = Some(clock);
        let (contribution, began) = (fetch.contribution, fetch.began);
        self.took(&from, now.since(began));
        self.work(Work::Include { exchange, contribution });
    }

    pub(crate) fn is_fetch(&self, exchange: ExchangeId) -> bool {
        exchange == self.exchange_id(exchange.sequence)
            && self.sharing.open.contains_key(&exchange.sequence)
    }

    /// The trainer has added a contribution.
    pub(crate) fn included(&mut self, exchange: ExchangeId, now: Time) {
        let Some(fetch) = self.sharing.open.remove(&exchange.sequence) else {
            return;
        };
        let (ContributionId { origin, number, fragment }, adding) =
            (fetch.contribution, fetch.adding.unwrap_or_default());
        if let Some(versions) = self.sharing.versions.get_mut(fragment.0 as usize) {
            versions.insert(origin, number);
        }
        self.sharing.kept.insert(fetch.contribution, adding);
        let heard = self.heard_of(&origin.peer);
        let clock = adding.min(heard);
        self.information.raise(fragment, &origin.peer, clock);
        let (contribution, age) = (fetch.contribution, heard.ahead_of(clock));
        self.output(Output::Forget { exchange });
        self.event(Event::Included { contribution, age });
        let soon = now + self.config.announce_min;
        self.sharing.tell_at = Some(self.sharing.tell_at.map_or(soon, |at| at.min(soon)));
        self.drop_contributions();
        self.fetch_missing(now);
        self.train_when_whole();
        self.update_limit();
    }

    pub(crate) fn include_refused(&mut self, exchange: ExchangeId, why: RefusedMix, now: Time) {
        let Some(fetch) = self.end_fetch(exchange.sequence) else {
            return;
        };
        let (peer, failure) = (fetch.donor, Failure::BadParameters);
        self.event(Event::Failed { exchange, peer, failure });
        if why == RefusedMix::BadParameters {
            self.offended(peer, Offence::BadParameters, now);
        }
    }

    /// Whether `exchange` is one of our fetches; `gone` is whether the donor no longer keeps it.
    pub(crate) fn fetch_refused(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        gone: bool,
        now: Time,
    ) -> bool {
        if !self.is_fetch(exchange) {
            return false;
        }
        let open = self.sharing.open.get(&exchange.sequence);
        if open.is_none_or(|fetch| fetch.donor != from || fetch.adding.is_some()) {
            return true;
        }
        let Some(Fetch { contribution, .. }) = self.end_fetch(exchange.sequence) else {
            return true;
        };
        if gone && let Some(member) = self.members.get_mut(&from) {
            let ContributionId { fragment, origin, number } = contribution;
            member.has.gone.insert((fragment, origin), number);
        }
        self.fetch_missing(now);
        true
    }

    fn end_fetch(&mut self, sequence: u64) -> Option<Fetch> {
        let fetch = self.sharing.open.remove(&sequence)?;
        self.output(Output::Forget { exchange: self.exchange_id(sequence) });
        Some(fetch)
    }

    pub(crate) fn lose_fetches(&mut self, peer: PeerId) {
        let open = &self.sharing.open;
        let lost = open.iter().filter(|(_, fetch)| fetch.donor == peer && fetch.adding.is_none());
        let lost: Vec<u64> = lost.map(|(sequence, _)| *sequence).collect();
        for sequence in lost {
            self.end_fetch(sequence);
        }
    }

    /// A replica that is replaced needs no contributions meanwhile.
    pub(crate) fn drop_fetches(&mut self) {
        let open = &self.sharing.open;
        let waiting = open.iter().filter(|(_, fetch)| fetch.adding.is_none());
        let waiting: Vec<u64> = waiting.map(|(sequence, _)| *sequence).collect();
        for sequence in waiting {
            self.end_fetch(sequence);
        }
    }

    pub(crate) fn fetch_deadlines(&mut self, now: Time) {
        if self.config.mixing != Mixing::Set {
            return;
        }
        if self.sharing.tell_at.is_some_and(|time| now >= time) {
            self.tell_have(now);
        }
        let open = &self.sharing.open;
        let late = open.iter().filter(|(_, fetch)| fetch.adding.is_none() && now >= fetch.deadline);
        let late: Vec<(u64, PeerId)> = late.map(|(at, fetch)| (*at, fetch.donor)).collect();
        for (sequence, donor) in late {
            self.stalled(donor, now);
            self.end_fetch(sequence);
        }
        self.fetch_missing(now);
    }

    /// Drops what every neighbour contains, and what is beyond the bound.
    fn drop_contributions(&mut self) {
        // Who joins or is replaced counts as well: it would lack at once what is dropped meanwhile.
        let counting =
            |(_, member): &(&PeerId, &crate::Member)| member.standing != Standing::Suspected;
        let has: Vec<&Has> =
            self.members.iter().filter(counting).map(|(_, member)| &member.has).collect();
        let everywhere = |id: &ContributionId| {
            has.iter().map(|has| has.number(id.fragment, &id.origin)).min().unwrap_or(0)
        };
        let (own, number) = (self.origin(), self.sharing.number);
        let dropped: Vec<ContributionId> = self
            .sharing
            .kept
            .keys()
            .filter(|id| {
                let contained = self.sharing.contained(id.fragment, &id.origin);
                let newest = if id.origin == own { number } else { contained };
                let needed = id.number > contained;
                !needed && id.number <= everywhere(id) || id.number + KEPT_MAX <= newest
            })
            .copied()
            .collect();
        for contribution in dropped {
            self.sharing.kept.remove(&contribution);
            self.output(Output::Drop { contribution });
        }
    }

    /// A counting neighbour that lacks more of this peer's contributions than it may.
    pub(crate) fn backlogged(&self) -> Option<PeerId> {
        if self.config.mixing != Mixing::Set {
            return None;
        }
        let counting = self.members.iter().filter(|(_, member)| member.counts());
        let mut behind = counting.filter(|(_, member)| self.lacks_too_much(member));
        behind.next().map(|(peer, _)| *peer)
    }

    /// How many contributions `peer` has said that it made to `fragment` and this replica lacks.
    pub(crate) fn lacks_of(&self, fragment: FragmentId, peer: &PeerId) -> u64 {
        let versions = self.members.get(peer).and_then(|member| member.has.of(fragment));
        let entries = versions.into_iter().flat_map(|versions| &versions.entries);
        let lacks = entries.filter(|(origin, _)| origin.peer == *peer).map(|(origin, number)| {
            number.saturating_sub(self.sharing.contained(fragment, origin))
        });
        lacks.fold(0, u64::saturating_add)
    }

    /// Whether `member` lacks more of this peer's contributions than a counting neighbour may.
    pub(crate) fn lacks_too_much(&self, member: &crate::Member) -> bool {
        let origin = self.origin();
        let least = || (0..self.fragments).map(|f| member.has.number(FragmentId(f), &origin)).min();
        let lacks = || self.sharing.number.saturating_sub(least().unwrap_or(0));
        self.config.mixing == Mixing::Set && lacks() > BACKLOG_MAX
    }
}
