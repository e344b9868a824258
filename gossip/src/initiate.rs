//! The initiator's end of an exchange: propose, offer, apply or abort.

use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, Message, Origin, PeerId, Terms, Time};
use rand::RngExt;

use crate::exchange::{Aborting, Agreed, Own, OwnState};
use crate::gossip::Gossip;
use crate::round::RoundFragment;
use crate::sequences::REMEMBERED;
use crate::staleness::lag_bound;
use crate::{Event, Failure, Mixing, Offence, Output, Reading, RefusedMix, Role, Work};

/// Own exchanges given up and not yet confirmed; beyond it the oldest becomes undecided.
pub(crate) const ABORTING_MAX: usize = 64;
/// A message is repeated this many times within a lease.
pub(crate) const RETRIES_PER_LEASE: u32 = 4;

impl Gossip {
    /// Proposes exchanges for the fragments that wait, as far as leases and limits allow.
    pub(crate) fn begin_exchanges(&mut self, now: Time) {
        if self.leaving || self.catch_up.is_some() {
            self.round.clear();
        }
        let mut waiting = std::mem::take(&mut self.round);
        for entry in &mut waiting {
            entry.wait_until = entry.wait_until.filter(|until| now < *until);
        }
        let mut kept = Vec::new();
        while self.own.len() + self.unwanted_reads < self.own_limit() && !waiting.is_empty() {
            let entry = waiting.remove(0);
            if self.leases.contains_key(&entry.fragment) || entry.wait_until.is_some() {
                kept.push(entry);
            } else if let Some(partner) = self.choose_partner(entry.fragment, &entry.tried, now) {
                self.propose(entry, partner, now);
            }
        }
        kept.append(&mut waiting);
        let fresh = std::mem::replace(&mut self.round, kept);
        self.round.extend(fresh);
        self.end_round_when_empty();
    }

    pub(crate) fn end_round_when_empty(&mut self) {
        if self.in_round && self.own.is_empty() && self.round.is_empty() {
            self.in_round = false;
            self.output(Output::RoundDone);
        }
    }

    fn propose(&mut self, entry: RoundFragment, partner: PeerId, now: Time) {
        let sequence = self.take_sequence();
        let exchange = self.exchange_id(sequence);
        let lease = self.lease(&partner);
        let own = Own {
            fragment: entry.fragment,
            partner,
            entry,
            claim: self.claim(),
            codec: self.wanted_codec(&partner),
            state: OwnState::Proposed,
            began: now,
            deadline: now + lease,
            retry_at: now + lease / RETRIES_PER_LEASE,
            reproposed: false,
            agreed: None,
        };
        self.leases.insert(own.fragment, exchange);
        self.own.insert(sequence, own);
        self.send_propose(sequence, now);
    }

    pub(crate) fn send_propose(&mut self, sequence: u64, now: Time) {
        let Some(own) = self.own.get(&sequence) else {
            return;
        };
        let (fragment, partner) = (own.fragment, own.partner);
        let information = self.information.of(fragment);
        let terms = own.claim.terms(own.codec, information);
        let exchange = self.exchange_id(sequence);
        self.send(partner, Message::Propose { exchange, fragment, terms }, now);
    }

    pub(crate) fn accepted(&mut self, from: PeerId, exchange: ExchangeId, terms: Terms, now: Time) {
        if exchange.initiator != self.me || exchange.incarnation != self.incarnation {
            return;
        }
        self.heard_clock(from, terms.clock);
        self.let_in_by(from);
        let sequence = exchange.sequence;
        let done = self.done_with(&from);
        let Some(own) = self.own.get_mut(&sequence).filter(|own| own.partner == from) else {
            return self.accepted_without_record(from, exchange, now);
        };
        match own.state {
            OwnState::Proposed => {
                let (ours, wanted, codec) = (own.claim, own.codec, terms.codec);
                let agreed = self.agree(ours, terms, codec);
                let (most, bound) = lag_bound(&self.config);
                if agreed.lag > most && !done {
                    return self.give_up(sequence, Failure::Stale { bound }, now);
                }
                if !self.allows(codec) || codec.bits_per_element() > wanted.bits_per_element() {
                    self.give_up(sequence, Failure::Lost, now);
                    return self.offended(from, Offence::Garbage, now);
                }
                self.read_own(sequence, agreed);
            }
            OwnState::Offered { snapshot } if own.reproposed => {
                // The partner has not seen the offer: say it again, once per repeated proposal.
                own.reproposed = false;
                let fragment = own.fragment;
                let leg = Leg::Offer;
                self.output(Output::SendTensor {
                    to: from,
                    exchange,
                    leg,
                    fragment,
                    clock: snapshot,
                });
            }
            OwnState::Offered { .. } | OwnState::Reading | OwnState::Applying { .. } => {}
        }
    }

