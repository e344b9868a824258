//! What follows from the guard's verdicts, here and at the neighbours.

use dnode_protocol::{ExchangeId, PeerId, Phase};

use super::Gossip;
use crate::context::Step;
use crate::exchange::{is_slow, meeting};
use crate::state_transfer::{BadReplica, Meeting};
use crate::{Event, Evidence, Grounds, Trust};

impl Gossip {
    pub(super) fn on_measured(&mut self, exchange: ExchangeId, seen: Evidence) {
        let context = &mut self.context;
        // Those who have done their last step draw near to each other, and one that still trains then looks
        // far away.
        let settles = context.progress.is_finished() && !seen.refused;
        let judges = context.config.guard && !settles && !context.progress.is_replacing();
        let found = self.exchange.find(context, exchange).filter(|_| judges);
        let Some(exchanged) = found else {
            return;
        };
        let (members, peer) = (self.membership.members(), exchanged.partner);
        let met = meeting(context, members, self.rounds.begun(), exchanged);
        if let Some(length) = self.guard.length(met.fragment, &seen) {
            let meeting = Meeting { peer, fragment: met.fragment, length };
            if let Some(bad) = self.transfer.joiner().on_met(&self.context, meeting) {
                return self.take_over_again(bad);
            }
        }
        if let Some((trust, grounds)) = self.guard.note(met, seen) {
            self.on_judged(peer, trust, grounds);
            self.consider_the_distance();
        }
    }

    /// The replica that was taken over is none of the run's: takes over another one.
    fn take_over_again(&mut self, bad: BadReplica) {
        let round = self.rounds.begun();
        for peer in self.guard.pardon(round) {
            self.on_judged(peer, Trust::Trusted, Grounds::BadSnapshot);
        }
        let donor = bad.donor.filter(|donor| *donor != self.context.me);
        if let Some(donor) = donor
            && let Some(trust) = self.guard.misgave(donor, round)
        {
            self.on_judged(donor, trust, Grounds::BadSnapshot);
        }
        self.context.then(Step::CatchUp);
    }

    /// A peer that is slower than most, and so far from nearly all that it mixes with none, takes over a
    /// replica: they have left it behind.
    fn consider_the_distance(&mut self) {
        let (clock, round) = (self.context.progress.clock(), self.rounds.begun());
        if !is_slow(&self.context, self.membership.members()) {
            return;
        }
        let Some(pardoned) = self.guard.has_fallen_behind(clock, round) else { return };
        for peer in pardoned {
            self.on_judged(peer, Trust::Trusted, Grounds::FellBehind);
        }
        self.context.then(Step::CatchUp);
    }

    /// A neighbour declines a proposal of this peer because it leaves it out.
    pub(super) fn on_left_out(&mut self, from: PeerId) {
        self.membership.on_left_out(&mut self.context, from);
        if let Some(bad) = self.transfer.joiner().on_left_out(&self.context, from) {
            self.take_over_again(bad);
        } else {
            self.consider_the_exile();
        }
    }

    /// A peer that nearly all leave out takes over a replica of one of them: it was apart from them for long,
    /// or has followed one that was.
    fn consider_the_exile(&mut self) {
        let progress = &self.context.progress;
        let may =
            progress.may_replace() && !progress.is_finished() && progress.observes().is_none();
        if !may || !self.context.config.guard {
            return;
        }
        let (left_out_by, others) = self.membership.members().exiled_by(self.context.config.rack);
        let trains = |peer: &PeerId| {
            self.membership.get(peer).is_some_and(|member| member.phase == Phase::Training)
        };
        if !left_out_by.iter().any(trains) {
            return;
        }
        let round = self.rounds.begun();
        let Some(pardoned) = self.guard.is_exiled((&left_out_by, &others), round) else {
            return;
        };
        let (partners, of) = (left_out_by.len(), left_out_by.len() + others.len());
        self.context.event(Event::Exiled { partners, of });
        for peer in pardoned {
            self.on_judged(peer, Trust::Trusted, Grounds::Exiled);
        }
        for peer in others {
            if let Some(trust) = self.guard.misled(peer, round) {
                self.on_judged(peer, trust, Grounds::Misled);
            }
        }
        self.settle();
        self.take(Step::CatchUp);
        self.transfer.joiner().ask_only(left_out_by);
    }

    /// The guard has changed its mind: who is left out holds up nobody.
    pub(super) fn on_judged(&mut self, peer: PeerId, trust: Trust, grounds: Grounds) {
        self.membership.set_trust(&peer, trust);
        self.context.event(Event::Guarded { peer, trust, grounds });
        self.context.then(Step::Load);
        self.context.then(Step::Limit);
    }
}
