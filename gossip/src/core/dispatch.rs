//! Which part takes which input and which message.

use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Heartbeat, Message, PeerId, Phase, Stripe,
};

use super::Gossip;
use crate::context::Step;
use crate::delta_set::Span;
use crate::exchange::{Proposal, SETTLING};
use crate::membership::{is_absurd, names_absurd_clock};
use crate::staleness::{is_left_alone, lag_bound};
use crate::state_transfer::Snapshot;
use crate::{
    ContributionId, Failure, Input, Mixing, Offence, Output, RefusedMix, SnapshotContents, Trust,
};

impl Gossip {
    pub(super) fn on_input(&mut self, input: Input) {
        if let Input::PeerDown { peer } = input
            && self.on_watcher_down(&peer)
        {
            return;
        }
        let context = &mut self.context;
        match input {
            Input::PeerUp { peer, incarnation } => self.on_peer_up(peer, incarnation),
            Input::WatcherUp { peer } => self.on_watcher_up(peer),
            Input::PeerDown { peer } => {
                self.membership.lose(context, peer);
                self.on_peer_down(peer);
            }
            Input::Alarm { peer } => self.membership.on_alarm(context, peer),
            Input::Received { from, message } => self.on_received(from, message),
            Input::TensorReceived { from, exchange, leg, clock } => {
                self.on_tensor(from, exchange, leg, clock);
            }
            Input::Offence { peer, offence } => context.then(Step::Offence(peer, offence)),
            Input::SnapshotProgress { from } => {
                self.transfer.joiner().on_progress(context, &self.membership, from);
            }
            Input::FragmentRead { exchange, clock } => {
                self.exchange.initiator().on_read(context, &self.membership, exchange, clock);
            }
            Input::SnapshotRead { exchange, clock, hash } => {
                self.on_snapshot_read(exchange, clock, hash);
            }
            Input::Measured { exchange, evidence } => self.on_measured(exchange, evidence),
            Input::Mixed { exchange, clock } => self.on_mixed(exchange, clock),
            Input::MixRefused { exchange, reason } => self.on_mix_refused(exchange, reason),
            Input::Undone { exchange } => self.exchange.responder().on_undone(context, exchange),
            Input::Adopted { exchange } => self.on_adopted(exchange),
            Input::Untrained => context.progress.set_untrained(true),
            Input::Wait => context.progress.set_waiting(true),
            Input::Begin => {
                context.progress.set_waiting(false);
                self.membership.announce(context);
                context.then(Step::ConsiderCatchUp);
            }
            Input::RoundDue => self.on_round_due(),
            Input::Committed { clock, samples, position, step_time, batch } => {
                context.progress.set_samples(samples);
                context.progress.raise_position(position);
                context.progress.committed();
                context.progress.set_step(step_time, batch);
                self.on_commit(clock);
            }
            Input::StepMeasured { step_time, batch } => self.on_step_measured(step_time, batch),
            Input::CommitHeld => self.staleness.on_commit_held(context),
            Input::Finished => {
                context.progress.finish();
                self.membership.announce(context);
            }
            Input::Stripe(stripe) => self.on_stripe(stripe),
            Input::Leave => self.on_leave(),
            Input::Deadline => self.on_deadline(),
        }
    }

    fn on_received(&mut self, from: PeerId, message: Message) {
        if self.is_watched_by(&from) {
            return self.on_watcher(from, &message);
        }
        if self.membership.get(&from).is_none() {
            return;
        }
        self.membership.on_word(&mut self.context, from);
        self.settle();
        if names_absurd_clock(&message) {
            return self.context.then(Step::Offence(from, Offence::Garbage));
        }
        self.on_message(from, message);
    }

