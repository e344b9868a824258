//! The three staleness bounds: weight by lag, the commit limit, the age of information.

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, FragmentId, Information, PeerId, Terms, Time};

use crate::exchange::{Agreed, Claim};
use crate::gossip::Gossip;
use crate::membership::{Member, Standing};
use crate::round::RoundFragment;
use crate::{Config, Event, Mixing, Output, Policy};

/// Name of bound B1.
pub(crate) const PROGRESS_GAP: &str = "progress gap";
/// Name of bound B2.
pub(crate) const SNAPSHOT_AGE: &str = "snapshot age";
/// Name of bound B3.
pub(crate) const INFORMATION_AGE: &str = "information age";

/// Weight factor `λ` of an exchange between clocks `lag` commits apart: 1 up to one commit, then
/// `lag^(−1/2)`; unitless, in `(0, 1]`.
///
/// Both ends know both clocks and use one factor, so the mean is kept. Source: FedAsync, Xie et
/// al. 2019, §5 (polynomial, a = ½), applied symmetrically.
#[must_use]
pub fn lag_factor(lag: u64) -> f32 {
    if lag <= 1 { 1.0 } else { 1.0 / (lag as f32).sqrt() }
}

/// Largest share of one end in the other's result, whatever masses are claimed. Guess: a peer that
/// claims to have done everything still leaves the other a part of its own.
const SHARE_MAX: f32 = 0.95;

/// Mixing weight of this end for the other's numbers; unitless, in `(0, 1)`.
///
/// `own` and `theirs` are clock and mass of the two ends. `w = λ(lag) · m_theirs/(m_own + m_theirs)`,
/// so equal masses give `λ/2`; the two ends' weights add up to `λ`, which keeps `Σ m φ`.
#[must_use]
pub fn mixing_weight(policy: Policy, own: (Clock, u32), theirs: (Clock, u32)) -> f32 {
    let factor = match policy {
        Policy::DownWeight => lag_factor(own.0.distance(theirs.0)),
        Policy::Block | Policy::Drop => 1.0,
    };
    factor * share(own.1, theirs.1)
}

/// Part of the other end in the weighted mean of the two.
fn share(own: u32, theirs: u32) -> f32 {
    let (own, theirs) = (f64::from(own), f64::from(theirs));
    let share = (theirs / (own + theirs)) as f32;
    share.clamp(1.0 - SHARE_MAX, SHARE_MAX)
}

/// Largest lag at which the policy lets two ends mix, commits.
pub(crate) fn lag_max(config: &Config) -> u64 {
    lag_bound(config).0
}

/// [`lag_max`], and the bound that it comes from.
pub(crate) fn lag_bound(config: &Config) -> (u64, &'static str) {
    let (gap, age) = (config.bounds.progress_gap, config.bounds.snapshot_age.max(1));
    match config.policy {
        Policy::Drop if age <= gap => (age, SNAPSHOT_AGE),
        Policy::DownWeight | Policy::Block | Policy::Drop => (gap, PROGRESS_GAP),
    }
}

impl Gossip {
    /// What this end agrees to: the weight and lag of an exchange with `theirs`.
    pub(crate) fn agree(&self, own: Claim, theirs: Terms, codec: Codec) -> Agreed {
        let (ours, other) = ((own.clock, own.mass), (theirs.clock, theirs.mass));
        let weight = match self.config.mixing {
            Mixing::Exchange if own.merges || theirs.merges => share(own.work, theirs.work),
            Mixing::Exchange => mixing_weight(self.config.policy, ours, other),
            // The numbers that arrive count as much as the own: averaging over all that came.
            Mixing::Push { .. } | Mixing::Set => {
                2.0 * mixing_weight(self.config.policy, (own.clock, 1), (theirs.clock, 1))
            }
        };
        let lag = own.clock.distance(theirs.clock);
        Agreed { information: theirs.information, weight, lag, codec }
    }

    /// Bound B3 in commits: as configured, or `4·⌈log₂ n⌉ + 4` for the `n` peers known here.
    pub(crate) fn information_bound(&self) -> u64 {
        self.config.bounds.information_age.unwrap_or_else(|| {
            let peers = self.members.len() as u64 + 1;
            4 * u64::from(peers.next_power_of_two().ilog2()) + 4
        })
    }

