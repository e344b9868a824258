//! Exchanges: one fragment offered, sent and mixed between two peers, at either end.

mod aborts;
mod answered;
mod codec_choice;
mod concurrency_limit;
mod initiator;
mod neighbourhood;
mod own;
mod queue;
mod responder;
mod sequences;
mod terms;

use dnode_protocol::{Clock, ExchangeId, Message, PeerId, Time};

use crate::context::{Context, Ending, Step};
use crate::{Event, Offence, RefusedMix};
pub(crate) use aborts::ABORTING_MAX;
pub(crate) use codec_choice::SETTLING;
pub(crate) use concurrency_limit::ConcurrencyLimit;
use initiator::Initiator;
pub(crate) use neighbourhood::{Neighbourhood, is_slow, meeting};
pub(crate) use responder::JOURNAL_MAX;
pub(crate) use responder::Responder;
pub(crate) use terms::{Exchanged, Proposal};

/// The exchanges of this peer at both ends.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    initiator: Initiator,
    responder: Responder,
}

impl Exchange {
    pub(crate) fn new() -> Self {
        Self { initiator: Initiator::new(), responder: Responder::new() }
    }

    /// The initiator's end.
    pub(crate) const fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// The responder's end.
    pub(crate) const fn responder(&mut self) -> &mut Responder {
        &mut self.responder
    }

    /// Whether no own exchange is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.initiator.is_idle()
    }

    /// Exchanges that have not ended: own, answered without decision, aborting.
    pub(crate) fn open(&self) -> usize {
        self.initiator.open() + self.responder.open()
    }

    /// Own exchanges that have not ended, and answered ones that hold their fragment.
    pub(crate) fn open_at_each_end(&self) -> (usize, usize) {
        (self.initiator.own_open(), self.responder.holding())
    }

    /// Whether `exchange` has begun and not ended at this end.
    pub(crate) fn is_open(&self, context: &Context, exchange: ExchangeId) -> bool {
        let own = context.is_own(exchange) && self.initiator.contains(exchange.sequence);
        own || self.responder.contains(&exchange)
    }

    /// Whether `exchange` is one that a neighbour has proposed and that has not ended here.
    pub(crate) fn is_answered(&self, exchange: &ExchangeId) -> bool {
        self.responder.contains(exchange)
    }

    /// Whether `exchange` of a neighbour is over.
    pub(crate) fn is_over(&self, exchange: &ExchangeId) -> bool {
        self.responder.is_over(exchange)
    }

    /// The exchange, if it is open here.
    pub(crate) fn find(&self, context: &Context, exchange: ExchangeId) -> Option<Exchanged> {
        if exchange.initiator == context.me {
            self.initiator.find(exchange.sequence)
        } else {
            self.responder.find(&exchange)
        }
    }

    /// A neighbour proposes an exchange.
    pub(crate) fn on_propose(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        proposal: Proposal,
    ) {
        let Self { initiator, responder } = self;
        responder.on_propose(context, near, initiator, proposal);
    }

    /// Answers and proposes what waits for fragments that are free.
    pub(crate) fn go_on(&mut self, context: &mut Context, near: &mut Neighbourhood<'_>) {
        let Self { initiator, responder } = self;
        responder.answer_queued(context, near, initiator);
        initiator.propose_waiting(context, near);
    }

    /// The trainer has mixed.
    pub(crate) fn on_mixed(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        exchange: ExchangeId,
        clock: Clock,
    ) {
        if exchange.initiator == context.me {
            self.initiator.on_mixed(context, near, exchange, clock);
        } else {
            self.responder.on_mixed(context, near, exchange);
        }
    }

    /// The trainer has refused to mix.
    pub(crate) fn on_mix_refused(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        exchange: ExchangeId,
        reason: RefusedMix,
    ) {
        if exchange.initiator == context.me {
            self.initiator.on_mix_refused(context, near, exchange, reason);
        } else {
            self.responder.on_mix_refused(context, exchange, reason);
        }
    }

    /// The initiator has applied its half.
    pub(crate) fn on_ack(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        from: PeerId,
        exchange: ExchangeId,
    ) {
        let parallel = self.initiator.limit(context);
        self.responder.on_ack(context, near, (from, exchange), parallel);
    }

    /// Says what has come of an exchange that the trainer has refused to mix.
    pub(crate) fn tell_refused(context: &mut Context, exchange: ExchangeId, reason: RefusedMix) {
        let peer = exchange.initiator;
        context.send(peer, Message::Aborted { exchange });
        let failure = reason.into();
        context.event(Event::Failed { exchange, peer, failure });
        if reason == RefusedMix::BadParameters {
            context.then(Step::Offence(peer, Offence::BadParameters));
        }
    }

    /// A neighbour is gone or silent: nothing with it is waited for, and nothing that is open with it
    /// keeps a fragment.
    pub(crate) fn lose(&mut self, context: &mut Context, peer: PeerId) {
        self.initiator.lose(context, peer);
        self.responder.lose(context, peer);
    }

    /// A neighbour has begun anew: nothing of its earlier life can end well. Whether `earlier` there
    /// was one that this peer knows of.
    pub(crate) fn on_restart(
        &mut self,
        context: &mut Context,
        (peer, incarnation): (PeerId, u64),
        earlier: bool,
    ) {
        if earlier {
            self.initiator.drop_aborting(&peer);
        }
        self.responder.orphan(context, peer, incarnation);
    }

    /// Ends an answered exchange.
    pub(crate) fn end_answered(
        &mut self,
        context: &mut Context,
        near: &mut Neighbourhood<'_>,
        exchange: ExchangeId,
        ending: Ending,
    ) {
        self.responder.end_so(context, near, exchange, ending);
    }

    /// When something of them expires next, and why; offered one by one.
    pub(crate) fn deadlines(&self, offer: &mut impl FnMut(Time, &'static str)) {
        self.initiator.deadlines(offer);
        self.responder.deadlines(offer);
    }
}
