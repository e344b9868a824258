//! Trainers of real models: local steps one by one in virtual time, as the product's training thread
//! takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dnode_gossip::testing::{Bytes, Effect, Host, Replica};
use dnode_gossip::{Event, MICRO_STEPS, Stride};
use dnode_protocol::{Clock, Time};
use serde::{Deserialize, Serialize};

use super::names::index_of;

/// Steps after which a peer tells how long they take, as the product's training thread does.
const MEASURED_STEPS: u64 = 3;

/// Where replicas of real models come from.
pub trait Fleet: std::fmt::Debug {
    /// The replica of a peer that starts.
    fn replica(&mut self, peer: u32) -> Box<dyn Replica>;

    /// What leaves a peer in place of `effect`: another thing, or nothing, where the peer misbehaves.
    fn leaves(&self, peer: u32, effect: Effect) -> Option<Effect> {
        let _ = peer;
        Some(effect)
    }

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
    /// Whether a commit is a contribution to everybody's sum.
    pub contributes: bool,
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
    /// The time within which a peer that starts begins its first round.
    pub(super) fn first_round(&self, peer: u32) -> Duration {
        if self.together {
            return Duration::ZERO;
        }
        let steps = u32::try_from(self.local_steps).unwrap_or(u32::MAX);
        self.step_times[peer as usize] * steps
    }

    /// A core reports something.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are of no interest here")]
    pub(super) fn on_event(&mut self, peer: u32, now: Time, event: &Event) {
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
            _ => {}
        }
    }
}

/// Where the local steps of a peer stand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LocalSteps {
    /// Local steps done; names the next batch.
    index: u64,
    /// Position in the run, millionths of a step.
    micro_steps: u64,
    stride: Stride,
    since_commit: u64,
    since_round: u64,
    /// Whether a step is under way.
    stepping: bool,
    /// The replica's clock, as far as it is known here.
    clock: Clock,
}

impl LocalSteps {
    /// Where a peer begins.
    pub(super) fn new(learning: &Learning) -> Self {
        let stride = Stride::new(learning.local_steps, learning.mix_every);
        let stride = if learning.contributes { stride.of_contributions() } else { stride };
        Self { stride, ..Self::default() }
    }

    const fn position(&self) -> u64 {
        self.micro_steps / MICRO_STEPS
    }

    /// Takes note of the pace and of a clock that was adopted from a donor.
    pub(super) fn follow(&mut self, host: &Host, learning: &Learning) {
        let (load, round_every, clock) = (host.load, host.round_every, host.clock);
        self.stride.set_load(load);
        if let Some(steps) = round_every {
            self.stride.set_round_every(steps);
        }
        if clock != self.clock {
            let told = host.position.saturating_mul(MICRO_STEPS);
            let reached = self.stride.position(clock).max(told).min(learning.steps * MICRO_STEPS);
            self.micro_steps = self.micro_steps.max(reached);
            (self.since_commit, self.since_round, self.clock) = (0, 0, clock);
        }
    }

    /// A step begins.
    pub(super) const fn begin_step(&mut self) {
        self.stepping = true;
    }

    /// The step that is under way is done. Returns whether there was one.
    pub(super) fn end_step(&mut self, host: &mut Host, seen: &mut Seen) -> bool {
        if !std::mem::take(&mut self.stepping) {
            return false;
        }
        if let Err(broken) = host.replica.train(self.index, self.position()) {
            seen.broken.get_or_insert(broken);
        }
        self.micro_steps += self.stride.advance();
        host.position = self.position();
        (self.index, self.since_commit) = (self.index + 1, self.since_commit + 1);
        self.since_round += 1;
        true
    }

    /// Whether enough steps are done to tell how long they take.
    pub(super) const fn is_measured(&self) -> bool {
        self.index == MEASURED_STEPS
    }

    /// Whether so many steps of the run are done.
    pub(super) const fn has_done(&self, steps: u64) -> bool {
        self.position() >= steps
    }

    /// Whether no step may follow before a commit.
    pub(super) const fn must_commit(&self, ended: bool) -> bool {
        ended && self.since_commit > 0 || self.since_commit >= self.stride.longest()
    }

    /// Whether the steps of a commit are done.
    pub(super) const fn may_commit(&self) -> bool {
        self.since_commit >= self.stride.local_steps()
    }

    pub(super) const fn committed(&mut self, clock: Clock) {
        (self.since_commit, self.clock) = (0, clock);
    }

    /// Whether rounds overlap, and commits do not wait for their ends.
    pub(super) fn rounds_overlap(&self) -> bool {
        self.stride.rounds_overlap()
    }

    /// Whether the steps of a round are done, which are counted anew then.
    pub(super) fn takes_round(&mut self) -> bool {
        let takes = self.since_round >= self.stride.mix_every();
        if takes {
            self.since_round = 0;
        }
        takes
    }
}
