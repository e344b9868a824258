//! Which partner for a fragment: a pure decision.

use dnode_protocol::{FragmentId, PeerId, Phase, Time};
use rand::RngExt;

use crate::gossip::Gossip;
use crate::membership::{Member, Standing};
use crate::round::RoundFragment;
use crate::staleness::lag_max;
use crate::{Mixing, Schedule};

impl Gossip {
    /// Chooses a partner for `fragment`, none of `tried`; `None` when nobody is eligible.
    ///
    /// Of pushes, a partner that has asked for this peer's news; else the partner whose news in this
    /// fragment is older than bound B3 allows, if there is one; else the one that the schedule names;
    /// else, and when that one has declined, one of two drawn at random: the one with the older news,
    /// so that every neighbour is visited, or the quicker.
    pub(crate) fn choose_partner(
        &mut self,
        fragment: FragmentId,
        tried: &[PeerId],
        now: Time,
    ) -> Option<PeerId> {
        let eligible: Vec<(PeerId, u64)> = self
            .members
            .iter()
            .filter(|(peer, member)| {
                !tried.contains(peer)
                    && self.guard.meets(peer, self.rounds)
                    && self.is_eligible(member, fragment, now)
            })
            .map(|(peer, _)| (*peer, self.information_age(fragment, peer).unwrap_or(0)))
            .collect();
        let oldest = eligible.iter().max_by_key(|(_, age)| *age)?;
        if let Some(waiting) = self.choose_waiting(fragment, &eligible) {
            return Some(waiting);
        }
        if oldest.1 > self.information_bound() {
            return Some(oldest.0);
        }
        if tried.is_empty()
            && let Some(scheduled) = self.scheduled()
            && eligible.iter().any(|(peer, _)| *peer == scheduled)
        {
            return Some(scheduled);
        }
        let first = eligible[self.rng.random_range(0..eligible.len())];
        let second = eligible[self.rng.random_range(0..eligible.len())];
        let takes_second = match self.config.schedule {
            Schedule::Nearest => self.takes(&second.0) < self.takes(&first.0),
            Schedule::Random | Schedule::Exponential | Schedule::Ring => second.1 > first.1,
        };
        Some(if takes_second { second.0 } else { first.0 })
    }

    /// Whom to ask for a contribution of `author` that all `donors` have: the author, or one drawn at
    /// random; under the schedule that prefers short links the quicker of two drawn.
    pub(crate) fn choose_donor(&mut self, author: PeerId, donors: &[PeerId]) -> Option<PeerId> {
        let first = *donors.get(self.rng.random_range(0..donors.len().max(1)))?;
        match self.config.schedule {
            Schedule::Nearest => {
                let second = donors[self.rng.random_range(0..donors.len())];
                Some(if self.takes(&second) < self.takes(&first) { second } else { first })
            }
            Schedule::Random | Schedule::Exponential | Schedule::Ring => {
                Some(if donors.contains(&author) { author } else { first })
            }
        }
    }

    /// Seconds that what is asked of `peer` takes on average; 0 before it was measured.
    fn takes(&self, peer: &PeerId) -> f64 {
        let member = self.members.get(peer);
        member.and_then(|member| member.duration.mean()).unwrap_or(0.0)
    }

    /// One of those that have asked for this peer's news in `fragment`, where only pushes bring any.
    fn choose_waiting(
        &mut self,
        fragment: FragmentId,
        eligible: &[(PeerId, u64)],
    ) -> Option<PeerId> {
        if self.config.mixing == Mixing::Exchange {
            return None;
        }
        let waits = |peer: &PeerId| {
            self.members.get(peer).is_some_and(|member| member.waits_for.contains(&fragment))
        };
        let waiting: Vec<PeerId> =
            eligible.iter().map(|(peer, _)| *peer).filter(|peer| waits(peer)).collect();
        let index = self.rng.random_range(0..waiting.len().max(1));
        waiting.get(index).copied()
    }

    /// Whether nobody can take the place of `partner` for a fragment: its news are older than bound B3
    /// allows, or nobody else is eligible.
    pub(crate) fn has_no_substitute(
        &self,
        partner: &PeerId,
        entry: &RoundFragment,
        now: Time,
    ) -> bool {
        let age = self.information_age(entry.fragment, partner);
        let other = |(peer, member): (&PeerId, &Member)| {
            peer != partner
                && !entry.tried.contains(peer)
                && self.is_eligible(member, entry.fragment, now)
        };
        age.is_some_and(|age| age > self.information_bound()) || !self.members.iter().any(other)
    }

    /// Whom the schedule names in this round.
    pub(crate) fn scheduled(&self) -> Option<PeerId> {
        let live = || {
            let counts = |member: &Member| {
                member.standing != Standing::Suspected && member.phase != Phase::Joining
            };
            self.members.iter().filter(move |(_, member)| counts(member)).map(|(peer, _)| *peer)
        };
        let rank = live().filter(|peer| *peer < self.me).count();
        let both_ways = self.config.mixing == Mixing::Exchange;
        let (n, round) = (live().count() as u64 + 1, self.rounds.saturating_sub(1));
        let partner = self.config.schedule.partner(both_ways, rank as u64, n, round)?;
        let index = usize::try_from(partner).ok()?;
        // The own rank is not in the list of the others.
        live().nth(if index > rank { index - 1 } else { index })
    }

    /// Whether this peer and `member` have both done their last step: then no clock moves any more,
    /// and how many commits each made is no measure of whose news is old.
    fn both_finished(&self, member: &Member) -> bool {
        self.finished && member.phase == Phase::Finished
    }

    /// [`Gossip::both_finished`] for the neighbour `peer`.
    pub(crate) fn done_with(&self, peer: &PeerId) -> bool {
        self.members.get(peer).is_some_and(|member| self.both_finished(member))
    }

    fn is_eligible(&self, member: &Member, fragment: FragmentId, now: Time) -> bool {
        let most = lag_max(&self.config);
        let near = member.clock.is_some_and(|clock| clock.distance(self.clock) <= most);
        self.shares(member, fragment)
            && member.standing != Standing::Suspected
            && member.phase != Phase::Joining
            && now >= member.back_off_until
            && (near || self.both_finished(member))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dnode_protocol::Clock;

    use super::*;
    use crate::gossip::Start;
    use crate::testing::peer;
    use crate::{Config, Input};

    /// How often peers 1 to 4, of which the last takes long, are asked in 320 draws for what peer
    /// `author` has made.
    fn asked(schedule: Schedule, author: u32) -> [usize; 4] {
        let start =
            Start { me: peer(0), incarnation: 1, fragments: 1, clock: Clock(0), seed: [1; 32] };
        let config = Config { mixing: Mixing::Set, schedule, ..Config::default() };
        let mut core = Gossip::new(start, config, Time::ZERO);
        let donors = [1, 2, 3, 4].map(peer);
        for donor in donors {
            core.handle(Input::PeerUp { peer: donor, incarnation: 1 }, Time::ZERO);
            core.took(&donor, Duration::from_millis(if donor == peer(4) { 900 } else { 30 }));
        }
        let mut counts = [0; 4];
        for _ in 0..320 {
            let donor = core.choose_donor(peer(author), &donors);
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