    /// How many of `peer`'s commits, as far as known here, `fragment` does not contain; `None` when
    /// that is not known.
    ///
    /// Contributions are counted themselves: clocks jump when a replica is replaced.
    #[must_use]
    pub fn information_age(&self, fragment: FragmentId, peer: &PeerId) -> Option<u64> {
        let member = self.members.get(peer)?;
        let known = member.clock?;
        if !self.shares(member, fragment) {
            return None;
        }
        if self.config.mixing == Mixing::Set {
            return Some(self.lacks_of(fragment, peer));
        }
        Some(known.ahead_of(self.information.get(fragment, peer)?))
    }

    /// Where numbers go one way, a peer that lacks news can only ask: its proposal says how old the
    /// news of this peer are in its fragment.
    pub(crate) fn heard_wait(&mut self, from: PeerId, fragment: FragmentId, theirs: &Information) {
        let at = theirs.entries.binary_search_by_key(&self.me, |(peer, _)| *peer);
        let Ok(index) = at else {
            return;
        };
        let age = self.clock.ahead_of(theirs.entries[index].1);
        let old = 2 * age > self.information_bound();
        if let Some(member) = self.members.get_mut(&from) {
            if old {
                member.waits_for.insert(fragment);
            } else {
                member.waits_for.remove(&fragment);
            }
        }
    }

    /// `fragment` now contains what the partner's contained, as far as it can exist: a partner that
    /// makes up clocks of others must not switch off B3 for them.
    pub(crate) fn contain(&mut self, fragment: FragmentId, theirs: &Information) {
        let known = |(peer, clock): &(PeerId, Clock)| (*peer, (*clock).min(self.heard_of(peer)));
        let entries = theirs.entries.iter().map(known).collect();
        self.information.merge(fragment, &Information { entries });
    }

    /// Which bound of which peer holds the next commit now; `None` where none does.
    #[must_use]
    pub fn holder(&self) -> Option<(&'static str, PeerId)> {
        let (limit, holder) = self.commit_limit();
        holder.filter(|_| limit <= self.clock)
    }

    /// The largest clock that B1 and B3 allow now.
    fn commit_limit(&self) -> (Clock, Option<(&'static str, PeerId)>) {
        let doubted = self.doubted();
        let believed = || self.members.iter().filter(|(peer, _)| Some(**peer) != doubted);
        // Ranks of one rack commit together.
        let counts = |member: &Member| member.counts() && !self.is_mate(member);
        let counting = || believed().filter(|(_, member)| counts(member));
        let bound = self.information_bound();
        let uninformed = counting().find(|(peer, member)| {
            if self.config.mixing == Mixing::Set {
                let mut fragments = (0..self.fragments).map(FragmentId);
                return fragments.any(|fragment| self.lacks_of(fragment, peer) > bound);
            }
            if self.stripe.is_part() || member.stripe.is_part() {
                return self.lacks_news(peer, bound);
            }
            let contained = self.information.oldest(peer);
            contained
                .is_some_and(|old| member.clock.is_some_and(|clock| clock.ahead_of(old) > bound))
        });
        if let Some((peer, _)) = uninformed {
            return (self.clock, Some((INFORMATION_AGE, *peer)));
        }
        if let Some(peer) = self.backlogged() {
            return (self.clock, Some(("contributions not fetched", peer)));
        }
        let slowest = counting().min_by_key(|(_, member)| member.clock);
        match slowest.and_then(|(peer, member)| Some((peer, member.clock?))) {
            Some((peer, clock)) => {
                let limit = clock.plus(self.config.bounds.progress_gap).max(self.clock);
                (limit, Some((PROGRESS_GAP, *peer)))
            }
            None => (Clock(u64::MAX), None),
        }
    }

    /// Who holds up the next commit, or would.
    pub(crate) fn held_by(&self) -> Option<PeerId> {
        self.commit_limit().1.map(|(_, peer)| peer)
    }

    /// Tells the trainer when the limit has changed.
    pub(crate) fn update_limit(&mut self) {
        self.watch_leader();
        // A commit of the last to finish moves no further than those before.
        let peers = 1 + self.members.iter().filter(|(_, member)| member.took_part()).count();
        if peers != self.peers {
            self.peers = peers;
            self.output(Output::Peers(peers));
        }
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
            self.seek_news(now);
            self.watch(now);
            if self.config.policy == Policy::Drop {
                self.gate_expired(now);
            }
        }
    }

