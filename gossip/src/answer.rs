//! The responder's end of an exchange: accept or decline, mix, journal, and undo when told.

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Information, Message, PeerId, Time};

use crate::exchange::{Answered, AnsweredState, OwnState, Terms};
use crate::gossip::{Gossip, STRANGERS_MAX};
use crate::initiate::RETRIES_PER_LEASE;
use crate::staleness::mixing_weight;
use crate::{Event, Failure, Offence, Output, RefusedMix, Role};

/// Applied exchanges kept until the initiator's word; each keeps one fragment of numbers.
pub(crate) const JOURNAL_MAX: usize = 32;

impl Gossip {
    pub(crate) fn proposed(
        &mut self,
        from: PeerId,
        (exchange, fragment): (ExchangeId, FragmentId),
        (clock, information): (Clock, Information),
        now: Time,
    ) {
        let named_twice = self.serving.contains_key(&exchange);
        if exchange.initiator != from || fragment.0 >= self.fragments || named_twice {
            return self.offended(from, Offence::Garbage, now);
        }
        self.heard_clock(from, clock);
        if self.answered.contains_key(&exchange) {
            return self.proposed_again(from, exchange, now);
        }
        let resolved = self.resolved.get(&from);
        if resolved.is_some_and(|r| r.contains(exchange.incarnation, exchange.sequence)) {
            return;
        }
        if clock.distance(self.clock) > self.config.bounds.progress_gap && !self.done_with(&from) {
            let clock = self.clock;
            self.send(from, Message::Stale { exchange, clock }, now);
            return self.consider_catch_up(now);
        }
        let crossing = self.crossing(from, fragment);
        let open = self.answered.values().filter(|a| a.state != AnsweredState::Applied).count();
        let refuse = (self.leases.contains_key(&fragment) && crossing.is_none())
            || self.catch_up.is_some()
            || self.leaving
            || open >= self.config.answered_max
            || self.answered.len() >= JOURNAL_MAX;
        if refuse {
            return self.send(from, Message::Busy { exchange }, now);
        }
        if let Some(sequence) = crossing {
            self.withdraw(sequence);
        }
        let terms = Terms {
            information,
            weight: mixing_weight(self.clock, clock),
            lag: self.clock.distance(clock),
        };
        let lease = self.lease(&from);
        let answered = Answered {
            fragment,
            state: AnsweredState::Accepted,
            terms,
            began: now,
            deadline: now + lease,
            retry_at: now + lease,
            until: now + self.config.journal_window,
            clock: self.clock,
            abort_wanted: false,
        };
        self.leases.insert(fragment, exchange);
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
        let (fragment, clock) = (answered.fragment, answered.clock);
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

    fn send_accept(&mut self, exchange: ExchangeId, now: Time) {
        let Some(answered) = self.answered.get(&exchange) else {
            return;
        };
        let (clock, fragment) = (answered.clock, answered.fragment);
        let information = self.information.of(fragment);
        self.send(exchange.initiator, Message::Accept { exchange, clock, information }, now);
    }

    pub(crate) fn offer_received(&mut self, from: PeerId, exchange: ExchangeId) {
        let answered = self.answered.get_mut(&exchange);
        let accepted = answered.filter(|a| a.state == AnsweredState::Accepted);
        let Some(answered) = accepted.filter(|_| exchange.initiator == from) else {
            return;
        };
        answered.state = AnsweredState::Mixing;
        let (fragment, weight) = (answered.fragment, answered.terms.weight);
        // The responder reads and applies in one go, so its own half is never old (B2).
        let clock_max = Clock(u64::MAX);
        self.output(Output::Mix { exchange, fragment, role: Role::Responder, weight, clock_max });
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
        let Terms { information, weight, lag } = answered.terms.clone();
        let (fragment, clock, abort_wanted) =
            (answered.fragment, answered.clock, answered.abort_wanted);
        self.contain(fragment, &information);
        self.answered_in_round.insert(fragment);
        let peer = exchange.initiator;
        let role = Role::Responder;
        self.event(Event::Applied { exchange, fragment, peer, role, weight, lag, age: 0 });
        if abort_wanted {
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
            RefusedMix::BadParameters => Failure::BadParameters,
        };
        self.event(Event::Failed { exchange, peer, failure });
        if reason == RefusedMix::BadParameters {
            self.offended(peer, Offence::BadParameters, now);
        }
    }

    pub(crate) fn acked(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        let answered = self.answered.get(&exchange);
        if exchange.initiator != from || answered.is_none_or(|a| a.state != AnsweredState::Applied)
        {
            return;
        }
        let began = answered.map_or(now, |a| a.began);
        if let Some(member) = self.members.get_mut(&from) {
            member.measured(now.since(began));
        }
        self.end_answered(exchange, now);
    }

    /// The initiator will never apply its half.
    pub(crate) fn aborted_by(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        if exchange.initiator != from {
            return;
        }
        if let Some(serving) = self.serving.get_mut(&exchange) {
            serving.wanted = false;
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
        let (fragment, weight) = (answered.fragment, answered.terms.weight);
        self.output(Output::Undo { exchange, fragment, weight });
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

    fn mark_resolved(&mut self, exchange: ExchangeId) {
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
