//! Partition recovery: who was lost without a goodbye, and how peers merge that have trained apart.
//!
//! Every peer judges by itself, and no side is the right one. Merging peers weigh by the samples that
//! each has processed in a thousand seconds while they were apart, at full weight, so that the
//! replicas agree on the mean of the sides weighted by their work; who is behind takes over the clock
//! and keeps its model (docs/math.md, merging).

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Clock, PeerId, Phase, Time};

use super::view::VIEW_MAX;
use crate::context::Context;
use crate::{Event, Mixing};

/// Lost neighbours that are remembered. Of more, first those are forgotten that had never mixed with this peer:
/// names that come and go push out none that is missed. Among them it is the one that was lost first.
const LOST_MAX: usize = VIEW_MAX;
/// For how long. Guess: a night.
const LOST_FOR: Duration = Duration::from_secs(24 * 3600);
/// A loss is spoken of when it has lasted for this long; shorter ones are pauses. Guess.
const SPLIT_AFTER: Duration = Duration::from_secs(5);
/// Losses within this time of each other have one cause. Guess: the time after which a neighbour that
/// says nothing is forgotten, and as much again.
const SPLIT_WITHIN: Duration = Duration::from_secs(40);
/// Fewer lost neighbours are single failures, where others are left.
const SPLIT_LEAST: usize = 2;
/// Work is told for so many seconds, so that slow peers have some.
const WORK_SECONDS: f64 = 1000.0;

/// What this peer knows of those it has lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partition {
    lost: BTreeMap<PeerId, Lost>,
    /// How many were lost when it was last spoken of, and since when.
    told: Option<(usize, Time)>,
    merging: Option<Merging>,
    ramp: Option<Ramp>,
}

/// A neighbour that went silent, and how far this peer was then.
#[derive(Clone, Copy, Debug)]
struct Lost {
    incarnation: u64,
    has_mixed: bool,
    at: Time,
    /// From when on the own work counts as done without it: then, or when this peer last had the others' model.
    since: Time,
    clock: Clock,
    samples: u64,
}

/// This peer brings the work that it did apart.
#[derive(Clone, Copy, Debug)]
struct Merging {
    /// Samples in a thousand seconds.
    work: u32,
    /// Until the own clock gets here.
    until: Clock,
    /// Whether it has taken over a clock.
    advanced: bool,
}

/// This peer has joined with the others' model: its work counts by and by, so that first steps with
/// an optimizer that begins anew move nobody.
#[derive(Clone, Copy, Debug)]
struct Ramp {
    from: Clock,
    /// All of it counts when the own clock gets here.
    until: Clock,
}

impl Ramp {
    /// The part of `work` that counts at `clock`.
    fn part_of(self, work: u32, clock: Clock) -> u32 {
        let (done, all) = (clock.ahead_of(self.from) + 1, self.until.ahead_of(self.from) + 1);
        let part = u128::from(work) * u128::from(done.min(all)) / u128::from(all);
        u32::try_from(part).unwrap_or(work).max(1)
    }
}

impl Partition {
    /// What the own work weighs in an exchange now, and whether this peer merges.
    pub(crate) fn work(&self, context: &Context) -> (u32, bool) {
        let work = || per_time(context.progress.speed());
        match (&self.merging, &self.ramp) {
            (Some(merging), _) => (merging.work, true),
            (None, Some(ramp)) => (ramp.part_of(work(), context.progress.clock()), true),
            (None, None) => (work(), false),
        }
    }

    /// A peer that has trained nothing yet has the others' model now. `bound` is the bound on the age
    /// of information, as it is for all methods here.
    pub(super) fn ramp_in(&mut self, context: &Context, bound: u64) {
        if !context.progress.has_committed() && context.config.mixing == Mixing::Exchange {
            let from = context.progress.clock();
            self.ramp = Some(Ramp { from, until: from.plus(bound) });
        }
    }

    /// A neighbour of this incarnation, which had mixed with this peer or not, and was last heard of then, went
    /// without a goodbye or is silent.
    ///
    /// A peer whose whole replica is being replaced has not shared the others' model until it has all of
    /// it: what it trains without them it gives up for theirs, and does not bring in.
    pub(super) fn lose(
        &mut self,
        context: &Context,
        peer: PeerId,
        (incarnation, has_mixed): (u64, bool),
        at: Time,
    ) {
        if context.progress.phase() == Phase::Joining {
            return;
        }
        let (clock, samples) = (context.progress.clock(), context.progress.samples());
        let lost = Lost { incarnation, has_mixed, at, since: at, clock, samples };
        self.lost.entry(peer).or_insert(lost);
        while self.lost.len() > LOST_MAX {
            let first = self.lost.iter().min_by_key(|(_, lost)| (lost.has_mixed, lost.at));
            let Some(first) = first.map(|(peer, _)| *peer) else { break };
            self.lost.remove(&first);
        }
    }

