//! Staleness: how far apart peers may be, the limit of commits, and the age of news in fragments.

mod load_balancing;
mod own_work;
mod version_table;
mod weight;

use std::time::Duration;

use dnode_protocol::{Clock, FragmentId, Information, PeerId, Time};

use crate::context::{Context, Step};
use crate::delta_set::DeltaSet;
use crate::membership::{ClockNews, Held, LONGEST, Member, Membership, at_least};
use crate::output::{INFORMATION_AGE, PROGRESS_GAP};
use crate::{Event, Mixing, Output, Policy};
pub use load_balancing::{Balance, Load, Pace};
pub(crate) use own_work::{grace, mass, update_load};
use version_table::VersionTable;
pub(crate) use weight::{lag_bound, lag_max, share, weighed_clock};
pub use weight::{lag_factor, mixing_weight};

/// The gate lasts this many rounds.
const GATE_ROUNDS: u32 = 2;
/// Shortest and longest gate. A wait below a second is noise; nobody waits longer than a minute for
/// one peer.
const GATE_LIMITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// What this peer knows of the news in its fragments, and how far its clock may run.
#[derive(Clone, Debug)]
pub(crate) struct Staleness {
    versions: VersionTable,
    /// The limit of commits, as the trainer was told.
    limit: Clock,
    /// Peers that a commit is shared among, as last told.
    peers: usize,
    /// Own contributions that others lack, as last told.
    lacking: u64,
    wants_commit: bool,
    held_since: Option<Time>,
}

impl Staleness {
    pub(crate) fn new(context: &Context) -> Self {
        let mut versions = VersionTable::new(context.fragments as usize, context.me);
        versions.raise_all(&context.me, context.progress.clock());
        Self {
            versions,
            limit: Clock(u64::MAX),
            peers: 1,
            lacking: 0,
            wants_commit: false,
            held_since: None,
        }
    }

    /// What `fragment` contains, to be sent.
    pub(crate) fn information(&self, fragment: FragmentId) -> Information {
        self.versions.of(fragment)
    }

    /// The newest commit of `peer` that each fragment contains; empty when it is not tracked.
    pub(crate) fn contained(&self, peer: &PeerId) -> &[Clock] {
        self.versions.row(peer)
    }

    /// `fragment` now contains what the partner's contained, as far as it can exist: a partner that
    /// makes up clocks of others must not switch off B3 for them.
    pub(crate) fn contain(
        &mut self,
        context: &Context,
        membership: &Membership,
        fragment: FragmentId,
        theirs: &Information,
    ) {
        let known = |(peer, clock): &(PeerId, Clock)| {
            (*peer, (*clock).min(membership.heard_of(context, peer)))
        };
        let entries = theirs.entries.iter().map(known).collect();
        self.versions.merge(fragment, &Information { entries });
    }

    /// `fragment` contains `peer` up to `clock`.
    pub(crate) fn raise(&mut self, fragment: FragmentId, peer: &PeerId, clock: Clock) {
        self.versions.raise(fragment, peer, clock);
    }

    /// All fragments contain the own commits.
    pub(crate) fn raise_own(&mut self, context: &Context) {
        self.versions.raise_all(&context.me, context.progress.clock());
    }

    /// All fragments are taken to contain `peer` up to `clock`, and its news are tracked from there.
    pub(crate) fn track(&mut self, peer: PeerId, clock: Clock) {
        self.versions.track(peer, clock);
        self.versions.raise_all(&peer, clock);
    }

