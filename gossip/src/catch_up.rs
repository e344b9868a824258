//! Joiners and laggards: replace the own replica by snapshots of the neighbours' fragments.

use std::collections::BTreeMap;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Information, Message, PeerId, Time, Versions};
use rand::RngExt;

use crate::gossip::Gossip;
use crate::{Event, Mixing, Offence, Output, Reading, RefusedMix, Work};

/// Snapshots asked for at a time, so that donors are loaded evenly.
pub(crate) const PULLS_OPEN_MAX: usize = 4;

/// A replica that is being replaced, fragment by fragment.
#[derive(Clone, Debug)]
pub(crate) struct CatchUp {
    /// Fragments not yet asked for.
    waiting: Vec<FragmentId>,
    /// Asked for, by sequence number.
    open: BTreeMap<u64, Pull>,
    /// Smallest snapshot clock so far: the clock that the replica will have.
    clock: Option<Clock>,
    /// When to ask again for what waits.
    pub(crate) retry_at: Time,
    /// Whether nobody is to wait for this peer meanwhile: its clock is far behind.
    pub(crate) joining: bool,
}

/// A snapshot that is being read for a joiner.
///
/// It stays until the trainer has read it, wanted or not, so that asking and withdrawing in turn
/// cannot pile up trainer work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    joiner: PeerId,
    fragment: FragmentId,
    pub(crate) wanted: bool,
}

#[derive(Clone, Debug)]
struct Pull {
    fragment: FragmentId,
    donor: PeerId,
    deadline: Time,
    /// What the donor has said that the snapshot contains.
    announced: Option<(Information, Versions)>,
    /// The clock of the snapshot, once it is here.
    arrived: Option<Clock>,
    /// The same, once it is being taken over.
    adopting: Option<Clock>,
}

impl CatchUp {
    /// When something of it expires next.
    pub(crate) fn next_deadline(&self) -> Time {
        let waiting = if self.waiting.is_empty() { Time::NEVER } else { self.retry_at };
        let pulls = self.open.values().filter(|pull| pull.adopting.is_none());
        pulls.map(|pull| pull.deadline).min().unwrap_or(Time::NEVER).min(waiting)
    }
}

impl Gossip {
    /// Starts to catch up when a neighbour in good standing is further ahead than B1 would let an
    /// active neighbour run: it has given up on this peer, or this peer has just joined.
    pub(crate) fn consider_catch_up(&mut self, now: Time) {
        if self.catch_up.is_some() || self.waiting || self.leaving || self.finished {
            return;
        }
        let gap = self.config.bounds.progress_gap;
        let ahead = self.donors().map(|(_, clock)| clock).max();
        let far = ahead.is_some_and(|clock| clock.ahead_of(self.clock) > gap + 1);
        if far && !self.advance(now) {
            self.begin_catch_up(now);
        }
    }

    /// Has the replica replaced by its neighbours'.
    pub(crate) fn begin_catch_up(&mut self, now: Time) {
        self.begin_replacing((0..self.fragments).rev().map(FragmentId).collect(), true, now);
    }

    /// Has these fragments replaced by the neighbours'; `joining` is whether nobody is to wait for
    /// this peer meanwhile.
    pub(crate) fn begin_replacing(&mut self, waiting: Vec<FragmentId>, joining: bool, now: Time) {
        if self.catch_up.is_some() || self.waiting || self.leaving {
            return;
        }
        let Some(target) = self.donors().map(|(_, clock)| clock).max() else {
            return;
        };
        self.drop_fetches();
        self.withdraw_unaccepted(now);
        self.catch_up =
            Some(CatchUp { waiting, open: BTreeMap::new(), clock: None, retry_at: now, joining });
        self.round.clear();
        self.end_round_when_empty();
        self.output(Output::Training { allowed: false });
        self.event(Event::CatchUpStarted { target });
        self.announce(now);
        self.pull_waiting(now);
    }

