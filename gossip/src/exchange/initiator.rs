//! The initiator's end of an exchange: propose, offer, apply or abort.

use std::collections::BTreeMap;

use dnode_protocol::frame::{Codec, Leg};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId, Terms, Time};

use super::aborts::Aborts;
use super::codec_choice::{SETTLING, on_measured};
use super::concurrency_limit::{ConcurrencyLimit, waits_for_steps};
use super::neighbourhood::Neighbourhood;
use super::own::{Own, OwnState};
use super::sequences::{REMEMBERED, Sequences};
use super::terms::{Agreed, Exchanged, RETRIES_PER_LEASE, TENSOR_RETRIES_PER_LEASE};
use crate::context::{Context, ExchangeStep, Step};
use crate::membership::Membership;
use crate::rounds::{EndedProposal, RoundFragment};
use crate::staleness::{Staleness, lag_bound};
use crate::{Event, Failure, Offence, Output, Reading, RefusedMix, Role, Work};

/// The exchanges that this peer has proposed, by sequence number.
#[derive(Clone, Debug)]
pub(crate) struct Initiator {
    own: BTreeMap<u64, Own>,
    /// How many of those there may be.
    concurrency: ConcurrencyLimit,
    /// Fragments the trainer still has to copy for own exchanges that have ended meanwhile. They
    /// count as open, so that partners that accept and withdraw cannot pile up trainer work.
    unwanted_reads: usize,
    applied: Sequences,
    aborts: Aborts,
}

