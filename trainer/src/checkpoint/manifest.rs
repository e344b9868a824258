//! The manifest: what a checkpoint is of, and the files that belong to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use dnode_protocol::{RunField, RunId, RunSpec};
use serde::{Deserialize, Serialize};

use super::Checkpoint;
use super::tensors::FileEntry;
use crate::files::write_new;
use crate::trainer_state::TrainerState;

const NAME: &str = "manifest.json";
/// Version of the form of checkpoints.
const FORMAT: u32 = 1;
/// Longest manifest: 64 run fields of 320 bytes and some ten thousand tensor names.
const BYTES_MAX: u64 = 1 << 24;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    /// Hash of the run, hexadecimal.
    pub(super) run: String,
    /// What the run's peers agree on.
    run_fields: BTreeMap<String, String>,
    pub(super) step: u64,
    /// Position in the run, millionths of a step.
    #[serde(default)]
    pub(super) micro_steps: Option<u64>,
    /// Step at which the run was to end.
    #[serde(default)]
    pub(super) end: Option<u64>,
    pub(super) clock: u64,
    pub(super) samples: u64,
    /// Whether there are live weights and outer momentum beside the parameters.
    pub(super) outer: bool,
    /// The trainer's tensors, in its order.
    pub(super) trainer_tensors: Vec<String>,
    files: Vec<FileEntry>,
    /// Whether all weights are finite; not known of a checkpoint of an earlier version.
    #[serde(default)]
    is_finite: Option<bool>,
}

/// Only what tells formats apart.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Manifest {
    pub(super) fn new(
        checkpoint: &Checkpoint<'_>,
        trainer: &TrainerState<'_>,
        (files, is_finite): (Vec<FileEntry>, bool),
    ) -> Self {
        let fields = checkpoint.run.fields().iter();
        Self {
            format: FORMAT,
            run: run_name(checkpoint.run.id()),
            run_fields: fields.map(|field| (field.name.clone(), field.value.clone())).collect(),
            step: checkpoint.step,
            micro_steps: Some(checkpoint.micro_steps),
            end: Some(checkpoint.end),
            clock: checkpoint.clock.0,
            samples: checkpoint.samples,
            outer: checkpoint.replica.momentum().is_some(),
            trainer_tensors: trainer.tensors.iter().map(|tensor| tensor.name.clone()).collect(),
            files,
            is_finite: Some(is_finite),
        }
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        if text.len() as u64 > BYTES_MAX {
            let why =
                format!("the names of the trainer's tensors take more than {BYTES_MAX} bytes");
            return Err(io::Error::other(why));
        }
        write_new(&directory.join(NAME), &text)
    }

    /// Whether the folder has one.
    pub(super) fn lies_in(directory: &Path) -> bool {
        directory.join(NAME).is_file()
    }

    /// Reads the manifest; the error says what was expected and what was found.
    pub(super) fn read(directory: &Path) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("{NAME}: {error}");
        let file = File::open(directory.join(NAME)).map_err(|error| fail(&error))?;
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| fail(&error))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(fail(&format!("expected at most {BYTES_MAX} bytes, found more")));
        }
        let Format { format } = serde_json::from_slice(&text).map_err(|error| fail(&error))?;
        if format != FORMAT {
            return Err(fail(&format!("expected format {FORMAT}, found {format}")));
        }
        serde_json::from_slice(&text).map_err(|error| fail(&error))
    }

    /// Whether a run can go on from it, as far as the manifest says.
    pub(super) fn is_sound(&self) -> bool {
        self.is_finite != Some(false)
    }

    /// The entry of the file `name`.
    pub(super) fn file(&self, name: &str) -> Result<&FileEntry, String> {
        let mut files = self.files.iter();
        files.find(|file| file.name == name).ok_or_else(|| format!("{NAME}: lists no {name}"))
    }

    /// What the checkpoint's run agreed on; `None` when the manifest does not hold it.
    pub(super) fn run_spec(&self) -> Option<RunSpec> {
        let fields = self.run_fields.iter();
        let fields =
            fields.map(|(name, value)| RunField { name: name.clone(), value: value.clone() });
        RunSpec::new(fields.collect()).ok()
    }
}

/// The hash of a run, hexadecimal, whole.
pub(super) fn run_name(run: RunId) -> String {
    run.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
