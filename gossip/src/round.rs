//! A round: which fragments are proposed, and where each of them stands.

use dnode_protocol::{FragmentId, PeerId, Time};
use rand::seq::SliceRandom;

use crate::gossip::Gossip;
use crate::{Mixing, Output};

/// A fragment that waits for its exchange in this round.
#[derive(Clone, Debug)]
pub(crate) struct RoundFragment {
    pub(crate) fragment: FragmentId,
    /// Partners that are not asked again.
    pub(crate) tried: Vec<PeerId>,
    /// Proposals that have ended.
    pub(crate) proposals: usize,
    /// Partners it still is to reach.
    pub(crate) left: usize,
    /// When to propose again, after a partner was busy for whom there is no other.
    pub(crate) wait_until: Option<Time>,
}

impl RoundFragment {
    /// A fragment that is to reach this many partners.
    pub(crate) const fn new(fragment: FragmentId, left: usize) -> Self {
        Self { fragment, tried: Vec::new(), proposals: 0, left, wait_until: None }
    }
}

impl Gossip {
    pub(crate) fn round_due(&mut self, now: Time) {
        self.rounds += 1;
        if self.is_left_alone() {
            self.begin_catch_up(now);
        }
        if self.catch_up.is_some() || self.leaving || self.config.mixing == Mixing::Set {
            return self.output(Output::RoundDone);
        }
        self.begin_round(now);
    }

    /// Begins exchanges of all fragments that need one.
    pub(crate) fn begin_round(&mut self, now: Time) {
        let answered = std::mem::take(&mut self.answered_in_round);
        let pushes = self.config.mixing != Mixing::Exchange;
        let left = self.config.fanout();
        let mut fragments: Vec<FragmentId> = (0..self.fragments)
            .map(FragmentId)
            .filter(|fragment| self.owns(*fragment))
            .filter(|fragment| {
                let had = answered.get(fragment).is_some_and(|peer| self.is_own_partner(peer));
                pushes || !had || self.needs_news(*fragment)
            })
            .collect();
        fragments.shuffle(&mut self.rng);
        // Rounds may be shorter than the wait for a busy partner, which would find it busy again.
        let before = std::mem::take(&mut self.round);
        let wait_of = |fragment| before.iter().find(|e| e.fragment == fragment)?.wait_until;
        let entry = |fragment| RoundFragment {
            wait_until: wait_of(fragment),
            ..RoundFragment::new(fragment, left)
        };
        self.round = fragments.into_iter().map(entry).collect();
        self.in_round = true;
        self.begin_exchanges(now);
    }

    /// An exchange of `fragment` that `peer` proposed has ended well at both ends. It is the own one of
    /// this round where that has still to be proposed, of the next round else.
    ///
    /// Else a fragment would be exchanged twice a round, once by each end's proposal; and a peer that
    /// was answering while its round began would skip the round after it.
    pub(crate) fn had_exchange(&mut self, fragment: FragmentId, peer: PeerId, crossed: bool) {
        let waits = self.round.iter().position(|entry| entry.fragment == fragment);
        let Some(index) = waits else {
            self.answered_in_round.insert(fragment, peer);
            return;
        };
        let ours = crossed || self.is_own_partner(&peer) || self.round[index].proposals > 0;
        if ours && !self.needs_news(fragment) {
            self.round.remove(index);
        }
    }

    /// Whether an exchange with `peer` that it has proposed is as good as the own one of this round:
    /// with the partner that the schedule names, or with anybody when it names none.
    fn is_own_partner(&self, peer: &PeerId) -> bool {
        self.scheduled().is_none_or(|scheduled| scheduled == *peer)
    }

    /// Whether `fragment` should be proposed although it was mixed since the last round: after the
    /// last step, when agreement is all that matters, and when its news of an active neighbour is
    /// half as old as bound B3 allows.
    fn needs_news(&self, fragment: FragmentId) -> bool {
        let bound = self.information_bound();
        let old = |peer| self.information_age(fragment, peer).is_some_and(|age| 2 * age > bound);
        self.finished || self.members.iter().any(|(peer, member)| member.counts() && old(peer))
    }
}
