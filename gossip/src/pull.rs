//! Snapshots that a joiner pulls: of whom, how many at a time, and what they must be to be adopted.

use dnode_protocol::frame::Leg;
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Information, Message, PeerId, Time, Versions,
};
use rand::RngExt;

use crate::gossip::Gossip;
use crate::{Mixing, Offence, Output, RefusedMix, Work};

/// What a donor says of a snapshot before it sends the numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotContents {
    /// Its clock when it read them.
    pub clock: Clock,
    /// Of their bytes.
    pub hash: ContentHash,
    /// The newest commits that they contain.
    pub information: Information,
    /// The contributions that they contain; empty but for sums of contributions.
    pub versions: Versions,
}

#[derive(Clone, Debug)]
pub(crate) struct Pull {
    pub(crate) fragment: FragmentId,
    pub(crate) donor: PeerId,
    pub(crate) asked: Time,
    /// Put off by every part that comes from the donor.
    pub(crate) deadline: Time,
    /// A snapshot of an earlier clock is not recent: further behind the newest clock that was known
    /// when it was asked for than B1 lets an active neighbour be.
    pub(crate) oldest: Clock,
    /// What the donor has said of the snapshot.
    pub(crate) announced: Option<SnapshotContents>,
    /// When the numbers came.
    pub(crate) arrived: Option<Time>,
    /// Whether it is being taken over.
    pub(crate) adopting: bool,
}

impl Gossip {
    /// Asks for the fragments that wait, as many at a time as the links carry.
    pub(crate) fn pull_waiting(&mut self, now: Time) {
        let newest = self.donors().map(|(_, clock)| clock).max().unwrap_or_default();
        let donors = self.free_donors(newest, now);
        let retry_at = now + self.config.heartbeat;
        let most = self.config.pulls_open_max;
        while let Some(catch_up) = self.catch_up.as_ref() {
            let free = |fragment: &FragmentId| {
                !self.leases.contains_key(fragment) && !self.is_adding(*fragment)
            };
            let full = catch_up.open.len() >= catch_up.window.limit(most) || donors.is_empty();
            let index = catch_up.waiting.iter().rposition(free).filter(|_| !full);
            if let Some(catch_up) = self.catch_up.as_mut() {
                catch_up.retry_at = retry_at;
                let Some(index) = index else { break };
                let fragment = catch_up.waiting.remove(index);
                if self.recall(fragment, newest, now) {
                    continue;
                }
                if !self.pull_from_one_of(&donors, (fragment, newest), now) {
                    self.put_back(fragment);
                    break;
                }
            }
        }
        self.finish_when_replaced(now);
    }

    /// Donors near the newest clock that have not said that they are busy.
    fn free_donors(&self, newest: Clock, now: Time) -> Vec<PeerId> {
        let gap = self.config.bounds.progress_gap;
        let near = self.donors().filter(|(_, clock)| newest.ahead_of(*clock) <= gap);
        near.map(|(peer, _)| peer).filter(|peer| self.is_free(peer, now)).collect()
    }

    fn is_free(&self, donor: &PeerId, now: Time) -> bool {
        let back_off = self.members.get(donor).map(|member| member.back_off_until);
        let busy = self.catch_up.as_ref().and_then(|catch_up| catch_up.busy.get(donor));
        back_off.is_some_and(|until| now >= until) && busy.is_none_or(|until| now >= *until)
    }

    /// Asks the one of `donors` that is asked for least, so that all give what their links carry.
    /// Where replicas are sums of contributions it must be one whose fragment takes precedence;
    /// without any the own fragment stays. False when all of those are busy.
    fn pull_from_one_of(
        &mut self,
        donors: &[PeerId],
        (fragment, newest): (FragmentId, Clock),
        now: Time,
    ) -> bool {
        let sums = self.config.mixing == Mixing::Set;
        let mut donors = if sums { self.donors_of(fragment, now) } else { donors.to_vec() };
        let replaces = !donors.is_empty();
        donors.retain(|donor| self.is_free(donor, now));
        let open = |donor: &PeerId| {
            let pulls = self.catch_up.iter().flat_map(|catch_up| catch_up.open.values());
            pulls.filter(|pull| pull.donor == *donor).count()
        };
        let least = donors.iter().map(open).min();
        donors.retain(|donor| Some(open(donor)) == least);
        let index = self.rng.random_range(0..donors.len().max(1));
        if let Some(donor) = donors.get(index) {
            let gap = if sums { newest.0 } else { self.config.bounds.progress_gap };
            self.pull(fragment, *donor, Clock(newest.0.saturating_sub(gap)), now);
        }
        index < donors.len() || !replaces
    }

    fn pull(&mut self, fragment: FragmentId, donor: PeerId, oldest: Clock, now: Time) {
        let sequence = self.take_sequence();
        let exchange = self.exchange_id(sequence);
        let deadline = now + self.snapshot_lease(&donor);
        let (announced, arrived, adopting) = (None, None, false);
        let pull =
            Pull { fragment, donor, asked: now, deadline, oldest, announced, arrived, adopting };
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
        contents: SnapshotContents,
        now: Time,
    ) {
        self.heard_clock(from, contents.clock);
        if let Some(pull) = self.open_pull(from, exchange) {
            // Said twice, it may be about a later reading than the numbers that are here.
            pull.announced.get_or_insert(contents);
        }
        self.snapshot_progress(from, now);
        self.adopt_when_announced(exchange, now);
    }

    /// A donor sends its snapshots one after the other, so each part of one puts off the deadlines of
    /// all that it still owes, within the journal window.
    pub(crate) fn snapshot_progress(&mut self, from: PeerId, now: Time) {
        let (deadline, most) = (now + self.snapshot_lease(&from), self.config.journal_window);
        let open = self.catch_up.iter_mut().flat_map(|catch_up| catch_up.open.values_mut());
        for pull in open.filter(|pull| pull.donor == from) {
            pull.deadline = pull.deadline.max(deadline).min(pull.asked + most);
        }
    }

