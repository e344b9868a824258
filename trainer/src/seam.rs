//! The seam that embedding users implement: one replica's live weights and how to improve them.

use std::ops::Range;
use std::path::Path;

use dnode_protocol::ParameterLayout;

use crate::description::Description;
use crate::device::{DeviceError, Resident};
use crate::interrupt::Interrupt;
use crate::kernel::loss::Score;
use crate::memory::Memory;
use crate::trainer_state::TrainerState;

/// Which local step: the batch belongs to its index, the learning rate to its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepId {
    /// The peer's own local steps before this one; names the batch.
    pub index: u64,
    /// Where the swarm stands in the run, in steps of `run.steps`; drives the learning rate.
    ///
    /// A peer of mean speed advances it by one per local step. A slower peer does fewer local steps
    /// per commit and advances it by more, a joiner begins where its donor stands.
    pub position: u64,
}

impl StepId {
    /// Local step number `step` of a peer whose position is its own count of steps.
    #[must_use]
    pub const fn alone(step: u64) -> Self {
        Self { index: step, position: step }
    }
}

/// What one local step did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Mean training loss of the batch, nats per sample or token.
    pub loss: f32,
    /// Samples processed (sequences for a language model).
    pub samples: u64,
    /// Learning rate used, unitless.
    pub learning_rate: f32,
    /// Euclidean norm of the gradient before clipping.
    pub gradient_norm: f32,
}

/// What a trainer draws its batches from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataShare {
    /// Parts that the training set is cut into.
    pub shards: u32,
    /// The part that this peer draws from.
    pub shard: u32,
    /// Its training samples, at least 1.
    pub samples: u64,
    /// The order they are drawn in.
    pub stream: u64,
    /// How far the labels of these samples are from those of the held-out ones: half the sum of the
    /// differences of their shares (total variation), in `[0, 1]`. `None` where samples have no label.
    pub label_distance: Option<f64>,
}

/// What a trainer makes of its data, in words that peers compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataIdentity {
    /// How data become inputs and labels: name, for example `data.vocabulary`, and the map in short
    /// words. Peers whose maps differ are of different runs.
    pub maps: Vec<(&'static str, String)>,
    /// Hash of all data, all shards and the held-out part; peers of different data are told so.
    pub digest: Option<[u8; 32]>,
}

/// Quality on held-out data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Mean loss, nats per sample or token.
    pub loss: f64,
    /// Fraction of samples (or tokens) predicted right, in `[0, 1]`; NaN where it is not known.
    pub accuracy: f64,
    /// Samples (or tokens) evaluated.
    pub count: u64,
}

impl From<Score> for Evaluation {
    /// Means of the sums, which are not of nothing.
    fn from(score: Score) -> Self {
        Self { loss: score.mean_loss(), accuracy: score.accuracy(), count: score.count }
    }
}

/// What a trainer asks of the node between two steps ([`Trainer::take_requests`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    /// Quality that the trainer has measured by itself, to be reported as an evaluation.
    pub evaluation: Option<Evaluation>,
    /// Whether to write a checkpoint now; [`Trainer::on_checkpoint`] tells what came of it.
    pub checkpoint: bool,
}

/// Why a trainer could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The loss or a gradient is NaN or infinite; parameters are unchanged.
    #[error(
        "train step {step}: the {what} is not finite; lower the learning rate or clip gradients"
    )]
    NotFinite {
        /// The local step's index.
        step: u64,
        /// `loss` or `gradient`.
        what: &'static str,
    },
    /// Another thread has asked to break off ([`Trainer::set_interrupt`]); parameters are unchanged.
    #[error("train: broken off before its end, because this process was asked to end")]
    Interrupted,
    /// The trainer has taken no step, for example because whoever computes it has asked for something
    /// else; parameters are unchanged. The node does what waits between two steps, and asks again.
    #[error("train: no step was taken")]
    NoStep,
    /// Saved state does not fit this trainer; nothing was restored.
    #[error("restore trainer state: {0}")]
    State(String),
    /// The trainer's own failure, in its words.
    #[error("{0}")]
    Other(String),
}

/// A replica's live weights and how to improve them: wrap any framework in these few methods.
///
/// `P` is `layout().parameters()`. Ranges index the flat parameter vector and are always within
/// `0..P`; slices passed along have the range's length.
/// Calls come from one thread, never during [`Trainer::step`].
pub trait Trainer: Send {
    /// Names, shapes and offsets of the parameters; must not change.
    fn layout(&self) -> &ParameterLayout;

    /// [`weights_digest`] of weights that stay as they are, beside which the parameters are trained, and
    /// that are no part of them; `None` when there are none.
    fn base_digest(&self) -> Option<&str> {
        None
    }

    /// Does one local optimizer update on the batch that belongs to `at.index`, with the learning
    /// rate that belongs to `at.position`.
    ///
    /// The batch must be a function of (seed, shard, stream, `at.index`) so that a run can be
    /// repeated.
    ///
    /// # Errors
    /// [`TrainError`]; parameters are unchanged then.
    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError>;

