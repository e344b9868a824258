//! Fetching: what neighbours have and this replica lacks is asked for, and added.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::limits::VERSIONS_MAX;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, Origin, PeerId, Time};
use rand::RngExt;

use super::DeltaSet;
use super::advance::WHENEVER;
use crate::context::{Context, Step};
use crate::membership::{Links, Membership};
use crate::{ContributionId, Event, Failure, Mixing, Offence, Output, RefusedMix, Schedule, Work};

/// Contributions of one origin to one fragment that are kept for others, beyond which a peer that
/// lacks one pulls the whole fragment.
pub(super) const KEPT_MAX: u64 = 8;
/// Contributions asked for at a time.
pub const FETCHES_MAX: usize = 16;
/// What there is is said again after this time, in case it was lost with a connection.
pub(super) const REPEAT: Duration = Duration::from_secs(5);

/// A contribution that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    contribution: ContributionId,
    donor: PeerId,
    began: Time,
    deadline: Time,
    /// The author's clock, once the contribution is here and being added.
    adding: Option<Clock>,
}

impl Fetch {
    /// Whether the donor has not sent it yet.
    pub(super) const fn waits(&self) -> bool {
        self.adding.is_none()
    }

    pub(super) const fn deadline(&self) -> Time {
        self.deadline
    }

    /// A fetch of what its author has yet to make.
    pub(super) const fn in_advance(contribution: ContributionId, now: Time) -> Self {
        let donor = contribution.origin.peer;
        Self { contribution, donor, began: now, deadline: WHENEVER, adding: None }
    }

    /// Whether what was asked for does not exist yet, as far as known.
    pub(super) fn is_in_advance(&self) -> bool {
        self.waits() && self.deadline == WHENEVER
    }

    /// It exists: from now on it may take until `deadline`.
    pub(super) const fn expect_by(&mut self, now: Time, deadline: Time) {
        (self.began, self.deadline) = (now, deadline);
    }

    pub(super) const fn contribution(&self) -> ContributionId {
        self.contribution
    }

    pub(super) const fn donor(&self) -> PeerId {
        self.donor
    }
}

/// A contribution that is in the replica now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Included {
    pub(crate) fragment: FragmentId,
    pub(crate) author: PeerId,
    /// The author's clock after it.
    pub(crate) clock: Clock,
}

impl DeltaSet {
    /// Asks for what neighbours have and this replica lacks, oldest first, from its author if that is
    /// a neighbour, else from one that the schedule draws.
    ///
    /// It begins at fragment `first`, of which `looked` says whether it was looked at for replacing.
    pub(crate) fn fetch_missing(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        first: FragmentId,
        mut looked: bool,
    ) {
        let progress = &context.progress;
        let set = context.config.mixing == Mixing::Set;
        if !set || progress.is_replacing() || progress.is_leaving() {
            return;
        }
        for fragment in (first.0..context.fragments).map(FragmentId) {
            if context.leases.is_taken(fragment) && !looked {
                continue;
            }
            if !std::mem::take(&mut looked)
                && let Some(waiting) = self.replaceable(context, membership, fragment)
            {
                // Where that is not possible the search goes on.
                context.then(Step::Replace(waiting));
                return context.then(Step::Fetch(fragment, true));
            }
            for (contribution, donors) in self.missing(context, membership, fragment) {
                if self.open.values().filter(|fetch| !fetch.is_in_advance()).count() >= FETCHES_MAX
                {
                    return;
                }
                self.fetch(context, membership.links(), contribution, &donors);
            }
        }
        self.fetch_in_advance(context, membership);
    }

    /// The next contribution of each origin that `fragment` lacks, with who has it.
    fn missing(
        &self,
        context: &Context,
        membership: &Membership,
        fragment: FragmentId,
    ) -> Vec<(ContributionId, Vec<PeerId>)> {
        let mut missing: BTreeMap<Origin, Vec<PeerId>> = BTreeMap::new();
        // Of the own name there is no more than this peer has made, whatever others say.
        let own = (self.own.origin(context), self.own.number());
        let made = |origin: &Origin| if *origin == own.0 { own.1 } else { u64::MAX };
        for (peer, _, theirs) in self.heard_of(membership.members()) {
            if self.advance.has_declined(peer) || !membership.links().is_ready(peer, context.now) {
                continue;
            }
            let has = theirs.of(fragment);
            for (origin, number) in has.into_iter().flat_map(|versions| &versions.entries) {
                let contained = self.contained(fragment, origin);
                if (*number).min(made(origin)) > contained
                    && !theirs.is_gone(fragment, origin, contained + 1)
                {
                    missing.entry(*origin).or_default().push(*peer);
                }
            }
        }
        // A snapshot may lack what this peer had before and still keeps.
        for id in self.kept.keys().filter(|id| id.fragment == fragment) {
            if id.number == self.contained(fragment, &id.origin) + 1 {
                missing.entry(id.origin).or_default().push(context.me);
            }
        }
        let known = self.versions.get(fragment.0 as usize);
        let room = |origin: &Origin| {
            known.is_some_and(|v| v.contains_key(origin) || v.len() < VERSIONS_MAX)
        };
        missing
            .into_iter()
            .filter(|(origin, _)| room(origin) && !self.is_asked_for(fragment, origin))
            .map(|(origin, donors)| {
                let number = self.contained(fragment, &origin) + 1;
                (ContributionId { origin, number, fragment }, donors)
            })
            .collect()
    }

