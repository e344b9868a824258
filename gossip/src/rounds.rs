//! Rounds: which fragments are proposed in a round, and where each of them stands.

mod entry;
mod interval;
mod partner;
mod schedule;
mod step_schedule;

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{FragmentId, PeerId, Phase, Time};
use rand::RngExt;
use rand::seq::SliceRandom;

use crate::context::{Context, ExchangeStep, Step};
use crate::membership::{Links, Member};
use crate::{Failure, Output};
pub(crate) use entry::{EndedProposal, RoundFragment};
use interval::RoundInterval;
pub use interval::{Budget, Interval, first_interval};
pub(crate) use partner::Candidates;
pub use schedule::Schedule;
pub use step_schedule::{MICRO_STEPS, Stride};

/// The time of so many rounds is the mean time of one.
const TIME_KEPT: u32 = 8;

/// The rounds of this peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds {
    waiting: Vec<RoundFragment>,
    in_round: bool,
    /// Rounds begun: the schedules' time.
    begun: u64,
    /// Fragments that had an exchange by a neighbour's proposal since the last round began, beside the
    /// own one: they have had that of the next round.
    answered: BTreeMap<FragmentId, PeerId>,
    /// With whom each fragment was exchanged last, where the interval follows the link.
    last: BTreeMap<FragmentId, PeerId>,
    interval: RoundInterval,
    /// When the last round was due.
    due_at: Option<Time>,
    /// Running mean of the time from one round to the next; zero before the second one.
    time: Duration,
}

impl Rounds {
    /// `fragment` was exchanged with `peer`. Where exchanges follow each other as the link carries them, once
    /// more with the same one would move hardly anything.
    pub(crate) fn on_exchanged(&mut self, context: &Context, fragment: FragmentId, peer: PeerId) {
        if matches!(context.config.interval, Interval::Follow(_)) {
            self.last.insert(fragment, peer);
        }
    }

    /// Whether `fragment` was exchanged with `peer` last.
    fn is_last(&self, fragment: FragmentId, peer: &PeerId) -> bool {
        self.last.get(&fragment) == Some(peer)
    }

    /// Whether the own proposal of `fragment` goes before those of others.
    pub(crate) fn is_urgent(
        &self,
        context: &Context,
        candidates: &Candidates<'_>,
        fragment: FragmentId,
    ) -> bool {
        let ready = |entry: &RoundFragment| entry.fragment() == fragment && !entry.waits();
        !context.progress.is_finished()
            && self.waiting.iter().any(ready)
            && (needs_news(context, candidates, fragment)
                || self.doubted(context, candidates).is_some())
    }

    /// How often rounds come.
    pub(crate) const fn interval_mut(&mut self) -> &mut RoundInterval {
        &mut self.interval
    }

    /// Whether a proposal of `fragment` is declined because the link has enough to do for now.
    pub(crate) fn declines(&self, context: &Context, fragment: FragmentId) -> bool {
        self.interval.declines(context, fragment)
    }

    /// Rounds begun: the schedules' time.
    pub(crate) const fn begun(&self) -> u64 {
        self.begun
    }

    /// The trainer says that a round is due.
    pub(crate) fn on_round_due(&mut self, now: Time) {
        self.begun += 1;
        if let Some(last) = self.due_at.replace(now) {
            let time = now.since(last);
            let known = if self.time.is_zero() { time } else { self.time };
            self.time = known.saturating_mul(TIME_KEPT - 1).saturating_add(time) / TIME_KEPT;
        }
    }

    /// Time from one round to the next, as it is of late; zero where it is not known.
    pub(crate) const fn time(&self) -> Duration {
        self.time
    }

    /// Takes over what an earlier life knew of that.
    pub(crate) const fn expect_every(&mut self, time: Duration) {
        self.time = time;
    }

    /// Begins a round of all fragments that need an exchange.
    pub(crate) fn begin(&mut self, context: &mut Context, candidates: &Candidates<'_>) {
        self.interval.on_round(context);
        self.in_round = true;
        let answered = std::mem::take(&mut self.answered);
        let mut fragments: Vec<FragmentId> = context
            .all_fragments()
            .filter(|fragment| context.owns(*fragment))
            .filter(|fragment| {
                let had = answered.get(fragment);
                let had = had.is_some_and(|peer| self.is_own_partner(context, candidates, peer));
                !had || needs_news(context, candidates, *fragment)
            })
            .collect();
        fragments.shuffle(&mut context.rng);
        // Rounds may be shorter than the wait for a busy partner, which would find it busy again.
        let before = std::mem::take(&mut self.waiting);
        let entry = |fragment| {
            let before = before.iter().find(|entry| entry.fragment == fragment);
            let (wait_until, waited) =
                before.map_or((None, false), |entry| (entry.wait_until, entry.waited));
            RoundFragment { wait_until, waited, ..RoundFragment::new(fragment, 1) }
        };
        self.waiting = fragments.into_iter().map(entry).collect();
        context.then(Step::Exchange(ExchangeStep::Propose));
    }

