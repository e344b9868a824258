//! The responder's end of an exchange: accept or decline, mix, journal, and undo when told.

mod taking_back;

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId, Time};

use super::answered::{Answered, AnsweredState};
use super::codec_choice::{coarser, on_measured, wanted};
use super::concurrency_limit::waits_for_steps;
use super::initiator::Initiator;
use super::neighbourhood::Neighbourhood;
use super::queue::Queue;
use super::sequences::Resolved;
use super::terms::{Agreed, Exchanged, Proposal, RETRIES_PER_LEASE};
use crate::context::{Context, Ending, ExchangeStep, Step};
use crate::rounds::Candidates;
use crate::staleness::{Staleness, lag_bound};
use crate::{Event, Failure, Output, RefusedMix, Role, Trust, Work};

/// Applied exchanges kept until the initiator's word; each keeps one fragment of numbers.
pub(crate) const JOURNAL_MAX: usize = 32;
/// Part of the room that others leave in the journal which one initiator may have. Five that never say how
/// exchanges have ended keep nobody else out.
const JOURNAL_PART: usize = 2;
/// Leases after which the initiator of an exchange has known for long how it has ended.
const OWED_LEASES: u32 = 2;

/// The exchanges that neighbours have proposed to this peer.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    answered: BTreeMap<ExchangeId, Answered>,
    /// Those that are over.
    resolved: Resolved,
    queue: Queue,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self { answered: BTreeMap::new(), resolved: Resolved::default(), queue: Queue::default() }
    }

    pub(super) fn open(&self) -> usize {
        self.answered.len()
    }

    /// Those that are in one of these states.
    fn count(&self, which: impl Fn(AnsweredState) -> bool) -> usize {
        self.answered.values().filter(|answered| which(answered.state)).count()
    }

    /// Those that hold a fragment.
    pub(super) fn holding(&self) -> usize {
        self.count(|state| matches!(state, AnsweredState::Accepted | AnsweredState::Mixing))
    }

    pub(super) fn contains(&self, exchange: &ExchangeId) -> bool {
        self.answered.contains_key(exchange)
    }

    pub(super) fn find(&self, exchange: &ExchangeId) -> Option<Exchanged> {
        let answered = self.answered.get(exchange)?;
        Some(answered.agreed.exchanged(exchange.initiator, answered.fragment))
    }

    pub(super) fn is_over(&self, exchange: &ExchangeId) -> bool {
        self.resolved.contains(exchange)
    }

    /// A neighbour proposes an exchange.
    pub(super) fn on_propose(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        initiator: &mut Initiator,
        proposal: Proposal,
    ) {
        let Proposal { from, exchange, fragment, .. } = proposal;
        let terms = &proposal.terms;
        if self.answered.contains_key(&exchange) {
            return self.on_propose_again(context, near, from, exchange);
        }
        if self.is_over(&exchange) {
            return;
        }
        let own = context.progress.clock();
        let (most, bound) = lag_bound(&context.config);
        // One that is far behind and proposes doubts this peer's clock, or has not heard it: it decides
        // when it does.
        near.membership.set_doubts(&from, own.ahead_of(terms.clock) > most);
        let far_ahead = terms.clock.ahead_of(own) > most;
        if far_ahead && !near.membership.meets_at_any_clock(context, &from) {
            context.event(Event::Refused { exchange, peer: from, bound });
            context.send(from, Message::Stale { exchange, clock: own });
            return context.then(Step::ConsiderCatchUp);
        }
        let crossing = initiator.crossing(context, fragment, from);
        let held = near.staleness.held_since().is_some();
        if !near.guard.meets_while(&from, near.rounds.begun(), held) {
            let left_out = near.guard.trust(&from) == Trust::LeftOut;
            let no =
                if left_out { Message::LeftOut { exchange } } else { Message::Busy { exchange } };
            return context.send(from, no);
        }
        if self.declines(context, near, (from, fragment)) {
            return context.send(from, Message::Busy { exchange });
        }
        let holder = context.leases.holder(fragment).filter(|_| crossing.is_none());
        if let Some(holder) = holder {
            let own = context.is_own(holder) && initiator.find(holder.sequence).is_some();
            let agreed = own || self.contains(&holder);
            return self.let_wait(context, near, (proposal, agreed));
        }
        if let Some(sequence) = crossing {
            initiator.yield_to_crossing(context, near, sequence);
        }
        self.accept(context, near, (proposal, crossing.is_some()));
    }

    /// Lets a proposal wait for its fragment if the exchange that holds it is agreed on, and there is room.
    fn let_wait(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        (proposal, agreed): (Proposal, bool),
    ) {
        let Proposal { from, exchange, .. } = proposal;
        let lease = near.membership.links().lease(&context.config, &from);
        let until = context.now + lease / RETRIES_PER_LEASE;
        if !agreed || !self.queue.push(&context.config, proposal, until) {
            context.send(from, Message::Busy { exchange });
        }
    }

    /// Accepts a proposal, which may have crossed an own one.
    fn accept(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        (proposal, crossed): (Proposal, bool),
    ) {
        let Proposal { from, exchange, fragment, terms } = proposal;
        let codec = coarser(terms.codec, wanted(context, near.membership, &from));
        let of = (from, fragment);
        let answered = Answered::accepted(context, near.membership, of, (terms, codec), crossed);
        context.leases.take(fragment, exchange);
        self.answered.insert(exchange, answered);
        near.rounds.interval_mut().on_accepted(context, fragment);
        context.output(Output::Expect { exchange, from, leg: Leg::Offer, fragment });
        self.send_accept(context, near.staleness, exchange);
    }

    /// Answers the proposals that have waited for a fragment that is free now.
    pub(super) fn answer_queued(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        initiator: &mut Initiator,
    ) {
        for proposal in self.queue.take_free(&context.leases) {
            let candidates = Candidates::new(near.membership, near.staleness, near.guard);
            if near.rounds.is_urgent(context, &candidates, proposal.fragment) {
                // The own proposal goes first, and waits for an answer itself.
                let Proposal { from, exchange, .. } = proposal;
                context.send(from, Message::Busy { exchange });
            } else {
                self.on_propose(context, near, initiator, proposal);
            }
        }
    }

    /// Whether a proposal of `from` is declined whatever else this peer has open on the fragment.
    fn declines(
        &self,
        context: &Context,
        near: &Neighbourhood<'_>,
        (from, fragment): (PeerId, FragmentId),
    ) -> bool {
        let config = &context.config;
        let declined = near.membership.links().declines(&from, context.now);
        let member = near.membership.get(&from);
        !member.is_some_and(|member| context.shares(member.stripe, fragment))
            || declined
            || context.progress.is_replacing()
            || context.progress.is_leaving()
            || self.count(|state| state != AnsweredState::Applied) >= config.answered_max
            || near.rounds.declines(context, fragment)
            || self.answered.len() >= JOURNAL_MAX
            || self.is_owed(context, near, from)
    }

    /// Whether too many exchanges of `from` are kept, or it owes its word on one that must have ended long ago. It
    /// is asked for that ([`Responder::ask_outcome`]).
    fn is_owed(&self, context: &Context, near: &Neighbourhood<'_>, from: PeerId) -> bool {
        let applied = |answered: &&Answered| answered.state == AnsweredState::Applied;
        let owed = self.answered.iter().filter(|(exchange, _)| exchange.initiator == from);
        let owed = owed.map(|(_, answered)| answered).filter(applied);
        let lease = near.membership.links().lease(&context.config, &from);
        let began = owed.map(|answered| answered.began).min();
        let own = self.answered.keys().filter(|exchange| exchange.initiator == from).count();
        let others = self.answered.len() - own;
        let most = (JOURNAL_MAX.saturating_sub(others) / JOURNAL_PART).max(1);
        began.is_some_and(|began| context.now.since(began) >= lease * OWED_LEASES) || own >= most
    }

    /// The initiator repeats its proposal: answer as before, with the numbers no sooner than it repeats that.
    fn on_propose_again(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        from: PeerId,
        exchange: ExchangeId,
    ) {
        let lease = near.membership.links().lease(&context.config, &from);
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        let (fragment, clock) = (answered.fragment, answered.offered.clock());
        match answered.state {
            AnsweredState::Accepted => self.send_accept(context, near.staleness, exchange),
            AnsweredState::Applied if context.now < answered.resend_at => {}
            AnsweredState::Applied => {
                answered.resend_at = context.now + lease / RETRIES_PER_LEASE / 2;
                let leg = Leg::Reply;
                context.output(Output::SendTensor { to: from, exchange, leg, fragment, clock });
            }
            AnsweredState::Mixing | AnsweredState::Undoing => {}
        }
    }

    /// Accepts an exchange; said again, it asks how that has ended.
    pub(crate) fn send_accept(
        &self,
        context: &mut Context,
        staleness: &Staleness,
        exchange: ExchangeId,
    ) {
        let Some(answered) = self.answered.get(&exchange) else {
            return;
        };
        let information = staleness.information(answered.fragment);
        let terms = answered.offered.terms(answered.agreed.codec, information);
        context.send(exchange.initiator, Message::Accept { exchange, terms });
    }

    /// The initiator's fragment has arrived.
    pub(crate) fn on_offer(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        (from, exchange): (PeerId, ExchangeId),
        clock: Clock,
    ) {
        let age = near.membership.heard_of(context, &from).ahead_of(clock);
        let answered = self.answered.get_mut(&exchange);
        let accepted = answered.filter(|a| a.state == AnsweredState::Accepted);
        let Some(answered) = accepted.filter(|_| exchange.initiator == from) else {
            return;
        };
        answered.state = AnsweredState::Mixing;
        let Agreed { weight, codec, .. } = answered.agreed;
        let fragment = answered.fragment;
        let codec = context.config.codec_of(fragment, codec);
        let tolerance = near.tolerance(context, answered.agreed.exchanged(from, fragment));
        if age > context.config.bounds.snapshot_age {
            return self.on_mix_refused(context, exchange, RefusedMix::TooOld);
        }
        // The responder reads and applies in one go, so its own half is never old (B2).
        let clock_max = Clock(u64::MAX);
        let role = Role::Responder;
        context.work(Work::Mix { exchange, fragment, role, weight, codec, clock_max, tolerance });
    }

    /// The trainer has mixed: the difference is kept until the initiator's word.
    pub(super) fn on_mixed(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        exchange: ExchangeId,
    ) {
        let peer = exchange.initiator;
        let lease = near.membership.links().lease(&context.config, &peer);
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        answered.state = AnsweredState::Applied;
        let is_over = context.now >= answered.deadline;
        let wait = if is_over { Duration::ZERO } else { lease / RETRIES_PER_LEASE };
        answered.resend_at = context.now + lease / RETRIES_PER_LEASE / 2;
        answered.retry_at = context.now + wait;
        answered.until = context.now + context.config.journal_window;
        let Agreed { information, weight, lag, .. } = answered.agreed.clone();
        let (fragment, crossed) = (answered.fragment, answered.crossed);
        let (clock, abort_wanted) = (answered.offered.clock(), answered.abort_wanted);
        near.staleness.contain(context, near.membership, fragment, &information);
        near.membership.links_mut().mixed(&peer);
        let role = Role::Responder;
        context.event(Event::Applied { exchange, fragment, peer, role, weight, lag, age: 0 });
        if abort_wanted {
            self.undo(context, exchange);
        } else {
            let candidates = Candidates::new(near.membership, near.staleness, near.guard);
            near.rounds.on_answered(context, &candidates, (fragment, peer), crossed);
            // This half is applied, so the next exchange of the fragment overlaps with nothing.
            context.leases.release(fragment, exchange);
            let leg = Leg::Reply;
            context.output(Output::SendTensor { to: peer, exchange, leg, fragment, clock });
            context.then(Step::Exchange(ExchangeStep::Propose));
        }
        context.then(Step::Limit);
    }

    /// The trainer has refused to mix.
    pub(super) fn on_mix_refused(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
        reason: RefusedMix,
    ) {
        self.end(context, exchange);
        context.then(Step::Exchange(ExchangeStep::MixRefused(exchange, reason)));
    }

    /// The initiator has applied its half.
    pub(super) fn on_ack(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        (from, exchange): (PeerId, ExchangeId),
        parallel: usize,
    ) {
        let Some(answered) = self.answered.get(&exchange).filter(|answered| {
            exchange.initiator == from && answered.state == AnsweredState::Applied
        }) else {
            return;
        };
        let (took, codec) = (context.now.since(answered.began), answered.agreed.codec);
        let fragment = answered.fragment;
        on_measured(context, near.membership.links_mut(), (&from, took), codec, parallel);
        let took = took.saturating_sub(waits_for_steps(context, near.membership, &from));
        let codec = context.config.codec_of(fragment, codec);
        near.rounds.interval_mut().on_answered(context, took, codec, parallel);
        self.end(context, exchange);
    }

    /// Nothing more will happen under this exchange at this end.
    fn end(&mut self, context: &mut Context, exchange: ExchangeId) {
        let Some(answered) = self.answered.remove(&exchange) else {
            return;
        };
        self.resolve(exchange);
        context.leases.release(answered.fragment, exchange);
        context.output(Output::Forget { exchange });
        context.then(Step::Exchange(ExchangeStep::Propose));
    }

    /// `exchange` of a neighbour is over: late duplicates never open it again.
    pub(crate) fn resolve(&mut self, exchange: ExchangeId) {
        let open = |peer: &PeerId| self.answered.keys().any(|other| other.initiator == *peer);
        self.resolved.insert(&exchange, open);
    }

    /// A restarted initiator knows nothing of what its earlier life proposed: stop asking it.
    pub(super) fn orphan(&mut self, context: &mut Context, peer: PeerId, incarnation: u64) {
        self.queue.forget(&peer);
        let orphans = self.answered.iter().filter(|(exchange, answered)| {
            exchange.initiator == peer
                && exchange.incarnation != incarnation
                && answered.state == AnsweredState::Applied
        });
        for (exchange, _) in orphans {
            context.then(Step::Exchange(ExchangeStep::EndAnswered(*exchange, Ending::Undecided)));
        }
    }

    /// The initiator is gone or silent: what it has proposed holds no fragment any longer.
    pub(super) fn lose(&mut self, context: &mut Context, peer: PeerId) {
        self.queue.forget(&peer);
        for (exchange, answered) in &mut self.answered {
            if exchange.initiator != peer {
                continue;
            }
            match answered.state {
                AnsweredState::Accepted => {
                    let ending = ExchangeStep::EndAnswered(*exchange, Ending::Lost);
                    context.then(Step::Exchange(ending));
                }
                AnsweredState::Mixing | AnsweredState::Applied => {
                    answered.deadline = answered.deadline.min(context.now);
                    answered.retry_at = answered.retry_at.min(context.now);
                }
                AnsweredState::Undoing => {}
            }
        }
    }

    /// Ends an exchange that both ends have not applied, for this reason.
    pub(super) fn end_so(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        exchange: ExchangeId,
        ending: Ending,
    ) {
        let peer = exchange.initiator;
        let failure = match ending {
            Ending::Lost => Some(Failure::Lost),
            Ending::Expired => Some(Failure::Expired),
            Ending::Undecided | Ending::Replaced => None,
        };
        if ending == Ending::Expired {
            let links = near.membership.links_mut();
            links.decline_for_a_lease(&context.config, peer, context.now);
            links.stalled(&context.config, peer, context.now);
        }
        if ending == Ending::Replaced {
            context.then(Step::Exchange(ExchangeStep::ConfirmAbort(exchange)));
        }
        context.event(match failure {
            Some(failure) => Event::Failed { exchange, peer, failure },
            None => Event::Undecided { exchange },
        });
        self.end(context, exchange);
    }

    pub(super) fn deadlines(&self, offer: &mut impl FnMut(Time, &'static str)) {
        self.queue.deadline().into_iter().for_each(|until| offer(until, "queue"));
        for answered in self.answered.values() {
            match answered.state {
                AnsweredState::Accepted => offer(answered.deadline, "lease"),
                AnsweredState::Applied => offer(answered.retry_at.min(answered.until), "journal"),
                AnsweredState::Mixing | AnsweredState::Undoing => {}
            }
        }
    }

    /// Asks for the exchanges that are due to be looked after.
    pub(crate) fn on_deadline(&mut self, context: &mut Context) {
        let now = context.now;
        for Proposal { from, exchange, .. } in self.queue.take_expired(now) {
            context.send(from, Message::Busy { exchange });
        }
        for (exchange, answered) in &self.answered {
            match answered.state {
                AnsweredState::Accepted if now >= answered.deadline => {
                    context.then(Step::Exchange(ExchangeStep::EndAnswered(
                        *exchange,
                        Ending::Expired,
                    )));
                }
                AnsweredState::Applied if now >= answered.retry_at.min(answered.until) => {
                    context.then(Step::Exchange(ExchangeStep::AskOutcome(*exchange)));
                }
                AnsweredState::Accepted
                | AnsweredState::Applied
                | AnsweredState::Mixing
                | AnsweredState::Undoing => {}
            }
        }
    }

    /// The initiator has not said whether it applied: ask, and stop asking at the end of the journal window.
    pub(crate) fn ask_outcome(
        &mut self,
        context: &mut Context,
        near: &Neighbourhood<'_>,
        exchange: ExchangeId,
    ) {
        let lease = near.membership.links().lease(&context.config, &exchange.initiator);
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        if context.now >= answered.until {
            context.event(Event::Undecided { exchange });
            return self.end(context, exchange);
        }
        answered.retry_at = context.now + lease / RETRIES_PER_LEASE;
        context.then(Step::Exchange(ExchangeStep::SendAccept(exchange)));
    }
}
