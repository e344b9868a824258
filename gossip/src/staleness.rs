//! The three staleness bounds: weight by lag, the commit limit, the age of information.

use dnode_protocol::{Clock, FragmentId, Information, PeerId, Time};

use crate::gossip::Gossip;
use crate::membership::Standing;
use crate::{Event, Output};

/// Weight factor `λ` of an exchange between clocks `lag` commits apart: 1 up to one commit, then
/// `lag^(−1/2)`; unitless, in `(0, 1]`.
///
/// Both ends know both clocks and use one factor, so the mean is kept. Source: FedAsync, Xie et
/// al. 2019, §5 (polynomial, a = ½), applied symmetrically.
#[must_use]
pub fn lag_factor(lag: u64) -> f32 {
    if lag <= 1 { 1.0 } else { 1.0 / (lag as f32).sqrt() }
}

/// Mixing weight `w = λ/2` of an exchange between these clocks; unitless, in `(0, 0.5]`.
#[must_use]
pub fn mixing_weight(a: Clock, b: Clock) -> f32 {
    0.5 * lag_factor(a.distance(b))
}

impl Gossip {
    /// Bound B3 in commits: as configured, or `4·⌈log₂ n⌉ + 4` for the `n` peers known here.
    pub(crate) fn information_bound(&self) -> u64 {
        self.config.bounds.information_age.unwrap_or_else(|| {
            let peers = self.members.len() as u64 + 1;
            4 * u64::from(peers.next_power_of_two().ilog2()) + 4
        })
    }

    /// How many of `peer`'s commits, as far as known here, `fragment` does not contain.
    pub(crate) fn information_age(&self, fragment: FragmentId, peer: &PeerId) -> Option<u64> {
        let known = self.members.get(peer)?.clock?;
        Some(known.ahead_of(self.information.get(fragment, peer)?))
    }

    /// `fragment` now contains what the partner's contained, as far as it can exist: a partner that
    /// makes up clocks of others must not switch off B3 for them.
    pub(crate) fn contain(&mut self, fragment: FragmentId, theirs: &Information) {
        let known = |(peer, clock): &(PeerId, Clock)| (*peer, (*clock).min(self.heard_of(peer)));
        let entries = theirs.entries.iter().map(known).collect();
        self.information.merge(fragment, &Information { entries });
    }

    /// The largest clock that B1 and B3 allow now.
    fn commit_limit(&self) -> (Clock, Option<(&'static str, PeerId)>) {
        let doubted = self.doubted();
        let believed = || self.members.iter().filter(|(peer, _)| Some(**peer) != doubted);
        let counting = || believed().filter(|(_, member)| member.counts());
        let bound = self.information_bound();
        let uninformed = counting().find(|(peer, member)| {
            let contained = self.information.oldest(peer);
            contained
                .is_some_and(|old| member.clock.is_some_and(|clock| clock.ahead_of(old) > bound))
        });
        if let Some((peer, _)) = uninformed {
            return (self.clock, Some(("information age", *peer)));
        }
        let slowest = counting().min_by_key(|(_, member)| member.clock);
        match slowest.and_then(|(peer, member)| Some((peer, member.clock?))) {
            Some((peer, clock)) => {
                let limit = clock.plus(self.config.bounds.progress_gap).max(self.clock);
                (limit, Some(("progress gap", *peer)))
            }
            None => (Clock(u64::MAX), None),
        }
    }

    /// Tells the trainer when the limit has changed.
    pub(crate) fn update_limit(&mut self) {
        let (limit, _) = self.commit_limit();
        if limit != self.limit {
            self.limit = limit;
            self.output(Output::CommitLimit(limit));
        }
    }

    pub(crate) fn commit_held(&mut self) {
        self.wants_commit = true;
        self.update_limit();
    }

    /// Begins a hold when a wanted commit is forbidden, and ends it when the limit is lifted.
    ///
    /// The trainer says once that it wants to commit; the limit may move many times before it does.
    pub(crate) fn judge_hold(&mut self, now: Time) {
        let held = self.wants_commit && self.catch_up.is_none() && self.limit <= self.clock;
        if !held {
            self.held_since = None;
        } else if self.held_since.is_none() {
            self.held_since = Some(now);
            if let (_, Some((bound, peer))) = self.commit_limit() {
                self.event(Event::Held { bound, peer });
            }
        }
    }

    /// The gate time is over: whoever still holds up the commit no longer counts.
    pub(crate) fn gate_expired(&mut self, now: Time) {
        self.held_since = None;
        while let (limit, Some((_, peer))) = self.commit_limit()
            && limit <= self.clock
        {
            if let Some(member) = self.members.get_mut(&peer) {
                member.standing = Standing::Lagging;
            }
            self.event(Event::Demoted(peer));
        }
        self.update_limit();
        self.consider_catch_up(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_is_a_half_up_to_one_commit_and_falls_with_the_root_of_the_lag() {
        for (a, b, want) in [(3, 3, 0.5), (3, 4, 0.5), (7, 3, 0.25), (0, 100, 0.05)] {
            let got = mixing_weight(Clock(a), Clock(b));
            assert!((got - want).abs() < 1e-7, "{a} {b}: {got}");
            assert!((mixing_weight(Clock(b), Clock(a)) - got).abs() < f32::EPSILON);
        }
    }
}