    /// This peer has the others' model in place of what it trained without them.
    pub(super) fn on_replaced(&mut self, context: &Context) {
        let (clock, samples) = (context.progress.clock(), context.progress.samples());
        for lost in self.lost.values_mut() {
            (lost.since, lost.clock, lost.samples) = (context.now, clock, samples);
        }
    }

    /// A neighbour has said goodbye, or is not spoken to any more: it is not missed.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.lost.remove(peer);
    }

    /// A neighbour is here again. One that went on meanwhile merges with this peer, if this one has
    /// done more work than the progress bound lets neighbours differ by.
    pub(super) fn on_return(
        &mut self,
        context: &mut Context,
        peer: &PeerId,
        incarnation: u64,
        bound: u64,
    ) {
        let Some(lost) = self.lost.remove(peer) else {
            return;
        };
        if lost.incarnation == incarnation {
            self.begin_merging(context, lost, bound);
        }
    }

    /// A neighbour has taken over a clock that is far ahead, by merging with peers that this one has
    /// not met yet, or by joining them.
    pub(super) fn on_advance(&mut self, context: &mut Context, clock: Clock, bound: u64) {
        let gap = context.config.bounds.progress_gap;
        let last = self.lost.values().max_by_key(|lost| lost.at).copied();
        let far = clock.ahead_of(context.progress.clock()) > gap + 1;
        if let Some(lost) = last.filter(|_| far) {
            self.begin_merging(context, lost, bound);
        }
    }

    fn begin_merging(&mut self, context: &mut Context, lost: Lost, bound: u64) {
        let gap = context.config.bounds.progress_gap;
        let (clock, samples) = (context.progress.clock(), context.progress.samples());
        let little = clock.ahead_of(lost.clock) <= gap + 1;
        if little || self.merging.is_some() || context.config.mixing == Mixing::Set {
            return;
        }
        let seconds = context.now.since(lost.since).as_secs_f64().max(f64::MIN_POSITIVE);
        let work = per_time(samples.saturating_sub(lost.samples) as f64 / seconds);
        self.merging = Some(Merging { work, until: clock.plus(bound), advanced: false });
        context.event(Event::Merging { clock, work });
    }

    /// Ends merging and ramping in when enough commits were done since.
    pub(super) fn on_commit(&mut self, clock: Clock) {
        self.merging = self.merging.filter(|merging| clock < merging.until);
        self.ramp = self.ramp.filter(|ramp| clock < ramp.until);
    }

    /// Whether this peer merges and has taken over no clock for that yet.
    pub(crate) fn may_advance(&self) -> bool {
        self.merging.is_some_and(|merging| !merging.advanced)
    }

    /// This peer has taken over the clock of those ahead, to merge with them.
    pub(super) fn advanced(&mut self, context: &mut Context, bound: u64) {
        let clock = context.progress.clock();
        if let Some(merging) = self.merging.as_mut() {
            (merging.until, merging.advanced) = (clock.plus(bound), true);
            let work = merging.work;
            context.event(Event::Merging { clock, work });
        }
    }

    /// Says how many are missing, when several have been for a while; `seen` is how many are here.
    pub(super) fn notice(&mut self, context: &mut Context, seen: usize) {
        let now = context.now;
        self.lost.retain(|_, lost| now.since(lost.at) < LOST_FOR);
        let missing = || {
            let missing = self.lost.values();
            missing.map(|lost| lost.at).filter(|at| now.since(*at) >= SPLIT_AFTER)
        };
        let count = missing().count();
        let before = self.told.map_or(0, |(count, _)| count);
        let several = count >= SPLIT_LEAST || count > 0 && seen == 1;
        // Half as many more are news: names that come and go fill no log.
        if !several || count <= before + before / 2 {
            return self.tell_when_whole(context, seen);
        }
        let last = missing().max().unwrap_or(now);
        let since = missing().filter(|at| last.since(*at) <= SPLIT_WITHIN).min().unwrap_or(last);
        self.told = Some((count, since));
        context.event(Event::Split { seen, of: seen + count, since });
    }

    /// Says that the missing are back, when it was said that they are missing.
    fn tell_when_whole(&mut self, context: &mut Context, seen: usize) {
        let missing = self.lost.len();
        if (missing >= SPLIT_LEAST || missing > 0 && seen == 1) || self.told.is_none() {
            return;
        }
        if let Some((_, since)) = self.told.take() {
            let lasted = context.now.since(since);
            context.event(Event::Whole { seen, of: seen + missing, lasted });
        }
    }
}

/// What is told of so many samples per second.
fn per_time(samples_per_second: f64) -> u32 {
    (samples_per_second * WORK_SECONDS).clamp(1.0, f64::from(u32::MAX)) as u32
}