impl Initiator {
    pub(super) fn new() -> Self {
        Self {
            own: BTreeMap::new(),
            concurrency: ConcurrencyLimit::new(),
            unwanted_reads: 0,
            applied: Sequences::default(),
            aborts: Aborts::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.own.is_empty()
    }

    pub(super) fn open(&self) -> usize {
        self.own.len() + self.aborts.open()
    }

    pub(super) fn own_open(&self) -> usize {
        self.own.len()
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.own.contains_key(&sequence)
    }

    /// The own exchange, if the partner has accepted it.
    pub(super) fn find(&self, sequence: u64) -> Option<Exchanged> {
        let own = self.own.get(&sequence)?;
        Some(own.agreed.as_ref()?.exchanged(own.partner, own.entry.fragment()))
    }

    /// Most own exchanges that may be open now.
    pub(super) fn limit(&self, context: &Context) -> usize {
        self.concurrency.limit(context.config.own_max)
    }

    /// Proposes exchanges for the fragments that wait, as far as leases and limits allow.
    pub(crate) fn propose_waiting(&mut self, context: &mut Context, near: &mut Neighbourhood<'_>) {
        if context.progress.is_leaving() || context.progress.is_replacing() {
            near.rounds.clear();
        }
        let mut waiting = near.rounds.take_waiting(context.now);
        let mut kept = Vec::new();
        while self.own.len() + self.unwanted_reads < self.limit(context) && !waiting.is_empty() {
            let entry = waiting.remove(0);
            if context.leases.is_taken(entry.fragment()) || entry.waits() {
                kept.push(entry);
                continue;
            }
            let one_is_idle = self.own.values().any(|own| own.asks_an_idle_one(near.membership));
            let candidates = near.candidates();
            if let Some(partner) = candidates.choose(context, near.rounds, &entry, one_is_idle) {
                self.propose(context, near, entry, partner);
            }
        }
        kept.append(&mut waiting);
        near.rounds.put_back(kept);
        near.rounds.end_when_empty(context, self.own.is_empty());
    }

    fn propose(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        entry: RoundFragment,
        partner: PeerId,
    ) {
        let sequence = context.take_sequence();
        let fragment = entry.fragment();
        let own = Own::proposed(context, near.membership, entry, partner);
        context.leases.take(fragment, context.exchange_id(sequence));
        self.own.insert(sequence, own);
        self.send_propose(context, near.staleness, sequence);
    }

    fn send_propose(&self, context: &mut Context, staleness: &Staleness, sequence: u64) {
        let Some(own) = self.own.get(&sequence) else {
            return;
        };
        let fragment = own.entry.fragment();
        let terms = own.offered.terms(own.codec, staleness.information(fragment));
        let exchange = context.exchange_id(sequence);
        context.send(own.partner, Message::Propose { exchange, fragment, terms });
    }

    /// The partner accepts, or asks how an exchange has ended.
    pub(crate) fn on_accept(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        (from, exchange): (PeerId, ExchangeId),
        terms: Terms,
    ) {
        let sequence = exchange.sequence;
        let Some(own) = self.own.get_mut(&sequence).filter(|own| own.partner == from) else {
            return self.on_accept_without_record(context, from, exchange);
        };
        match own.state {
            OwnState::Proposed => {
                own.round_trip = context.now.since(own.began);
                let (wanted, codec) = (own.codec, terms.codec);
                let agreed = own.offered.agree(&context.config, terms, codec);
                let (most, bound) = lag_bound(&context.config);
                if agreed.lag > most && !near.membership.meets_at_any_clock(context, &from) {
                    let failure = Failure::Stale { bound };
                    return self.give_up(context, near.membership, sequence, failure);
                }
                // That of the last exchanges need not be among those of the run.
                let known = codec == SETTLING || context.config.codecs.contains(&codec);
                let coarser = codec.bits_per_element() < wanted.bits_per_element() && known;
                if codec != wanted && !coarser {
                    self.give_up(context, near.membership, sequence, Failure::Lost);
                    return context.then(Step::Offence(from, Offence::Garbage));
                }
                self.read(context, sequence, agreed);
            }
            OwnState::Offered { snapshot: clock } if own.reproposed => {
                // The partner has not seen the offer: say it again, once per repeated proposal.
                own.reproposed = false;
                let (fragment, leg) = (own.entry.fragment(), Leg::Offer);
                context.output(Output::SendTensor { to: from, exchange, leg, fragment, clock });
            }
            OwnState::Offered { .. } | OwnState::Reading | OwnState::Applying { .. } => {}
        }
    }

    /// The partner grants the lease: have the fragment copied.
    fn read(&mut self, context: &mut Context, sequence: u64, agreed: Agreed) {
        let exchange = context.exchange_id(sequence);
        let Some(own) = self.own.get_mut(&sequence) else {
            return;
        };
        let fragment = own.entry.fragment();
        let codec = context.config.codec_of(fragment, agreed.codec);
        own.agreed = Some(agreed);
        own.state = OwnState::Reading;
        context.work(Work::Read { exchange, fragment, what: Reading::Offer(codec) });
    }

    /// The partner asks how an exchange ended, or accepts one that was withdrawn.
    fn on_accept_without_record(&self, context: &mut Context, from: PeerId, exchange: ExchangeId) {
        let (sequence, next) = (exchange.sequence, context.next_sequence());
        if self.applied.contains(sequence) {
            context.send(from, Message::Ack { exchange });
        } else if sequence < next && next - sequence <= REMEMBERED {
            context.send(from, Message::Abort { exchange });
        }
    }

    /// The trainer has copied the fragment.
    pub(crate) fn on_read(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        exchange: ExchangeId,
        clock: Clock,
    ) {
        let Some(own) = self.own.get_mut(&exchange.sequence) else {
            context.output(Output::Forget { exchange });
            self.unwanted_reads = self.unwanted_reads.saturating_sub(1);
            return context.then(Step::Exchange(ExchangeStep::Propose));
        };
        if own.state != OwnState::Reading {
            return;
        }
        own.state = OwnState::Offered { snapshot: clock };
        // Tensors take most of the time that an exchange takes, and are sent again only when they must be lost.
        let lease = membership.links().lease(&context.config, &own.partner);
        own.retry_at = context.now + lease / TENSOR_RETRIES_PER_LEASE;
        let (to, fragment) = (own.partner, own.entry.fragment());
        context.output(Output::Expect { exchange, from: to, leg: Leg::Reply, fragment });
        context.output(Output::SendTensor { to, exchange, leg: Leg::Offer, fragment, clock });
    }

    /// The partner's difference has arrived.
    pub(crate) fn on_reply(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        from: PeerId,
        exchange: ExchangeId,
    ) {
        let snapshot_age = context.config.bounds.snapshot_age;
        let own = self.own.get_mut(&exchange.sequence);
        let Some(own) = own.filter(|own| own.partner == from && exchange.initiator == context.me)
        else {
            return;
        };
        let OwnState::Offered { snapshot } = own.state else {
            return;
        };
        own.state = OwnState::Applying { snapshot };
        let fragment = own.entry.fragment();
        let Some(agreed) = &own.agreed else {
            return;
        };
        let weight = agreed.weight;
        let codec = context.config.codec_of(fragment, agreed.codec);
        let (role, clock_max) = (Role::Initiator, snapshot.plus(snapshot_age));
        let tolerance = near.tolerance(context, agreed.exchanged(from, fragment));
        context.work(Work::Mix { exchange, fragment, role, weight, codec, clock_max, tolerance });
    }

    /// Learns from an own exchange that has ended well and is no longer open.
    fn learn(&mut self, context: &Context, near: &mut Neighbourhood<'_>, own: &Own, codec: Codec) {
        let took = context.now.since(own.began);
        let (limit, links) = (self.limit(context), near.membership.links_mut());
        on_measured(context, links, (&own.partner, took), codec, limit);
        let waits = waits_for_steps(context, near.membership, &own.partner);
        self.concurrency.on_exchanged(context.config.own_max, (took, waits), self.own.len());
        let (limit, took) = (self.limit(context), took.saturating_sub(waits + own.round_trip));
        let codec = context.config.codec_of(own.entry.fragment(), codec);
        near.rounds.interval_mut().on_exchanged(context, (took, own.round_trip), codec, limit);
    }

    /// The trainer has applied the partner's difference.
    pub(super) fn on_mixed(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        exchange: ExchangeId,
        clock: Clock,
    ) {
        let Some(own) = self.close(context, exchange.sequence) else {
            return;
        };
        let (fragment, peer) = (own.entry.fragment(), own.partner);
        self.applied.insert(exchange.sequence);
        context.send(peer, Message::Ack { exchange });
        near.rounds.on_exchanged(context, fragment, peer);
        let codec = own.agreed.as_ref().map_or(own.codec, |agreed| agreed.codec);
        self.learn(context, near, &own, codec);
        if let (Some(agreed), OwnState::Applying { snapshot }) = (own.agreed, own.state) {
            near.staleness.contain(context, near.membership, fragment, &agreed.information);
            context.event(Event::Applied {
                exchange,
                fragment,
                peer,
                role: Role::Initiator,
                weight: agreed.weight,
                lag: agreed.lag,
                age: clock.ahead_of(snapshot),
            });
        }
        context.then(Step::Limit);
        context.then(Step::Exchange(ExchangeStep::Propose));
    }

    /// The trainer has refused the partner's difference.
    pub(super) fn on_mix_refused(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        exchange: ExchangeId,
        reason: RefusedMix,
    ) {
        let Some(partner) = self.own.get(&exchange.sequence).map(|own| own.partner) else {
            return;
        };
        let failure = reason.into();
        self.give_up(context, near.membership, exchange.sequence, failure);
        if failure == Failure::BadParameters {
            context.then(Step::Offence(partner, Offence::BadParameters));
        }
    }

    /// The partner declines. Whether there was a proposal to decline.
    pub(crate) fn on_declined(
        &mut self,
        context: &mut Context,
        (from, exchange): (PeerId, ExchangeId),
        failure: Failure,
    ) -> bool {
        let own = self.own.get(&exchange.sequence).filter(|_| context.is_own(exchange));
        let declines =
            own.is_some_and(|own| own.partner == from && own.state == OwnState::Proposed);
        if declines {
            self.end(context, exchange.sequence, failure);
        }
        declines
    }

    /// The partner confirms that it will never have applied the exchange.
    pub(crate) fn on_aborted(&mut self, context: &mut Context, from: PeerId, exchange: ExchangeId) {
        if !context.is_own(exchange) {
            return;
        }
        let sequence = exchange.sequence;
        if self.aborts.on_aborted(sequence, from) {
            return;
        }
        if self.own.get(&sequence).is_some_and(|own| own.partner == from && !own.is_applying()) {
            self.end(context, sequence, Failure::Lost);
        }
    }

    /// Ends an own exchange that is not applied; tells the partner when it may have applied.
    pub(crate) fn give_up(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        sequence: u64,
        failure: Failure,
    ) {
        let Some(own) = self.own.get(&sequence) else {
            return;
        };
        let (partner, exchange) = (own.partner, context.exchange_id(sequence));
        if own.is_offered() {
            self.aborts.begin(context, membership.links(), sequence, partner);
        }
        context.send(partner, Message::Abort { exchange });
        self.end(context, sequence, failure);
    }

    /// Nothing more happens under an own exchange.
    fn close(&mut self, context: &mut Context, sequence: u64) -> Option<Own> {
        let own = self.own.remove(&sequence)?;
        let exchange = context.exchange_id(sequence);
        context.leases.release(own.entry.fragment(), exchange);
        context.output(Output::Forget { exchange });
        Some(own)
    }

    /// Forgets an own exchange and lets the fragment try another partner in this round.
    fn end(&mut self, context: &mut Context, sequence: u64, failure: Failure) {
        let Some(own) = self.close(context, sequence) else {
            return;
        };
        if own.state == OwnState::Reading {
            self.unwanted_reads += 1;
        }
        let exchange = context.exchange_id(sequence);
        context.event(Event::Failed { exchange, peer: own.partner, failure });
        let (entry, partner) = (own.entry, own.partner);
        context.then(Step::Retry(EndedProposal { entry, partner, failure }));
    }

    /// The own proposal of the fragment that `exchange` of `from` names as well, when the two have
    /// crossed and the own one yields: the lower peer id wins, so that two peers never refuse each
    /// other for ever.
    pub(super) fn crossing(
        &self,
        context: &Context,
        fragment: FragmentId,
        from: PeerId,
    ) -> Option<u64> {
        let crossing = self.own.iter().find(|(_, own)| own.is_proposed(fragment, from));
        crossing.filter(|_| from < context.me).map(|(sequence, _)| *sequence)
    }

    /// The partner's own proposal for the same fragment has crossed ours and wins.
    pub(super) fn yield_to_crossing(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        sequence: u64,
    ) {
        if let Some(own) = self.close(context, sequence) {
            near.rounds.on_withdrawn(own.entry);
        }
    }

    /// Withdraws the proposals that nobody has accepted.
    pub(crate) fn withdraw(&self, context: &mut Context) {
        self.give_up_where(context, |own| own.state == OwnState::Proposed);
    }

    /// A neighbour is gone or silent.
    pub(super) fn lose(&self, context: &mut Context, peer: PeerId) {
        self.give_up_where(context, |own| own.partner == peer && !own.is_applying());
    }

    fn give_up_where(&self, context: &mut Context, which: impl Fn(&Own) -> bool) {
        for (sequence, _) in self.own.iter().filter(|(_, own)| which(own)) {
            context.then(Step::Exchange(ExchangeStep::GiveUp(*sequence, Failure::Lost)));
        }
    }

    /// A restarted peer has a new replica: nothing of its earlier life can be undone there.
    pub(super) fn drop_aborting(&mut self, peer: &PeerId) {
        self.aborts.forget(peer);
    }

    pub(super) fn deadlines(&self, offer: &mut impl FnMut(Time, &'static str)) {
        for own in self.own.values().filter(|own| own.expires()) {
            offer(own.deadline.min(own.retry_at), "own exchange");
        }
        self.aborts.deadlines(offer);
    }

    /// Asks for the exchanges that are due to be looked after.
    pub(crate) fn on_deadline(&self, context: &mut Context) {
        for (sequence, own) in self.own.iter().filter(|(_, own)| own.expires()) {
            if context.now >= own.deadline.min(own.retry_at) {
                context.then(Step::Exchange(ExchangeStep::OwnDue(
                    *sequence,
                    context.now >= own.deadline,
                )));
            }
        }
    }

    /// An own exchange is due: repeats its proposal, or gives it up when its lease has expired.
    pub(crate) fn on_due(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        sequence: u64,
        expired: bool,
    ) {
        let Some(partner) = self.own.get(&sequence).map(|own| own.partner) else {
            return;
        };
        if expired {
            near.membership.links_mut().stalled(&context.config, partner, context.now);
            return self.give_up(context, near.membership, sequence, Failure::Expired);
        }
        let lease = near.membership.links().lease(&context.config, &partner);
        if let Some(own) = self.own.get_mut(&sequence) {
            own.reproposed = matches!(own.state, OwnState::Offered { .. });
            let retries = if own.reproposed { TENSOR_RETRIES_PER_LEASE } else { RETRIES_PER_LEASE };
            own.retry_at = context.now + lease / retries;
        }
        self.send_propose(context, near.staleness, sequence);
    }

    /// Repeats the aborts that are due, and ends those whose time is over.
    pub(crate) fn on_abort_deadline(&mut self, context: &mut Context, membership: &Membership) {
        self.aborts.on_deadline(context, membership.links());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::rounds::{Candidates, Rounds};
    use crate::testing::peer;
    use crate::{Config, Trust};

    #[test]
    fn a_waiting_fragment_is_proposed_once_and_giving_up_frees_it() {
        let mut context = Context::alone(Config::default());
        let mut membership = Membership::new(&context);
        let (mut staleness, mut rounds) = (Staleness::new(&context), Rounds::default());
        let (guard, mut initiator) = (Guard::new(&context.config), Initiator::new());
        membership.on_peer_up(&mut context, (peer(1), 1), Trust::Trusted);
        membership.on_heartbeat(&peer(1), &context.progress.heartbeat());
        membership.on_clock(&mut context, (peer(1), Clock(0)), false);
        rounds.begin(&mut context, &Candidates::new(&membership, &staleness, &guard));
        let (membership, staleness, rounds) = (&mut membership, &mut staleness, &mut rounds);
        let mut near = Neighbourhood { membership, staleness, rounds, guard: &guard };
        for _ in 0..2 {
            initiator.propose_waiting(&mut context, &mut near);
        }
        assert!(context.leases.is_taken(FragmentId(0)) && initiator.open() == 1);
        assert!(matches!(context.said()[..], [Output::Send { .. }]));
        context.take_steps();
        initiator.give_up(&mut context, near.membership, 0, Failure::Expired);
        assert!(!context.leases.is_taken(FragmentId(0)) && initiator.is_idle());
        assert!(matches!(context.take_steps()[..], [Step::Retry(_)]));
    }
}