    /// The partner grants the lease: have the fragment copied, or the share that is pushed taken.
    fn read_own(&mut self, sequence: u64, agreed: Agreed) {
        let exchange = self.exchange_id(sequence);
        let Some(own) = self.own.get_mut(&sequence) else {
            return;
        };
        let (fragment, partner, codec) = (own.fragment, own.partner, agreed.codec);
        own.agreed = Some(agreed);
        own.state = OwnState::Reading;
        let what = match self.config.mixing {
            Mixing::Exchange | Mixing::Set => Reading::Offer(codec),
            Mixing::Push { .. } => {
                let incarnation = self.members.get(&partner).map_or(0, |m| m.incarnation);
                let to = Origin { peer: partner, incarnation };
                Reading::Push { to, codec }
            }
        };
        self.work(Work::Read { exchange, fragment, what });
    }

    /// The partner asks how an exchange ended, or accepts one that was withdrawn.
    fn accepted_without_record(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        let sequence = exchange.sequence;
        if self.applied.contains(sequence) {
            self.send(from, Message::Ack { exchange }, now);
        } else if sequence < self.next_sequence && self.next_sequence - sequence <= REMEMBERED {
            self.send(from, Message::Abort { exchange }, now);
        }
    }

    pub(crate) fn own_read(&mut self, exchange: ExchangeId, clock: Clock, now: Time) {
        let Some(own) = self.own.get_mut(&exchange.sequence) else {
            self.output(Output::Forget { exchange });
            self.unwanted_reads = self.unwanted_reads.saturating_sub(1);
            return self.begin_exchanges(now);
        };
        if own.state != OwnState::Reading {
            return;
        }
        own.state = OwnState::Offered { snapshot: clock };
        let (to, fragment) = (own.partner, own.fragment);
        if self.config.mixing == Mixing::Exchange {
            self.output(Output::Expect { exchange, from: to, leg: Leg::Reply, fragment });
        }
        self.output(Output::SendTensor { to, exchange, leg: Leg::Offer, fragment, clock });
    }

    pub(crate) fn reply_received(&mut self, from: PeerId, exchange: ExchangeId) {
        let snapshot_age = self.config.bounds.snapshot_age;
        let own = self.own.get_mut(&exchange.sequence);
        let Some(own) = own.filter(|own| own.partner == from && exchange.initiator == self.me)
        else {
            return;
        };
        let OwnState::Offered { snapshot } = own.state else {
            return;
        };
        own.state = OwnState::Applying { snapshot };
        let fragment = own.fragment;
        let Some(Agreed { weight, codec, lag, .. }) = own.agreed else {
            return;
        };
        let (role, clock_max) = (Role::Initiator, snapshot.plus(snapshot_age));
        let tolerance = self.tolerance(from, fragment, lag);
        self.work(Work::Mix { exchange, fragment, role, weight, codec, clock_max, tolerance });
    }

    /// The partner has applied what was pushed to it.
    pub(crate) fn delivered(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        if exchange != self.exchange_id(exchange.sequence) {
            return;
        }
        let own = self.own.get(&exchange.sequence);
        let offered = own.is_some_and(|own| {
            own.partner == from && matches!(own.state, OwnState::Offered { .. })
        });
        if !offered {
            return;
        }
        let Some(own) = self.own.remove(&exchange.sequence) else {
            return;
        };
        let fragment = own.fragment;
        self.release(fragment, exchange);
        let incarnation = self.members.get(&from).map_or(0, |member| member.incarnation);
        let to = Origin { peer: from, incarnation };
        if let Some(member) = self.members.get_mut(&from) {
            member.waits_for.remove(&fragment);
        }
        self.output(Output::Delivered { exchange, fragment, to });
        self.output(Output::Forget { exchange });
        self.measured(&from, now.since(own.began), own.codec);
        self.exchanged(&from, now.since(own.began));
        if own.entry.left > 1 && !self.leaving {
            let mut entry = own.entry;
            entry.tried.push(from);
            entry.proposals += 1;
            entry.left -= 1;
            self.round.push(entry);
        }
        self.begin_exchanges(now);
    }