    /// Ends the round, when nothing waits and no own exchange is open.
    pub(crate) fn end_when_empty(&mut self, context: &mut Context, idle: bool) {
        if self.in_round && idle && self.waiting.is_empty() {
            self.in_round = false;
            context.output(Output::RoundDone);
        }
    }

    /// An exchange of `fragment` that `peer` proposed is applied here. It is the own one of
    /// this round where that has still to be proposed, of the next round else.
    ///
    /// Else a fragment would be exchanged twice a round, once by each end's proposal; and a peer that
    /// was answering while its round began would skip the round after it.
    pub(crate) fn on_answered(
        &mut self,
        context: &Context,
        candidates: &Candidates<'_>,
        (fragment, peer): (FragmentId, PeerId),
        crossed: bool,
    ) {
        self.on_exchanged(context, fragment, peer);
        let waits = self.waiting.iter().position(|entry| entry.fragment == fragment);
        let Some(index) = waits else {
            self.answered.insert(fragment, peer);
            return;
        };
        let ours = crossed
            || self.is_own_partner(context, candidates, &peer)
            || self.waiting[index].proposals > 0;
        if ours && !needs_news(context, candidates, fragment) {
            self.waiting.remove(index);
        }
    }

    /// The doubted neighbour that the round under way is for. What a trainer that is held seeks beside its rounds
    /// is news, which come from others.
    fn doubted(&self, context: &Context, candidates: &Candidates<'_>) -> Option<PeerId> {
        if self.in_round { candidates.doubted(context, self.begun) } else { None }
    }

    /// Whether an exchange with `peer` that it has proposed is as good as the own one of this round:
    /// with whom the round is for, or with anybody when it is for none.
    fn is_own_partner(
        &self,
        context: &Context,
        candidates: &Candidates<'_>,
        peer: &PeerId,
    ) -> bool {
        let doubted = self.doubted(context, candidates);
        let scheduled = doubted.or_else(|| candidates.scheduled(context, self.begun));
        scheduled.is_none_or(|scheduled| scheduled == *peer)
    }

    /// An own exchange has ended without effect: its fragment may try another partner.
    pub(crate) fn on_ended(
        &mut self,
        context: &mut Context,
        candidates: &Candidates<'_>,
        ended: EndedProposal,
    ) {
        let EndedProposal { entry: ended, partner, failure } = ended;
        // The next round may be due already; it does not ask the same partner at once again.
        let next = self.waiting.iter().position(|entry| entry.fragment == ended.fragment);
        let mut entry = next.map_or(ended, |index| self.waiting.remove(index));
        entry.proposals += 1;
        let most = context.config.redraws_max + entry.partners;
        if entry.proposals < most && !context.progress.is_leaving() {
            let waits = candidates.has_no_substitute(context, self, &partner, &entry);
            if failure == Failure::Busy && waits {
                let wait = busy_wait(context, candidates.links(), &partner);
                (entry.wait_until, entry.waited) = (Some(context.now + wait), true);
            } else {
                entry.tried.push(partner);
            }
            self.waiting.push(entry);
        }
        context.then(Step::Exchange(ExchangeStep::Propose));
    }

    /// The own proposal of a fragment gives way to its partner's: the fragment waits for how that ends.
    pub(crate) fn on_withdrawn(&mut self, entry: RoundFragment) {
        self.waiting.retain(|waiting| waiting.fragment != entry.fragment);
        self.waiting.push(entry);
    }

    /// Takes out all that waits, to be proposed or put back.
    pub(crate) fn take_waiting(&mut self, now: Time) -> Vec<RoundFragment> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for entry in &mut waiting {
            entry.wait_until = entry.wait_until.filter(|until| now < *until);
        }
        waiting
    }

    /// Puts back what goes on to wait.
    pub(crate) fn put_back(&mut self, waiting: Vec<RoundFragment>) {
        self.waiting = waiting;
    }

    /// Nothing waits any longer.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Fragments of another stripe wait no longer.
    pub(crate) fn keep_own(&mut self, context: &Context) {
        self.waiting.retain(|entry| context.owns(entry.fragment));
    }

    /// When to propose again what waits for busy partners.
    pub(crate) fn next_wait(&self) -> Option<Time> {
        self.waiting.iter().filter_map(|entry| entry.wait_until).min()
    }

    /// Whether no round is under way and nothing waits.
    pub(crate) const fn is_idle(&self) -> bool {
        !self.in_round && self.waiting.is_empty()
    }

    /// A neighbour is gone.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.last.retain(|_, last| last != peer);
    }

    /// A trainer that is held begins no rounds. Under the policies that wait it still proposes the
    /// fragments that lack news to those whose news they are: else peers that wait for each other's
    /// news would wait for ever.
    pub(crate) fn seek_news(&mut self, context: &mut Context, candidates: &Candidates<'_>) {
        let bound = candidates.membership.information_age_bound(context);
        let entry = |fragment: FragmentId| {
            let concerned = |(peer, member): &(&PeerId, &Member)| {
                let age = candidates.age(context, fragment, peer);
                member.counts() && age.is_some_and(|age| age > bound)
            };
            let partners = candidates.membership.members().iter().filter(concerned).count();
            (partners > 0).then(|| RoundFragment::new(fragment, partners))
        };
        let entries: Vec<RoundFragment> = context.all_fragments().filter_map(entry).collect();
        self.waiting.extend(entries);
        context.then(Step::Exchange(ExchangeStep::Propose));
    }
}

