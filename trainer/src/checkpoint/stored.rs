//! The numbers of one checkpoint, on the disk until a replica takes them.

use std::collections::BTreeMap;
use std::path::Path;

use dnode_protocol::{Fragments, ParameterLayout, Versions};
use safetensors::tensor::Dtype;

use super::contents::{self, Contents};
use super::manifest::Manifest;
use super::metadata;
use super::reading::{self, Allowed, checked};
use super::{
    ACCUMULATORS, AUTHORS, LIVE, MOMENTS, MOMENTUM, NUMBERS, PARAMETERS, RESIDUAL, STATE,
    TAIL_AVERAGE, TRAINER,
};
use crate::description::Description;
use crate::replica::{Lengths, Part, Replica, SavedReplica, unsound};
use crate::seam::TrainError;
use crate::tail_average::TailAverage;
use crate::tensor_file::{self, HEADER_MAX, TensorFile};
use crate::tokenizer::{TOKENIZER_BYTES_MAX, TOKENIZER_FILE};
use crate::trainer_state::{StateTensor, StateValues, TrainerState};

/// Vectors as long as the parameters that a state may hold: x, v, and the optimizer's.
const STATE_VECTORS_MAX: u64 = 16;

/// The files of a checkpoint whose hashes, names, shapes and types are right.
#[derive(Debug)]
pub(super) struct Stored {
    parameters: TensorFile,
    /// The mean of parameters over the last part of the run, and of how many moments it is.
    averaged: Option<(TensorFile, u64)>,
    state: TensorFile,
    layout: ParameterLayout,
    lengths: Lengths,
    /// The trainer's tensors, in its order.
    trainer: Vec<String>,
}

/// Why a checkpoint is not opened.
pub(super) enum Refused {
    /// It is not whole.
    Damaged(String),
    /// It is another model's; what differs.
    Other(String),
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl Stored {
    /// Checks the files of one checkpoint; also returns what its fragments contain.
    pub(super) fn open(
        directory: &Path,
        manifest: &Manifest,
        (layout, fragments): (&ParameterLayout, Fragments),
        description: &Description,
    ) -> Result<(Self, Vec<Versions>), Refused> {
        let specs = layout.tensors().iter();
        let infos = specs.map(|spec| (spec.name.as_str(), spec.shape.as_slice(), Dtype::F32));
        let header = tensor_file::header(infos, None).map_err(|error| error.to_string())?;
        let header = header.len() as u64;
        let size = 4 * layout.parameters() as u64;
        let described = header + metadata::METADATA_BYTES_MAX as u64;
        let allowed = Allowed { bytes: header + size..described + size + 1, header: described };
        let open = |name: &str| -> Result<(TensorFile, BTreeMap<String, String>), String> {
            let file = reading::open(directory, manifest.file(name)?, &allowed)?;
            file.check(layout)?;
            let told = file.metadata();
            metadata::check(name, &told, manifest)?;
            Ok((file, told))
        };
        let (parameters, told) = open(PARAMETERS)?;
        let averaged = if manifest.file(TAIL_AVERAGE).is_ok() {
            let (file, told) = open(TAIL_AVERAGE)?;
            Some((file, metadata::moments(&told)?))
        } else {
            None
        };
        if let Some(difference) = description.difference(&told) {
            return Err(Refused::Other(difference));
        }
        if description.tokenizer().is_some() {
            let allowed = 1..TOKENIZER_BYTES_MAX + 1;
            checked(directory, manifest.file(TOKENIZER_FILE)?, &allowed)?;
        }
        let allowed = Allowed { bytes: 0..state_bytes_max(fragments) + 1, header: HEADER_MAX };
        let state = reading::open(directory, manifest.file(STATE)?, &allowed)?;
        let lengths = lengths(&state, manifest.outer, fragments)?;
        let contents = contents(&state, &lengths, fragments)?;
        let trainer = manifest.trainer_tensors.clone();
        for name in &trainer {
            let name = format!("{TRAINER}{name}");
            if !matches!(state.info(&name), Some((Dtype::U8, _))) {
                state.elements(&name, Dtype::F32, None)?;
            }
        }
        let layout = layout.clone();
        Ok((Self { parameters, averaged, state, layout, lengths, trainer }, contents))
    }

    /// Which numbers are not finite; `None` when all are.
    pub(super) fn unsound(&mut self) -> Result<Option<String>, TrainError> {
        unsound(self)
    }

    /// The mean of the weights over the last part of the run, unless it has numbers that are not finite.
    pub(super) fn tail_average(&self) -> Result<Option<TailAverage>, TrainError> {
        let Some((file, moments)) = &self.averaged else { return Ok(None) };
        let mut mean = vec![0.0; self.layout.parameters()];
        self.floats(file, 0, &mut mean).map_err(failed)?;
        let finite = mean.iter().all(|value| value.is_finite());
        Ok(finite.then(|| TailAverage::kept(mean, *moments)))
    }

    /// Makes the replica what this is.
    pub(super) fn restore(&mut self, replica: &mut Replica) -> Result<(), TrainError> {
        replica.restore_from(self)
    }
}

/// Bytes of a state at most.
pub(super) fn state_bytes_max(fragments: Fragments) -> u64 {
    let vectors = STATE_VECTORS_MAX * 4 * fragments.parameters() as u64;
    // Beside vectors: header and small tensors, and what fragments contain.
    vectors + HEADER_MAX + contents::bytes_max(fragments.count()) as u64
}

fn lengths(state: &TensorFile, outer: bool, fragments: Fragments) -> Result<Lengths, String> {
    let parameters = fragments.parameters();
    let vector = |name| state.elements(name, Dtype::F32, Some(&[parameters]));
    let moments = fragments.first_of_moments().map_or(Ok(0), |_| vector(MOMENTS))?;
    let outer = if outer { Some((vector(LIVE)?, vector(MOMENTUM)?)) } else { None };
    let fixed = if state.has(ACCUMULATORS) {
        let accumulators = state.elements(ACCUMULATORS, Dtype::I64, None)?;
        Some((accumulators, state.elements(RESIDUAL, Dtype::F32, None)?))
    } else {
        None
    };
    Ok(Lengths { parameters: parameters + moments, outer, fixed })
}

/// Which contributions each fragment contains, where replicas are sums of them.
fn contents(
    state: &TensorFile,
    lengths: &Lengths,
    fragments: Fragments,
) -> Result<Vec<Versions>, String> {
    if lengths.fixed.is_none() {
        return Ok(Vec::new());
    }
    let integers = |name| state.all_unsigned(name);
    let contents = Contents { authors: integers(AUTHORS)?, numbers: integers(NUMBERS)? };
    contents.read(fragments.count()).map_err(|reason| format!("{STATE}: {reason}"))
}

/// A disk that fails after it was checked.
fn failed(reason: String) -> TrainError {
    TrainError::State(reason)
}

impl SavedReplica for Stored {
    fn lengths(&self) -> Lengths {
        self.lengths
    }