    /// Copies the current parameters of `range` to `out`.
    fn read(&self, range: Range<usize>, out: &mut [f32]);

    /// Moves the parameters of `range`: `x ← x + weight · delta`.
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32);

    /// Sets the parameters of `range` to `values`, to the last bit. Returns whether this trainer can; by one
    /// that cannot they are read and displaced until they are there.
    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        let _ = (range, values);
        false
    }

    /// Makes the optimizer's first moments part of what peers average, if it has one number per parameter
    /// that is linear in past gradients: momentum, or Adam's first moment. Called before the first step
    /// of a run with `gossip.moments`; from then on [`Trainer::read_moments`] and
    /// [`Trainer::displace_moments`] are called. Returns whether this trainer can.
    ///
    /// A moment may then come from another peer that has done more steps, so a correction that assumes
    /// that moments began at zero with this peer's own first step must be left out.
    ///
    /// A trainer that cannot is refused by such a run. It trains in a run without moments, where each
    /// peer's momentum has the noise of its own batches alone (docs/measurements.md).
    fn share_moments(&mut self) -> bool {
        false
    }

    /// Copies the first moments of the parameters of `range` to `out`. Not called before
    /// [`Trainer::share_moments`] has returned true.
    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        let _ = (range, out);
    }

    /// Moves the first moments of the parameters of `range`: `m ← m + weight · delta`. As
    /// [`Trainer::read_moments`].
    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let _ = (range, delta, weight);
    }

    /// Where the parameters lie, if that is a device on which they can be mixed: then weights that are
    /// mixed in exchanges stay there, and only their codes cross to the host.
    ///
    /// # Errors
    /// [`DeviceError`] says why they cannot be mixed on the device where they lie.
    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        Ok(None)
    }

    /// The parameters were moved where they lie ([`Trainer::resident`]), without [`Trainer::displace`].
    fn on_moved(&mut self) {}

    /// Measures the current parameters on held-out data.
    ///
    /// # Errors
    /// [`TrainError`] when there is nothing to measure on.
    fn evaluate(&mut self) -> Result<Evaluation, TrainError>;

    /// Measures the current parameters on part `index` of `parts` of the held-out data: all parts
    /// together are all samples, each once. `None` when this trainer cannot; then each of the peers
    /// that hold equal parameters measures on everything.
    ///
    /// `index`: below `parts`. A part may be empty.
    ///
    /// # Errors
    /// [`TrainError`] of the device.
    fn evaluate_part(&mut self, index: usize, parts: usize) -> Result<Option<Score>, TrainError> {
        let _ = (index, parts);
        Ok(None)
    }

    /// The private state beside the parameters (optimizer moments).
    fn save(&self) -> TrainerState<'_>;

    /// Puts back what [`Trainer::save`] returned. Vectors that the state owns need not be copied.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit; nothing is changed then.
    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError>;

    /// The step in two halves, for rules that average gradients; `None` when it cannot be split.
    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        None
    }

    /// Tells before each step after how many more the next commit is due, this one included; 0 when it is
    /// overdue or when steps are not gathered into commits. A slow peer takes fewer. May be ignored.
    fn expect_commit(&mut self, steps: u64) {
        let _ = steps;
    }

    /// What this trainer asks for, once; looked at after each call of [`Trainer::step`].
    fn take_requests(&mut self) -> Requests {
        Requests::default()
    }

    /// The checkpoint that [`Trainer::take_requests`] has asked for is written: its parameters are in
    /// this file. An error says why it is not.
    fn on_checkpoint(&mut self, written: Result<&Path, &str>) {
        let _ = written;
    }

    /// Tells a number that no other peer has and that stays over restarts, before the first step: the
    /// seed of this peer's own order of samples, and of what its steps draw at random, so that peers of one
    /// shard do not train on the same batches. May be ignored.
    fn set_stream(&mut self, stream: u64) {
        let _ = stream;
    }

    /// From the next step on takes `samples` of the samples of each step's batch, the first ones; a
    /// number beyond the batch is the whole of it. Returns whether this trainer can.
    ///
    /// `samples`: at least 1. A trainer that cannot is refused by runs that balance batches.
    fn set_batch(&mut self, samples: usize) -> bool {
        let _ = samples;
        false
    }

    /// Names what this trainer trains, for peers that must train the same: by default its type, as its
    /// program calls it. `None` is for the trainers that dnode's configuration describes.
    fn kind(&self) -> Option<&'static str> {
        Some(std::any::type_name::<Self>())
    }

    /// The mean loss of a model that knows nothing, nats per sample or token, for example the logarithm of
    /// the number of classes: a training loss that stays above it has diverged. `None` when there is
    /// no such number; then losses are compared with the first ones.
    fn chance(&self) -> Option<f64> {
        None
    }

    /// Takes the flag by which another thread asks a step or an evaluation to break off, so that a
    /// process that is to end need not wait for a long one. Returns whether this trainer looks at it at
    /// least a few times a second.
    ///
    /// Who finds it raised returns [`TrainError::Interrupted`], and what it has to save is as before the
    /// call. For a trainer that returns `false`, a copy of its state is kept during each step that takes
    /// long, where that costs little, and is what the last checkpoint is written of.
    fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        drop(interrupt);
        false
    }

    /// What the model is, and what becomes of its inputs, for whoever uses a checkpoint elsewhere: written
    /// into each as its metadata. Asked once, before the first step; empty when the trainer does not tell.
    ///
    /// # Errors
    /// [`TrainError::Other`] when it is more than a [`Description`] holds.
    fn describe(&self) -> Result<Description, TrainError> {
        Ok(Description::default())
    }

    /// Draws from this shard of the training data from the next step on. Returns whether it does;
    /// `shard` is below [`DataShare::shards`].
    fn set_shard(&mut self, shard: u32) -> bool {
        let _ = shard;
        false
    }

    /// The run ends at this step, the unit of [`StepId::position`], for the learning-rate schedule.
    fn set_steps(&mut self, steps: u64) {
        let _ = steps;
    }

    /// What this trainer makes of its data, which peers compare; of nothing where it does not tell.
    fn data_identity(&self) -> DataIdentity {
        DataIdentity::default()
    }

    /// The host memory that training takes, for reports; `None` where that is not known before.
    fn memory(&self) -> Option<Memory> {
        None
    }

    /// What the batches are drawn from, for reports; `None` when the trainer does not tell.
    fn data_share(&self) -> Option<DataShare> {
        None
    }
}