    pub(crate) fn own_mixed(&mut self, exchange: ExchangeId, clock: Clock, now: Time) {
        let Some(own) = self.own.remove(&exchange.sequence) else {
            return;
        };
        self.applied.insert(exchange.sequence);
        self.release(own.fragment, exchange);
        self.output(Output::Forget { exchange });
        self.send(own.partner, Message::Ack { exchange }, now);
        let codec = own.agreed.as_ref().map_or(own.codec, |agreed| agreed.codec);
        self.measured(&own.partner, now.since(own.began), codec);
        self.exchanged(&own.partner, now.since(own.began));
        if let (Some(agreed), OwnState::Applying { snapshot }) = (own.agreed, own.state) {
            self.contain(own.fragment, &agreed.information);
            self.event(Event::Applied {
                exchange,
                fragment: own.fragment,
                peer: own.partner,
                role: Role::Initiator,
                weight: agreed.weight,
                lag: agreed.lag,
                age: clock.ahead_of(snapshot),
            });
        }
        self.update_limit();
        self.begin_exchanges(now);
    }

    pub(crate) fn own_mix_refused(&mut self, exchange: ExchangeId, reason: RefusedMix, now: Time) {
        let Some(partner) = self.own.get(&exchange.sequence).map(|own| own.partner) else {
            return;
        };
        match reason {
            RefusedMix::TooOld => self.give_up(exchange.sequence, Failure::TooOld, now),
            RefusedMix::Local => self.give_up(exchange.sequence, Failure::Lost, now),
            RefusedMix::Outlier => self.give_up(exchange.sequence, Failure::Outlier, now),
            RefusedMix::BadParameters | RefusedMix::OtherHash => {
                self.give_up(exchange.sequence, Failure::BadParameters, now);
                self.offended(partner, Offence::BadParameters, now);
            }
        }
    }

    pub(crate) fn busy(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        if self.pull_refused(from, exchange, now) || self.fetch_refused(from, exchange, false, now)
        {
            return;
        }
        self.declined(from, exchange, Failure::Busy, now);
    }

    pub(crate) fn stale(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        if self.fetch_refused(from, exchange, true, now) {
            return;
        }
        // It is of the same run, so the same bound refused at its end.
        let (_, bound) = lag_bound(&self.config);
        self.declined(from, exchange, Failure::Stale { bound }, now);
    }

    fn declined(&mut self, from: PeerId, exchange: ExchangeId, failure: Failure, now: Time) {
        if exchange != self.exchange_id(exchange.sequence) {
            return;
        }
        let own = self.own.get(&exchange.sequence);
        if own.is_some_and(|own| own.partner == from && own.state == OwnState::Proposed) {
            self.end_own(exchange.sequence, failure, now);
        }
    }

    /// The partner confirms that it will never have applied the exchange.
    pub(crate) fn abort_confirmed(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        if exchange != self.exchange_id(exchange.sequence) {
            return;
        }
        let sequence = exchange.sequence;
        if self.aborting.get(&sequence).is_some_and(|aborting| aborting.partner == from) {
            self.aborting.remove(&sequence);
        } else if self.own.get(&sequence).is_some_and(|own| {
            own.partner == from && !matches!(own.state, OwnState::Applying { .. })
        }) {
            self.end_own(sequence, Failure::Lost, now);
        }
    }