    /// A neighbour is gone.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.versions.forget(peer);
    }

    /// A neighbour has named a clock that changes this.
    pub(crate) fn on_clock(&mut self, context: &mut Context, from: PeerId, news: ClockNews) {
        match news {
            ClockNews::Nothing => return,
            ClockNews::Advanced => {}
            ClockNews::Begins(clock) => self.track(from, clock),
            ClockNews::Restored(clock) => {
                self.track(from, clock);
                context.event(Event::Restored(from));
            }
        }
        context.then(Step::Limit);
    }

    /// How many of `peer`'s commits, as far as known here, `fragment` does not contain; `None` when
    /// that is not known. Where replicas are sums, [`DeltaSet::lacks_of`] says it.
    ///
    /// Contributions are counted themselves: clocks jump when a replica is replaced.
    pub(crate) fn age(
        &self,
        context: &Context,
        membership: &Membership,
        fragment: FragmentId,
        peer: &PeerId,
    ) -> Option<u64> {
        let member = membership.get(peer)?;
        let known = member.clock?;
        if !context.shares(member.stripe, fragment) {
            return None;
        }
        Some(known.ahead_of(self.versions.get(fragment, peer)?))
    }

    /// The largest clock that B1 and B3 allow now, and which bound of which peer it comes from.
    pub(crate) fn commit_limit(
        &self,
        context: &Context,
        membership: &Membership,
        delta_set: &DeltaSet,
    ) -> (Clock, Option<(&'static str, PeerId)>) {
        let own = context.progress.clock();
        let newest = membership.newest_believed(context);
        let believed =
            || membership.members().iter().filter(|(_, member)| member.is_believed(newest));
        // Ranks of one rack commit together.
        let mate = |member: &Member| context.stripe().is_mate(member.stripe);
        let counting = || believed().filter(|(_, member)| member.counts() && !mate(member));
        let bound = membership.information_age_bound(context);
        let uninformed = counting().find(|(peer, member)| {
            if context.config.mixing == Mixing::Set {
                let mut fragments = context.all_fragments();
                return fragments.any(|fragment| delta_set.lacks_of(fragment, peer) > bound);
            }
            if context.stripe().is_part() || member.stripe.is_part() {
                let mut fragments = context.all_fragments();
                let age = |fragment| self.age(context, membership, fragment, peer);
                return fragments.any(|fragment| age(fragment).is_some_and(|age| age > bound));
            }
            let contained = self.versions.oldest(peer);
            contained
                .is_some_and(|old| member.clock.is_some_and(|clock| clock.ahead_of(old) > bound))
        });
        if let Some((peer, _)) = uninformed {
            return (own, Some((INFORMATION_AGE, *peer)));
        }
        if let Some(peer) = delta_set.backlogged(context, membership.members()) {
            return (own, Some(("contributions not fetched", peer)));
        }
        let slowest = counting().min_by_key(|(_, member)| member.clock);
        match slowest.and_then(|(peer, member)| Some((peer, member.clock?))) {
            Some((peer, clock)) => {
                let limit = clock.plus(context.config.bounds.progress_gap).max(own);
                (limit, Some((PROGRESS_GAP, *peer)))
            }
            None => (Clock(u64::MAX), None),
        }
    }

    /// Tells the trainer when the limit has changed.
    pub(crate) fn update_limit(
        &mut self,
        context: &mut Context,
        membership: &mut Membership,
        delta_set: &DeltaSet,
    ) {
        // A commit of the last to finish moves no further than those before.
        let members = membership.members().iter();
        let peers = 1 + members.filter(|(_, member)| member.took_part()).count();
        if peers != self.peers {
            self.peers = peers;
            context.output(Output::Peers(peers));
        }
        let lacking = delta_set.lacking(context, membership.members());
        if lacking != self.lacking {
            self.lacking = lacking;
            context.output(Output::Lacking(lacking));
        }
        let (limit, _) = self.commit_limit(context, membership, delta_set);
        if limit != self.limit {
            self.limit = limit;
            context.output(Output::CommitLimit(limit));
        }
    }

    /// The trainer wants to commit, and the limit forbids it.
    pub(crate) fn on_commit_held(&mut self, context: &mut Context) {
        self.wants_commit = true;
        context.then(Step::Limit);
    }

    /// The trainer has done its commit, or goes on from another clock.
    pub(crate) const fn on_clock_moved(&mut self) {
        self.wants_commit = false;
    }

    /// What the commit waits for that is held back; `None` while none is.
    pub(crate) fn held(
        &self,
        context: &Context,
        membership: &Membership,
        delta_set: &DeltaSet,
    ) -> Option<Held> {
        self.held_since?;
        let (_, holder) = self.commit_limit(context, membership, delta_set);
        Some(Held { by: holder.map(|(_, peer)| peer) })
    }

    /// Begins a hold when a wanted commit is forbidden, and ends it when the limit is lifted.
    ///
    /// The trainer says once that it wants to commit; the limit may move many times before it does.
    pub(crate) fn judge_hold(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        delta_set: &DeltaSet,
    ) {
        let progress = &context.progress;
        let held = self.wants_commit && !progress.is_replacing() && self.limit <= progress.clock();
        if !held {
            self.held_since = None;
        } else if self.held_since.is_none() {
            self.held_since = Some(context.now);
            let (_, holder) = self.commit_limit(context, membership, delta_set);
            if let Some((bound, peer)) = holder {
                context.event(Event::Held { bound, peer });
            }
            context.then(Step::SeekNews);
            context.then(Step::Watch);
            if context.config.policy == Policy::Drop {
                context.then(Step::GateExpired);
            }
        }
    }

    /// Since when a commit is held back.
    pub(crate) const fn held_since(&self) -> Option<Time> {
        self.held_since
    }

    /// Ends the hold: its time is over.
    pub(crate) const fn end_hold(&mut self) {
        self.held_since = None;
    }

    /// Whoever still holds up the commit no longer counts.
    pub(crate) fn demote_holders(
        &self,
        context: &mut Context,
        membership: &mut Membership,
        delta_set: &DeltaSet,
    ) {
        while let (limit, Some((bound, peer))) = self.commit_limit(context, membership, delta_set)
            && limit <= context.progress.clock()
        {
            membership.demote(&peer, context.progress.clock());
            context.event(Event::Demoted { peer, bound });
        }
    }

    /// Whether news are lacking while a neighbour is too far ahead to be exchanged with, though not
    /// far enough to catch up with at once: they come with its replica or never.
    pub(crate) fn is_cut_off(
        &self,
        context: &Context,
        membership: &Membership,
        delta_set: &DeltaSet,
    ) -> bool {
        let (most, own) = (lag_max(&context.config), context.progress.clock());
        matches!(self.commit_limit(context, membership, delta_set), (_, Some((INFORMATION_AGE, _))))
            && membership.donors(context).any(|(_, ahead)| ahead.ahead_of(own) > most)
    }

    /// When the gate of the present hold ends; never under the policy that waits.
    pub(crate) fn gate_ends(&self, context: &Context) -> Option<Time> {
        let since = self.held_since?;
        match context.config.policy {
            Policy::DownWeight => Some(since + explained_gate(context).0),
            Policy::Drop => Some(since),
            Policy::Block => None,
        }
    }
}

