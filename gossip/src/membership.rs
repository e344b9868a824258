//! Membership: who is here, who lives, what each is like, and whose word is believed.

mod clock_validation;
mod data_shards;
mod estimate;
mod failure_detector;
mod heartbeat;
mod history;
mod links;
mod partition;
mod position;
mod reports;
mod summaries;
mod view;

use std::time::Duration;

use dnode_protocol::{Clock, Heartbeat, Message, PeerId, Phase, Stripe, Time};

use crate::context::{Context, Look, Step};
use crate::{Event, Mixing, Offence, Output, Trust};
use clock_validation::ClockValidation;
pub use clock_validation::is_absurd;
pub(crate) use clock_validation::{ClockNews, names_absurd_clock};
pub use data_shards::{Claim, ShardReview, choose_shard, review_shard};
pub(crate) use estimate::{LONGEST, at_least};
use failure_detector::FailureDetector;
pub(crate) use failure_detector::Held;
use heartbeat::Announcer;
use history::History;
pub(crate) use links::Links;
pub(crate) use partition::Partition;
use reports::Reports;
pub use summaries::{Heard, KNOWN_MAX, Summaries};
pub(crate) use view::Members;
pub use view::{Member, Standing, VIEW_MAX};

/// How long a neighbour that has only declined is not spoken to: five times as long as it has had.
const USELESS_BACK_OFF: Duration = Duration::from_secs(300);

/// What this peer knows of its neighbours.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    members: Members,
    links: Links,
    detector: FailureDetector,
    partition: Partition,
    validation: ClockValidation,
    history: History,
    announcer: Announcer,
    reports: Reports,
}

