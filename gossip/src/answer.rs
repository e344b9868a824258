//! The responder's end of an exchange: accept or decline, mix, journal, and undo when told.

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, Origin, PeerId, Terms, Time};

use crate::exchange::{Agreed, Answered, AnsweredState, OwnState};
use crate::gossip::{Gossip, STRANGERS_MAX};
use crate::initiate::RETRIES_PER_LEASE;
use crate::link_codec::coarser;
use crate::staleness::lag_bound;
use crate::{Event, Failure, Mixing, Offence, Output, RefusedMix, Role, Trust, Work};

/// Applied exchanges kept until the initiator's word; each keeps one fragment of numbers.
pub(crate) const JOURNAL_MAX: usize = 32;

impl Gossip {
    pub(crate) fn proposed(
        &mut self,
        from: PeerId,
        (exchange, fragment): (ExchangeId, FragmentId),
        terms: Terms,
        now: Time,
    ) {
        let named_twice = self.serving.contains(&exchange);
        let broken = exchange.initiator != from || fragment.0 >= self.fragments || named_twice;
        if broken || !self.allows(terms.codec) || self.config.mixing == Mixing::Set {
            return self.offended(from, Offence::Garbage, now);
        }
        let clock = terms.clock;
        self.heard_clock(from, clock);
        self.let_in_by(from);
        self.heard_wait(from, fragment, &terms.information);
        if self.answered.contains_key(&exchange) {
            return self.proposed_again(from, exchange, now);
        }
        let resolved = self.resolved.get(&from);
        if resolved.is_some_and(|r| r.contains(exchange.incarnation, exchange.sequence)) {
            return;
        }
        let (most, bound) = lag_bound(&self.config);
        if clock.distance(self.clock) > most && !self.done_with(&from) {
            let clock = self.clock;
            self.event(Event::Refused { exchange, peer: from, bound });
            self.send(from, Message::Stale { exchange, clock }, now);
            return self.consider_catch_up(now);
        }
        // What is pushed may overlap with anything: it is added, not agreed on.
        let both_ways = self.config.mixing == Mixing::Exchange;
        let crossing = self.crossing(from, fragment).filter(|_| both_ways);
        let leased = both_ways && self.leases.contains_key(&fragment);
        let open = self.answered.values().filter(|a| a.state != AnsweredState::Applied).count();
        let declined = self.members.get(&from).is_some_and(|member| now < member.declined_until);
        let shared = self.members.get(&from).is_some_and(|member| self.shares(member, fragment));
        let refuse = !shared
            || (both_ways && declined)
            || (leased && crossing.is_none())
            || self.catch_up.is_some()
            || self.leaving
            || open >= self.config.answered_max
            || self.answered.len() >= JOURNAL_MAX;
        if !self.guard.meets(&from, self.rounds) {
            let left_out = self.guard.trust(&from) == Trust::LeftOut;
            let no =
                if left_out { Message::LeftOut { exchange } } else { Message::Busy { exchange } };
            return self.send(from, no, now);
        }
        if refuse {
            return self.send(from, Message::Busy { exchange }, now);
        }
        if let Some(sequence) = crossing {
            self.withdraw(sequence);
        }
        let claim = self.claim();
        let codec = coarser(terms.codec, self.wanted_codec(&from));
        let lease = self.lease(&from);
        let answered = Answered {
            fragment,
            state: AnsweredState::Accepted,
            agreed: self.agree(claim, terms, codec),
            began: now,
            deadline: now + lease,
            retry_at: now + lease,
            until: now + self.config.journal_window,
            claim,
            crossed: crossing.is_some(),
            abort_wanted: false,
        };
        if both_ways {
            self.leases.insert(fragment, exchange);
        }
        self.answered.insert(exchange, answered);
        self.output(Output::Expect { exchange, from, leg: Leg::Offer, fragment });
        self.send_accept(exchange, now);
    }

    /// Our own proposal of the same fragment to `from`, when the two have crossed and ours yields:
    /// the lower peer id wins, so that two peers never refuse each other for ever.
    fn crossing(&self, from: PeerId, fragment: FragmentId) -> Option<u64> {
        let crossing = self.own.iter().find(|(_, own)| {
            own.fragment == fragment && own.partner == from && own.state == OwnState::Proposed
        });
        crossing.filter(|_| from < self.me).map(|(sequence, _)| *sequence)
    }