    fn on_message(&mut self, from: PeerId, message: Message) {
        let context = &mut self.context;
        match message {
            Message::Heartbeat(heartbeat) => self.on_heartbeat(from, &heartbeat),
            Message::Goodbye => {
                self.on_peer_down(from);
                self.membership.forget_lost(&from);
            }
            Message::Propose { exchange, fragment, terms } => {
                self.on_propose(Proposal { from, exchange, fragment, terms });
            }
            Message::Accept { exchange, terms } if context.is_own(exchange) => {
                self.on_clock(from, terms.clock);
                self.membership.on_let_in(&from);
                let (it, context, near) = self.exchanges();
                it.initiator().on_accept(context, &near, (from, exchange), terms);
            }
            Message::Snapshot { exchange, clock, hash, information, versions } => {
                self.on_clock(from, clock);
                let contents = SnapshotContents { clock, hash, information, versions };
                let parts = (&mut self.membership, &self.delta_set);
                let joiner = self.transfer.joiner();
                joiner.on_snapshot(&mut self.context, parts, (from, exchange), contents);
            }
            Message::Have { first, count, versions } => {
                let (members, span) = (&self.membership, Span { first, count });
                self.delta_set.on_have(context, members, from, (span, versions));
            }
            Message::Fetch { exchange, fragment, origin, number } => {
                let contribution = ContributionId { origin, number, fragment };
                self.delta_set.on_fetch(context, from, exchange, contribution);
            }
            Message::Rack { name, stripe } => self.on_rack(from, name, stripe),
            Message::Busy { exchange } => _ = self.on_busy(from, exchange),
            Message::LeftOut { exchange } => {
                // Else it answers nothing that this peer has asked.
                if self.on_busy(from, exchange) {
                    self.on_left_out(from);
                }
            }
            Message::Stale { exchange, clock } => self.on_stale(from, exchange, clock),
            Message::Ack { exchange } => {
                let (it, context, mut near) = self.exchanges();
                it.on_ack(context, &mut near, from, exchange);
            }
            Message::Abort { exchange } if exchange.initiator == from => {
                if !self.transfer.donor().withdraw(&exchange) {
                    self.exchange.responder().on_abort(context, from, exchange);
                }
            }
            Message::Aborted { exchange } => {
                self.exchange.initiator().on_aborted(context, from, exchange);
            }
            Message::Pull { exchange, fragment } => self.on_pull(from, exchange, fragment),
            Message::Probe { number, target } => {
                self.membership.on_probe(context, from, number, target);
            }
            Message::Alive { number, target } => {
                self.membership.on_alive(from, number, target, context.now);
            }
            Message::Hello { .. } | Message::Refuse { .. } => {
                context.then(Step::Offence(from, Offence::Garbage));
            }
            // An exchange of others; and what is for those who watch, and for the driver.
            Message::Accept { .. }
            | Message::Abort { .. }
            | Message::Summaries { .. }
            | Message::Revocations { .. }
            | Message::Part(_) => {}
        }
    }

    fn on_tensor(&mut self, from: PeerId, exchange: ExchangeId, leg: Leg, clock: Clock) {
        if is_absurd(clock) {
            return self.context.then(Step::Offence(from, Offence::Garbage));
        }
        self.membership.on_word(&mut self.context, from);
        self.settle();
        let name = (from, exchange);
        match leg {
            Leg::Contribution => {
                let links = self.membership.links_mut();
                self.delta_set.on_contribution(&mut self.context, links, name, clock);
            }
            Leg::Offer => {
                let (it, context, near) = self.exchanges();
                it.responder().on_offer(context, &near, name, clock);
            }
            Leg::Reply => {
                let (it, context, near) = self.exchanges();
                it.initiator().on_reply(context, &near, from, exchange);
            }
            Leg::Snapshot => {
                let parts = (&mut self.membership, &self.delta_set);
                self.transfer.joiner().on_numbers(&mut self.context, parts, name);
            }
            Leg::Ring => {}
        }
    }

    fn on_peer_up(&mut self, peer: PeerId, incarnation: u64) {
        if peer == self.context.me {
            return;
        }
        self.on_watcher_down(&peer);
        if let Some(member) = self.membership.get(&peer) {
            if member.incarnation == incarnation {
                return self.membership.on_peer_up_again(&peer, self.context.now);
            }
            self.on_peer_down(peer);
        }
        let context = &mut self.context;
        if !self.membership.has_room(context, peer) {
            return;
        }
        self.guard.here(&peer);
        let trust = self.guard.trust(&peer);
        let earlier = self.membership.on_peer_up(context, (peer, incarnation), trust);
        if earlier {
            let at = (context.progress.clock(), self.rounds.begun());
            self.guard.restarted(&peer, at);
        }
        self.exchange.on_restart(context, (peer, incarnation), earlier);
        self.settle();
        let context = &mut self.context;
        self.membership.greet(context, peer, incarnation);
        self.delta_set.on_peer_up(context, peer);
        self.membership.measure_first(context, peer);
        if let Some(message) = context.rack_message() {
            context.send(peer, message);
        }
        context.then(Step::Limit);
    }

