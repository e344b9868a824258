//! Neighbours lost without a goodbye: what is said of it, and how those that have trained apart merge.
//!
//! Every peer judges by itself, and no side is the right one. Merging peers weigh by the samples that
//! each has processed in a thousand seconds while they were apart, at full weight, so that the
//! replicas agree on the mean of the sides weighted by their work; who is behind takes over the clock
//! and keeps its model (docs/math.md, merging).

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Clock, Heartbeat, Message, PeerId, Phase, Time};

use crate::exchange::Claim;
use crate::gossip::Gossip;
use crate::membership::{Standing, VIEW_MAX};
use crate::pace::speed;
use crate::{Event, Mixing, Output};

/// Lost neighbours that are remembered; of more the one that was lost first is forgotten.
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
pub(crate) struct Apart {
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
    at: Time,
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

impl Gossip {
    /// What this peer brings to an exchange now.
    pub(crate) fn claim(&self) -> Claim {
        let Apart { merging, ramp, .. } = &self.apart;
        let work = || per_time(speed(self.step_time, self.step_batch));
        let (work, merges) = match (merging, ramp) {
            (Some(merging), _) => (merging.work, true),
            (None, Some(ramp)) => (ramp.part_of(work(), self.clock), true),
            (None, None) => (work(), false),
        };
        Claim { clock: self.clock, mass: self.mass(), work, merges }
    }

    /// A peer that has trained nothing yet has the others' model now.
    pub(crate) fn ramp_in(&mut self) {
        if self.samples == 0 && self.config.mixing == Mixing::Exchange {
            let until = self.clock.plus(self.information_bound());
            self.apart.ramp = Some(Ramp { from: self.clock, until });
        }
    }

    /// A neighbour went without a goodbye, or is silent.
    pub(crate) fn lost(&mut self, peer: PeerId) {
        let Some(member) = self.members.get(&peer) else {
            return;
        };
        let (incarnation, at) = (member.incarnation, member.last_heard);
        let lost = Lost { incarnation, at, clock: self.clock, samples: self.samples };
        self.apart.lost.entry(peer).or_insert(lost);
        while self.apart.lost.len() > LOST_MAX {
            let first = self.apart.lost.iter().min_by_key(|(_, lost)| lost.at);
            let Some(first) = first.map(|(peer, _)| *peer) else { break };
            self.apart.lost.remove(&first);
        }
    }

    /// A neighbour has said goodbye, or is not spoken to any more: it is not missed.
    pub(crate) fn not_missed(&mut self, peer: &PeerId) {
        self.apart.lost.remove(peer);
    }

    /// A neighbour is here again. One that went on meanwhile merges with this peer, if this one has
    /// done more work than the progress bound lets neighbours differ by.
    pub(crate) fn returned(&mut self, peer: &PeerId, incarnation: u64, now: Time) {
        let Some(lost) = self.apart.lost.remove(peer) else {
            return;
        };
        if lost.incarnation == incarnation {
            self.begin_merging(lost, now);
        }
    }

    /// A neighbour has taken over a clock that is far ahead, by merging with peers that this one has
    /// not met yet, or by joining them.
    pub(crate) fn saw_advance(&mut self, clock: Clock, now: Time) {
        let gap = self.config.bounds.progress_gap;
        let last = self.apart.lost.values().max_by_key(|lost| lost.at);
        if let Some(lost) = last.copied().filter(|_| clock.ahead_of(self.clock) > gap + 1) {
            self.begin_merging(lost, now);
        }
    }

    fn begin_merging(&mut self, lost: Lost, now: Time) {
        let gap = self.config.bounds.progress_gap;
        let little = self.clock.ahead_of(lost.clock) <= gap + 1;
        if little || self.apart.merging.is_some() || self.config.mixing == Mixing::Set {
            return;
        }
        let seconds = now.since(lost.at).as_secs_f64().max(f64::MIN_POSITIVE);
        let work = per_time(self.samples.saturating_sub(lost.samples) as f64 / seconds);
        let until = self.clock.plus(self.information_bound());
        self.apart.merging = Some(Merging { work, until, advanced: false });
        self.event(Event::Merging { clock: self.clock, work });
    }

    /// Ends merging and ramping in when enough commits were done since.
    pub(crate) fn end_merging_when_done(&mut self) {
        let (clock, apart) = (self.clock, &mut self.apart);
        apart.merging = apart.merging.filter(|merging| clock < merging.until);
        apart.ramp = apart.ramp.filter(|ramp| clock < ramp.until);
    }

    /// Takes over the clock of those ahead and keeps the model, when this peer merges; returns whether
    /// it did. Whoever falls behind again after that pulls, as a straggler does.
    pub(crate) fn advance(&mut self, now: Time) -> bool {
        let advances = self.apart.merging.is_some_and(|merging| !merging.advanced);
        if !advances || self.config.mixing == Mixing::Set {
            return false;
        }
        let newest = self.donors().map(|(_, clock)| clock).max().unwrap_or_default();
        // Said first: the clock that follows stands for no work that others have to wait for.
        let joining = Heartbeat { phase: Phase::Joining, ..self.heartbeat() };
        self.tell_all(&Message::Heartbeat(joining), now);
        self.withdraw_unaccepted(now);
        self.clock = self.clock.max(newest);
        self.wants_commit = false;
        let (me, clock) = (self.me, self.clock);
        self.information.raise_all(&me, clock);
        let until = clock.plus(self.information_bound());
        if let Some(merging) = self.apart.merging.as_mut() {
            (merging.until, merging.advanced) = (until, true);
            let work = merging.work;
            self.event(Event::Merging { clock, work });
        }
        self.output(Output::AdoptClock { clock, replaced: false });
        self.tell_all(&Message::Heartbeat(self.heartbeat()), now);
        self.update_limit();
        true
    }

    /// Says how many are missing, when several have been for a while.
    pub(crate) fn notice_split(&mut self, now: Time) {
        self.apart.lost.retain(|_, lost| now.since(lost.at) < LOST_FOR);
        let missing = || {
            let missing = self.apart.lost.values();
            missing.map(|lost| lost.at).filter(|at| now.since(*at) >= SPLIT_AFTER)
        };
        let (count, seen) = (missing().count(), self.seen());
        let before = self.apart.told.map_or(0, |(count, _)| count);
        let several = count >= SPLIT_LEAST || count > 0 && seen == 1;
        if !several || count <= before {
            return self.tell_when_whole(now);
        }
        let last = missing().max().unwrap_or(now);
        let since = missing().filter(|at| last.since(*at) <= SPLIT_WITHIN).min().unwrap_or(last);
        self.apart.told = Some((count, since));
        self.event(Event::Split { seen, of: seen + count, since });
    }

    /// Says that the missing are back, when it was said that they are missing.
    fn tell_when_whole(&mut self, now: Time) {
        let (missing, seen) = (self.apart.lost.len(), self.seen());
        if (missing >= SPLIT_LEAST || missing > 0 && seen == 1) || self.apart.told.is_none() {
            return;
        }
        if let Some((_, since)) = self.apart.told.take() {
            self.event(Event::Whole { seen, of: seen + missing, lasted: now.since(since) });
        }
    }

    /// This peer and the neighbours that are not silent.
    fn seen(&self) -> usize {
        let heard = self.members.iter().filter(|(_, m)| m.standing != Standing::Suspected);
        1 + heard.count()
    }
}

/// What is told of so many samples per second.
fn per_time(samples_per_second: f64) -> u32 {
    (samples_per_second * WORK_SECONDS).clamp(1.0, f64::from(u32::MAX)) as u32
}
