//! The joiner's end: replaces the own replica by snapshots of the neighbours' fragments.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId, Time};

use super::kept_snapshots::KeptSnapshots;
use super::pull::Pull;
use super::takeover::{BadReplica, Meeting, Takeovers};
use crate::context::{Context, Replacing, Step};
use crate::exchange::ConcurrencyLimit;
use crate::membership::Membership;
use crate::{Event, Mixing, Output, SnapshotContents};

/// How long a replica that is half replaced waits for a donor when there is none: a network that
/// breaks is back sooner, and what was taken over is not taken over again.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// How many journal windows pass without a snapshot before this peer trains on with what it has: no pull lasts longer
/// than one, so donors that give nothing in two never will.
const STUCK_WINDOWS: u32 = 2;
/// By how often such a wait is doubled before the next replacement begins.
const PAUSES_MAX: u32 = 5;

/// A replica that is being replaced, fragment by fragment.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    /// Fragments not yet asked for.
    pub(super) waiting: Vec<FragmentId>,
    /// Asked for, by sequence number.
    pub(super) open: BTreeMap<u64, Pull>,
    /// Smallest snapshot clock so far: the clock that the replica will have.
    pub(super) clock: Option<Clock>,
    /// The newest clock that was known when the first fragment was asked for.
    pub(super) asked: Option<Clock>,
    /// When to ask again for what waits.
    pub(super) retry_at: Time,
    what: Replacing,
    /// How many pulls may be open.
    pub(super) concurrency: ConcurrencyLimit,
    /// Donors that are busy, and when to ask them again; neighbours only.
    pub(super) busy: BTreeMap<PeerId, Time>,
    /// Since when there has been no donor.
    alone_since: Option<Time>,
    /// When it began.
    since: Time,
    /// When a fragment was replaced last, or it began.
    pub(super) moved: Time,
    /// Who alone is asked, where that is not everybody.
    pub(super) only: Vec<PeerId>,
    /// Who has given each fragment that is there.
    pub(super) donors: BTreeMap<FragmentId, PeerId>,
}

impl Replacement {
    /// When something of it expires next.
    fn next_deadline(&self) -> Time {
        let waiting = if self.waiting.is_empty() { Time::NEVER } else { self.retry_at };
        let pulls = self.open.values().filter(|pull| !pull.adopting);
        pulls.map(|pull| pull.deadline).min().unwrap_or(Time::NEVER).min(waiting)
    }

    /// Puts a fragment back that was not got.
    pub(super) fn put_back(&mut self, fragment: FragmentId) {
        self.waiting.insert(0, fragment);
    }
}

/// A replica that has been replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replaced {
    /// Who has given each fragment.
    pub(crate) donors: BTreeMap<FragmentId, PeerId>,
    /// The newest clock that was known when the first one was asked for: no word of a donor about what it gave.
    pub(crate) asked: Clock,
}

/// What this peer takes over from others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Joiner {
    pub(super) replacement: Option<Replacement>,
    pub(super) kept: KeptSnapshots,
    /// The replica was replaced and waits for its own contributions.
    resuming: bool,
    /// The own replica is none of the run's until it has been replaced.
    awaits: bool,
    pub(super) takeovers: Takeovers,
    /// Replacements given up one after the other because no donor gave anything, and when the next may begin.
    stuck: (u32, Time),
}

impl Joiner {
    /// The snapshots that an earlier life of this peer has kept.
    pub(crate) fn keep(&mut self, kept: Vec<(FragmentId, SnapshotContents)>) {
        self.kept = KeptSnapshots::new(kept);
    }

    /// Begins without a replica of the run: trains only once all of it has come from others, however
    /// long that takes, and is no donor until then.
    pub(crate) fn await_model(&mut self, context: &mut Context) {
        self.awaits = true;
        let all = context.all_fragments().rev().collect();
        self.begin(context, all, Replacing::Replica);
        context.output(Output::Training { allowed: false });
    }

    /// Whether the replica is none of the run's yet.
    pub(crate) const fn awaits(&self) -> bool {
        self.awaits
    }

    /// Whether a replacement of the whole replica has just been given up, as no donor gave anything.
    pub(crate) fn is_paused(&self, now: Time) -> bool {
        now < self.stuck.1
    }

    pub(super) fn is_pull(&self, context: &Context, exchange: ExchangeId) -> bool {
        let open = |it: &Replacement| it.open.contains_key(&exchange.sequence);
        context.is_own(exchange) && self.replacement.as_ref().is_some_and(open)
    }

    /// Begins to have these fragments replaced.
    pub(crate) fn begin(
        &mut self,
        context: &mut Context,
        waiting: Vec<FragmentId>,
        what: Replacing,
    ) {
        context.progress.set_replacing(Some(what));
        // A half of one model and a half of another is nothing to look at.
        self.awaits |= context.progress.observes().is_some();
        self.replacement = Some(Replacement {
            waiting,
            open: BTreeMap::new(),
            clock: None,
            asked: None,
            retry_at: context.now,
            what,
            concurrency: ConcurrencyLimit::new(),
            busy: BTreeMap::new(),
            alone_since: None,
            since: context.now,
            moved: context.now,
            only: Vec::new(),
            donors: BTreeMap::new(),
        });
    }

    /// Says so when everything is replaced.
    pub(super) fn finish_when_replaced(&self, context: &mut Context) {
        let done = |it: &&Replacement| it.open.is_empty() && it.waiting.is_empty();
        if let Some(replacement) = self.replacement.as_ref().filter(done) {
            context.then(Step::Replaced(replacement.clock));
        }
    }