    /// Ends an own exchange that is not applied; tells the partner when it may have applied.
    pub(crate) fn give_up(&mut self, sequence: u64, failure: Failure, now: Time) {
        let Some(own) = self.own.get(&sequence) else {
            return;
        };
        let (partner, exchange) = (own.partner, self.exchange_id(sequence));
        let offered = matches!(own.state, OwnState::Offered { .. } | OwnState::Applying { .. });
        if offered && self.config.mixing != Mixing::Exchange {
            // What was pushed may count; nothing has to be taken back.
            return self.end_own(sequence, failure, now);
        }
        if offered {
            let retry_at = now + self.lease(&partner) / RETRIES_PER_LEASE;
            let until = now + self.config.journal_window;
            self.aborting.insert(sequence, Aborting { partner, retry_at, until });
            if self.aborting.len() > ABORTING_MAX
                && let Some((oldest, _)) = self.aborting.pop_first()
            {
                self.event(Event::Undecided { exchange: self.exchange_id(oldest) });
            }
        }
        self.send(partner, Message::Abort { exchange }, now);
        self.end_own(sequence, failure, now);
    }

    /// Forgets an own exchange and lets the fragment try another partner in this round.
    fn end_own(&mut self, sequence: u64, failure: Failure, now: Time) {
        let Some(own) = self.own.remove(&sequence) else {
            return;
        };
        if own.state == OwnState::Reading {
            self.unwanted_reads += 1;
        }
        let exchange = self.exchange_id(sequence);
        self.release(own.fragment, exchange);
        self.output(Output::Forget { exchange });
        self.event(Event::Failed { exchange, peer: own.partner, failure });
        // The next round may be due already; it does not ask the same partner at once again.
        let next = self.round.iter().position(|entry| entry.fragment == own.fragment);
        let mut entry = next.map_or(own.entry, |index| self.round.remove(index));
        entry.proposals += 1;
        if entry.proposals < self.config.redraws_max + entry.left && !self.leaving {
            if failure == Failure::Busy && self.has_no_substitute(&own.partner, &entry, now) {
                entry.wait_until = Some(now + self.busy_wait(&own.partner));
            } else {
                entry.tried.push(own.partner);
            }
            self.round.push(entry);
        }
        self.begin_exchanges(now);
    }

    /// How long to leave a busy partner alone that nobody can take the place of: a drawn part of what
    /// an exchange takes it, so that peers that find each other busy with others do not ask at the
    /// same moments for ever.
    fn busy_wait(&mut self, partner: &PeerId) -> Duration {
        let measured = self.members.get(partner).and_then(|member| member.duration.mean());
        let exchange = measured.map_or(self.config.heartbeat, Duration::from_secs_f64);
        exchange.min(self.config.lease_max).mul_f64(self.rng.random())
    }

    /// The partner's own proposal for the same fragment has crossed ours and wins. The fragment waits
    /// for how that ends.
    pub(crate) fn withdraw(&mut self, sequence: u64) {
        let Some(own) = self.own.remove(&sequence) else {
            return;
        };
        let exchange = self.exchange_id(sequence);
        self.release(own.fragment, exchange);
        self.output(Output::Forget { exchange });
        self.round.retain(|entry| entry.fragment != own.fragment);
        self.round.push(own.entry);
    }

    pub(crate) fn withdraw_unaccepted(&mut self, now: Time) {
        let proposed: Vec<u64> = self
            .own
            .iter()
            .filter(|(_, own)| own.state == OwnState::Proposed)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in proposed {
            self.give_up(sequence, Failure::Lost, now);
        }
    }

    pub(crate) fn lose_own(&mut self, peer: PeerId, now: Time) {
        let lost: Vec<u64> = self
            .own
            .iter()
            .filter(|(_, own)| {
                own.partner == peer && !matches!(own.state, OwnState::Applying { .. })
            })
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in lost {
            self.give_up(sequence, Failure::Lost, now);
        }
    }

    /// A restarted peer has a new replica: nothing of its earlier life can be undone there.
    pub(crate) fn drop_aborting_of_earlier_life(&mut self, peer: PeerId, incarnation: u64) {
        let earlier =
            self.lives.insert(peer, incarnation).is_some_and(|known| known != incarnation);
        while self.lives.len() > crate::gossip::STRANGERS_MAX {
            self.lives.pop_first();
        }
        if earlier {
            self.aborting.retain(|_, aborting| aborting.partner != peer);
        }
    }
}