    /// Asks for the fragments that wait; donors are drawn among those near the newest clock.
    pub(crate) fn pull_waiting(&mut self, now: Time) {
        let gap = self.config.bounds.progress_gap;
        let newest = self.donors().map(|(_, clock)| clock).max().unwrap_or_default();
        let donors: Vec<PeerId> = self
            .donors()
            .filter(|(peer, clock)| {
                let back_off = self.members.get(peer).map(|member| member.back_off_until);
                newest.ahead_of(*clock) <= gap && back_off.is_some_and(|until| now >= until)
            })
            .map(|(peer, _)| peer)
            .collect();
        let retry_at = now + self.config.heartbeat;
        while let Some(catch_up) = self.catch_up.as_ref() {
            let free = |fragment: &FragmentId| {
                !self.leases.contains_key(fragment) && !self.is_adding(*fragment)
            };
            let full = catch_up.open.len() >= PULLS_OPEN_MAX || donors.is_empty();
            let index = catch_up.waiting.iter().rposition(free).filter(|_| !full);
            if let Some(catch_up) = self.catch_up.as_mut() {
                catch_up.retry_at = retry_at;
                let Some(index) = index else { break };
                let fragment = catch_up.waiting.remove(index);
                self.pull_from_one_of(&donors, fragment, now);
            }
        }
        self.finish_when_replaced(now);
    }

    /// Asks one of `donors`. Where replicas are sums of contributions it must be one whose fragment
    /// takes precedence; without any the own fragment stays.
    fn pull_from_one_of(&mut self, donors: &[PeerId], fragment: FragmentId, now: Time) {
        let preceding;
        let donors = if self.config.mixing == Mixing::Set {
            preceding = self.donors_of(fragment, now);
            &preceding
        } else {
            donors
        };
        let index = self.rng.random_range(0..donors.len().max(1));
        if let Some(donor) = donors.get(index) {
            self.pull(fragment, *donor, now);
        }
    }

    fn pull(&mut self, fragment: FragmentId, donor: PeerId, now: Time) {
        let sequence = self.take_sequence();
        let exchange = self.exchange_id(sequence);
        let deadline = now + self.lease(&donor);
        let (announced, arrived, adopting) = (None, None, None);
        let pull = Pull { fragment, donor, deadline, announced, arrived, adopting };
        if let Some(catch_up) = self.catch_up.as_mut() {
            catch_up.open.insert(sequence, pull);
        }
        self.leases.insert(fragment, exchange);
        self.output(Output::Expect { exchange, from: donor, leg: Leg::Snapshot, fragment });
        self.send(donor, Message::Pull { exchange, fragment }, now);
    }

    pub(crate) fn is_pull(&self, exchange: ExchangeId) -> bool {
        exchange == self.exchange_id(exchange.sequence)
            && self.catch_up.as_ref().is_some_and(|c| c.open.contains_key(&exchange.sequence))
    }

    fn open_pull(&mut self, from: PeerId, exchange: ExchangeId) -> Option<&mut Pull> {
        if exchange != self.exchange_id(exchange.sequence) {
            return None;
        }
        let open = &mut self.catch_up.as_mut()?.open;
        open.get_mut(&exchange.sequence).filter(|pull| pull.donor == from)
    }

    /// The donor says what the snapshot contains that it is about to send.
    pub(crate) fn snapshot_announced(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        (clock, information, versions): (Clock, Information, Versions),
        now: Time,
    ) {
        self.heard_clock(from, clock);
        if let Some(pull) = self.open_pull(from, exchange) {
            // Said twice, it may be about a later reading than the numbers that are here.
            pull.announced.get_or_insert((information, versions));
        }
        self.adopt_when_announced(exchange, now);
    }

    /// Whether `exchange` is one of our pulls; asks somebody else later.
    pub(crate) fn pull_refused(&mut self, from: PeerId, exchange: ExchangeId, now: Time) -> bool {
        if self.open_pull(from, exchange).is_none() {
            return false;
        }
        self.requeue_pull(exchange.sequence, now);
        true
    }

    pub(crate) fn snapshot_received(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        clock: Clock,
        now: Time,
    ) {
        let heard = self.heard_of(&from);
        let Some(pull) = self.open_pull(from, exchange).filter(|pull| pull.adopting.is_none())
        else {
            return;
        };
        // What it never told anybody but in this tensor does not count.
        let seen = clock.min(heard);
        pull.arrived.get_or_insert(seen);
        self.adopt_when_announced(exchange, now);
    }