    /// Everything is replaced. What is to be known of it, if it was all of the replica, and nobody was to wait
    /// for this peer meanwhile.
    pub(crate) fn finish(&mut self, context: &mut Context) -> Option<Replaced> {
        context.progress.set_replacing(None);
        self.kept = KeptSnapshots::default();
        (self.awaits, self.stuck) = (false, (0, Time::ZERO));
        let Some(replacement) = self.replacement.take() else { return Some(Replaced::default()) };
        let Replacement { what, donors, asked, .. } = replacement;
        if what == Replacing::Replica {
            self.takeovers.ask_everybody();
        }
        (what == Replacing::Replica).then(|| Replaced { donors, asked: asked.unwrap_or_default() })
    }

    /// Each fragment was taken over from its donor, and is as recent as those that neighbours may meet with.
    pub(crate) fn begin_trial(&mut self, context: &Context, donors: BTreeMap<FragmentId, PeerId>) {
        if context.config.guard && context.config.mixing == Mixing::Exchange {
            self.takeovers.begin_trial(context.progress.clock(), donors);
        }
    }

    /// A neighbour has met what was taken over. What is found out by it.
    pub(crate) fn on_met(&mut self, context: &Context, meeting: Meeting) -> Option<BadReplica> {
        self.takeovers.on_met(context.progress.clock(), meeting)
    }

    /// A neighbour leaves this peer out. What is found out by it about what was taken over.
    pub(crate) fn on_left_out(&mut self, context: &Context, peer: PeerId) -> Option<BadReplica> {
        self.takeovers.on_left_out(context.progress.clock(), peer)
    }

    /// Of the donors of the replica that is being replaced only these are asked, as long as one of them may give
    /// something. If none gives anything for [`ALONE_MAX`], this peer keeps what it has.
    pub(crate) fn ask_only(&mut self, donors: Vec<PeerId>) {
        if let Some(replacement) = self.replacement.as_mut() {
            replacement.only = donors;
        }
    }

    /// Trains on, once every fragment contains the own contributions again.
    pub(crate) const fn resume(&mut self) {
        self.resuming = true;
    }

    /// A commit before the own contributions are back would number itself after what is missing;
    /// `whole` is whether all of them are.
    pub(crate) fn train_when_whole(
        &mut self,
        context: &mut Context,
        whole: impl FnOnce(&Context) -> bool,
    ) {
        if self.resuming && self.replacement.is_none() && whole(context) {
            self.resuming = false;
            context.output(Output::Training { allowed: true });
        }
    }

    /// Asks others for what was asked of `peer`.
    pub(crate) fn requeue_of(&mut self, context: &mut Context, peer: &PeerId) {
        let open = self.replacement.iter().flat_map(|it| &it.open);
        let lost: Vec<u64> = open
            .filter(|(_, pull)| pull.donor == *peer && !pull.adopting)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in lost {
            self.requeue(context, sequence);
        }
        context.then(Step::Pull);
    }

    /// A neighbour is gone.
    pub(super) fn lose(&mut self, context: &mut Context, peer: &PeerId) {
        if let Some(replacement) = self.replacement.as_mut() {
            replacement.busy.remove(peer);
            self.requeue_of(context, peer);
            context.then(Step::AbandonWhenAlone);
        }
    }

    /// Nobody has been left to pull from for long, or nobody has given anything: train on with what there is.
    pub(crate) fn abandon_when_alone(&mut self, context: &mut Context, membership: &Membership) {
        let idle = self.replacement.as_ref().map(|it| context.now.since(it.moved));
        if idle.is_some_and(|idle| idle >= ALONE_MAX) {
            // A single donor that gives nothing is not waited for.
            self.takeovers.ask_everybody();
        }
        if idle.is_some_and(|idle| idle >= context.config.journal_window * STUCK_WINDOWS) {
            self.give_up_stuck(context);
        }
        let alone = membership.donors(context).next().is_none() && !self.awaits;
        let Some(replacement) = self.replacement.as_mut() else {
            return;
        };
        let refused = !replacement.only.is_empty()
            && replacement.clock.is_none()
            && context.now.since(replacement.since) >= ALONE_MAX;
        if !(alone || refused) || !replacement.open.is_empty() {
            replacement.alone_since = None;
            return;
        }
        let since = *replacement.alone_since.get_or_insert(context.now);
        // Without a replica that is half replaced there is nothing to wait for.
        if replacement.clock.is_none() || context.now.since(since) >= ALONE_MAX {
            self.abandon(context);
        }
    }

    /// Withdraws all pulls and trains on: no donor gives anything. The next replacement begins after a while, which
    /// grows.
    fn give_up_stuck(&mut self, context: &mut Context) {
        let Some(replacement) = self.replacement.as_ref().filter(|_| !self.awaits) else {
            return;
        };
        if replacement.open.values().any(|pull| pull.adopting) {
            return;
        }
        let open: Vec<(u64, PeerId)> =
            replacement.open.iter().map(|(sequence, pull)| (*sequence, pull.donor)).collect();
        for (sequence, donor) in open {
            self.withdraw(context, sequence, donor);
        }
        let times = self.stuck.0;
        let pause = context.config.journal_window * (1 << times);
        self.stuck = ((times + 1).min(PAUSES_MAX), context.now + pause);
        self.abandon(context);
    }

    fn abandon(&mut self, context: &mut Context) {
        self.replacement = None;
        context.progress.set_replacing(None);
        context.event(Event::CatchUpDone { clock: context.progress.clock() });
        context.then(Step::Resume);
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.replacement.as_ref().map(Replacement::next_deadline)
    }
}

/// Whether a replica that is being replaced is one that can be given to others meanwhile: of sums of
/// contributions every fragment is.
pub(super) fn is_half_replaced(context: &Context) -> bool {
    context.progress.is_replacing() && context.config.mixing != Mixing::Set
}
