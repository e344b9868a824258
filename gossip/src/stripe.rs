//! Racks: which fragments a peer exchanges for its rack, and with whom.
//!
//! Ranks of one rack are equal after every commit without this core's doing, so they exchange nothing
//! with each other and wait for no news of each other. Of another rack a fragment is exchanged with the
//! rank that owns it there.

use dnode_protocol::{FragmentId, Message, PeerId, Stripe, Time};

use crate::gossip::Gossip;
use crate::membership::Member;

impl Gossip {
    /// The part of the fragments that this peer exchanges.
    #[must_use]
    pub const fn stripe(&self) -> Stripe {
        self.stripe
    }

    /// This peer's part has changed; all neighbours are told.
    pub(crate) fn set_stripe(&mut self, stripe: Stripe, now: Time) {
        if stripe == self.stripe {
            return;
        }
        let before = std::mem::replace(&mut self.stripe, stripe);
        let known: Vec<_> =
            self.members.iter().filter_map(|(peer, m)| Some((*peer, m.clock?))).collect();
        for fragment in (0..self.fragments).map(FragmentId) {
            // Its news were minded by the rank that owned it.
            if stripe.owns(fragment, self.fragments) && !before.owns(fragment, self.fragments) {
                for (peer, clock) in &known {
                    self.information.raise(fragment, peer, *clock);
                }
            }
        }
        self.round.retain(|entry| stripe.owns(entry.fragment, self.fragments));
        self.end_round_when_empty();
        self.tell_rack(now);
        self.update_limit();
    }

    /// Says which rack this peer is of, if any.
    pub(crate) fn introduce_rack(&mut self, peer: PeerId, now: Time) {
        if let Some(message) = self.rack_message() {
            self.send(peer, message, now);
        }
    }

    /// Says it to everybody, with every heartbeat too: what was said once may have been lost with a
    /// full queue.
    pub(crate) fn tell_rack(&mut self, now: Time) {
        if let Some(message) = self.rack_message() {
            self.tell_all(&message, now);
        }
    }

    fn rack_message(&self) -> Option<Message> {
        let name = self.config.rack;
        (name != 0).then_some(Message::Rack { name, stripe: self.stripe })
    }

    pub(crate) fn heard_rack(&mut self, from: PeerId, name: u64, stripe: Stripe) {
        let Some(member) = self.members.get_mut(&from) else {
            return;
        };
        member.rack = name;
        let before = std::mem::replace(&mut member.stripe, stripe);
        if before == stripe {
            return;
        }
        let clock = member.clock.unwrap_or_default();
        for fragment in (0..self.fragments).map(FragmentId) {
            if stripe.owns(fragment, self.fragments) && !before.owns(fragment, self.fragments) {
                self.information.raise(fragment, &from, clock);
            }
        }
        self.update_limit();
    }

    /// Whether `fragment` is exchanged by this peer.
    pub(crate) fn owns(&self, fragment: FragmentId) -> bool {
        self.stripe.owns(fragment, self.fragments)
    }

    /// Whether `fragment` is exchanged between this peer and that one.
    pub(crate) fn shares(&self, member: &Member, fragment: FragmentId) -> bool {
        self.owns(fragment)
            && member.stripe.owns(fragment, self.fragments)
            && !self.stripe.is_mate(member.stripe)
    }

    /// Whether that peer is of the own group of ranks.
    pub(crate) fn is_mate(&self, member: &Member) -> bool {
        self.stripe.is_mate(member.stripe)
    }

    /// Whether some fragment lacks more than `bound` of the commits of `peer`.
    pub(crate) fn lacks_news(&self, peer: &PeerId, bound: u64) -> bool {
        let mut fragments = (0..self.fragments).map(FragmentId);
        fragments.any(|fragment| self.information_age(fragment, peer).is_some_and(|a| a > bound))
    }
}
