//! Snapshots that a joiner pulls: of whom, how many at a time, and what they must be to be adopted.

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId, Time};
use rand::RngExt;

use super::joiner::Joiner;
use crate::context::{Context, ExchangeStep, Step};
use crate::delta_set::DeltaSet;
use crate::membership::Membership;
use crate::{Mixing, Offence, Output, RefusedMix, SnapshotContents, Work};

/// A snapshot that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Pull {
    fragment: FragmentId,
    pub(super) donor: PeerId,
    asked: Time,
    /// Put off by every part that comes from the donor.
    pub(super) deadline: Time,
    /// A snapshot of an earlier clock is not recent: further behind the newest clock that was known
    /// when it was asked for than B1 lets an active neighbour be.
    oldest: Clock,
    /// What the donor has said of the snapshot.
    announced: Option<SnapshotContents>,
    /// When the numbers came.
    arrived: Option<Time>,
    /// Whether it is being taken over.
    pub(super) adopting: bool,
}

impl Joiner {
    /// Asks for the fragments that wait, as many at a time as the links carry.
    pub(crate) fn pull_waiting(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        delta_set: &DeltaSet,
    ) {
        let newest = membership.newest(context).unwrap_or_default();
        let donors = self.free_donors(context, membership, newest);
        let retry_at = context.now + context.config.heartbeat;
        let most = context.config.pulls_open_max;
        while let Some(replacement) = self.replacement.as_mut() {
            let free = |fragment: &FragmentId| {
                !context.leases.is_taken(*fragment) && !delta_set.is_adding(*fragment)
            };
            let full =
                replacement.open.len() >= replacement.concurrency.limit(most) || donors.is_empty();
            let index = replacement.waiting.iter().rposition(free).filter(|_| !full);
            replacement.retry_at = retry_at;
            let Some(index) = index else { break };
            replacement.asked.get_or_insert(newest);
            let fragment = replacement.waiting.remove(index);
            if self.recall(context, fragment, newest) {
                continue;
            }
            let sums = context.config.mixing == Mixing::Set;
            let candidates = if sums {
                delta_set.donors_of(context, membership, fragment)
            } else {
                donors.clone()
            };
            if !self.pull_from_one_of(context, membership, candidates, (fragment, newest)) {
                if let Some(replacement) = self.replacement.as_mut() {
                    replacement.put_back(fragment);
                }
                break;
            }
        }
        self.finish_when_replaced(context);
    }

    /// Donors near the newest clock that have not said that they are busy.
    fn free_donors(
        &self,
        context: &Context,
        membership: &Membership,
        newest: Clock,
    ) -> Vec<PeerId> {
        let gap = context.config.bounds.progress_gap;
        let donors = membership.donors(context);
        // Who has done no commit gives nothing where others have: its weights are those that all begin from.
        let has_begun = |clock: Clock| clock > Clock(0) || newest == Clock(0);
        let near = donors.filter(|(_, clock)| newest.ahead_of(*clock) <= gap && has_begun(*clock));
        let mut allowed = self.takeovers.allowed(near.map(|(peer, _)| peer).collect());
        let only = self.replacement.as_ref().map_or(&[][..], |it| &it.only);
        if allowed.iter().any(|peer| only.contains(peer)) {
            allowed.retain(|peer| only.contains(peer));
        }
        allowed.retain(|peer| self.is_free(context, membership, peer));
        allowed
    }

    fn is_free(&self, context: &Context, membership: &Membership, donor: &PeerId) -> bool {
        let busy = self.replacement.as_ref().and_then(|it| it.busy.get(donor));
        membership.links().is_ready(donor, context.now)
            && busy.is_none_or(|until| context.now >= *until)
    }