    /// The initiator repeats its proposal: answer as before.
    fn proposed_again(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        let Some(answered) = self.answered.get(&exchange) else {
            return;
        };
        let (fragment, clock) = (answered.fragment, answered.claim.clock);
        match answered.state {
            AnsweredState::Accepted => self.send_accept(exchange, now),
            AnsweredState::Applied => {
                self.output(Output::SendTensor {
                    to: from,
                    exchange,
                    leg: Leg::Reply,
                    fragment,
                    clock,
                });
            }
            AnsweredState::Mixing | AnsweredState::Undoing => {}
        }
    }

    pub(crate) fn send_accept(&mut self, exchange: ExchangeId, now: Time) {
        let Some(answered) = self.answered.get(&exchange) else {
            return;
        };
        let information = self.information.of(answered.fragment);
        let terms = answered.claim.terms(answered.agreed.codec, information);
        self.send(exchange.initiator, Message::Accept { exchange, terms }, now);
    }

    pub(crate) fn offer_received(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        clock: Clock,
        now: Time,
    ) {
        let age = self.heard_of(&from).ahead_of(clock);
        let answered = self.answered.get_mut(&exchange);
        let accepted = answered.filter(|a| a.state == AnsweredState::Accepted);
        let Some(answered) = accepted.filter(|_| exchange.initiator == from) else {
            return;
        };
        answered.state = AnsweredState::Mixing;
        let Agreed { weight, codec, lag, .. } = answered.agreed;
        let fragment = answered.fragment;
        let tolerance = self.tolerance(from, fragment, lag);
        if age > self.config.bounds.snapshot_age {
            return self.answered_mix_refused(exchange, RefusedMix::TooOld, now);
        }
        // The responder reads and applies in one go, so its own half is never old (B2).
        let clock_max = Clock(u64::MAX);
        if self.config.mixing == Mixing::Exchange {
            let role = Role::Responder;
            self.work(Work::Mix { exchange, fragment, role, weight, codec, clock_max, tolerance });
        } else {
            let incarnation = self.members.get(&from).map_or(0, |member| member.incarnation);
            let origin = Origin { peer: from, incarnation };
            self.work(Work::Absorb { exchange, fragment, from: origin, weight, tolerance });
        }
    }

    pub(crate) fn answered_mixed(&mut self, exchange: ExchangeId, now: Time) {
        let lease = self.lease(&exchange.initiator);
        let until = now + self.config.journal_window;
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        answered.state = AnsweredState::Applied;
        answered.retry_at = now + lease / RETRIES_PER_LEASE;
        answered.until = until;
        let Agreed { information, weight, lag, .. } = answered.agreed.clone();
        let (fragment, clock, abort_wanted) =
            (answered.fragment, answered.claim.clock, answered.abort_wanted);
        self.contain(fragment, &information);
        let peer = exchange.initiator;
        let role = Role::Responder;
        self.event(Event::Applied { exchange, fragment, peer, role, weight, lag, age: 0 });
        if self.config.mixing != Mixing::Exchange {
            self.send(peer, Message::Ack { exchange }, now);
            self.end_answered(exchange, now);
        } else if abort_wanted {
            self.undo(exchange);
        } else {
            let leg = Leg::Reply;
            self.output(Output::SendTensor { to: peer, exchange, leg, fragment, clock });
        }
        self.update_limit();
    }

    pub(crate) fn answered_mix_refused(
        &mut self,
        exchange: ExchangeId,
        reason: RefusedMix,
        now: Time,
    ) {
        let peer = exchange.initiator;
        self.end_answered(exchange, now);
        self.send(peer, Message::Aborted { exchange }, now);
        let failure = match reason {
            RefusedMix::TooOld => Failure::TooOld,
            RefusedMix::Local => Failure::Lost,
            RefusedMix::Outlier => Failure::Outlier,
            RefusedMix::BadParameters | RefusedMix::OtherHash => Failure::BadParameters,
        };
        self.event(Event::Failed { exchange, peer, failure });
        if reason == RefusedMix::BadParameters {
            self.offended(peer, Offence::BadParameters, now);
        }
    }