    /// Takes the snapshot over. One that is a sum of contributions waits until its donor has said
    /// which: a replica that does not know what it contains would add it again.
    fn adopt_when_announced(&mut self, exchange: ExchangeId, now: Time) {
        let needed = self.config.mixing == Mixing::Set;
        let open = self.catch_up.as_ref().map(|catch_up| &catch_up.open);
        let Some(pull) = open.and_then(|open| open.get(&exchange.sequence)) else {
            return;
        };
        if pull.adopting.is_some() || pull.arrived.is_none() || needed && pull.announced.is_none() {
            return;
        }
        let versions = pull.announced.as_ref().map(|(_, versions)| versions);
        if needed && versions.is_some_and(|theirs| !self.takes_precedence(pull.fragment, theirs)) {
            return self.keep_own(exchange, now);
        }
        let open = self.catch_up.as_mut().map(|catch_up| &mut catch_up.open);
        let Some(pull) = open.and_then(|open| open.get_mut(&exchange.sequence)) else {
            return;
        };
        pull.adopting = pull.arrived;
        let fragment = pull.fragment;
        self.work(Work::Adopt { exchange, fragment });
    }

    /// The snapshot does not take precedence after all.
    fn keep_own(&mut self, exchange: ExchangeId, now: Time) {
        let open = self.catch_up.as_mut().map(|catch_up| &mut catch_up.open);
        if let Some(pull) = open.and_then(|open| open.remove(&exchange.sequence)) {
            self.release(pull.fragment, exchange);
            self.output(Output::Forget { exchange });
        }
        self.pull_waiting(now);
    }

    pub(crate) fn adopted(&mut self, exchange: ExchangeId, now: Time) {
        let Some(catch_up) = self.catch_up.as_mut() else {
            return;
        };
        let Some(pull) = catch_up.open.remove(&exchange.sequence) else {
            return;
        };
        let Some(clock) = pull.adopting else { return };
        catch_up.clock = Some(catch_up.clock.map_or(clock, |least| least.min(clock)));
        let (information, versions) = pull.announced.unwrap_or_default();
        self.contain(pull.fragment, &information);
        self.adopt_versions(pull.fragment, &versions);
        self.release(pull.fragment, exchange);
        self.output(Output::Forget { exchange });
        self.pull_waiting(now);
    }

    fn finish_when_replaced(&mut self, now: Time) {
        let done = |catch_up: &&CatchUp| catch_up.open.is_empty() && catch_up.waiting.is_empty();
        if let Some(catch_up) = self.catch_up.as_ref().filter(done) {
            self.finish_catch_up(catch_up.clock.unwrap_or(self.clock), now);
        }
    }

    /// The replica is replaced; who was far behind takes the newest clock believed, as a joiner
    /// inherits its donors'.
    ///
    /// The snapshots are as much older as the transfer took. Taking their clock instead would start
    /// the next catch-up at once whenever the transfer takes longer than the gap, and so for ever.
    fn finish_catch_up(&mut self, snapshots: Clock, now: Time) {
        let joining = self.catch_up.take().is_none_or(|catch_up| catch_up.joining);
        self.wants_commit = false;
        if joining {
            let newest = self.donors().map(|(_, clock)| clock).max().unwrap_or_default();
            self.clock = self.clock.max(snapshots).max(newest);
        }
        let (me, clock) = (self.me, self.clock);
        self.information.raise_all(&me, clock);
        self.output(Output::AdoptClock { clock, replaced: true });
        self.event(Event::CatchUpDone { clock });
        self.announce(now);
        self.resume(now);
        self.update_limit();
        if self.config.mixing != Mixing::Set {
            // Who is replaced every time before its round comes is too far behind for it then: it
            // would pass on nothing of what others give it, and with push-sum keep their masses. Now
            // it is near enough.
            self.begin_round(now);
        }
    }

    /// Trains on, once every fragment contains the own contributions again.
    fn resume(&mut self, now: Time) {
        self.resume_authorship(now);
        self.resuming = true;
        self.fetch_missing(now);
        self.train_when_whole();
    }

    /// A commit before the own contributions are back would number itself after what is missing.
    pub(crate) fn train_when_whole(&mut self) {
        if self.resuming && self.catch_up.is_none() && self.contains_own() {
            self.resuming = false;
            self.output(Output::Training { allowed: true });
        }
    }

    pub(crate) fn adopt_refused(&mut self, exchange: ExchangeId, reason: RefusedMix, now: Time) {
        let pull = self.catch_up.as_ref().and_then(|c| c.open.get(&exchange.sequence));
        let Some(donor) = pull.map(|pull| pull.donor) else {
            return;
        };
        self.requeue_pull(exchange.sequence, now);
        if reason == RefusedMix::BadParameters {
            self.offended(donor, Offence::BadParameters, now);
        }
    }