impl Membership {
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            members: Members::default(),
            links: Links::default(),
            detector: FailureDetector::new(context),
            partition: Partition::default(),
            validation: ClockValidation::default(),
            history: History::default(),
            announcer: Announcer::new(context),
            reports: Reports::default(),
        }
    }

    pub(crate) const fn members(&self) -> &Members {
        &self.members
    }

    pub(crate) const fn links(&self) -> &Links {
        &self.links
    }

    pub(crate) const fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }

    pub(crate) const fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(crate) fn get(&self, peer: &PeerId) -> Option<&Member> {
        self.members.get(peer)
    }

    /// The largest clock heard of `peer`, the own one for this peer; nothing can contain more of it.
    pub(crate) fn heard_of(&self, context: &Context, peer: &PeerId) -> Clock {
        if *peer == context.me {
            return context.progress.clock();
        }
        self.members.get(peer).and_then(|member| member.clock).unwrap_or_default()
    }

    /// Bound B3 as it applies now, commits.
    pub(crate) fn information_age_bound(&self, context: &Context) -> u64 {
        context.config.information_age_bound(self.members.len() + 1)
    }

    /// Neighbours that are not suspected and that the guard trusts, the doubted ones excluded.
    pub(crate) fn sound(&self, context: &Context) -> impl Iterator<Item = (&PeerId, &Member)> {
        self.members.sound(self.newest_believed(context))
    }

    /// The newest clock that is believed; who names a newer one is doubted.
    pub(crate) fn newest_believed(&self, context: &Context) -> Clock {
        self.validation.newest_believed(context, (&self.members, &self.links))
    }

    /// Whether the clock of the neighbour `peer` is not believed.
    pub(crate) fn doubts(&self, context: &Context, peer: &PeerId) -> bool {
        let believed = |member: &Member| member.is_believed(self.newest_believed(context));
        !self.members.get(peer).is_none_or(believed)
    }

    /// Neighbours whose replica could be taken over, with their clocks; none that is doubted.
    pub(crate) fn donors(&self, context: &Context) -> impl Iterator<Item = (PeerId, Clock)> + '_ {
        self.members.donors(self.newest_believed(context))
    }

    /// The newest clock that a donor has.
    pub(crate) fn newest(&self, context: &Context) -> Option<Clock> {
        self.donors(context).map(|(_, clock)| clock).max()
    }

    /// Whether this peer and `peer` exchange whatever their clocks are: neither goes by them; or both have done
    /// their last step, and have mixed since they met, so that they did not train apart.
    pub(crate) fn meets_at_any_clock(&self, context: &Context, peer: &PeerId) -> bool {
        let settled = self.members.both_finished(context, peer) && self.links.has_mixed(peer);
        settled || self.ignores_clock(context, peer)
    }

    /// Whether one of the two doubts the other's clock, so that nobody takes over a replica, and without
    /// exchanges its work would be lost; or `peer` is left out, and would never have its trial.
    pub(crate) fn ignores_clock(&self, context: &Context, peer: &PeerId) -> bool {
        let ignores = |member: &Member| member.doubts() || member.trust == Trust::LeftOut;
        self.doubts(context, peer) || self.members.get(peer).is_some_and(ignores)
    }

    /// A neighbour that is far behind proposes to this peer all the same, or refuses to mix.
    pub(crate) fn set_doubts(&mut self, peer: &PeerId, doubts: bool) {
        self.members.set_doubts(peer, doubts);
    }

    /// Whether there is room for one more neighbour; says goodbye to `peer` if not.
    pub(crate) fn has_room(&self, context: &mut Context, peer: PeerId) -> bool {
        let full = self.members.is_full();
        if full {
            let back_off = context.config.back_off_min;
            context.output(Output::Disconnect { peer, back_off, reason: "the view is full" });
        }
        !full
    }

    /// Takes the neighbour into the view. Whether an earlier start of it was here before.
    pub(crate) fn on_peer_up(
        &mut self,
        context: &mut Context,
        (peer, incarnation): (PeerId, u64),
        trust: Trust,
    ) -> bool {
        let now = context.now;
        self.links.open(peer);
        self.members.insert(peer, incarnation, trust);
        if self.links.is_crowded() {
            self.set_idle_ones(context);
        }
        self.detector.open(peer, now);
        context.outbox().open(peer, now);
        self.history.began(peer, incarnation)
    }

    /// A neighbour that is here already has connected again.
    pub(crate) fn on_peer_up_again(&mut self, peer: &PeerId, now: Time) {
        self.detector.seen(peer, now);
    }

    /// The first words to a neighbour that has come.
    pub(crate) fn greet(&mut self, context: &mut Context, peer: PeerId, incarnation: u64) {
        context.event(Event::PeerUp(peer));
        let bound = self.information_age_bound(context);
        self.partition.on_return(context, &peer, incarnation, bound);
        context.send(peer, Message::Heartbeat(context.progress.heartbeat()));
    }

    /// Measures how long a neighbour that has come takes to answer.
    pub(crate) fn measure_first(&mut self, context: &mut Context, peer: PeerId) {
        self.detector.measure_first(context, peer);
    }

    /// Forgets a neighbour; whether it was one.
    pub(crate) fn on_peer_down(&mut self, context: &mut Context, peer: &PeerId) -> bool {
        self.links.close(peer);
        self.detector.close(peer);
        context.outbox().close(peer);
        self.members.remove(peer).is_some()
    }

    /// A neighbour went without a goodbye, or is silent.
    pub(crate) fn lose(&mut self, context: &Context, peer: PeerId) {
        if let (Some(member), Some(at)) = (self.members.get(&peer), self.detector.last_heard(&peer))
        {
            let who = (member.incarnation, self.links.has_mixed(&peer));
            self.partition.lose(context, peer, who, at);
        }
    }

    /// A neighbour has said goodbye, or is not spoken to any more: it is not missed.
    pub(crate) fn forget_lost(&mut self, peer: &PeerId) {
        self.partition.forget(peer);
    }

    /// A peer broke the rules: it is not spoken to for a while.
    pub(crate) fn on_offence(&mut self, context: &mut Context, peer: PeerId) -> Duration {
        let back_off = self.history.offended(&context.config, peer);
        context.event(Event::Offended { peer, back_off });
        back_off
    }

    /// Ends the connection to a peer that broke the rules.
    pub(crate) fn disconnect(
        context: &mut Context,
        peer: PeerId,
        back_off: Duration,
        offence: Offence,
    ) {
        let reason = match offence {
            Offence::Garbage => "it sent garbage",
            Offence::BadParameters => "it sent parameters that are not finite or out of proportion",
            Offence::Observer => "it may only observe, and wanted to exchange",
            Offence::OtherSnapshot => "it sent a snapshot of another hash than it said",
        };
        context.output(Output::Disconnect { peer, back_off, reason });
    }

    /// Any word from a neighbour shows that it lives.
    pub(crate) fn on_word(&mut self, context: &mut Context, from: PeerId) {
        let suspected = self.members.get(&from).is_some_and(Member::is_suspected);
        self.detector.on_word(context, from, suspected);
        if suspected {
            let demoted = self.history.is_demoted(&from, context.progress.clock());
            let standing = if demoted { Standing::Lagging } else { Standing::Active };
            self.members.set_standing(&from, standing);
            self.set_idle_ones(context);
            let incarnation = self.members.get(&from).map_or(0, |member| member.incarnation);
            context.event(Event::Restored(from));
            let bound = self.information_age_bound(context);
            self.partition.on_return(context, &from, incarnation, bound);
            context.then(Step::Limit);
        }
    }

    /// What a neighbour says of its training. The phase that it had before.
    pub(crate) fn on_heartbeat(&mut self, from: &PeerId, heartbeat: &Heartbeat) -> Option<Phase> {
        let member = self.members.get_mut(from)?;
        let before = member.phase;
        member.report(heartbeat);
        Some(before)
    }

    /// A neighbour has taken over a clock that may be far ahead.
    pub(crate) fn on_advance(&mut self, context: &mut Context, clock: Clock) {
        let bound = self.information_age_bound(context);
        self.partition.on_advance(context, clock, bound);
    }

    /// A neighbour names its clock; `lacks` is whether it lacks too much of the own contributions to
    /// count again. Says from which clock on its news have to be tracked anew.
    pub(crate) fn on_clock(
        &mut self,
        context: &mut Context,
        (from, clock): (PeerId, Clock),
        lacks: bool,
    ) -> ClockNews {
        let gap = context.config.bounds.progress_gap;
        let own = context.progress.clock();
        let is_demoted = self.history.is_demoted(&from, own);
        let Some(member) = self.members.get_mut(&from) else {
            return ClockNews::Nothing;
        };
        let first = member.clock.is_none();
        let lags = own.ahead_of(clock) > gap + 1 || is_demoted;
        if first && lags && member.standing == Standing::Active {
            // It is about to catch up, or has held up commits before: no reason to wait for it.
            member.standing = Standing::Lagging;
        }
        let before = member.standing;
        let waits = match before {
            Standing::Active | Standing::Suspected => false,
            Standing::Lagging => true,
            Standing::Idle => !self.links.is_idle(&from),
        };
        if member.clock.is_some_and(|known| known >= clock) && !waits {
            return ClockNews::Nothing;
        }
        let known = member.clock.map_or(clock, |known| known.max(clock));
        member.had_begun |= first && known > Clock(0);
        member.clock = Some(known);
        let demoted = before == Standing::Lagging && is_demoted;
        let counts_again = waits && own.ahead_of(known) <= gap && !lacks && !demoted;
        if counts_again {
            member.standing = Standing::Active;
        }
        if counts_again && before == Standing::Lagging {
            ClockNews::Restored(known)
        } else if first || counts_again {
            ClockNews::Begins(known)
        } else {
            ClockNews::Advanced
        }
    }

    /// Whether a neighbour counts for no bound because it did no work, and has still done none.
    pub(crate) fn is_idle(&self, peer: &PeerId) -> bool {
        let member = self.members.get(peer).filter(|member| member.standing == Standing::Idle);
        member.is_some() && self.links.is_idle(peer)
    }

    /// No commit waits any longer for neighbours that do no work. Where replicas are sums nobody has to.
    fn set_idle_ones(&mut self, context: &mut Context) {
        if context.config.mixing != Mixing::Set
            && self.members.set_idle(|it| self.links.is_idle(it))
        {
            context.then(Step::Limit);
        }
    }

    /// The commit at the own clock `own` waits for `peer` no longer.
    pub(crate) fn demote(&mut self, peer: &PeerId, own: Clock) {
        self.history.demoted(*peer, own);
        self.members.set_standing(peer, Standing::Lagging);
    }

    /// A neighbour says which stripe of the fragments it exchanges for its rack. The one before, where
    /// it has changed.
    pub(crate) fn on_rack(&mut self, from: &PeerId, name: u64, stripe: Stripe) -> Option<Stripe> {
        let member = self.members.get_mut(from)?;
        member.rack = name;
        let before = std::mem::replace(&mut member.stripe, stripe);
        (before != stripe).then_some(before)
    }

    /// The guard has changed its mind about a neighbour.
    pub(crate) fn set_trust(&mut self, peer: &PeerId, trust: Trust) {
        self.members.set_trust(peer, trust);
    }

    /// A neighbour says that it leaves this peer out: told once, until it takes part in an exchange again.
    pub(crate) fn on_left_out(&mut self, context: &mut Context, peer: PeerId) {
        if self.members.set_leaves_out(&peer, true) {
            let (partners, of) = (self.members.leaving_out(), self.members.len());
            context.event(Event::LeftOutBy { peer, partners, of });
        }
    }

    /// A neighbour has declined a proposal. For one that does nothing else no commit waits until it mixes, and
    /// it loses its place to one that may mix.
    pub(crate) fn on_declined(&mut self, context: &mut Context, peer: PeerId) {
        self.links.declined(&context.config, &peer, context.now);
        if self.links.only_declines(&peer) {
            self.set_idle_ones(context);
        }
        if self.links.is_useless(&context.config, &peer, context.now) {
            let back_off = USELESS_BACK_OFF.min(context.config.back_off_max);
            let reason = "it only answers that it is busy";
            context.output(Output::Disconnect { peer, back_off, reason });
        }
    }

    /// A neighbour mixes with this peer, whatever it said before.
    pub(crate) fn on_let_in(&mut self, peer: &PeerId) {
        self.members.set_leaves_out(peer, false);
    }

    /// This peer has done a commit.
    pub(crate) fn on_commit(&mut self, clock: Clock) {
        self.partition.on_commit(clock);
    }

    /// The whole replica was replaced.
    pub(crate) fn on_replaced(&mut self, context: &Context) {
        self.members.set_met();
        self.validation.on_replaced();
        let bound = self.information_age_bound(context);
        self.partition.ramp_in(context, bound);
        self.partition.on_replaced(context);
    }

    /// This peer has taken over the clock of those ahead, to merge with them.
    pub(crate) fn on_merge(&mut self, context: &mut Context) {
        let bound = self.information_age_bound(context);
        self.partition.advanced(context, bound);
    }

    /// Looks after every silent neighbour; `held` is what a commit waits for.
    pub(crate) fn watch(&mut self, context: &mut Context, held: Option<Held>) {
        self.detector.watch(context, &self.members, held);
    }

    /// Does something about a silent neighbour; the rest is done by those who have exchanges with it.
    pub(crate) fn look(&mut self, context: &mut Context, peer: PeerId, look: Look) {
        match look {
            Look::Ask => self.detector.ask(context, peer),
            Look::AskHelpers => {
                let others = self.sound(context).map(|(other, _)| *other).collect();
                self.detector.ask_helpers(context, peer, others);
            }
            Look::Suspect => {
                self.lose(context, peer);
                self.members.set_standing(&peer, Standing::Suspected);
                self.detector.settle(&peer);
                context.event(Event::Suspected(peer));
            }
            Look::Forget => {
                self.lose(context, peer);
                let back_off = context.config.back_off_min;
                let reason = "it has been silent";
                context.output(Output::Disconnect { peer, back_off, reason });
            }
        }
    }

    /// `from` asks whether `target` lives.
    pub(crate) fn on_probe(
        &mut self,
        context: &mut Context,
        from: PeerId,
        number: u64,
        target: PeerId,
    ) {
        self.detector.on_probe(context, from, number, target);
    }

    /// `from` says that `target` lives.
    pub(crate) fn on_alive(&mut self, from: PeerId, number: u64, target: PeerId, now: Time) {
        self.detector.on_alive(from, number, target, now);
    }

    /// Something of `peer` broke that breaks when its process dies.
    pub(crate) fn on_alarm(&mut self, context: &mut Context, peer: PeerId) {
        if self.members.get(&peer).is_some_and(|member| !member.is_suspected()) {
            self.detector.on_alarm(context, peer);
        }
    }

    /// Tells all neighbours the own clock, at most once per `announce_min`.
    pub(crate) fn announce(&mut self, context: &mut Context) {
        self.announcer.announce(context);
    }

    /// The core is called `late` after its deadline.
    pub(crate) fn on_call(&mut self, late: Duration, now: Time) {
        self.detector.on_call(late, now);
    }

    /// When a heartbeat is due, when to look for silent neighbours, and when to announce the clock.
    pub(crate) const fn deadlines(&self) -> (Time, Time, Option<Time>) {
        let (announcer, detector) = (&self.announcer, &self.detector);
        (announcer.heartbeat_at(), detector.watch_at(), announcer.announce_at())
    }

    /// Announces the clock, when that waits and its time has come.
    pub(crate) fn announce_when_due(&mut self, context: &mut Context) {
        self.announcer.on_deadline(context);
    }

    /// The time of a heartbeat has come.
    pub(crate) fn on_heartbeat_due(&mut self, context: &mut Context) {
        self.detector.was_punctual();
        self.announcer.beat(context);
        Announcer::send_heartbeats(context);
        self.detector.measure_next(context);
        let seen = 1 + self.members.heard().count();
        self.partition.notice(context, seen);
    }

    /// Says what the deadlines are, and why, when one has changed much; `gate` is that of commits.
    pub(crate) fn report_deadlines(
        &mut self,
        context: &mut Context,
        gate: Option<(Duration, &'static str)>,
    ) {
        let Self { members, links, detector, reports, .. } = self;
        if let Some(gate) = gate {
            reports.report(context, ("gate", None), gate);
        }
        for (peer, _) in members.iter() {
            let lease = links.explained_lease(&context.config, peer);
            reports.report(context, ("lease", Some(*peer)), lease);
            if let Some(suspicion) = detector.suspected_after(&context.config, peer) {
                reports.report(context, ("suspicion", Some(*peer)), suspicion);
            }
        }
        reports.retain(|peer| members.get(peer).is_some());
    }
}
