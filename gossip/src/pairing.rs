//! Which partner for a fragment: a pure decision.

use dnode_protocol::{FragmentId, PeerId, Phase, Time};
use rand::RngExt;

use crate::gossip::Gossip;
use crate::membership::{Member, Standing};

impl Gossip {
    /// Chooses a partner for `fragment`, none of `tried`; `None` when nobody is eligible.
    ///
    /// The partner whose news in this fragment is older than bound B3 allows, if there is one;
    /// else the one with the older news of two drawn at random (power of two choices), so that
    /// every neighbour is visited and no schedule needs agreement.
    pub(crate) fn choose_partner(
        &mut self,
        fragment: FragmentId,
        tried: &[PeerId],
        now: Time,
    ) -> Option<PeerId> {
        let eligible: Vec<(PeerId, u64)> = self
            .members
            .iter()
            .filter(|(peer, member)| !tried.contains(peer) && self.is_eligible(member, now))
            .map(|(peer, _)| (*peer, self.information_age(fragment, peer).unwrap_or(0)))
            .collect();
        let oldest = eligible.iter().max_by_key(|(_, age)| *age)?;
        if oldest.1 > self.information_bound() {
            return Some(oldest.0);
        }
        let first = eligible[self.rng.random_range(0..eligible.len())];
        let second = eligible[self.rng.random_range(0..eligible.len())];
        Some(if second.1 > first.1 { second.0 } else { first.0 })
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

    fn is_eligible(&self, member: &Member, now: Time) -> bool {
        let gap = self.config.bounds.progress_gap;
        let near = member.clock.is_some_and(|clock| clock.distance(self.clock) <= gap);
        member.standing != Standing::Suspected
            && member.phase != Phase::Joining
            && now >= member.back_off_until
            && (near || self.both_finished(member))
    }
}