    /// Asks the one of `donors` that is asked for least, so that all give what their links carry.
    /// Where replicas are sums of contributions they are those whose fragment takes precedence;
    /// without any the own fragment stays. False when all of those are busy.
    fn pull_from_one_of(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        mut donors: Vec<PeerId>,
        (fragment, newest): (FragmentId, Clock),
    ) -> bool {
        let replaces = !donors.is_empty();
        donors.retain(|donor| self.is_free(context, membership, donor));
        let open = |donor: &PeerId| {
            let pulls = self.replacement.iter().flat_map(|it| it.open.values());
            pulls.filter(|pull| pull.donor == *donor).count()
        };
        let least = donors.iter().map(open).min();
        donors.retain(|donor| Some(open(donor)) == least);
        let index = context.rng.random_range(0..donors.len().max(1));
        if let Some(donor) = donors.get(index) {
            let sums = context.config.mixing == Mixing::Set;
            let gap = if sums { newest.0 } else { context.config.bounds.progress_gap };
            let oldest = Clock(newest.0.saturating_sub(gap));
            self.pull(context, membership, (fragment, *donor), oldest);
        }
        index < donors.len() || !replaces
    }

    fn pull(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        (fragment, donor): (FragmentId, PeerId),
        oldest: Clock,
    ) {
        let lease = membership.links().snapshot_lease(&context.config, &donor);
        let pull = Pull {
            fragment,
            donor,
            asked: context.now,
            deadline: context.now + lease,
            oldest,
            announced: None,
            arrived: None,
            adopting: false,
        };
        let exchange = self.open(context, pull);
        context.output(Output::Expect { exchange, from: donor, leg: Leg::Snapshot, fragment });
        context.send(donor, Message::Pull { exchange, fragment });
    }

    /// Gives a pull its name and the lease on its fragment.
    fn open(&mut self, context: &mut Context, pull: Pull) -> ExchangeId {
        let sequence = context.take_sequence();
        let exchange = context.exchange_id(sequence);
        context.leases.take(pull.fragment, exchange);
        if let Some(replacement) = self.replacement.as_mut() {
            replacement.open.insert(sequence, pull);
        }
        exchange
    }

    /// Has the kept snapshot of the fragment taken over, if there is one that is recent enough.
    ///
    /// One is used if its clock is at most the progress gap, and the commits that the earlier pull had
    /// lasted, behind the newest. At the end of the pull it is then no older than the first fragment of
    /// a pull that nothing interrupts, plus the gap.
    fn recall(&mut self, context: &mut Context, fragment: FragmentId, newest: Clock) -> bool {
        let gap = context.config.bounds.progress_gap;
        let Some(contents) = self.kept.take(fragment, (newest, gap)) else {
            return false;
        };
        let pull = Pull {
            fragment,
            donor: context.me,
            asked: context.now,
            deadline: Time::NEVER,
            oldest: contents.clock,
            announced: Some(contents.clone()),
            arrived: Some(context.now),
            adopting: true,
        };
        let exchange = self.open(context, pull);
        context.then(Step::Exchange(ExchangeStep::Replacing(fragment)));
        context.work(Work::Recall { exchange, fragment, contents });
        true
    }

    fn pull_of(
        &mut self,
        context: &Context,
        from: PeerId,
        exchange: ExchangeId,
    ) -> Option<&mut Pull> {
        if !context.is_own(exchange) {
            return None;
        }
        let open = &mut self.replacement.as_mut()?.open;
        open.get_mut(&exchange.sequence).filter(|pull| pull.donor == from)
    }

    /// The donor says what the snapshot contains that it is about to send.
    pub(crate) fn on_snapshot(
        &mut self,
        context: &mut Context,
        parts: (&mut Membership, &DeltaSet),
        (from, exchange): (PeerId, ExchangeId),
        contents: SnapshotContents,
    ) {
        if let Some(pull) = self.pull_of(context, from, exchange) {
            // Said twice, it may be about a later reading than the numbers that are here.
            pull.announced.get_or_insert(contents);
        }
        self.on_progress(context, parts.0, from);
        self.adopt_when_announced(context, parts, exchange);
    }

