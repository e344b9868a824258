//! Trainers of real models: local steps one by one in virtual time, as the product's training thread
//! takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dnode_gossip::testing::{Bytes, Replica};
use dnode_gossip::{Event, Input, MICRO_STEPS, Stride};
use dnode_protocol::{Clock, Time};
use serde::{Deserialize, Serialize};

use super::peer::index_of;
use super::world::World;

/// Steps after which a peer tells how long they take, as the product's training thread does.
const MEASURED_STEPS: u64 = 3;

/// Where replicas of real models come from.
pub trait Fleet: std::fmt::Debug {
    /// The replica of a peer that starts.
    fn replica(&mut self, peer: u32) -> Box<dyn Replica>;

    /// Bytes of a tensor on the wire, frames and all.
    fn tensor_bytes(&self, numbers: &Bytes) -> u64;
}

/// How the peers of a world train real models.
#[derive(Debug)]
pub struct Learning {
    /// Where replicas come from.
    pub fleet: Box<dyn Fleet>,
    /// Time of a local step of each peer.
    pub step_times: Vec<Duration>,
    /// Steps of the run.
    pub steps: u64,
    /// Local steps per commit of a peer of mean speed.
    pub local_steps: u64,
    /// Local steps per round of exchanges of such a peer.
    pub mix_every: u64,
    /// Whether all peers begin at the same moment, instead of within one round.
    pub together: bool,
    /// What was seen.
    pub seen: Seen,
}

/// A guard that has changed its mind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Guarded {
    /// When, virtual seconds.
    pub at_s: f64,
    /// Whose guard.
    pub by: u32,
    /// About whom.
    pub about: u32,
    /// How much it trusts that peer from then on.
    pub trust: String,
}

/// What was seen of the exchanges of all peers.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How many exchanges were applied at which clock distance, both ends counted.
    pub lags: BTreeMap<u64, u64>,
    /// How many were applied at which age of the snapshot or contribution, both ends counted.
    pub ages: BTreeMap<u64, u64>,
    /// Applied.
    pub applied: u64,
    /// Ended without effect.
    pub failed: u64,
    /// What the guards decided.
    pub guarded: Vec<Guarded>,
    /// Who was told by whom that it is left out.
    pub left_out_by: BTreeSet<(u32, u32)>,
    /// Why a peer cannot train any more.
    pub broken: Option<String>,
}

impl Learning {
    pub(super) fn said(&mut self, peer: u32, now: Time, event: &Event) {
        let seen = &mut self.seen;
        match event {
            Event::Guarded { peer: about, trust, .. } => {
                let (at_s, about) = (now.as_micros() as f64 * 1e-6, index_of(about));
                seen.guarded.push(Guarded { at_s, by: peer, about, trust: format!("{trust:?}") });
            }
            Event::LeftOutBy { peer: by, .. } => {
                seen.left_out_by.insert((peer, index_of(by)));
            }
            Event::Applied { lag, age, .. } => {
                seen.applied += 1;
                *seen.lags.entry(*lag).or_default() += 1;
                *seen.ages.entry(*age).or_default() += 1;
            }
            Event::Included { age, .. } => {
                seen.applied += 1;
                *seen.ages.entry(*age).or_default() += 1;
            }
            Event::Failed { .. } => seen.failed += 1,
            Event::PeerUp(_)
            | Event::PeerDown(_)
            | Event::Suspected(_)
            | Event::Demoted { .. }
            | Event::Restored(_)
            | Event::Refused { .. }
            | Event::Undone { .. }
            | Event::Undecided { .. }
            | Event::Deadline { .. }
            | Event::Held { .. }
            | Event::CatchUpStarted { .. }
            | Event::CatchUpDone { .. }
            | Event::Split { .. }
            | Event::Whole { .. }
            | Event::Merging { .. }
            | Event::Offended { .. } => {}
        }
    }
}

/// Where the local steps of a peer stand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    /// Local steps done; names the next batch.
    index: u64,
    /// Position in the run, millionths of a step.
    micro_steps: u64,
    stride: Stride,
    since_commit: u64,
    since_round: u64,
    /// Whether a step is under way.
    stepping: bool,
    /// The replica's clock as this course knows it.
    clock: Clock,
}