    /// Whether `exchange` is one of our pulls; asks somebody else.
    pub(crate) fn pull_refused(&mut self, from: PeerId, exchange: ExchangeId, now: Time) -> bool {
        if self.open_pull(from, exchange).is_none() {
            return false;
        }
        let again = now + self.config.heartbeat;
        if let Some(catch_up) = self.catch_up.as_mut() {
            catch_up.busy.insert(from, again);
        }
        self.requeue_pull(exchange.sequence);
        self.pull_waiting(now);
        true
    }

    pub(crate) fn snapshot_received(&mut self, from: PeerId, exchange: ExchangeId, now: Time) {
        self.snapshot_progress(from, now);
        if let Some(pull) = self.open_pull(from, exchange) {
            pull.arrived.get_or_insert(now);
        }
        self.adopt_when_announced(exchange, now);
    }

    /// Takes the snapshot over once its donor has said what it contains and the numbers are there.
    fn adopt_when_announced(&mut self, exchange: ExchangeId, now: Time) {
        let Some(pull) = self.announced_pull(exchange) else {
            return;
        };
        let Pull { donor, fragment, asked, oldest, .. } = *pull;
        let (contents, arrived) = (pull.announced.clone(), pull.arrived);
        let (Some(contents), Some(arrived)) = (contents, arrived) else {
            return;
        };
        if contents.clock < oldest || self.doubted() == Some(donor) {
            // Who was near the newest clock and is so no longer has named clocks that it does not have.
            self.stalled(donor, now);
            self.requeue_pull(exchange.sequence);
            return self.pull_waiting(now);
        }
        let precedes = |member| self.takes_precedence(fragment, member, &contents.versions);
        if self.config.mixing == Mixing::Set && !self.members.get(&donor).is_some_and(precedes) {
            return self.keep_own(exchange, now);
        }
        let most = self.config.pulls_open_max;
        let Some(catch_up) = self.catch_up.as_mut() else {
            return;
        };
        if catch_up.open.len() >= catch_up.window.limit(most) {
            catch_up.window.pulled(arrived.since(asked), most);
        }
        if let Some(pull) = catch_up.open.get_mut(&exchange.sequence) {
            pull.adopting = true;
        }
        self.work(Work::Adopt { exchange, fragment, contents });
    }

    /// The pull of this name, if it is not being taken over yet.
    fn announced_pull(&self, exchange: ExchangeId) -> Option<&Pull> {
        let pull = self.catch_up.as_ref()?.open.get(&exchange.sequence);
        pull.filter(|pull| !pull.adopting && exchange == self.exchange_id(exchange.sequence))
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
        let Some(contents) = pull.announced else { return };
        let SnapshotContents { clock, information, versions, .. } = contents;
        catch_up.clock = Some(catch_up.clock.map_or(clock, |least| least.min(clock)));
        self.contain(pull.fragment, &information);
        self.adopt_versions(pull.fragment, &versions);
        self.release(pull.fragment, exchange);
        self.output(Output::Forget { exchange });
        self.pull_waiting(now);
    }

    pub(crate) fn adopt_refused(&mut self, exchange: ExchangeId, reason: RefusedMix, now: Time) {
        let pull = self.catch_up.as_ref().and_then(|c| c.open.get(&exchange.sequence));
        let Some(donor) = pull.map(|pull| pull.donor) else {
            return;
        };
        self.requeue_pull(exchange.sequence);
        match reason {
            // What was recalled was damaged at home.
            _ if donor == self.me => {}
            RefusedMix::BadParameters => self.offended(donor, Offence::BadParameters, now),
            RefusedMix::OtherHash => self.offended(donor, Offence::OtherSnapshot, now),
            RefusedMix::TooOld | RefusedMix::Local | RefusedMix::Outlier => {}
        }
        self.pull_waiting(now);
    }

    /// Asks for the fragment again, under a new name, when something is asked for next.
    pub(crate) fn requeue_pull(&mut self, sequence: u64) {
        let exchange = self.exchange_id(sequence);
        let open = self.catch_up.as_mut().map(|catch_up| &mut catch_up.open);
        if let Some(pull) = open.and_then(|open| open.remove(&sequence)) {
            self.put_back(pull.fragment);
            self.release(pull.fragment, exchange);
            self.output(Output::Forget { exchange });
        }
    }

    fn put_back(&mut self, fragment: FragmentId) {
        if let Some(catch_up) = self.catch_up.as_mut() {
            catch_up.waiting.insert(0, fragment);
        }
    }

    pub(crate) fn pull_deadlines(&mut self, now: Time) {
        let open = self.catch_up.iter().flat_map(|catch_up| &catch_up.open);
        let late: Vec<(u64, PeerId)> = open
            .filter(|(_, pull)| !pull.adopting && now >= pull.deadline)
            .map(|(sequence, pull)| (*sequence, pull.donor))
            .collect();
        for (sequence, donor) in &late {
            self.stalled(*donor, now);
            if let Some(catch_up) = self.catch_up.as_mut() {
                catch_up.window.shrink();
            }
            let exchange = self.exchange_id(*sequence);
            self.send(*donor, Message::Abort { exchange }, now);
            self.requeue_pull(*sequence);
        }
        let due = self.catch_up.as_ref().is_some_and(|catch_up| now >= catch_up.retry_at);
        if due || !late.is_empty() {
            self.pull_waiting(now);
            self.abandon_catch_up_when_alone(now);
        }
    }
}