    /// A donor sends its snapshots one after the other, so each part of one puts off the deadlines of
    /// all that it still owes, within the journal window.
    pub(crate) fn on_progress(&mut self, context: &Context, membership: &Membership, from: PeerId) {
        let lease = membership.links().snapshot_lease(&context.config, &from);
        let (deadline, most) = (context.now + lease, context.config.journal_window);
        let open = self.replacement.iter_mut().flat_map(|it| it.open.values_mut());
        for pull in open.filter(|pull| pull.donor == from) {
            pull.deadline = pull.deadline.max(deadline).min(pull.asked + most);
        }
    }

    /// The donor is busy: asks somebody else. Whether `exchange` is a pull of this peer from it.
    pub(crate) fn on_busy(
        &mut self,
        context: &mut Context,
        from: PeerId,
        exchange: ExchangeId,
    ) -> bool {
        match self.pull_of(context, from, exchange) {
            None => return false,
            // It has given what it was asked for.
            Some(pull) if pull.adopting => return true,
            Some(_) => {}
        }
        let again = context.now + context.config.heartbeat;
        if let Some(replacement) = self.replacement.as_mut() {
            replacement.busy.insert(from, again);
        }
        self.requeue(context, exchange.sequence);
        context.then(Step::Pull);
        true
    }

    /// The numbers of a snapshot have arrived.
    pub(crate) fn on_numbers(
        &mut self,
        context: &mut Context,
        parts: (&mut Membership, &DeltaSet),
        (from, exchange): (PeerId, ExchangeId),
    ) {
        self.on_progress(context, parts.0, from);
        let now = context.now;
        if let Some(pull) = self.pull_of(context, from, exchange) {
            pull.arrived.get_or_insert(now);
        }
        self.adopt_when_announced(context, parts, exchange);
    }

    /// Takes the snapshot over once its donor has said what it contains and the numbers are there.
    fn adopt_when_announced(
        &mut self,
        context: &mut Context,
        (membership, delta_set): (&mut Membership, &DeltaSet),
        exchange: ExchangeId,
    ) {
        let Some(pull) = self.announced_pull(context, exchange) else {
            return;
        };
        let Pull { donor, fragment, asked, oldest, .. } = *pull;
        let (contents, arrived) = (pull.announced.clone(), pull.arrived);
        let (Some(contents), Some(arrived)) = (contents, arrived) else {
            return;
        };
        if contents.clock < oldest || membership.doubts(context, &donor) {
            // Who was near the newest clock and is so no longer has named clocks that it does not have.
            membership.links_mut().stalled(&context.config, donor, context.now);
            self.requeue(context, exchange.sequence);
            return context.then(Step::Pull);
        }
        let precedes =
            |member| delta_set.takes_precedence(context, fragment, member, &contents.versions);
        if context.config.mixing == Mixing::Set && !membership.get(&donor).is_some_and(precedes) {
            return self.keep_own(context, exchange);
        }
        let most = context.config.pulls_open_max;
        let Some(replacement) = self.replacement.as_mut() else {
            return;
        };
        if replacement.open.len() >= replacement.concurrency.limit(most) {
            replacement.concurrency.pulled(arrived.since(asked), most);
        }
        if let Some(pull) = replacement.open.get_mut(&exchange.sequence) {
            pull.adopting = true;
        }
        context.then(Step::Exchange(ExchangeStep::Replacing(fragment)));
        context.work(Work::Adopt { exchange, fragment, contents });
    }

    /// The pull of this name, if it is not being taken over yet.
    fn announced_pull(&self, context: &Context, exchange: ExchangeId) -> Option<&Pull> {
        let pull = self.replacement.as_ref()?.open.get(&exchange.sequence);
        pull.filter(|pull| !pull.adopting && context.is_own(exchange))
    }