    fn requeue_pull(&mut self, sequence: u64, now: Time) {
        let exchange = self.exchange_id(sequence);
        let retry_at = now + self.config.heartbeat;
        let Some(catch_up) = self.catch_up.as_mut() else {
            return;
        };
        let Some(pull) = catch_up.open.remove(&sequence) else {
            return;
        };
        catch_up.waiting.push(pull.fragment);
        catch_up.retry_at = retry_at;
        self.release(pull.fragment, exchange);
        self.output(Output::Forget { exchange });
    }

    /// Asks others for what was asked of `peer`.
    pub(crate) fn requeue_pulls(&mut self, peer: PeerId, now: Time) {
        let open = self.catch_up.iter().flat_map(|catch_up| &catch_up.open);
        let lost: Vec<u64> = open
            .filter(|(_, pull)| pull.donor == peer && pull.adopting.is_none())
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in lost {
            self.requeue_pull(sequence, now);
        }
    }

    pub(crate) fn lose_pulls(&mut self, peer: PeerId, now: Time) {
        self.requeue_pulls(peer, now);
        let for_it = self.serving.values_mut().filter(|serving| serving.joiner == peer);
        for_it.for_each(|serving| serving.wanted = false);
        self.abandon_catch_up_when_alone(now);
    }

    /// Nobody is left to pull from: train on with what there is.
    pub(crate) fn abandon_catch_up_when_alone(&mut self, now: Time) {
        let stuck = self.catch_up.as_ref().is_some_and(|catch_up| catch_up.open.is_empty());
        if stuck && self.donors().next().is_none() {
            self.catch_up = None;
            let clock = self.clock;
            self.event(Event::CatchUpDone { clock });
            self.resume(now);
        }
    }

    pub(crate) fn pull_deadlines(&mut self, now: Time) {
        let open = self.catch_up.iter().flat_map(|catch_up| &catch_up.open);
        let late: Vec<(u64, PeerId)> = open
            .filter(|(_, pull)| pull.adopting.is_none() && now >= pull.deadline)
            .map(|(sequence, pull)| (*sequence, pull.donor))
            .collect();
        for (sequence, donor) in late {
            self.stalled(donor, now);
            let exchange = self.exchange_id(sequence);
            self.send(donor, Message::Abort { exchange }, now);
            self.requeue_pull(sequence, now);
        }
        if self.catch_up.as_ref().is_some_and(|catch_up| now >= catch_up.retry_at) {
            self.pull_waiting(now);
            self.abandon_catch_up_when_alone(now);
        }
    }

    /// A neighbour asks for a snapshot.
    pub(crate) fn pulled(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        fragment: FragmentId,
        now: Time,
    ) {
        let named_twice = self.answered.contains_key(&exchange);
        if exchange.initiator != from || fragment.0 >= self.fragments || named_twice {
            return self.offended(from, Offence::Garbage, now);
        }
        let resolved = self.resolved.get(&from);
        let served = resolved.is_some_and(|r| r.contains(exchange.incarnation, exchange.sequence));
        if served || self.serving.contains_key(&exchange) {
            return;
        }
        // A replica in the middle of being replaced is none, but of sums every fragment is one.
        let replaced = self.catch_up.is_some() && self.config.mixing != Mixing::Set;
        if self.serving.len() >= self.config.pulls_max || replaced || self.leaving {
            return self.send(from, Message::Busy { exchange }, now);
        }
        self.serving.insert(exchange, Serving { joiner: from, fragment, wanted: true });
        self.work(Work::Read { exchange, fragment, what: Reading::Snapshot });
    }

    /// The trainer has copied a fragment: for a joiner, or for an own exchange.
    pub(crate) fn fragment_read(&mut self, exchange: ExchangeId, clock: Clock, now: Time) {
        if exchange.initiator == self.me {
            return self.own_read(exchange, clock, now);
        }
        let serving = self.serving.remove(&exchange).filter(|serving| serving.wanted);
        // Read once: a second snapshot under one name could be taken for the first.
        self.mark_resolved(exchange);
        let Some(Serving { joiner: to, fragment, .. }) = serving else {
            return self.output(Output::Forget { exchange });
        };
        let (information, versions) = (self.information.of(fragment), self.sharing.of(fragment));
        self.send(to, Message::Snapshot { exchange, clock, information, versions }, now);
        self.output(Output::SendTensor { to, exchange, leg: Leg::Snapshot, fragment, clock });
        self.output(Output::Forget { exchange });
    }
}
