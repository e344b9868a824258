//! What follows an input in other parts: steps, and what concerns several parts at once.

use dnode_protocol::{Clock, FragmentId, Heartbeat, Message, PeerId, Phase, Time};

use super::Gossip;
use crate::context::{ExchangeStep, Look, Replacing, Step};
use crate::exchange::Exchange;
use crate::membership::Membership;
use crate::rounds::Candidates;
use crate::staleness::{explained_gate, update_load};
use crate::state_transfer::Replaced;
use crate::{Event, Grounds, Mixing, Offence, Output, Policy};

impl Gossip {
    /// Takes the steps that were asked for, each with all that follows from it.
    pub(super) fn settle(&mut self) {
        for step in self.context.take_steps() {
            self.take(step);
            self.settle();
        }
    }

    /// Takes a step, without those that follow from it.
    pub(super) fn take(&mut self, step: Step) {
        let Self { context, membership, staleness, rounds, transfer, delta_set, guard, .. } = self;
        match step {
            Step::Retry(ended) => {
                let candidates = Candidates::new(membership, staleness, guard);
                rounds.on_ended(context, &candidates, ended);
            }
            Step::Round if context.progress.observes().is_some() => {}
            Step::Round => {
                rounds.begin(context, &Candidates::new(membership, staleness, guard));
            }
            Step::Limit => staleness.update_limit(context, membership, delta_set),
            Step::Load => update_load(context, membership.members()),
            Step::Offence(peer, offence) => self.on_offence(peer, offence),
            Step::ConsiderCatchUp => self.consider_catch_up(),
            Step::CatchUp => {
                let all = context.all_fragments().rev().collect();
                self.begin_replacing(all, Replacing::Replica);
            }
            Step::Replace(waiting) => self.begin_replacing(waiting, Replacing::Fragments),
            Step::Pull => transfer.joiner().pull_waiting(context, membership, delta_set),
            Step::AbandonWhenAlone => transfer.joiner().abandon_when_alone(context, membership),
            Step::Replaced(snapshots) => self.on_replaced(snapshots),
            Step::Resume => {
                delta_set.on_replaced(context);
                transfer.joiner().resume();
                context.then(Step::Fetch(FragmentId(0), false));
                context.then(Step::TrainWhenWhole);
            }
            Step::Fetch(first, looked) => {
                delta_set.fetch_missing(context, membership, first, looked);
            }
            Step::TrainWhenWhole => {
                transfer.joiner().train_when_whole(context, |c| delta_set.contains_own(c));
            }
            Step::Watch => {
                let held = staleness.held(context, membership, delta_set);
                membership.watch(context, held);
            }
            Step::Look(peer, look) => self.look(peer, look),
            Step::SeekNews => self.seek_news(),
            Step::GateExpired => self.on_gate_expired(),
            Step::Exchange(step) => self.take_of_exchange(step),
        }
    }

    /// Takes a step of the exchanges.
    fn take_of_exchange(&mut self, step: ExchangeStep) {
        let (it, context, mut near) = self.exchanges();
        match step {
            ExchangeStep::Propose => it.go_on(context, &mut near),
            ExchangeStep::GiveUp(sequence, failure) => {
                it.initiator().give_up(context, near.membership, sequence, failure);
            }
            ExchangeStep::OwnDue(sequence, expired) => {
                it.initiator().on_due(context, &mut near, sequence, expired);
            }
            ExchangeStep::EndAnswered(exchange, ending) => {
                it.end_answered(context, &mut near, exchange, ending);
            }
            ExchangeStep::Replacing(fragment) => it.responder().on_replacing(fragment),
            ExchangeStep::Replaced(fragment, whole) => {
                it.responder().on_replaced(context, fragment, whole);
            }
            ExchangeStep::Undo(exchange) => it.responder().undo(context, exchange),
            ExchangeStep::AskOutcome(exchange) => {
                it.responder().ask_outcome(context, &near, exchange);
            }
            ExchangeStep::SendAccept(exchange) => {
                it.responder().send_accept(context, near.staleness, exchange);
            }
            ExchangeStep::MixRefused(exchange, reason) => {
                Exchange::tell_refused(context, exchange, reason);
            }
            ExchangeStep::ConfirmAbort(exchange) => {
                context.send(exchange.initiator, Message::Aborted { exchange });
            }
            ExchangeStep::ConfirmUndo(exchange) => {
                context.event(Event::Undone { exchange });
                context.send(exchange.initiator, Message::Aborted { exchange });
            }
        }
    }