    /// A neighbour names its clock.
    fn on_clock(&mut self, from: PeerId, clock: Clock) {
        let context = &mut self.context;
        let lacks = self.delta_set.lacks_too_much(context, &from);
        let news = self.membership.on_clock(context, (from, clock), lacks);
        self.staleness.on_clock(context, from, news);
        self.settle();
    }

    fn on_heartbeat(&mut self, from: PeerId, heartbeat: &Heartbeat) {
        let clock = heartbeat.clock;
        let first = self.membership.get(&from).is_some_and(|member| member.clock.is_none());
        let before = self.membership.on_heartbeat(&from, heartbeat);
        let changed = before.is_some_and(|before| before != heartbeat.phase);
        let joined = changed && before == Some(Phase::Joining);
        if joined {
            self.transfer.donor().dismiss(&from);
            let at = (self.context.progress.clock(), self.rounds.begun());
            // Who only connects again has not said that it has taken over a replica since.
            if !first || self.guard.trust(&from) == Trust::Trusted {
                self.guard.joined(from, at);
            }
            // The clock it inherited from its donors stands for no work of its own.
            self.staleness.track(from, clock);
        }
        self.on_clock(from, clock);
        let context = &mut self.context;
        // The first word of who has just connected says nothing of what it was before.
        if joined && !first && !self.membership.doubts(context, &from) {
            self.membership.on_advance(context, clock);
        }
        context.then(Step::Load);
        if changed {
            context.then(Step::Limit);
        }
        context.then(Step::ConsiderCatchUp);
    }

    fn on_propose(&mut self, proposal: Proposal) {
        let context = &self.context;
        let Proposal { from, exchange, fragment, ref terms } = proposal;
        let named_twice = self.transfer.is_served(&exchange);
        let broken = exchange.initiator != from || fragment.0 >= context.fragments || named_twice;
        let config = &context.config;
        // Who proposes may know before this peer does that both have done their last step.
        let allowed = terms.codec == SETTLING || config.codecs.contains(&terms.codec);
        if broken || !allowed || config.mixing == Mixing::Set {
            return self.context.then(Step::Offence(from, Offence::Garbage));
        }
        if context.progress.observes().is_some() {
            return self.context.send(from, Message::Busy { exchange });
        }
        self.on_clock(from, terms.clock);
        self.membership.on_let_in(&from);
        let (it, context, mut near) = self.exchanges();
        it.on_propose(context, &mut near, proposal);
    }

    fn on_pull(&mut self, from: PeerId, exchange: ExchangeId, fragment: FragmentId) {
        let context = &mut self.context;
        let named_twice = self.exchange.is_answered(&exchange);
        if exchange.initiator != from || fragment.0 >= context.fragments || named_twice {
            return context.then(Step::Offence(from, Offence::Garbage));
        }
        if !self.exchange.is_over(&exchange) && !self.transfer.is_served(&exchange) {
            self.transfer.donor().on_pull(context, from, exchange, fragment);
        }
    }

    /// Somebody cannot do what it was asked for. Whether that ends a proposal of this peer.
    fn on_busy(&mut self, from: PeerId, exchange: ExchangeId) -> bool {
        let (context, name) = (&mut self.context, (from, exchange));
        let taken = self.transfer.joiner().on_busy(context, from, exchange)
            || self.delta_set.on_declined(context, name, false);
        let ends = !taken && self.exchange.initiator().on_declined(context, name, Failure::Busy);
        if ends {
            self.membership.on_declined(context, from);
        }
        ends
    }

    fn on_stale(&mut self, from: PeerId, exchange: ExchangeId, clock: Clock) {
        self.on_clock(from, clock);
        self.membership.set_doubts(&from, false);
        let (context, name) = (&mut self.context, (from, exchange));
        if !self.delta_set.on_declined(context, name, true) {
            // It is of the same run, so the same bound refused at its end.
            let (_, bound) = lag_bound(&context.config);
            self.exchange.initiator().on_declined(context, name, Failure::Stale { bound });
        }
        context.then(Step::ConsiderCatchUp);
    }