    pub(crate) fn acked(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        let answered = self.answered.get(&exchange);
        if exchange.initiator == self.me {
            return self.delivered(from, exchange, now);
        }
        let Some(answered) = answered.filter(|answered| {
            exchange.initiator == from && answered.state == AnsweredState::Applied
        }) else {
            return;
        };
        let (began, codec) = (answered.began, answered.agreed.codec);
        let (fragment, crossed) = (answered.fragment, answered.crossed);
        self.measured(&from, now.since(began), codec);
        self.had_exchange(fragment, from, crossed);
        self.end_answered(exchange, now);
    }

    /// The initiator will never apply its half.
    pub(crate) fn aborted_by(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        if exchange.initiator != from {
            return;
        }
        if self.serving.withdraw(&exchange) {
            return;
        }
        match self.answered.get_mut(&exchange) {
            Some(answered) => match answered.state {
                AnsweredState::Mixing => answered.abort_wanted = true,
                AnsweredState::Applied => self.undo(exchange),
                AnsweredState::Undoing => {}
                AnsweredState::Accepted => {
                    self.end_answered(exchange, now);
                    self.send(from, Message::Aborted { exchange }, now);
                }
            },
            None => {
                self.mark_resolved(exchange);
                self.send(from, Message::Aborted { exchange }, now);
            }
        }
    }

    fn undo(&mut self, exchange: ExchangeId) {
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        answered.state = AnsweredState::Undoing;
        let (fragment, weight) = (answered.fragment, answered.agreed.weight);
        self.work(Work::Undo { exchange, fragment, weight });
    }

    pub(crate) fn undone(&mut self, exchange: ExchangeId, now: Time) {
        if self.answered.get(&exchange).is_none_or(|a| a.state != AnsweredState::Undoing) {
            return;
        }
        self.end_answered(exchange, now);
        self.event(Event::Undone { exchange });
        self.send(exchange.initiator, Message::Aborted { exchange }, now);
    }

    /// Nothing more will happen under this exchange at this end.
    pub(crate) fn end_answered(&mut self, exchange: ExchangeId, now: Time) {
        let Some(answered) = self.answered.remove(&exchange) else {
            return;
        };
        self.mark_resolved(exchange);
        self.release(answered.fragment, exchange);
        self.output(Output::Forget { exchange });
        self.begin_exchanges(now);
    }

    pub(crate) fn mark_resolved(&mut self, exchange: ExchangeId) {
        let resolved = self.resolved.entry(exchange.initiator).or_default();
        resolved.insert(exchange.incarnation, exchange.sequence);
        while self.resolved.len() > STRANGERS_MAX {
            self.resolved.pop_first();
        }
    }

    /// A restarted initiator knows nothing of what its earlier life proposed: stop asking it.
    pub(crate) fn end_answered_of_earlier_life(
        &mut self,
        peer: PeerId,
        incarnation: u64,
        now: Time,
    ) {
        let orphans: Vec<ExchangeId> = self
            .answered
            .iter()
            .filter(|(exchange, answered)| {
                exchange.initiator == peer
                    && exchange.incarnation != incarnation
                    && answered.state == AnsweredState::Applied
            })
            .map(|(exchange, _)| *exchange)
            .collect();
        for exchange in orphans {
            self.event(Event::Undecided { exchange });
            self.end_answered(exchange, now);
        }
    }

    /// The initiator is silent: what it has proposed holds no fragment any longer.
    pub(crate) fn free_answered(&mut self, peer: PeerId, now: Time) {
        self.lose_answered(peer, now);
        let applied = self.answered.iter_mut().filter(|(exchange, answered)| {
            exchange.initiator == peer && answered.state == AnsweredState::Applied
        });
        for (_, answered) in applied {
            answered.deadline = answered.deadline.min(now);
            answered.retry_at = answered.retry_at.min(now);
        }
    }

    pub(crate) fn lose_answered(&mut self, peer: PeerId, now: Time) {
        let lost: Vec<ExchangeId> = self
            .answered
            .iter()
            .filter(|(exchange, answered)| {
                exchange.initiator == peer && answered.state == AnsweredState::Accepted
            })
            .map(|(exchange, _)| *exchange)
            .collect();
        for exchange in lost {
            self.event(Event::Failed { exchange, peer, failure: Failure::Lost });
            self.end_answered(exchange, now);
        }
    }
}