    /// Whether a contribution of `origin` to `fragment` is asked for.
    pub(super) fn is_asked_for(&self, fragment: FragmentId, origin: &Origin) -> bool {
        self.open.values().any(|fetch| {
            fetch.contribution.fragment == fragment && fetch.contribution.origin == *origin
        })
    }

    /// Whether a contribution to `fragment` is being added.
    pub(crate) fn is_adding(&self, fragment: FragmentId) -> bool {
        let mut open = self.open.values();
        open.any(|fetch| !fetch.waits() && fetch.contribution.fragment == fragment)
    }

    fn fetch(
        &mut self,
        context: &mut Context,
        links: &Links,
        contribution: ContributionId,
        donors: &[PeerId],
    ) {
        let author = contribution.origin.peer;
        let Some(donor) = choose_donor(context, links, author, donors) else { return };
        let sequence = context.take_sequence();
        let exchange = context.exchange_id(sequence);
        let deadline = context.now + links.lease(&context.config, &donor);
        let ContributionId { origin, number, fragment } = contribution;
        let adding = self.kept.get(&contribution).copied();
        let fetch = Fetch { contribution, donor, began: context.now, deadline, adding };
        self.open.insert(sequence, fetch);
        if adding.is_some() {
            return context.work(Work::Include { exchange, contribution });
        }
        let leg = Leg::Contribution;
        context.output(Output::Expect { exchange, from: donor, leg, fragment });
        context.send(donor, Message::Fetch { exchange, fragment, origin, number });
    }

    /// A contribution has arrived.
    pub(crate) fn on_contribution(
        &mut self,
        context: &mut Context,
        links: &mut Links,
        (from, exchange): (PeerId, ExchangeId),
        clock: Clock,
    ) {
        if !context.is_own(exchange) {
            return;
        }
        let open = self.open.get_mut(&exchange.sequence);
        let Some(fetch) = open.filter(|fetch| fetch.donor == from && fetch.waits()) else {
            return;
        };
        let waited = (!fetch.is_in_advance()).then(|| context.now.since(fetch.began));
        fetch.adding = Some(clock);
        let contribution = fetch.contribution;
        if let Some(waited) = waited {
            links.took(&from, waited);
        }
        context.work(Work::Include { exchange, contribution });
    }

    /// Whether `exchange` is a fetch of this peer that has not ended.
    pub(crate) fn is_fetch(&self, context: &Context, exchange: ExchangeId) -> bool {
        context.is_own(exchange) && self.open.contains_key(&exchange.sequence)
    }

    /// The trainer has added a contribution.
    pub(crate) fn on_included(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        exchange: ExchangeId,
    ) -> Option<Included> {
        let fetch = self.open.remove(&exchange.sequence)?;
        let (contribution, adding) = (fetch.contribution, fetch.adding.unwrap_or_default());
        let ContributionId { origin, number, fragment } = contribution;
        if let Some(versions) = self.versions.get_mut(fragment.0 as usize) {
            versions.insert(origin, number);
        }
        self.kept.insert(contribution, adding);
        let heard = membership.heard_of(context, &origin.peer);
        let clock = adding.min(heard);
        context.output(Output::Forget { exchange });
        context.event(Event::Included { contribution, age: heard.ahead_of(clock) });
        let soon = context.now + context.config.announce_min;
        self.tell_at = Some(self.tell_at.map_or(soon, |at| at.min(soon)));
        self.drop_contributions(context, membership.members());
        context.then(Step::Fetch(FragmentId(0), false));
        context.then(Step::TrainWhenWhole);
        context.then(Step::Limit);
        Some(Included { fragment, author: origin.peer, clock })
    }

    /// The trainer has refused a contribution.
    pub(crate) fn on_include_refused(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
        why: RefusedMix,
    ) {
        let Some(fetch) = self.end(context, exchange.sequence) else {
            return;
        };
        let (peer, failure) = (fetch.donor, Failure::BadParameters);
        context.event(Event::Failed { exchange, peer, failure });
        if why == RefusedMix::BadParameters {
            context.then(Step::Offence(peer, Offence::BadParameters));
        }
    }

