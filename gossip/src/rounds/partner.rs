//! Which partner for a fragment: a decision on what is known of the neighbours.

use dnode_protocol::{FragmentId, PeerId, Phase};
use rand::RngExt;

use super::{RoundFragment, Rounds};
use crate::Schedule;
use crate::context::Context;
use crate::guard::Guard;
use crate::membership::{Links, Member, Membership};
use crate::staleness::{Staleness, lag_max};

/// The neighbours, as a choice of a partner looks at them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates<'a> {
    pub(super) membership: &'a Membership,
    staleness: &'a Staleness,
    guard: &'a Guard,
}

impl<'a> Candidates<'a> {
    pub(crate) const fn new(
        membership: &'a Membership,
        staleness: &'a Staleness,
        guard: &'a Guard,
    ) -> Self {
        Self { membership, staleness, guard }
    }

    pub(super) const fn links(&self) -> &'a Links {
        self.membership.links()
    }

    /// How old the news of `peer` in `fragment` are.
    pub(super) fn age(
        &self,
        context: &Context,
        fragment: FragmentId,
        peer: &PeerId,
    ) -> Option<u64> {
        self.staleness.age(context, self.membership, fragment, peer)
    }

    /// Chooses a partner for the fragment of `entry`, none that it has tried; `None` when nobody is
    /// eligible.
    ///
    /// Whom the round is for because it is doubted; else the partner whose news in this fragment is older than
    /// bound B3 allows, if there is one; else the one that the schedule names; else, and when that one has
    /// declined, one of two drawn at random: the one with the older news, so that every neighbour is
    /// visited, or the quicker. Where the interval follows the link not the one of the last exchange, before
    /// others were waited for: two pairs that are busy at the same times would stay with each other for
    /// ever. None that is idle is drawn where `one_is_idle` of those that are asked: all fragments would wait
    /// for the answers of a crowd that does no work.
    pub(crate) fn choose(
        &self,
        context: &mut Context,
        rounds: &Rounds,
        entry: &RoundFragment,
        one_is_idle: bool,
    ) -> Option<PeerId> {
        let (fragment, tried) = (entry.fragment, &entry.tried);
        let held = self.staleness.held_since().is_some();
        let eligible: Vec<(PeerId, u64)> = self
            .membership
            .members()
            .iter()
            .filter(|(peer, member)| {
                !tried.contains(peer)
                    && self.guard.meets_while(peer, rounds.begun(), held)
                    && self.is_eligible(context, (peer, member), fragment)
            })
            .map(|(peer, _)| (*peer, self.age(context, fragment, peer).unwrap_or(0)))
            .collect();
        let is_eligible = |peer: &PeerId| eligible.iter().any(|(eligible, _)| eligible == peer);
        if tried.is_empty()
            && let Some(doubted) = rounds.doubted(context, self).filter(is_eligible)
        {
            return Some(doubted);
        }
        let works = |(peer, _): &&(PeerId, u64)| !self.membership.is_idle(peer);
        let oldest = eligible.iter().filter(works).max_by_key(|(_, age)| *age);
        if let Some((oldest, age)) = oldest
            && *age > self.membership.information_age_bound(context)
        {
            return Some(*oldest);
        }
        if tried.is_empty()
            && let Some(scheduled) = self.scheduled(context, rounds.begun()).filter(is_eligible)
        {
            return Some(scheduled);
        }
        let left: Vec<(PeerId, u64)> =
            eligible.iter().filter(|it| !one_is_idle || works(it)).copied().collect();
        let others: Vec<(PeerId, u64)> =
            left.iter().filter(|(peer, _)| !rounds.is_last(fragment, peer)).copied().collect();
        let drawn = if others.is_empty() { left } else { others };
        if drawn.is_empty() {
            return None;
        }
        let first = drawn[context.rng.random_range(0..drawn.len())];
        let second = drawn[context.rng.random_range(0..drawn.len())];
        let takes = |peer: &PeerId| self.links().mean(peer).unwrap_or(0.0);
        let takes_second = match context.config.schedule {
            Schedule::Nearest => takes(&second.0) < takes(&first.0),
            Schedule::Random | Schedule::Exponential | Schedule::Ring => second.1 > first.1,
        };
        Some(if takes_second { second.0 } else { first.0 })
    }

    /// Whether nobody can take the place of `partner`, which is not idle, for a fragment: its news are older than bound B3
    /// allows, or nobody else is eligible but those that are idle, and the one of the last exchange, which
    /// is for the case that waiting was in vain.
    pub(super) fn has_no_substitute(
        &self,
        context: &Context,
        rounds: &Rounds,
        partner: &PeerId,
        entry: &RoundFragment,
    ) -> bool {
        if self.membership.is_idle(partner) {
            return false;
        }
        let age = self.age(context, entry.fragment, partner);
        let held = self.staleness.held_since().is_some();
        let other = |(peer, member): (&PeerId, &Member)| {
            peer != partner
                && self.guard.meets_while(peer, rounds.begun(), held)
                && !entry.tried.contains(peer)
                && !self.membership.is_idle(peer)
                && (entry.waited || !rounds.is_last(entry.fragment, peer))
                && self.is_eligible(context, (peer, member), entry.fragment)
        };
        age.is_some_and(|age| age > self.membership.information_age_bound(context))
            || !self.membership.members().iter().any(other)
    }

    /// The neighbours that a round may be for.
    fn live(&self) -> impl Iterator<Item = PeerId> + '_ {
        let heard = self.membership.members().heard();
        heard.filter(|(_, member)| member.phase != Phase::Joining).map(|(peer, _)| *peer)
    }

    /// Whom the last of so many rounds is for whatever the schedule says: of as many rounds as there are
    /// neighbours one is for a neighbour whose clock is doubted.
    ///
    /// There are neighbours that a schedule never names, of one that is doubted no news get old, and a peer
    /// that others propose to all the time proposes nothing itself. Two parts of a swarm that only two such
    /// peers join would stay apart for ever.
    pub(super) fn doubted(&self, context: &Context, rounds: u64) -> Option<PeerId> {
        let n = self.live().count() as u64;
        if n == 0 || !rounds.is_multiple_of(n) {
            return None;
        }
        let doubted: Vec<PeerId> =
            self.live().filter(|peer| self.membership.doubts(context, peer)).collect();
        let turn = (rounds / n).checked_rem(doubted.len() as u64)?;
        doubted.get(usize::try_from(turn).ok()?).copied()
    }

    /// Whom the schedule names in the last of so many rounds.
    pub(super) fn scheduled(&self, context: &Context, rounds: u64) -> Option<PeerId> {
        let rank = self.live().filter(|peer| *peer < context.me).count();
        let (n, round) = (self.live().count() as u64 + 1, rounds.saturating_sub(1));
        let partner = context.config.schedule.partner(rank as u64, n, round)?;
        let index = usize::try_from(partner).ok()?;
        // The own rank is not in the list of the others.
        self.live().nth(if index > rank { index - 1 } else { index })
    }

    fn is_eligible(
        &self,
        context: &Context,
        (peer, member): (&PeerId, &Member),
        fragment: FragmentId,
    ) -> bool {
        let (most, own) = (lag_max(&context.config), context.progress.clock());
        let near = member.clock.is_some_and(|clock| clock.distance(own) <= most);
        context.shares(member.stripe, fragment)
            && !member.is_suspected()
            && member.phase != Phase::Joining
            && self.links().may_propose(peer, context.now)
            && (near || self.membership.meets_at_any_clock(context, peer))
    }
}