    /// A trainer that is held begins no rounds. Under the policies that wait it still proposes the
    /// fragments that lack news to those whose news they are, which asks for them where numbers go one
    /// way, and pushes fragments to all that have asked for them: else peers that wait for each
    /// other's news would wait for ever.
    pub(crate) fn seek_news(&mut self, now: Time) {
        let idle = !self.in_round && self.round.is_empty() && self.own.is_empty();
        let waits = self.config.policy != Policy::Drop && self.config.mixing != Mixing::Set;
        if self.held_since.is_none() || !idle || !waits {
            return;
        }
        if self.held_since.is_some_and(|since| now > since) && self.is_cut_off() {
            return self.begin_catch_up(now);
        }
        let (bound, pushes) = (self.information_bound(), self.config.mixing != Mixing::Exchange);
        let entry = |fragment: FragmentId| {
            let concerned = |(peer, member): &(&PeerId, &Member)| {
                let age = self.information_age(fragment, peer);
                let asks = pushes && member.waits_for.contains(&fragment);
                member.counts() && (asks || age.is_some_and(|age| age > bound))
            };
            let partners = self.members.iter().filter(concerned).count();
            (partners > 0).then(|| RoundFragment::new(fragment, partners))
        };
        let entries: Vec<RoundFragment> =
            (0..self.fragments).map(FragmentId).filter_map(entry).collect();
        self.round.extend(entries);
        self.begin_exchanges(now);
    }

    /// Whether news are lacking while a neighbour is too far ahead to be exchanged with, though not
    /// far enough to catch up with at once: they come with its replica or never.
    fn is_cut_off(&self) -> bool {
        let most = lag_max(&self.config);
        matches!(self.commit_limit(), (_, Some((INFORMATION_AGE, _))))
            && self.donors().any(|(_, ahead)| ahead.ahead_of(self.clock) > most)
    }

    /// Whether all neighbours are too far away to be exchanged with and one of them is ahead, under the
    /// policy that refuses such exchanges: at equal speeds that would stay so for ever.
    pub(crate) fn is_left_alone(&self) -> bool {
        let (most, clock) = (lag_max(&self.config), self.clock);
        let far = |(_, other): (PeerId, Clock)| other.distance(clock) > most;
        self.config.policy == Policy::Drop
            && self.config.mixing != Mixing::Set
            && !self.finished
            && self.donors().all(far)
            && self.donors().any(|(_, other)| other.ahead_of(clock) > most)
    }

    /// The gate time is over: whoever still holds up the commit no longer counts.
    pub(crate) fn gate_expired(&mut self, now: Time) {
        self.held_since = None;
        if self.is_cut_off() {
            self.begin_catch_up(now);
            if self.catch_up.is_some() {
                return;
            }
        }
        while let (limit, Some((bound, peer))) = self.commit_limit()
            && limit <= self.clock
        {
            if let Some(member) = self.members.get_mut(&peer) {
                member.standing = Standing::Lagging;
            }
            self.event(Event::Demoted { peer, bound });
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
            let (a, b) = ((Clock(a), 1), (Clock(b), 1));
            let got = mixing_weight(Policy::DownWeight, a, b);
            assert!((got - want).abs() < 1e-7, "{a:?} {b:?}: {got}");
            assert!((mixing_weight(Policy::DownWeight, b, a) - got).abs() < f32::EPSILON);
            assert!((mixing_weight(Policy::Block, a, b) - 0.5).abs() < f32::EPSILON);
        }
    }

    #[test]
    fn weights_follow_masses_add_up_and_leave_everybody_a_part() {
        for (ours, theirs, want) in
            [(1, 1, 0.5), (1, 3, 0.75), (300, 100, 0.25), (1, u32::MAX, 0.95)]
        {
            let (a, b) = ((Clock(5), ours), (Clock(5), theirs));
            let (w_a, w_b) = (mixing_weight(Policy::Drop, a, b), mixing_weight(Policy::Drop, b, a));
            assert!((w_a - want).abs() < 1e-6 && (w_a + w_b - 1.0).abs() < 1e-6, "{w_a} {w_b}");
        }
    }
}