/// Whether `fragment` should be proposed although it was mixed since the last round: after the
/// last step, when agreement is all that matters, and when its news of an active neighbour, or of one
/// that has still to show that it mixes, is half as old as bound B3 allows.
fn needs_news(context: &Context, candidates: &Candidates<'_>, fragment: FragmentId) -> bool {
    let bound = candidates.membership.information_age_bound(context);
    let old = |peer| candidates.age(context, fragment, peer).is_some_and(|age| 2 * age > bound);
    let mut members = candidates.membership.members().iter();
    let idle = |peer| candidates.membership.is_idle(peer);
    let concerns =
        |peer, member: &Member| member.counts() || (member.phase == Phase::Training && idle(peer));
    context.progress.is_finished() || members.any(|(peer, it)| concerns(peer, it) && old(peer))
}

/// How long to leave a busy partner alone that nobody can take the place of: a drawn part of what
/// an exchange takes it, so that peers that find each other busy with others do not ask at the
/// same moments for ever.
fn busy_wait(context: &mut Context, links: &Links, partner: &PeerId) -> Duration {
    let measured = links.mean(partner);
    let exchange = measured.map_or(context.config.heartbeat, Duration::from_secs_f64);
    exchange.min(context.config.lease_max).mul_f64(context.rng.random())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::membership::Membership;
    use crate::staleness::Staleness;
    use crate::testing::peer;
    use crate::{Config, Trust};

    /// Rounds, and what a choice of partners looks at: one neighbour that is near.
    fn beside_one() -> (Context, Membership, Staleness, Rounds) {
        let mut context = Context::alone(Config::default());
        let mut membership = Membership::new(&context);
        let mut staleness = Staleness::new(&context);
        membership.on_peer_up(&mut context, (peer(1), 1), Trust::Trusted);
        let heartbeat = context.progress.heartbeat();
        membership.on_heartbeat(&peer(1), &heartbeat);
        let news = membership.on_clock(&mut context, (peer(1), heartbeat.clock), false);
        staleness.on_clock(&mut context, peer(1), news);
        context.take_steps();
        (context, membership, staleness, Rounds::default())
    }

    #[test]
    fn a_round_ends_once_when_nothing_waits_and_no_exchange_is_open() {
        let (mut context, membership, staleness, mut rounds) = beside_one();
        let guard = Guard::new(&context.config);
        rounds.on_round_due(context.now);
        rounds.begin(&mut context, &Candidates::new(&membership, &staleness, &guard));
        assert!(matches!(context.take_steps()[..], [Step::Exchange(ExchangeStep::Propose)]));
        assert_eq!(rounds.take_waiting(context.now).len(), 1);
        rounds.end_when_empty(&mut context, false);
        assert_eq!(context.said(), []);
        rounds.end_when_empty(&mut context, true);
        rounds.end_when_empty(&mut context, true);
        assert_eq!(context.said(), [Output::RoundDone]);
    }

    #[test]
    fn a_fragment_waits_for_a_busy_partner_without_substitute_and_tries_at_most_so_often() {
        let (mut context, membership, staleness, mut rounds) = beside_one();
        let guard = Guard::new(&context.config);
        let candidates = Candidates::new(&membership, &staleness, &guard);
        rounds.begin(&mut context, &candidates);
        for attempt in 0.. {
            let mut waiting = rounds.take_waiting(Time::NEVER);
            let Some(entry) = waiting.pop() else {
                assert_eq!(attempt, context.config.redraws_max + 1);
                return;
            };
            assert_eq!(candidates.choose(&mut context, &rounds, &entry, false), Some(peer(1)));
            let ended = EndedProposal { entry, partner: peer(1), failure: Failure::Busy };
            rounds.put_back(waiting);
            rounds.on_ended(&mut context, &candidates, ended);
            assert_eq!(rounds.next_wait().is_some(), attempt < context.config.redraws_max);
        }
    }
}