    /// A donor declines; `gone` is whether it no longer keeps the contribution. Whether `exchange` is a
    /// fetch of this peer.
    pub(crate) fn on_declined(
        &mut self,
        context: &mut Context,
        (from, exchange): (PeerId, ExchangeId),
        gone: bool,
    ) -> bool {
        if !self.is_fetch(context, exchange) {
            return false;
        }
        let open = self.open.get(&exchange.sequence);
        if open.is_none_or(|fetch| fetch.donor != from || !fetch.waits()) {
            return true;
        }
        let Some(ended) = self.end(context, exchange.sequence) else {
            return true;
        };
        let contribution = ended.contribution;
        if !gone {
            // It is asked again once it says what it has.
            self.advance.decline(from);
        }
        if gone && let Some(theirs) = self.heard.get_mut(&from) {
            let ContributionId { fragment, origin, number } = contribution;
            theirs.set_gone(fragment, origin, number);
        }
        context.then(Step::Fetch(FragmentId(0), false));
        true
    }

    fn end(&mut self, context: &mut Context, sequence: u64) -> Option<Fetch> {
        let fetch = self.open.remove(&sequence)?;
        context.output(Output::Forget { exchange: context.exchange_id(sequence) });
        Some(fetch)
    }

    /// Ends what waits and of which `which` holds.
    fn end_waiting(&mut self, context: &mut Context, which: impl Fn(&Fetch) -> bool) {
        let waiting = self.open.iter().filter(|(_, fetch)| fetch.waits() && which(fetch));
        let waiting: Vec<u64> = waiting.map(|(sequence, _)| *sequence).collect();
        for sequence in waiting {
            self.end(context, sequence);
        }
    }

    /// A neighbour is gone or silent: nothing is waited for of it.
    pub(crate) fn lose(&mut self, context: &mut Context, peer: PeerId) {
        self.end_waiting(context, |fetch| fetch.donor == peer);
    }

    /// A replica that is replaced needs no contributions meanwhile.
    pub(crate) fn drop_fetches(&mut self, context: &mut Context) {
        self.end_waiting(context, |_| true);
    }

    /// Ends what is late.
    pub(super) fn end_late(&mut self, context: &mut Context, membership: &mut Membership) {
        let now = context.now;
        let late = self.open.iter().filter(|(_, fetch)| fetch.waits() && now >= fetch.deadline);
        let late: Vec<(u64, PeerId)> = late.map(|(at, fetch)| (*at, fetch.donor)).collect();
        for (sequence, donor) in late {
            membership.links_mut().stalled(&context.config, donor, now);
            self.end(context, sequence);
        }
    }
}

/// Whom to ask for a contribution of `author` that all `donors` have: the author, or one drawn at
/// random; under the schedule that prefers short links the quicker of two drawn.
fn choose_donor(
    context: &mut Context,
    links: &Links,
    author: PeerId,
    donors: &[PeerId],
) -> Option<PeerId> {
    let first = *donors.get(context.rng.random_range(0..donors.len().max(1)))?;
    match context.config.schedule {
        Schedule::Nearest => {
            let takes = |peer: &PeerId| links.mean(peer).unwrap_or(0.0);
            let second = donors[context.rng.random_range(0..donors.len())];
            Some(if takes(&second) < takes(&first) { second } else { first })
        }
        Schedule::Random | Schedule::Exponential | Schedule::Ring => {
            Some(if donors.contains(&author) { author } else { first })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::peer;

    /// How often peers 1 to 4, of which the last takes long, are asked in 320 draws for what peer
    /// `author` has made.
    fn asked(schedule: Schedule, author: u32) -> [usize; 4] {
        let config = Config { mixing: Mixing::Set, schedule, ..Config::default() };
        let mut context = Context::alone(config);
        let mut membership = Membership::new(&context);
        let donors = [1, 2, 3, 4].map(peer);
        for donor in donors {
            membership.on_peer_up(&mut context, (donor, 1), crate::Trust::Trusted);
            let took = Duration::from_millis(if donor == peer(4) { 900 } else { 30 });
            membership.links_mut().took(&donor, took);
        }
        let mut counts = [0; 4];
        for _ in 0..320 {
            let donor = choose_donor(&mut context, membership.links(), peer(author), &donors);
            let place = donors.iter().position(|peer| Some(*peer) == donor);
            counts[place.unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn a_contribution_comes_from_its_author_but_not_over_a_slow_link_where_links_matter() {
        assert_eq!(asked(Schedule::Random, 4), [0, 0, 0, 320]);
        let any = asked(Schedule::Random, 9);
        assert!(any.iter().all(|count| (60..100).contains(count)), "{any:?}");
        // Of two drawn both are the slow one in a sixteenth of the draws.
        let near = asked(Schedule::Nearest, 4);
        assert!((8..40).contains(&near[3]) && near[..3].iter().all(|n| *n > 70), "{near:?}");
    }
}