    /// The snapshot does not take precedence after all.
    fn keep_own(&mut self, context: &mut Context, exchange: ExchangeId) {
        let open = self.replacement.as_mut().map(|it| &mut it.open);
        if let Some(pull) = open.and_then(|open| open.remove(&exchange.sequence)) {
            context.leases.release(pull.fragment, exchange);
            context.output(Output::Forget { exchange });
        }
        context.then(Step::Pull);
    }

    /// The trainer has taken a snapshot over: which fragment it replaces, and what it contains.
    pub(crate) fn on_adopted(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
    ) -> Option<(FragmentId, SnapshotContents)> {
        let replacement = self.replacement.as_mut()?;
        let pull = replacement.open.remove(&exchange.sequence)?;
        let contents = pull.announced?;
        let clock = contents.clock;
        replacement.clock = Some(replacement.clock.map_or(clock, |least| least.min(clock)));
        replacement.donors.insert(pull.fragment, pull.donor);
        replacement.moved = context.now;
        context.then(Step::Exchange(ExchangeStep::Replaced(pull.fragment, true)));
        context.leases.release(pull.fragment, exchange);
        context.output(Output::Forget { exchange });
        context.then(Step::Pull);
        Some((pull.fragment, contents))
    }

    /// The trainer has refused a snapshot.
    pub(crate) fn on_adopt_refused(
        &mut self,
        context: &mut Context,
        exchange: ExchangeId,
        reason: RefusedMix,
    ) {
        let pull = self.replacement.as_ref().and_then(|it| it.open.get(&exchange.sequence));
        let Some((donor, fragment)) = pull.map(|pull| (pull.donor, pull.fragment)) else {
            return;
        };
        context.then(Step::Exchange(ExchangeStep::Replaced(fragment, false)));
        self.requeue(context, exchange.sequence);
        match reason {
            // What was recalled was damaged at home.
            _ if donor == context.me => {}
            RefusedMix::BadParameters => {
                context.then(Step::Offence(donor, Offence::BadParameters));
            }
            RefusedMix::OtherHash => context.then(Step::Offence(donor, Offence::OtherSnapshot)),
            RefusedMix::TooOld | RefusedMix::Local | RefusedMix::Outlier => {}
        }
        context.then(Step::Pull);
    }

    /// Tells the donor that a pull is not wanted any more, and asks for its fragment again later.
    pub(super) fn withdraw(&mut self, context: &mut Context, sequence: u64, donor: PeerId) {
        let exchange = context.exchange_id(sequence);
        context.send(donor, Message::Abort { exchange });
        self.requeue(context, sequence);
    }

    /// Asks for the fragment again, under a new name, when something is asked for next.
    pub(super) fn requeue(&mut self, context: &mut Context, sequence: u64) {
        let exchange = context.exchange_id(sequence);
        let Some(replacement) = self.replacement.as_mut() else {
            return;
        };
        if let Some(pull) = replacement.open.remove(&sequence) {
            replacement.put_back(pull.fragment);
            context.leases.release(pull.fragment, exchange);
            context.output(Output::Forget { exchange });
        }
    }

    /// Asks others for what is late, and again for what waits.
    pub(crate) fn on_deadline(&mut self, context: &mut Context, membership: &mut Membership) {
        let now = context.now;
        let open = self.replacement.iter().flat_map(|it| &it.open);
        let late: Vec<(u64, PeerId)> = open
            .filter(|(_, pull)| !pull.adopting && now >= pull.deadline)
            .map(|(sequence, pull)| (*sequence, pull.donor))
            .collect();
        for (sequence, donor) in &late {
            membership.links_mut().stalled(&context.config, *donor, now);
            if let Some(replacement) = self.replacement.as_mut() {
                replacement.concurrency.shrink();
            }
            self.withdraw(context, *sequence, *donor);
        }
        let due = self.replacement.as_ref().is_some_and(|it| now >= it.retry_at);
        if due || !late.is_empty() {
            context.then(Step::Pull);
            context.then(Step::AbandonWhenAlone);
        }
    }
}
