//! One replica: a trainer's weights, the outer step of its commits, and how it is mixed with others.

mod state;

use std::fmt;
use std::ops::Range;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments, Origin, ParameterLayout};

use crate::codec::{Encoded, decode, encode};
use crate::mix::{MixError, MixReport, check_length, check_norm, norm};
use crate::mixer::{DeltaSet, Epidemic, Exchange, Mixer, MixerState, PushSum, Reading, Slice};
use crate::outer::OuterStep;
use crate::seam::{Evaluation, StepId, StepReport, TrainError, Trainer};
use crate::sketch::{self, SKETCH_LEN};
use crate::weights::Weights;

pub use self::state::{FixedState, OuterState, ReplicaState};

/// Longest progress that a mixer of fixed-point numbers commits, Euclidean norm.
///
/// Far above any training that is worth sharing; numerators reach 2³⁷.
const PROGRESS_NORM_MAX: f64 = (1_u64 << 30) as f64;

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitReport {
    /// Euclidean norm of the progress `Δ = x − φ`; zero for a replica without an outer step.
    pub progress_norm: f64,
    /// What every other peer is to include, one per fragment in order; empty but for delta-set.
    pub contributions: Vec<Encoded>,
}

/// What a replica is made of, beside its trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaConfig {
    /// How it meets others.
    pub mixer: Mixer,
    /// What a commit does with the progress of its local steps.
    ///
    /// `None`: the weights are x itself and commits do nothing; push-sum and delta-set, which have
    /// slow weights always, then take progress as it is (`α = 1`, `β = 0`).
    pub outer: Option<OuterStep>,
    /// The partition of the parameters.
    pub fragments: Fragments,
    /// Clipping radius of exchanges, multiple of the running average of `‖d‖`; `None`: no clipping.
    pub clip: Option<f32>,
}

/// One replica: any [`Trainer`], with what the swarm needs beside it.
///
/// With an [`OuterStep`] the replica's weights are the slow weights φ, and mixing moves φ and the
/// live weights x by the same displacement, never the outer momentum v. Without one the replica's
/// weights are x itself. `P` is the number of parameters.
pub struct Replica {
    weights: Weights,
    fragments: Fragments,
    mixer: MixerState,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("parameters", &self.layout().parameters())
            .field("fragments", &self.fragments.count())
            .field("outer", &self.weights.step())
            .finish_non_exhaustive()
    }
}

impl Replica {
    /// A replica that begins at the trainer's current weights: `φ = x`, `v = 0`.
    ///
    /// Push-sum and delta-set round the weights to their fixed point first (2⁻²⁶, 2⁻³²).
    ///
    /// # Panics
    /// When the fragments are of another number of parameters than the trainer has.
    #[must_use]
    pub fn with(trainer: Box<dyn Trainer>, config: ReplicaConfig) -> Self {
        let ReplicaConfig { mixer, outer, fragments, clip } = config;
        let parameters = trainer.layout().parameters();
        assert_eq!(fragments.parameters(), parameters, "fragments tile the trainer's parameters");
        let always = matches!(mixer, Mixer::PushSum | Mixer::DeltaSet { .. });
        let plain = OuterStep { learning_rate: 1.0, momentum: 0.0 };
        let mut weights = Weights::new(trainer, outer.or_else(|| always.then_some(plain)));
        let mixer = match mixer {
            Mixer::None => MixerState::None,
            Mixer::Exchange => MixerState::Exchange(Exchange::new(fragments.count(), clip)),
            Mixer::Epidemic => MixerState::Epidemic(Epidemic::new(fragments.count())),
            Mixer::PushSum => MixerState::PushSum(PushSum::new(&mut weights, &fragments)),
            Mixer::DeltaSet { codec, feedback } => {
                MixerState::DeltaSet(DeltaSet::new(&mut weights, codec, feedback))
            }
        };
        Self { weights, fragments, mixer }
    }