/// Parameters that [`weights_digest`] reads at once.
const DIGESTED_AT_ONCE: usize = 1 << 16;

/// The current parameters in short: the first 16 hexadecimal digits of the BLAKE3 hash of their bytes, as
/// little-endian f32 in the order of the layout. Equal for equal bits.
#[must_use]
pub fn weights_digest(trainer: &dyn Trainer) -> String {
    digest_of(trainer.layout().parameters(), |range, out| trainer.read(range, out))
}

/// As [`weights_digest`], of these numbers.
pub(crate) fn digest(parameters: &[f32]) -> String {
    digest_of(parameters.len(), |range, out| out.copy_from_slice(&parameters[range]))
}

fn digest_of(parameters: usize, read: impl Fn(Range<usize>, &mut [f32])) -> String {
    let mut values = vec![0.0; parameters.min(DIGESTED_AT_ONCE)];
    let mut hasher = blake3::Hasher::new();
    for begin in (0..parameters).step_by(DIGESTED_AT_ONCE) {
        let piece = &mut values[..DIGESTED_AT_ONCE.min(parameters - begin)];
        read(begin..begin + piece.len(), piece);
        if cfg!(target_endian = "big") {
            let swapped = |value: &mut f32| *value = f32::from_bits(value.to_bits().swap_bytes());
            piece.iter_mut().for_each(swapped);
        }
        hasher.update(bytemuck::cast_slice(piece));
    }
    hasher.finalize().to_hex().chars().take(16).collect()
}

/// A local step in two halves, so that gradients can be averaged in between.
pub trait GradientStep {
    /// Computes the gradient of the batch of the local step `at` and keeps it; no update.
    ///
    /// # Errors
    /// [`TrainError`], also for a norm that is not finite; the gradient is undefined then.
    fn gradient(&mut self, at: StepId) -> Result<StepReport, TrainError>;

    /// Whether [`GradientStep::gradient_in_parts`] can be called.
    fn hands_over(&self) -> bool {
        false
    }

    /// As [`GradientStep::gradient`], without its norm; `hand` gets the gradient in parts, each as soon as
    /// it is final: its first element, and its values, which may be averaged from then on while the
    /// rest is computed. Together the parts are the whole gradient; the same ones in every step.
    ///
    /// # Errors
    /// [`TrainError`], also where nothing is handed over; what was handed over is undefined then.
    fn gradient_in_parts<'a>(
        &'a mut self,
        at: StepId,
        hand: &mut (dyn FnMut(usize, &'a mut [f32]) + Send),
    ) -> Result<StepReport, TrainError> {
        let _ = (at, hand);
        Err(TrainError::Other("this trainer hands over no part of a gradient".to_owned()))
    }

    /// The gradient kept by [`GradientStep::gradient`], `[P]`, to be averaged in place.
    fn gradient_mut(&mut self) -> &mut [f32];

    /// Clips and applies the gradient as the local step `at`.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`]; parameters are unchanged then.
    fn update(&mut self, at: StepId) -> Result<StepReport, TrainError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::probe;

    #[test]
    fn a_digest_is_of_every_bit_of_every_weight_in_order() {
        let mut values: Vec<f32> = (0..=DIGESTED_AT_ONCE).map(|index| index as f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let whole = blake3::hash(&bytes).to_hex();
        let digest = |values: &[f32]| weights_digest(probe(values.to_vec()).0.as_ref());
        assert_eq!(digest(&values), whole[..16]);
        values[DIGESTED_AT_ONCE] = values[DIGESTED_AT_ONCE].next_up();
        let last = digest(&values);
        assert_ne!(last, whole[..16]);
        values.swap(0, 1);
        assert_ne!(digest(&values), last);
    }
}
