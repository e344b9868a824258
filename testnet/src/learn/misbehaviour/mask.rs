//! The weights that a peer shows in place of its own, in exchanges, contributions and snapshots.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use dnode_protocol::frame::Codec;
use dnode_trainer::codec::{Encoded, decode, encode};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Misbehaviour, Wrong};

/// Exchanges of a fragment after which a replay shows something again.
const REPLAYED_AFTER: usize = 16;
/// What the newest weights count for in the running mean that progress is measured from.
const ANCHOR_RATE: f32 = 0.2;
/// What a new difference counts for in the spread that a peer has seen.
const SPREAD_RATE: f32 = 0.2;

/// What a peer that misbehaves shows, and what it has seen.
#[derive(Debug)]
pub(in super::super) struct Mask {
    wrong: Misbehaviour,
    /// Local steps done.
    steps: u64,
    /// The weights with which it began, `[P]`.
    first: Vec<f32>,
    /// Running mean of its own weights, `[P]`.
    anchor: Vec<f32>,
    /// What it was shown last, `[P]`.
    seen: Vec<f32>,
    /// Running mean of the squared distance of each weight to that of others, `[P]`.
    spread: Vec<f32>,
    /// One direction, of root mean square 1, which all that misbehave share, `[P]`.
    direction: Vec<f32>,
    /// The weights of the last exchanges, by the begin of the fragment.
    history: BTreeMap<usize, VecDeque<Vec<f32>>>,
    /// Times that each fragment was shown.
    shown: BTreeMap<usize, u32>,
    rng: ChaCha8Rng,
}

/// Roughly normal: mean 0, variance 1.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0
}

fn rms(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len().max(1) as f32).sqrt()
}

impl Mask {
    /// The mask of a peer whose weights are `first` when it begins.
    pub(in super::super) fn of(
        wrong: Option<Misbehaviour>,
        first: impl FnOnce() -> Vec<f32>,
    ) -> Option<Self> {
        let wrong = wrong.filter(|wrong| match wrong.kind {
            Wrong::Negative
            | Wrong::Scaled
            | Wrong::Frozen
            | Wrong::FrozenAndFast
            | Wrong::Noise
            | Wrong::NoiseAndHeavy
            | Wrong::Drift
            | Wrong::DriftAndReturns
            | Wrong::DriftAndSeldom
            | Wrong::Equivocation
            | Wrong::SlowPoison
            | Wrong::LittleIsEnough
            | Wrong::InnerProduct
            | Wrong::Mimic
            | Wrong::Replay
            | Wrong::Snapshot => true,
            Wrong::LearningRate
            | Wrong::Uphill
            | Wrong::Idle
            | Wrong::Shuffled
            | Wrong::Flipped
            | Wrong::Clock
            | Wrong::Busy
            | Wrong::NeverAcknowledges
            | Wrong::SelectiveSilence
            | Wrong::Absent => false,
        })?;
        let first = first();
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let direction = first.iter().map(|_| normal(&mut rng)).collect();
        Some(Self {
            wrong,
            steps: 0,
            anchor: first.clone(),
            seen: first.clone(),
            spread: vec![0.0; first.len()],
            first,
            direction,
            history: BTreeMap::new(),
            shown: BTreeMap::new(),
            rng,
        })
    }

    /// A local step is done.
    pub(in super::super) const fn step(&mut self) {
        self.steps += 1;
    }

    /// Whether the peer is honest so far.
    const fn is_off(&self) -> bool {
        self.steps < self.wrong.from_step
    }

    /// The peer was shown `weights` while its own were `own`.
    pub(in super::super) fn see(&mut self, range: Range<usize>, own: &[f32], weights: &[f32]) {
        self.seen[range.clone()].copy_from_slice(weights);
        let spread = self.spread[range].iter_mut();
        for ((spread, own), other) in spread.zip(own).zip(weights) {
            *spread += SPREAD_RATE * ((own - other).powi(2) - *spread);
        }
    }