    /// A replica that meets others by exchanges, with as few fragments as there can be.
    ///
    /// # Panics
    /// When the trainer has no parameters.
    #[must_use]
    pub fn new(trainer: Box<dyn Trainer>, outer: Option<OuterStep>) -> Self {
        let fragments = Fragments::new(trainer.layout().parameters(), 1);
        let fragments = fragments.expect("a trainer has parameters, within the protocol's limits");
        Self::with(trainer, ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip: None })
    }

    /// Names, shapes and offsets of the parameters.
    #[must_use]
    pub fn layout(&self) -> &ParameterLayout {
        self.weights.layout()
    }

    /// The partition of the parameters.
    #[must_use]
    pub const fn fragments(&self) -> Fragments {
        self.fragments
    }

    /// The wrapped trainer, for steps in two halves.
    pub fn trainer_mut(&mut self) -> &mut dyn Trainer {
        self.weights.trainer_mut()
    }

    /// As [`Trainer::set_batch`].
    pub fn set_batch(&mut self, samples: usize) -> bool {
        self.trainer_mut().set_batch(samples)
    }

    /// Does one local step on the live weights.
    ///
    /// # Errors
    /// [`TrainError`]; parameters are unchanged then.
    pub fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.trainer_mut().step(at)
    }

    /// Ends a round of local steps: `Δ = x − φ ; v ← β v + Δ ; φ ← φ + α (Δ + β v) ; x ← φ`.
    ///
    /// `share`: what part of the outer step is contributed, `1/n̂`, used by delta-set alone. Does
    /// nothing without an outer step. Push-sum and delta-set forget a round whose progress is not
    /// finite (`Δ = 0`), as their numbers cannot show it. Source: [`OuterStep`].
    pub fn commit(&mut self, share: f32) -> CommitReport {
        if matches!(self.mixer, MixerState::PushSum(_) | MixerState::DeltaSet(_)) {
            let progress_norm = self.weights.progress_norm();
            let sane = progress_norm <= PROGRESS_NORM_MAX;
            if !sane {
                self.weights.forget_round();
                return CommitReport { progress_norm, ..self.round(share, None) };
            }
        }
        self.round(share, None)
    }

    /// Writes the progress `Δ = x − φ` of the round, `[P]`; zeros without an outer step.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn progress(&mut self, out: &mut [f32]) {
        self.weights.progress(0..self.fragments.parameters(), out);
    }

    /// Ends a round with the mean progress of all peers in place of the own one (DiLoCo's
    /// all-reduce): `v ← β v + Δ̄ ; φ ← φ + α (Δ̄ + β v) ; x ← φ`.
    ///
    /// `mean_progress`: Δ̄, `[P]`; overwritten.
    ///
    /// # Panics
    /// When `mean_progress` has another length.
    pub fn commit_mean(&mut self, mean_progress: &mut [f32]) -> CommitReport {
        assert_eq!(mean_progress.len(), self.fragments.parameters(), "one number per parameter");
        self.round(1.0, Some(mean_progress))
    }

    fn round(&mut self, share: f32, mut mean: Option<&mut [f32]>) -> CommitReport {
        let mut report = CommitReport::default();
        if self.weights.step().is_none() {
            return report;
        }
        let mut squares = 0.0;
        let mut own = Vec::new();
        for (index, fragment) in self.fragments.iter().enumerate() {
            let Some(range) = self.fragments.range(fragment) else { continue };
            let slice = Slice { index, range: range.clone() };
            let progress = match &mut mean {
                Some(mean) => &mut mean[range.clone()],
                None => {
                    own.resize(range.len(), 0.0);
                    self.weights.progress(range.clone(), &mut own);
                    own.as_mut_slice()
                }
            };
            squares += norm(progress).powi(2);
            let mixer = &mut self.mixer;
            let contributions = &mut report.contributions;
            self.weights.commit(range, progress, |direction, slow| match mixer {
                MixerState::None | MixerState::Exchange(_) | MixerState::Epidemic(_) => {
                    slow.iter_mut().zip(direction).for_each(|(phi, &mut step)| *phi += step);
                }
                MixerState::PushSum(state) => state.step(&slice, direction, slow),
                MixerState::DeltaSet(state) => {
                    contributions.push(state.contribute(&slice, share, direction, slow));
                }
            });
        }
        self.weights.settled();
        report.progress_norm = squares.sqrt();
        report
    }

    /// Copies the replica's weights (φ, or x without an outer step) of `range` to `out`.
    ///
    /// # Panics
    /// When the range is not within the parameters, or `out` has another length.
    pub fn snapshot(&self, range: Range<usize>, out: &mut [f32]) {
        self.weights.read(range, out);
    }

    /// The replica's weights (φ, or x without an outer step), `[P]`.
    #[must_use]
    pub fn parameters(&self) -> Vec<f32> {
        self.weights.copy(0..self.fragments.parameters())
    }

    /// Reads a fragment to be sent.
    ///
    /// A push changes the state: push-sum gives half away, epidemic begins to count arrivals anew.
    /// What the mixer does not do is answered by the weights in f32.
    ///
    /// # Panics
    /// When the model has no such fragment.
    pub fn read(&mut self, fragment: FragmentId, what: Reading) -> Encoded {
        let slice = self.slice(fragment).expect("only fragments of the model are read");
        match (&mut self.mixer, what) {
            (MixerState::Exchange(state), Reading::Offer(reply)) => {
                state.offer(&self.weights, &slice, reply)
            }
            (MixerState::Epidemic(state), Reading::Push { codec, .. }) => {
                state.push(&self.weights, &slice, codec)
            }
            (MixerState::PushSum(state), Reading::Push { to, .. }) => state.push(&slice, to),
            (MixerState::DeltaSet(state), Reading::Snapshot) => state.snapshot(&slice),
            (_, Reading::Offer(_) | Reading::Snapshot | Reading::Push { .. }) => {
                encode(Codec::F32, &self.weights.copy(slice.range))
            }
        }
    }

    /// The responder's half of an exchange: `d = φ − offer`, clipped; `q = encode(d)`;
    /// `φ, x ← … − w decode(q)`. Returns `q`, for the initiator and for [`Self::undo`].
    ///
    /// `weight`: w, unitless, in `[0, 1]`, the share of the offer in the result. `reply`: the code
    /// of q. Equation, sources and caveats: `trainer/src/mixer/exchange.rs`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn answer(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        offer: &Encoded,
        reply: Codec,
    ) -> Result<(Encoded, MixReport), MixError> {
        let slice = self.slice(fragment)?;
        let MixerState::Exchange(state) = &mut self.mixer else { return Err(NO_EXCHANGE) };
        state.answer(&mut self.weights, &slice, (weight, reply), offer)
    }

    /// The initiator's half of an exchange: `φ, x ← … + w decode(reply)`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        let slice = self.slice(fragment)?;
        let MixerState::Exchange(state) = &mut self.mixer else { return Err(NO_EXCHANGE) };
        state.apply(&mut self.weights, &slice, weight, reply)
    }

    /// Takes back [`Self::answer`], to f32 rounding; `reply` is what it returned.
    ///
    /// Whatever happened to the replica in between stays: the displacement is additive.
    ///
    /// # Panics
    /// When `reply` is not what [`Self::answer`] returned for this fragment.
    pub fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &Encoded) {
        let slice = self.slice(fragment).expect("only what was answered is undone");
        let mut difference = vec![0.0; slice.range.len()];
        decode(reply, &mut difference).expect("the journalled reply is whole");
        self.weights.displace(slice.range, &difference, weight);
    }

    /// Takes in a push.
    ///
    /// `weight`: of the arrival in the average, in `[0, 1]` (epidemic; push-sum ignores it).
    /// `from`: the pusher; a push must be given only to the life of a peer that it is addressed to.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn absorb(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        from: Origin,
        push: &Encoded,
    ) -> Result<MixReport, MixError> {
        let slice = self.slice(fragment)?;
        match &mut self.mixer {
            MixerState::Epidemic(state) => state.absorb(&mut self.weights, &slice, weight, push),
            MixerState::PushSum(state) => state.absorb(&mut self.weights, &slice, from, push),
            MixerState::None | MixerState::Exchange(_) | MixerState::DeltaSet(_) => {
                Err(MixError::Mixer("this replica takes no pushes"))
            }
        }
    }

    /// Push-sum: the peer at `edge` has taken in what was pushed to it, up to
    /// [`MixReport::received`] of its report.
    ///
    /// Without acknowledgements an edge stops giving after
    /// [`crate::PUSHES_UNACKNOWLEDGED_MAX`] pushes, or sooner.
    pub fn acknowledged(&mut self, fragment: FragmentId, edge: Origin, received: u64) {
        if let (Ok(slice), MixerState::PushSum(state)) = (self.slice(fragment), &mut self.mixer) {
            state.acknowledged(slice.index, edge, received);
        }
    }

    /// Push-sum: the peer at `edge` has taken in `push`, and with it all that came before.
    pub fn delivered(&mut self, fragment: FragmentId, edge: Origin, push: &Encoded) {
        if let (Codec::Running32, Some(weight)) = (push.codec, push.bytes.last_chunk()) {
            self.acknowledged(fragment, edge, u64::from_le_bytes(*weight));
        }
    }

    /// Push-sum: drops the edges to and from a peer that is gone for good.
    ///
    /// What it did not take in is lost with it, and this life of it can push here no more, as what
    /// it had given is not known any longer. False, with nothing done, when
    /// [`crate::FORGOTTEN_MAX`] peers are dropped already.
    pub fn forget(&mut self, edge: Origin) -> bool {
        match &mut self.mixer {
            MixerState::PushSum(state) => state.forget(edge),
            MixerState::None
            | MixerState::Exchange(_)
            | MixerState::Epidemic(_)
            | MixerState::DeltaSet(_) => true,
        }
    }

    /// Delta-set: adds another peer's contribution; the caller sees to it that each is added once.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then. A contribution that is refused for its numbers
    /// is refused by every replica.
    pub fn include(
        &mut self,
        fragment: FragmentId,
        contribution: &Encoded,
    ) -> Result<MixReport, MixError> {
        let slice = self.slice(fragment)?;
        let MixerState::DeltaSet(state) = &mut self.mixer else {
            return Err(MixError::Mixer("this replica takes no contributions"));
        };
        state.include(&mut self.weights, &slice, contribution)
    }

    /// Takes over a donor's snapshot: `φ = x`, `v = 0`; delta-set: accumulators too, to the bit.
    ///
    /// # Errors
    /// [`MixError`] when the numbers are not finite or do not fit; the replica is unchanged then.
    pub fn adopt(&mut self, fragment: FragmentId, snapshot: &Encoded) -> Result<(), MixError> {
        let slice = self.slice(fragment)?;
        if let MixerState::DeltaSet(state) = &mut self.mixer {
            return state.adopt(&mut self.weights, &slice, snapshot);
        }
        if !matches!(snapshot.codec, Codec::F32 | Codec::Bf16 | Codec::F16) {
            return Err(MixError::Codec(snapshot.codec));
        }
        check_length(snapshot, slice.range.len())?;
        let mut values = vec![0.0; slice.range.len()];
        decode(snapshot, &mut values)?;
        check_norm(&slice.range, norm(&values), f64::INFINITY)?;
        if let MixerState::PushSum(state) = &mut self.mixer {
            state.adopt(&mut self.weights, &slice, &mut values);
        } else {
            self.weights.adopt(slice.range, &values);
        }
        Ok(())
    }

    /// BLAKE3 of a fragment: of delta-set's accumulators, else of the weights; little-endian.
    ///
    /// # Panics
    /// When the model has no such fragment.
    #[must_use]
    pub fn hash(&self, fragment: FragmentId) -> [u8; 32] {
        let range = self.fragments.range(fragment).expect("only fragments of the model are hashed");
        let mut hasher = blake3::Hasher::new();
        if let MixerState::DeltaSet(state) = &self.mixer {
            for accumulator in &state.state().0[range] {
                hasher.update(&accumulator.to_le_bytes());
            }
        } else {
            for value in self.weights.copy(range) {
                hasher.update(&value.to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// Measures the replica's weights (φ, or x without an outer step) on held-out data.
    ///
    /// In the middle of a round the live weights are set aside and put back to the last bit (in a
    /// trainer that keeps f32), at the price of a copy; right after a commit they are φ already.
    ///
    /// # Errors
    /// [`TrainError`] of the trainer; the weights are unchanged then, too.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.weights.evaluate()
    }

    /// Writes the count sketch of the replica's weights.
    ///
    /// `Σ (S(a) − S(b))²` estimates the squared Euclidean distance of two replicas without bias,
    /// with a relative standard deviation of at most 8.8 %. Equal on every peer for equal weights.
    ///
    /// Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams".
    pub fn sketch(&mut self, sketch: &mut [f32; SKETCH_LEN]) {
        let mut sums = [0.0; SKETCH_LEN];
        let all = 0..self.fragments.parameters();
        self.weights.visit(all, |start, values| sketch::accumulate(start, values, &mut sums));
        for (out, sum) in sketch.iter_mut().zip(sums) {
            *out = sum as f32;
        }
    }

    fn slice(&self, fragment: FragmentId) -> Result<Slice, MixError> {
        let range = self.fragments.range(fragment);
        match (usize::try_from(fragment.0), range) {
            (Ok(index), Some(range)) => Ok(Slice { index, range }),
            _ => Err(MixError::Fragment(fragment)),
        }
    }
}

const NO_EXCHANGE: MixError = MixError::Mixer("this replica makes no exchanges");

#[cfg(test)]
mod tests;
