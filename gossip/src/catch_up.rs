//! Joiners and laggards: replace the own replica by snapshots of the neighbours' fragments.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Clock, FragmentId, PeerId, Time};

use crate::gossip::Gossip;
use crate::pull::Pull;
use crate::recall::KeptSnapshots;
use crate::window::Window;
use crate::{Event, Mixing, Output};

/// How long a replica that is half replaced waits for a donor when there is none: a network that
/// breaks is back sooner, and what was taken over is not taken over again.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// A replica that is being replaced, fragment by fragment.
#[derive(Clone, Debug)]
pub(crate) struct CatchUp {
    /// Fragments not yet asked for.
    pub(crate) waiting: Vec<FragmentId>,
    /// Asked for, by sequence number.
    pub(crate) open: BTreeMap<u64, Pull>,
    /// Smallest snapshot clock so far: the clock that the replica will have.
    pub(crate) clock: Option<Clock>,
    /// When to ask again for what waits.
    pub(crate) retry_at: Time,
    /// Whether nobody is to wait for this peer meanwhile: its clock is far behind.
    pub(crate) joining: bool,
    /// How many pulls may be open.
    pub(crate) window: Window,
    /// Donors that are busy, and when to ask them again; neighbours only.
    pub(crate) busy: BTreeMap<PeerId, Time>,
    /// Since when there has been no donor.
    alone_since: Option<Time>,
}

impl CatchUp {
    /// When something of it expires next.
    pub(crate) fn next_deadline(&self) -> Time {
        let waiting = if self.waiting.is_empty() { Time::NEVER } else { self.retry_at };
        let pulls = self.open.values().filter(|pull| !pull.adopting);
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
        self.catch_up = Some(CatchUp {
            waiting,
            open: BTreeMap::new(),
            clock: None,
            retry_at: now,
            joining,
            window: Window::new(),
            busy: BTreeMap::new(),
            alone_since: None,
        });
        self.round.clear();
        self.end_round_when_empty();
        self.output(Output::Training { allowed: false });
        self.event(Event::CatchUpStarted { target });
        self.announce(now);
        self.pull_waiting(now);
    }

    pub(crate) fn finish_when_replaced(&mut self, now: Time) {
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
        self.guard.replaced();
        self.kept_snapshots = KeptSnapshots::default();
        self.wants_commit = false;
        if joining {
            let newest = self.donors().map(|(_, clock)| clock).max().unwrap_or_default();
            self.clock = self.clock.max(snapshots).max(newest);
            self.members.values_mut().for_each(|member| member.met = true);
            self.ramp_in();
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

    /// Asks others for what was asked of `peer`.
    pub(crate) fn requeue_pulls(&mut self, peer: PeerId, now: Time) {
        let open = self.catch_up.iter().flat_map(|catch_up| &catch_up.open);
        let lost: Vec<u64> = open
            .filter(|(_, pull)| pull.donor == peer && !pull.adopting)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in lost {
            self.requeue_pull(sequence);
        }
        self.pull_waiting(now);
    }

    pub(crate) fn lose_pulls(&mut self, peer: PeerId, now: Time) {
        self.serving.dismiss(&peer);
        if let Some(catch_up) = self.catch_up.as_mut() {
            catch_up.busy.remove(&peer);
            self.requeue_pulls(peer, now);
            self.abandon_catch_up_when_alone(now);
        }
    }

    /// Nobody has been left to pull from for long: train on with what there is.
    pub(crate) fn abandon_catch_up_when_alone(&mut self, now: Time) {
        let alone = self.donors().next().is_none();
        let Some(catch_up) = self.catch_up.as_mut() else {
            return;
        };
        if !alone || !catch_up.open.is_empty() {
            catch_up.alone_since = None;
            return;
        }
        let since = *catch_up.alone_since.get_or_insert(now);
        // Without a replica that is half replaced there is nothing to wait for.
        if catch_up.clock.is_none() || now.since(since) >= ALONE_MAX {
            self.catch_up = None;
            let clock = self.clock;
            self.event(Event::CatchUpDone { clock });
            self.resume(now);
        }
    }
}