    /// A neighbour is gone: nothing is waited for of it.
    pub(super) fn on_peer_down(&mut self, peer: PeerId) {
        if !self.membership.on_peer_down(&mut self.context, &peer) {
            return;
        }
        self.staleness.forget(&peer);
        self.rounds.forget(&peer);
        self.delta_set.on_peer_down(&peer);
        self.guard.gone(&peer);
        self.context.event(Event::PeerDown(peer));
        self.exchange.lose(&mut self.context, peer);
        self.settle();
        self.transfer.lose(&mut self.context, &peer);
        self.settle();
        self.delta_set.lose(&mut self.context, peer);
        self.context.then(Step::Load);
        self.context.then(Step::Limit);
        self.settle();
    }

    /// A peer has broken the rules.
    fn on_offence(&mut self, peer: PeerId, offence: Offence) {
        let context = &mut self.context;
        let back_off = self.membership.on_offence(context, peer);
        if offence == Offence::BadParameters
            && context.config.guard
            && let Some(trust) = self.guard.unsound(peer, self.rounds.begun())
        {
            self.on_judged(peer, trust, Grounds::Unsound);
            self.settle();
        }
        Membership::disconnect(&mut self.context, peer, back_off, offence);
        self.on_peer_down(peer);
        // It may have been no neighbour.
        self.guard.gone(&peer);
        self.membership.forget_lost(&peer);
    }

    /// Does something about a silent neighbour.
    fn look(&mut self, peer: PeerId, look: Look) {
        self.membership.look(&mut self.context, peer, look);
        match look {
            Look::Ask | Look::AskHelpers => {}
            Look::Suspect => {
                self.exchange.lose(&mut self.context, peer);
                self.settle();
                self.transfer.joiner().requeue_of(&mut self.context, &peer);
                self.settle();
                self.delta_set.lose(&mut self.context, peer);
                self.context.then(Step::Load);
                self.context.then(Step::Limit);
            }
            Look::Forget => self.on_peer_down(peer),
        }
    }

    /// Starts to catch up when a neighbour in good standing is further ahead than B1 would let an
    /// active neighbour run: it has given up on this peer, or this peer has just joined. While this peer has
    /// done nothing, any lead is enough.
    fn consider_catch_up(&mut self) {
        let (context, progress) = (&self.context, &self.context.progress);
        if !progress.may_replace() || progress.is_finished() {
            return;
        }
        let (least, own) = (self.lead_to_catch_up(), progress.clock());
        let ahead = self.membership.newest(context);
        if let Some(newest) = ahead.filter(|clock| clock.ahead_of(own) >= least) {
            let keeps = context.config.mixing == Mixing::Set || progress.observes().is_some();
            if self.membership.partition().may_advance() && !keeps {
                self.advance(newest);
            } else {
                self.context.then(Step::CatchUp);
            }
        }
    }

    /// By how many commits another is ahead for this peer to catch up.
    fn lead_to_catch_up(&self) -> u64 {
        let context = &self.context;
        let mut heard = self.membership.members().heard();
        match context.progress.observes() {
            None if self.begins_behind() => 1,
            None => context.config.bounds.progress_gap + 2,
            // Their last model.
            Some(_) if heard.all(|(_, member)| member.phase == Phase::Finished) => 1,
            Some(every) => every,
        }
    }