    /// A neighbour says which stripe of the fragments it exchanges for its rack.
    fn on_rack(&mut self, from: PeerId, name: u64, stripe: Stripe) {
        let Some(before) = self.membership.on_rack(&from, name, stripe) else {
            return;
        };
        let clock = self.membership.get(&from).and_then(|member| member.clock);
        for fragment in self.context.gained(before, stripe) {
            self.staleness.raise(fragment, &from, clock.unwrap_or_default());
        }
        self.context.then(Step::Limit);
    }

    /// This peer is a rank of a rack from now on, or of none.
    fn on_stripe(&mut self, stripe: Stripe) {
        let context = &mut self.context;
        if stripe == context.stripe() {
            return;
        }
        let before = context.set_stripe(stripe);
        for fragment in context.gained(before, stripe) {
            // Its news were minded by the rank that owned it.
            let known = self.membership.members().iter();
            for (peer, clock) in known.filter_map(|(peer, member)| Some((peer, member.clock?))) {
                self.staleness.raise(fragment, peer, clock);
            }
        }
        self.rounds.keep_own(context);
        self.rounds.end_when_empty(context, self.exchange.is_idle());
        context.tell_rack();
        context.then(Step::Limit);
    }

    fn on_mixed(&mut self, exchange: ExchangeId, clock: Clock) {
        if self.delta_set.is_fetch(&self.context, exchange) {
            let context = &mut self.context;
            let included = self.delta_set.on_included(context, &self.membership, exchange);
            if let Some(it) = included {
                self.staleness.raise(it.fragment, &it.author, it.clock);
            }
        } else {
            let (it, context, mut near) = self.exchanges();
            it.on_mixed(context, &mut near, exchange, clock);
        }
    }

    fn on_mix_refused(&mut self, exchange: ExchangeId, reason: RefusedMix) {
        let context = &mut self.context;
        if self.delta_set.is_fetch(context, exchange) {
            self.delta_set.on_include_refused(context, exchange, reason);
        } else if self.transfer.is_pull(context, exchange) {
            self.transfer.joiner().on_adopt_refused(context, exchange, reason);
        } else {
            let (it, context, mut near) = self.exchanges();
            it.on_mix_refused(context, &mut near, exchange, reason);
        }
    }

    fn on_snapshot_read(&mut self, exchange: ExchangeId, clock: Clock, hash: ContentHash) {
        let (parts, snapshot) = ((&self.staleness, &self.delta_set), Snapshot { clock, hash });
        let donor = self.transfer.donor();
        if donor.on_read(&mut self.context, parts, exchange, snapshot) {
            // Read once: a second snapshot under one name could be taken for the first.
            self.exchange.responder().resolve(exchange);
        }
    }

    fn on_adopted(&mut self, exchange: ExchangeId) {
        let context = &mut self.context;
        let adopted = self.transfer.joiner().on_adopted(context, exchange);
        if let Some((fragment, contents)) = adopted {
            let information = &contents.information;
            self.staleness.contain(context, &self.membership, fragment, information);
            self.delta_set.set_versions(fragment, &contents.versions);
        }
    }

    fn on_round_due(&mut self) {
        self.rounds.on_round_due(self.context.now);
        if is_left_alone(&self.context, &self.membership) {
            self.context.then(Step::CatchUp);
            self.settle();
        }
        let context = &mut self.context;
        let progress = &context.progress;
        let set = context.config.mixing == Mixing::Set;
        if progress.is_replacing() || progress.is_leaving() || set {
            context.output(Output::RoundDone);
        } else {
            context.then(Step::Round);
        }
    }

    fn on_commit(&mut self, clock: Clock) {
        let context = &mut self.context;
        context.progress.raise(clock);
        self.staleness.on_clock_moved();
        self.membership.on_commit(context.progress.clock());
        self.staleness.raise_own(context);
        self.membership.announce(context);
        self.delta_set.on_commit(context, self.membership.members());
        context.then(Step::Load);
        context.then(Step::Limit);
    }

    fn on_step_measured(&mut self, step_time: Duration, batch: u32) {
        let context = &mut self.context;
        context.progress.set_step(step_time, batch);
        self.membership.announce(context);
        context.then(Step::Load);
    }

    fn on_leave(&mut self) {
        self.context.progress.leave();
        self.rounds.clear();
        self.exchange.initiator().withdraw(&mut self.context);
        self.settle();
        self.rounds.end_when_empty(&mut self.context, self.exchange.is_idle());
    }
}