    /// What is shown in place of `own`, the numbers of the elements `range`.
    pub(in super::super) fn show(&mut self, range: Range<usize>, own: &[f32]) -> Vec<f32> {
        for (anchor, own) in self.anchor[range.clone()].iter_mut().zip(own) {
            *anchor += ANCHOR_RATE * (own - *anchor);
        }
        let history = self.history.entry(range.start).or_default();
        history.push_back(own.to_vec());
        if history.len() > REPLAYED_AFTER {
            history.pop_front();
        }
        let shown = self.shown.entry(range.start).or_default();
        *shown += 1;
        if self.is_off() { own.to_vec() } else { self.bent(range, own) }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all others show their own")]
    fn bent(&mut self, range: Range<usize>, own: &[f32]) -> Vec<f32> {
        let (factor, length) = (self.wrong.factor, rms(own));
        let times = self.shown.get(&range.start).copied().unwrap_or(1);
        let moved = |by: f32| -> Vec<f32> {
            let direction = &self.direction[range.clone()];
            own.iter().zip(direction).map(|(own, u)| own + by * length * u).collect()
        };
        match self.wrong.kind {
            Wrong::Negative => own.iter().map(|value| -value).collect(),
            Wrong::Scaled => own.iter().map(|value| value * factor).collect(),
            Wrong::Frozen | Wrong::FrozenAndFast => self.first[range].to_vec(),
            Wrong::Noise | Wrong::NoiseAndHeavy => {
                own.iter().map(|own| own + factor * length * normal(&mut self.rng)).collect()
            }
            Wrong::Drift | Wrong::DriftAndReturns | Wrong::DriftAndSeldom => moved(factor),
            Wrong::Equivocation => moved(if times.is_multiple_of(2) { factor } else { -factor }),
            Wrong::SlowPoison => moved(factor * times as f32),
            Wrong::LittleIsEnough => {
                let (anchor, spread) = (&self.anchor[range.clone()], &self.spread[range]);
                let known = own.iter().zip(anchor).zip(spread);
                known.map(|((x, a), s)| x - factor * s.sqrt() * (x - a).signum()).collect()
            }
            Wrong::InnerProduct => {
                let anchor = &self.anchor[range];
                own.iter()
                    .zip(anchor)
                    .map(|(own, anchor)| anchor - factor * (own - anchor))
                    .collect()
            }
            Wrong::Mimic => self.seen[range].to_vec(),
            Wrong::Replay => {
                let history = self.history.get(&range.start).and_then(VecDeque::front);
                history.cloned().unwrap_or_else(|| own.to_vec())
            }
            _ => own.to_vec(),
        }
    }

    /// What is shown in place of the weights `own` to one that is to reply in `codec`. Where that asks for an offer that
    /// says only where weights lie within a cell, all of them are shown: rounded to bf16 they would be further
    /// from those of others than replicas are at the end of a run, and give the peer away.
    pub(in super::super) fn offer(
        &mut self,
        range: Range<usize>,
        own: &[f32],
        codec: Codec,
    ) -> Encoded {
        let offer = codec.of_offer();
        let offer = if Codec::MODULAR.contains(&offer) { Codec::F32 } else { offer };
        encode(offer, &self.show(range, own))
    }

    /// The reply that a peer of the shown weights gives: `reply` belongs to the weights `own`.
    pub(in super::super) fn reply(
        &mut self,
        range: Range<usize>,
        own: &[f32],
        reply: &Encoded,
    ) -> Encoded {
        let mut difference = vec![0.0; own.len()];
        if decode(reply, &mut difference).is_err() {
            return reply.clone();
        }
        let shown = self.show(range, own);
        for ((difference, shown), own) in difference.iter_mut().zip(shown).zip(own) {
            *difference += shown - own;
        }
        encode(reply.codec, &difference)
    }

    /// The snapshot that a newcomer gets.
    pub(in super::super) fn snapshot(&mut self, range: Range<usize>, own: &[f32]) -> Encoded {
        let shown = if self.wrong.kind == Wrong::Snapshot && !self.is_off() {
            own.iter().map(|value| value * self.wrong.factor).collect()
        } else {
            self.show(range, own)
        };
        encode(Codec::F32, &shown)
    }

    /// What is contributed in place of `coded`, the progress of the elements `range`.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others show their own")]
    pub(in super::super) fn contribution(
        &mut self,
        range: Range<usize>,
        coded: &Encoded,
    ) -> Encoded {
        let mut progress = vec![0.0; range.len()];
        if self.is_off() || decode(coded, &mut progress).is_err() {
            return coded.clone();
        }
        let bent = match self.wrong.kind {
            Wrong::InnerProduct => {
                progress.iter().map(|value| -value * self.wrong.factor).collect()
            }
            Wrong::Frozen | Wrong::FrozenAndFast | Wrong::Mimic => vec![0.0; range.len()],
            Wrong::LittleIsEnough | Wrong::Snapshot => progress,
            _ => self.show(range, &progress),
        };
        encode(coded.codec, &bent)
    }
}