    /// Whether this peer begins while others have moved far since the weights that all begin from. Those that
    /// begin together are not led by one of them; sums of contributions come together from any lead.
    fn begins_behind(&self) -> bool {
        let (context, membership) = (&self.context, &self.membership);
        let own = context.progress.clock();
        context.progress.is_untrained()
            && context.config.mixing == Mixing::Exchange
            && membership.donors(context).any(|(peer, clock)| {
                clock > own && membership.get(&peer).is_some_and(|member| member.had_begun)
            })
    }

    /// Takes over the clock of those ahead and keeps the model, because this peer merges. Whoever falls
    /// behind again after that pulls, as a straggler does.
    fn advance(&mut self, newest: Clock) {
        // Said first: the clock that follows stands for no work that others have to wait for.
        let heartbeat = self.context.progress.heartbeat();
        let joining = Heartbeat { phase: Phase::Joining, ..heartbeat };
        self.context.tell_all(&Message::Heartbeat(joining));
        let context = &mut self.context;
        context.progress.raise(self.membership.inherited(context, newest));
        self.staleness.on_clock_moved();
        self.staleness.raise_own(context);
        self.membership.on_merge(context);
        self.membership.adopt_clock(context, false);
        context.tell_all(&Message::Heartbeat(context.progress.heartbeat()));
        // What is proposed in their place is so at the new clock.
        self.exchange.initiator().withdraw(context);
        context.then(Step::Limit);
    }

    /// Has these fragments replaced by the neighbours'.
    fn begin_replacing(&mut self, waiting: Vec<FragmentId>, what: Replacing) {
        let paused =
            what == Replacing::Replica && self.transfer.joiner().is_paused(self.context.now);
        if !self.context.progress.may_replace() || paused {
            return;
        }
        let Some(target) = self.membership.newest(&self.context) else {
            return;
        };
        self.delta_set.drop_fetches(&mut self.context);
        // First, so that nothing is proposed in the place of what is withdrawn.
        self.transfer.joiner().begin(&mut self.context, waiting, what);
        self.exchange.initiator().withdraw(&mut self.context);
        self.settle();
        let context = &mut self.context;
        self.rounds.clear();
        self.rounds.end_when_empty(context, self.exchange.is_idle());
        context.output(Output::Training { allowed: false });
        context.event(Event::CatchUpStarted { target });
        self.membership.announce(context);
        context.then(Step::Pull);
    }

    /// The replica is replaced; who was far behind takes the newest clock that is borne out, as a
    /// joiner inherits its donors'.
    ///
    /// The snapshots are as much older as the transfer took. Taking their clock instead would start
    /// the next catch-up at once whenever the transfer takes longer than the gap, and so for ever.
    fn on_replaced(&mut self, snapshots: Option<Clock>) {
        let context = &mut self.context;
        let replaced = self.transfer.joiner().finish(context);
        context.progress.set_untrained(false);
        self.guard.replaced(snapshots.unwrap_or_else(|| context.progress.clock()));
        self.staleness.on_clock_moved();
        if let Some(Replaced { donors, asked }) = replaced {
            let snapshots = snapshots.unwrap_or_default();
            let clock = self.membership.inherited(context, snapshots);
            context.progress.raise(clock);
            self.membership.on_replaced(context);
            // By what this peer knew when it asked: a donor that says that its replica is older is on trial, too.
            if clock.ahead_of(snapshots.max(asked)) <= context.config.bounds.progress_gap {
                self.transfer.joiner().begin_trial(context, donors);
            }
        }
        self.staleness.raise_own(context);
        let clock = self.membership.adopt_clock(context, true);
        context.event(Event::CatchUpDone { clock });
        self.membership.announce(context);
        context.then(Step::Resume);
        context.then(Step::Limit);
        if context.config.mixing != Mixing::Set {
            // Who is replaced every time before its round comes is too far behind for it then, and
            // would pass on nothing of what others give it. Now it is near enough.
            context.then(Step::Round);
        }
    }