    fn read(&mut self, part: Part, start: usize, out: &mut [f32]) -> Result<(), TrainError> {
        let name = match part {
            Part::Parameters => return self.exchanged(start, out).map_err(failed),
            Part::Live => LIVE,
            Part::Momentum => MOMENTUM,
            Part::Residual => RESIDUAL,
        };
        self.state.floats(name, start, out).map_err(failed)
    }

    fn accumulators(&mut self, start: usize, out: &mut [i64]) -> Result<(), TrainError> {
        self.state.signed(ACCUMULATORS, start, out).map_err(failed)
    }

    fn trainer(&mut self) -> Result<TrainerState<'_>, TrainError> {
        let tensors = self.trainer.iter().map(|name| {
            let stored = format!("{TRAINER}{name}");
            let values = match self.state.info(&stored) {
                Some((Dtype::U8, _)) => StateValues::from(self.state.all_bytes(&stored)?),
                Some(_) | None => self.state.all_floats(&stored)?.into(),
            };
            Ok(StateTensor::new(name.as_str(), values))
        });
        let tensors = tensors.collect::<Result<_, String>>().map_err(failed)?;
        Ok(TrainerState { tensors })
    }
}

impl Stored {
    /// Weights and, behind them, moments that are exchanged.
    fn exchanged(&mut self, start: usize, out: &mut [f32]) -> Result<(), String> {
        let parameters = self.layout.parameters();
        let (weights, moments) = out.split_at_mut(parameters.saturating_sub(start).min(out.len()));
        if !moments.is_empty() {
            self.state.floats(MOMENTS, start.max(parameters) - parameters, moments)?;
        }
        self.floats(&self.parameters, start, weights)
    }

    /// The parameters in `file` from element `start` of the flat vector on.
    fn floats(&self, file: &TensorFile, start: usize, out: &mut [f32]) -> Result<(), String> {
        let end = start + out.len();
        for spec in self.layout.tensors() {
            let range = spec.range();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                let out = &mut out[from - start..to - start];
                file.floats(&spec.name, from - range.start, out)?;
            }
        }
        Ok(())
    }
}