/// Longest time a commit is held back by a bound: as configured, or two rounds of this peer; and where
/// that comes from.
pub(crate) fn explained_gate(context: &Context) -> (Duration, &'static str) {
    if let Some(configured) = context.config.gate_timeout {
        return (configured, "as configured");
    }
    let (least, most) = GATE_LIMITS;
    let rounds = context.progress.commit_time().saturating_mul(GATE_ROUNDS);
    match rounds {
        Duration::ZERO => (least, "nothing is measured yet"),
        _ if rounds >= most => (most, LONGEST),
        _ => at_least(least, rounds, "two rounds at the measured step time"),
    }
}

/// Whether all neighbours are too far away to be exchanged with and one of them is ahead, under the
/// policy that refuses such exchanges: at equal speeds that would stay so for ever.
pub(crate) fn is_left_alone(context: &Context, membership: &Membership) -> bool {
    let (most, clock) = (lag_max(&context.config), context.progress.clock());
    let far = |(_, other): (PeerId, Clock)| other.distance(clock) > most;
    context.config.policy == Policy::Drop
        && context.config.mixing != Mixing::Set
        && !context.progress.is_finished()
        && membership.donors(context).all(far)
        && membership.donors(context).any(|(_, other)| other.ahead_of(clock) > most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;
    use crate::{Config, Trust};
    use dnode_protocol::Phase;

    #[test]
    fn the_limit_follows_the_slowest_neighbour_and_a_held_commit_is_reported_once() {
        let mut context = Context::alone(Config::default());
        let mut membership = Membership::new(&context);
        let (mut staleness, delta_set) = (Staleness::new(&context), DeltaSet::new(1));
        membership.on_peer_up(&mut context, (peer(1), 1), Trust::Trusted);
        let heartbeat = context.progress.heartbeat();
        assert_eq!(heartbeat.phase, Phase::Training);
        membership.on_heartbeat(&peer(1), &heartbeat);
        let news = membership.on_clock(&mut context, (peer(1), Clock(0)), false);
        staleness.on_clock(&mut context, peer(1), news);
        staleness.update_limit(&mut context, &mut membership, &delta_set);
        let gap = context.config.bounds.progress_gap;
        assert_eq!(context.said(), [Output::Peers(2), Output::CommitLimit(Clock(gap))]);
        context.progress.raise(Clock(gap));
        staleness.on_commit_held(&mut context);
        for said in [1, 0] {
            staleness.judge_hold(&mut context, &membership, &delta_set);
            assert_eq!(context.said().len(), said);
        }
        staleness.demote_holders(&mut context, &mut membership, &delta_set);
        staleness.update_limit(&mut context, &mut membership, &delta_set);
        staleness.judge_hold(&mut context, &membership, &delta_set);
        assert_eq!(staleness.held_since(), None);
    }
}
