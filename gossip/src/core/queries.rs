//! What a driver may ask of the core.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId, Phase, Stripe, Versions};

use super::Gossip;
use crate::delta_set::DeltaSet;
use crate::exchange::{ABORTING_MAX, JOURNAL_MAX};
use crate::staleness::{explained_gate, grace};
use crate::{Config, Load, Member, Mixing, Trust, Verdicts};

impl Gossip {
    /// The own clock.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.context.progress.clock()
    }

    /// Whether this peer waits for the replica that its run begins with ([`Gossip::awaiting_model`]).
    #[must_use]
    pub const fn awaits_model(&self) -> bool {
        self.transfer.awaits_model()
    }

    /// Fragments of the model.
    #[must_use]
    pub const fn fragments(&self) -> u32 {
        self.context.fragments
    }

    /// The connected neighbours.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&PeerId, &Member)> {
        self.membership.members().iter()
    }

    /// Largest clock distance to an active neighbour that is believed, commits.
    #[must_use]
    pub fn staleness(&self) -> u64 {
        let (own, newest) = (self.clock(), self.newest_believed());
        let believed = self.members().filter(|(_, member)| member.is_believed(newest));
        let counting = believed.filter(|(_, member)| member.counts());
        let distances = counting.filter_map(|(_, member)| Some(member.clock?.distance(own)));
        distances.max().unwrap_or(0)
    }

    /// Exchanges that have not ended: own, answered without decision, aborting.
    #[must_use]
    pub fn open(&self) -> usize {
        self.exchange.open() + self.transfer.served()
    }

    /// The largest [`Gossip::open`] that can be, pulls for an own catch-up included.
    #[must_use]
    pub const fn open_max(config: &Config) -> usize {
        config.own_max
            + JOURNAL_MAX
            + ABORTING_MAX
            + config.newcomers_max * config.pulls_open_max
            + config.snapshots_max
            + config.pulls_open_max
            + DeltaSet::OPEN_MAX
    }

    /// Exchanges of this peer that have not ended, and those that it answers and that hold their fragment: at most
    /// [`Config::own_max`] and [`Config::answered_max`].
    #[must_use]
    pub fn open_at_each_end(&self) -> (usize, usize) {
        self.exchange.open_at_each_end()
    }

    /// Whether `exchange` has begun and not ended at this end.
    #[must_use]
    pub fn is_open(&self, exchange: ExchangeId) -> bool {
        self.exchange.is_open(&self.context, exchange)
            || self.transfer.is_pull(&self.context, exchange)
            || self.delta_set.is_fetch(&self.context, exchange)
    }

    /// Which exchange holds the lease on each leased fragment.
    #[must_use]
    pub const fn leases(&self) -> &BTreeMap<FragmentId, ExchangeId> {
        self.context.leases.holders()
    }

    /// The newest commit of `peer` that each fragment contains, in order of fragments; nothing when
    /// the peer is not tracked.
    pub fn contained(&self, peer: &PeerId) -> impl Iterator<Item = Clock> {
        self.staleness.contained(peer).iter().copied()
    }

    /// Bound B3 as it applies now, commits.
    #[must_use]
    pub fn information_age_bound(&self) -> u64 {
        self.membership.information_age_bound(&self.context)
    }

    /// How many of `peer`'s commits, as far as known here, `fragment` does not contain; `None` when
    /// that is not known.
    ///
    /// Contributions are counted themselves: clocks jump when a replica is replaced.
    #[must_use]
    pub fn information_age(&self, fragment: FragmentId, peer: &PeerId) -> Option<u64> {
        if self.context.config.mixing != Mixing::Set {
            return self.staleness.age(&self.context, &self.membership, fragment, peer);
        }
        let member = self.membership.get(peer).filter(|member| member.clock.is_some())?;
        let shared = self.context.shares(member.stripe, fragment);
        shared.then(|| self.delta_set.lacks_of(fragment, peer))
    }

    /// Which bound of which peer holds the next commit now; `None` where none does.
    #[must_use]
    pub fn holder(&self) -> Option<(&'static str, PeerId)> {
        let (limit, holder) =
            self.staleness.commit_limit(&self.context, &self.membership, &self.delta_set);
        holder.filter(|_| limit <= self.clock())
    }

    /// The newest clock that is believed: a neighbour that names a newer one is no donor, and holds up
    /// no commit.
    #[must_use]
    pub fn newest_believed(&self) -> Clock {
        self.membership.newest_believed(&self.context)
    }

    /// Whether this peer and the neighbour `peer` do not go by each other's clocks: one of them is ahead of
    /// all others, or `peer` is left out.
    #[must_use]
    pub fn ignores_clock(&self, peer: &PeerId) -> bool {
        self.membership.ignores_clock(&self.context, peer)
    }

    /// How much the numbers of a neighbour count here.
    #[must_use]
    pub fn trust(&self, peer: &PeerId) -> Trust {
        self.guard.trust(peer)
    }

    /// What is held against neighbours, for the next life of this peer ([`Gossip::holding`]): those that are
    /// not trusted, and those that were left out before.
    #[must_use]
    pub fn verdicts(&self) -> Verdicts {
        if !self.keeps_verdicts() {
            return Verdicts::default();
        }
        let held = self.guard.held(self.rounds.begun(), |peer| self.membership.life(peer));
        Verdicts { round_time: self.rounds.time(), held }
    }

    /// Whether verdicts outlive this process. Sums of contributions have no exchange in which a neighbour could
    /// be let in again.
    pub(super) fn keeps_verdicts(&self) -> bool {
        self.context.config.guard && self.context.config.mixing == Mixing::Exchange
    }

    /// What this peer is doing.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.context.progress.phase()
    }

    /// The local work per commit that this peer does now.
    #[must_use]
    pub const fn load(&self) -> Load {
        self.context.progress.load()
    }

    /// The part of the fragments that this peer exchanges.
    #[must_use]
    pub const fn stripe(&self) -> Stripe {
        self.context.stripe()
    }

    /// Longest time a commit is held back by a bound: as configured, or two rounds of this peer.
    #[must_use]
    pub fn gate_timeout(&self) -> Duration {
        explained_gate(&self.context).0
    }

    /// How long this peer's local steps between two commits take; zero before that is known.
    #[must_use]
    pub fn commit_time(&self) -> Duration {
        self.context.progress.commit_time()
    }

    /// How long a peer that has done its last step should stay for the slower ones: twice what the
    /// slowest counting neighbour needs for its commits behind at measured step times, within
    /// limits.
    #[must_use]
    pub fn grace(&self) -> Duration {
        grace(&self.context, self.membership.members())
    }

    /// What `fragment` contains, for whoever compares replicas.
    #[must_use]
    pub fn versions(&self, fragment: FragmentId) -> Versions {
        self.delta_set.versions(fragment)
    }

    /// What every fragment contains, in their order: what a checkpoint keeps beside the sums. Nothing
    /// in runs without contributions.
    ///
    /// It is of the moment of the last input: who keeps it asks in the order in which it reports what
    /// changed the replica.
    #[must_use]
    pub fn contents(&self) -> Vec<Versions> {
        if self.context.config.mixing == Mixing::Set {
            self.delta_set.contents()
        } else {
            Vec::new()
        }
    }

    /// Whether every neighbour that is not silent contains the same contributions, as far as it has
    /// said; true in runs without.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let set = self.context.config.mixing == Mixing::Set;
        !set || self.delta_set.agrees(self.membership.members())
    }
}