impl Course {
    /// Where a peer begins.
    pub(super) fn new(learning: &Learning) -> Self {
        Self { stride: Stride::new(learning.local_steps, learning.mix_every), ..Self::default() }
    }

    const fn position(&self) -> u64 {
        self.micro_steps / MICRO_STEPS
    }

    /// A step is done.
    fn advance(&mut self) {
        self.micro_steps += self.stride.advance();
        (self.index, self.since_commit) = (self.index + 1, self.since_commit + 1);
        self.since_round += 1;
    }

    /// Takes note of the pace and of a clock that was adopted from a donor.
    fn follow(&mut self, local_steps: u64, clock: Clock, learning: &Learning) {
        self.stride.set(local_steps);
        if clock != self.clock {
            let reached = self.stride.position(clock).min(learning.steps * MICRO_STEPS);
            self.micro_steps = self.micro_steps.max(reached);
            (self.since_commit, self.since_round, self.clock) = (0, 0, clock);
        }
    }
}

impl World {
    /// What trains real models here, if anything does.
    #[must_use]
    pub const fn learning(&self) -> Option<&Learning> {
        self.learning.as_ref()
    }

    /// The time within which a peer that starts begins its first round.
    pub(super) fn first_round(&mut self, peer: u32) -> Duration {
        match &self.learning {
            Some(learning) if learning.together => Duration::ZERO,
            Some(learning) => {
                let steps = u32::try_from(learning.local_steps).unwrap_or(u32::MAX);
                learning.step_times[peer as usize] * steps
            }
            None => self.round_interval(peer),
        }
    }

    /// Every peer begins a round of exchanges, as peers do that have finished.
    pub fn exchange_once(&mut self) {
        for peer in 0..self.scenario.peers {
            let sim = &mut self.peers[peer as usize];
            if let Some(host) = sim.host.as_mut()
                && !sim.round_open
            {
                sim.round_open = true;
                host.handle(Input::RoundDue, self.now);
            }
            self.settle(peer);
        }
    }

    /// A local step is done, or what kept the trainer from one is over: a commit and a round if they
    /// are due, and the next step.
    pub(super) fn local_step(&mut self, peer: u32) {
        let now = self.now;
        let Some(learning) = &mut self.learning else { return };
        let sim = &mut self.peers[peer as usize];
        let Some(host) = sim.host.as_mut() else { return };
        let step_time = learning.step_times[peer as usize];
        let course = &mut sim.course;
        course.follow(host.load.local_steps, host.clock, learning);
        if std::mem::take(&mut course.stepping) {
            if let Err(broken) = host.replica.train(course.index, course.position()) {
                learning.seen.broken.get_or_insert(broken);
            }
            course.advance();
            sim.counts.steps += 1;
            if course.index == MEASURED_STEPS {
                let batch = host.load.batch;
                host.handle(Input::StepMeasured { step_time, batch }, now);
            }
        }
        let ended = course.position() >= learning.steps;
        let (local_steps, longest) = (course.stride.local_steps(), course.stride.longest());
        let must = ended && course.since_commit > 0 || course.since_commit >= longest;
        let due = must || course.since_commit >= local_steps && !sim.round_open;
        if due && host.training {
            if host.clock < host.limit {
                host.commit_after(0.0, step_time, now);
                (course.since_commit, course.clock) = (0, host.clock);
                (sim.said, sim.held_since) = (None, None);
                sim.counts.commits += 1;
            } else if must {
                if sim.said != Some(host.clock) {
                    host.commit_after(0.0, step_time, now);
                    sim.said = Some(host.clock);
                }
                sim.blocked = true;
                return;
            }
        }
        if !host.training {
            sim.blocked = true;
            return;
        }
        if course.since_round >= course.stride.mix_every() {
            course.since_round = 0;
            if !sim.round_open {
                sim.round_open = true;
                sim.counts.rounds += 1;
                host.handle(Input::RoundDue, now);
            }
        }
        if ended {
            sim.finished = true;
            return host.handle(Input::Finished, now);
        }
        course.stepping = true;
        self.schedule_tick(peer, step_time);
    }
}