    /// Proposes what lacks news, or catches up, while a commit is held back.
    fn seek_news(&mut self) {
        let Self { context, membership, staleness, rounds, exchange, delta_set, guard, .. } = self;
        let idle = rounds.is_idle() && exchange.is_idle();
        let config = &context.config;
        let waits = config.policy != Policy::Drop && config.mixing != Mixing::Set;
        let Some(since) = staleness.held_since().filter(|_| idle && waits) else {
            return;
        };
        if context.now > since && staleness.is_cut_off(context, membership, delta_set) {
            return context.then(Step::CatchUp);
        }
        rounds.seek_news(context, &Candidates::new(membership, staleness, guard));
    }

    /// The gate time is over: whoever still holds up the commit no longer counts.
    fn on_gate_expired(&mut self) {
        self.staleness.end_hold();
        if self.staleness.is_cut_off(&self.context, &self.membership, &self.delta_set) {
            self.context.then(Step::CatchUp);
            self.settle();
            if self.context.progress.is_replacing() {
                return;
            }
        }
        let Self { context, membership, staleness, delta_set, .. } = self;
        staleness.demote_holders(context, membership, delta_set);
        context.then(Step::Limit);
        context.then(Step::ConsiderCatchUp);
    }

    /// When to call [`Gossip::handle`] with [`crate::Input::Deadline`] next, and why.
    #[must_use]
    pub fn poll_deadline(&self) -> (Time, &'static str) {
        let (heartbeat, silence, announcement) = self.membership.deadlines();
        let mut next = (heartbeat, "heartbeat");
        let mut offer = |time: Time, why: &'static str| {
            if time < next.0 {
                next = (time, why);
            }
        };
        offer(silence, "silence");
        offer(announcement.unwrap_or(Time::NEVER), "announce the clock");
        offer(self.staleness.gate_ends(&self.context).unwrap_or(Time::NEVER), "gate");
        offer(self.delta_set.next_deadline(), "contributions");
        self.exchange.deadlines(&mut offer);
        offer(self.rounds.next_wait().unwrap_or(Time::NEVER), "busy partner");
        offer(self.transfer.next_deadline().unwrap_or(Time::NEVER), "catch up");
        next
    }

    /// Everything that has expired, part by part.
    pub(super) fn on_deadline(&mut self) {
        let now = self.context.now;
        self.membership.on_call(now.since(self.poll_deadline().0), now);
        let (heartbeat, _, _) = self.membership.deadlines();
        if now >= heartbeat {
            self.on_heartbeat_due();
        }
        let (_, silence, _) = self.membership.deadlines();
        if now >= silence {
            self.follow(Step::Watch);
        }
        self.membership.announce_when_due(&mut self.context);
        if self.staleness.gate_ends(&self.context).is_some_and(|end| now >= end) {
            self.follow(Step::GateExpired);
        }
        if self.rounds.next_wait().is_some_and(|until| now >= until) {
            self.follow(Step::Exchange(ExchangeStep::Propose));
        }
        self.exchange.initiator().on_deadline(&mut self.context);
        self.settle();
        self.exchange.initiator().on_abort_deadline(&mut self.context, &self.membership);
        self.exchange.responder().on_deadline(&mut self.context);
        self.settle();
        self.transfer.joiner().on_deadline(&mut self.context, &mut self.membership);
        self.settle();
        self.delta_set.on_deadline(&mut self.context, &mut self.membership);
    }

    fn on_heartbeat_due(&mut self) {
        self.membership.on_heartbeat_due(&mut self.context);
        self.context.tell_rack();
        self.follow(Step::SeekNews);
        let reports = self.context.config.policy == Policy::DownWeight;
        let gate = reports.then(|| explained_gate(&self.context));
        self.membership.report_deadlines(&mut self.context, gate);
    }

    /// Takes one step and all that follows from it.
    fn follow(&mut self, step: Step) {
        self.take(step);
        self.settle();
    }
}
