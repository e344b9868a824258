//! Everything that expires: heartbeats, leases, retries, aborts, journals, suspicion, the gate.

use dnode_protocol::{ExchangeId, Message, PeerId, Time};

use crate::exchange::{AnsweredState, OwnState};
use crate::gossip::Gossip;
use crate::initiate::RETRIES_PER_LEASE;
use crate::{Event, Failure};

impl Gossip {
    /// When to call [`Gossip::handle`] with [`crate::Input::Deadline`] next, and why.
    #[must_use]
    pub fn poll_deadline(&self) -> (Time, &'static str) {
        let mut next = (self.heartbeat_at, "heartbeat");
        let mut offer = |time: Time, why: &'static str| {
            if time < next.0 {
                next = (time, why);
            }
        };
        offer(self.watch_at, "silence");
        if let Some(time) = self.announce_at {
            offer(time, "announce the clock");
        }
        if let Some(end) = self.gate_ends() {
            offer(end, "gate");
        }
        offer(self.sharing.next_deadline(), "contributions");
        for own in self.own.values() {
            if matches!(own.state, OwnState::Proposed | OwnState::Offered { .. }) {
                offer(own.deadline.min(own.retry_at), "own exchange");
            }
        }
        for until in self.round.iter().filter_map(|entry| entry.wait_until) {
            offer(until, "busy partner");
        }
        for aborting in self.aborting.values() {
            offer(aborting.retry_at.min(aborting.until), "abort");
        }
        for answered in self.answered.values() {
            match answered.state {
                AnsweredState::Accepted => offer(answered.deadline, "lease"),
                AnsweredState::Applied => offer(answered.retry_at.min(answered.until), "journal"),
                AnsweredState::Mixing | AnsweredState::Undoing => {}
            }
        }
        if let Some(catch_up) = &self.catch_up {
            offer(catch_up.next_deadline(), "catch up");
        }
        next
    }

    pub(crate) fn deadline(&mut self, now: Time) {
        self.called(now.since(self.poll_deadline().0), now);
        if now >= self.heartbeat_at {
            self.was_punctual();
            self.heartbeat_at = now + self.config.heartbeat;
            self.send_heartbeats(now);
            self.measure_next(now);
            self.notice_split(now);
            self.tell_rack(now);
            self.seek_news(now);
            self.report_deadlines();
        }
        if now >= self.watch_at {
            self.watch(now);
        }
        if self.announce_at.is_some_and(|time| now >= time) {
            self.announce_at = None;
            self.announce(now);
        }
        if self.gate_ends().is_some_and(|end| now >= end) {
            self.gate_expired(now);
        }
        if self.round.iter().any(|entry| entry.wait_until.is_some_and(|until| now >= until)) {
            self.begin_exchanges(now);
        }
        self.own_deadlines(now);
        self.abort_deadlines(now);
        self.answered_deadlines(now);
        self.pull_deadlines(now);
        self.fetch_deadlines(now);
    }

    /// Tells all neighbours the own clock, at most once per `announce_min`.
    pub(crate) fn announce(&mut self, now: Time) {
        let next = self.announced + self.config.announce_min;
        if now < next {
            self.announce_at = Some(next);
            return;
        }
        self.announced = now;
        self.announce_at = None;
        self.tell_all(&Message::Heartbeat(self.heartbeat()), now);
    }

    /// Speaks to neighbours that have not heard of us for one heartbeat.
    fn send_heartbeats(&mut self, now: Time) {
        let silence = self.config.heartbeat / 2;
        let quiet =
            self.members.iter().filter(|(_, member)| now.since(member.last_sent) >= silence);
        let peers: Vec<PeerId> = quiet.map(|(peer, _)| *peer).collect();
        for peer in peers {
            let heartbeat = self.heartbeat();
            self.send(peer, Message::Heartbeat(heartbeat), now);
        }
    }

    fn own_deadlines(&mut self, now: Time) {
        let due: Vec<(u64, bool)> = self
            .own
            .iter()
            .filter(|(_, own)| matches!(own.state, OwnState::Proposed | OwnState::Offered { .. }))
            .filter(|(_, own)| now >= own.deadline.min(own.retry_at))
            .map(|(sequence, own)| (*sequence, now >= own.deadline))
            .collect();
        for (sequence, expired) in due {
            let Some(partner) = self.own.get(&sequence).map(|own| own.partner) else {
                continue;
            };
            if expired {
                self.stalled(partner, now);
                self.give_up(sequence, Failure::Expired, now);
                continue;
            }
            let interval = self.lease(&partner) / RETRIES_PER_LEASE;
            if let Some(own) = self.own.get_mut(&sequence) {
                own.retry_at = now + interval;
                own.reproposed = matches!(own.state, OwnState::Offered { .. });
            }
            self.send_propose(sequence, now);
        }
    }

    fn abort_deadlines(&mut self, now: Time) {
        let due: Vec<u64> = self
            .aborting
            .iter()
            .filter(|(_, aborting)| now >= aborting.retry_at.min(aborting.until))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in due {
            let exchange = self.exchange_id(sequence);
            let Some(aborting) = self.aborting.get(&sequence) else {
                continue;
            };
            let partner = aborting.partner;
            if now >= aborting.until {
                self.aborting.remove(&sequence);
                self.event(Event::Undecided { exchange });
                continue;
            }
            let interval = self.lease(&partner) / RETRIES_PER_LEASE;
            if let Some(aborting) = self.aborting.get_mut(&sequence) {
                aborting.retry_at = now + interval;
            }
            self.send(partner, Message::Abort { exchange }, now);
        }
    }

    fn answered_deadlines(&mut self, now: Time) {
        let due: Vec<(ExchangeId, AnsweredState)> = self
            .answered
            .iter()
            .filter(|(_, answered)| match answered.state {
                AnsweredState::Accepted => now >= answered.deadline,
                AnsweredState::Applied => now >= answered.retry_at.min(answered.until),
                AnsweredState::Mixing | AnsweredState::Undoing => false,
            })
            .map(|(exchange, answered)| (*exchange, answered.state))
            .collect();
        for (exchange, state) in due {
            if state == AnsweredState::Accepted {
                let (peer, failure) = (exchange.initiator, Failure::Expired);
                self.decline_for_a_lease(peer, now);
                self.stalled(peer, now);
                self.event(Event::Failed { exchange, peer, failure });
                self.end_answered(exchange, now);
            } else {
                self.ask_how_it_ended(exchange, now);
            }
        }
    }

    /// The initiator has not said whether it applied: ask, release the lease when it is over, and
    /// stop asking at the end of the journal window.
    fn ask_how_it_ended(&mut self, exchange: ExchangeId, now: Time) {
        let interval = self.lease(&exchange.initiator) / RETRIES_PER_LEASE;
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        if now >= answered.until {
            self.event(Event::Undecided { exchange });
            return self.end_answered(exchange, now);
        }
        answered.retry_at = now + interval;
        let (fragment, expired) = (answered.fragment, now >= answered.deadline);
        if expired {
            self.release(fragment, exchange);
            self.begin_exchanges(now);
        }
        self.send_accept(exchange, now);
    }
}
