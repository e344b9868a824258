//! Checkpoints: folders of safetensors files with a manifest, written whole or not at all.
//!
//! ```text
//! <checkpoints>/000000002000/parameters.safetensors   the replica's weights, one tensor per name, and
//!                                                     what they are, as metadata
//!                           /tail-average.safetensors their mean over the last part of the run, once
//!                                                     that has begun and if it is kept
//!                           /state.safetensors        live weights, momentum, optimizer, moments that
//!                                                     are exchanged, what sums contain
//!                           /tokenizer.json           what makes the model's tokens, if it has one
//!                           /manifest.json            run, step, clock, files with hashes
//! ```

mod contents;
mod error;
mod manifest;
mod metadata;
mod reading;
mod stored;
mod tensors;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use dnode_protocol::{Clock, Fragments, ParameterLayout, RunSpec, TensorSpec, Versions};

use self::contents::Contents;
use self::manifest::Manifest;
use self::stored::{Refused, Stored};
use self::tensors::{DeviceVector, Tensor};
use crate::description::Description;
use crate::files::sync_folder;
use crate::replica::{Replica, Source};
use crate::seam::TrainError;
use crate::tail_average::TailAverage;
use crate::tensor_file::{HEADER_MAX, TensorFile};
use crate::tokenizer::TOKENIZER_FILE;
use crate::trainer_state::TrainerState;

pub use self::error::{CheckpointError, Skipped};

/// Checkpoints that [`save`] leaves at least: the new one, and one to fall back to.
pub const CHECKPOINTS_KEPT_MIN: usize = 2;

/// The folder of checkpoints in a data directory.
pub const CHECKPOINTS: &str = "checkpoints";

const PARAMETERS: &str = "parameters.safetensors";
const TAIL_AVERAGE: &str = "tail-average.safetensors";
const STATE: &str = "state.safetensors";
const LIVE: &str = "live";
const MOMENTUM: &str = "outer_momentum";
/// First moments of the optimizer as they are exchanged: with what they have yet to move by. What the
/// trainer keeps of them may lack that.
const MOMENTS: &str = "exchanged.moments";
/// Accumulators of delta-set.
const ACCUMULATORS: &str = "fixed.accumulators";
/// Error memory of delta-set, empty without.
const RESIDUAL: &str = "fixed.residual";
/// Authors of the contributions that delta-set's accumulators contain, and up to which number.
const AUTHORS: &str = "contents.authors";
const NUMBERS: &str = "contents.numbers";
const TRAINER: &str = "trainer.";
/// A folder that is being written, of no value.
const WRITING: &str = ".writing-";
/// A whole checkpoint that is being replaced by another of the same step.
const REPLACED: &str = ".replaced-";

/// What goes into a checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint<'a> {
    /// The run.
    pub run: RunSpec,
    /// What the trainer tells ([`crate::Trainer::describe`]).
    pub description: &'a Description,
    /// Local steps done.
    pub step: u64,
    /// Where the swarm stood in the run, millionths of a step of the run.
    pub micro_steps: u64,
    /// Step at which the run ends.
    pub end: u64,
    /// Samples processed.
    pub samples: u64,
    /// Commits done.
    pub clock: Clock,
    /// Delta-set: of each fragment, which contributions it contains at the moment at which the replica
    /// is held; empty for other mixers.
    pub contents: &'a [Versions],
    /// Weights and state.
    pub replica: Source<'a>,
    /// Mean of the weights over the last part of the run, where that has begun.
    pub tail_average: Option<&'a TailAverage>,
}

/// Where a checkpoint was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The checkpoint's folder.
    pub directory: PathBuf,
    /// Its file of parameters.
    pub parameters: PathBuf,
    /// Its file of parameters averaged over the last part of the run.
    pub tail_average: Option<PathBuf>,
}

/// A whole checkpoint, found.
#[derive(Debug)]
pub struct Loaded {
    /// Local steps done.
    pub step: u64,
    /// Where the swarm stood in the run, millionths of a step of the run; `None` in a checkpoint of
    /// a version in which that was the local steps done.
    pub micro_steps: Option<u64>,
    /// Step at which the run was to end; `None` in a checkpoint of an earlier version.
    pub end: Option<u64>,
    /// Samples processed.
    pub samples: u64,
    /// Commits done.
    pub clock: Clock,
    /// Delta-set: of each fragment, which contributions it contains; empty for other mixers.
    pub contents: Vec<Versions>,
    /// The checkpoint's folder.
    pub directory: PathBuf,
    /// Newer checkpoints that are damaged.
    pub skipped: Vec<Skipped>,
    stored: Stored,
}

impl Loaded {
    /// Makes `replica` what was saved. Numbers come from the disk piece by piece, so that this needs
    /// hardly more memory than the replica.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit or is not finite; nothing is changed then. When the disk
    /// fails although it was checked, the replica is of no use any more.
    pub fn restore(&mut self, replica: &mut Replica) -> Result<(), TrainError> {
        self.stored.restore(replica)
    }

    /// The mean of the weights over the last part of the run so far; `None` where none was kept.
    ///
    /// # Errors
    /// [`TrainError::State`] when the disk fails although it was checked.
    pub fn tail_average(&self) -> Result<Option<TailAverage>, TrainError> {
        self.stored.tail_average()
    }

    /// Says which of the weights are not finite; `None` when all are. A run that had gone wrong may have
    /// left such a checkpoint, which no replica takes.
    ///
    /// # Errors
    /// [`TrainError::State`] when the disk fails although it was checked.
    pub fn unsound(&mut self) -> Result<Option<String>, TrainError> {
        self.stored.unsound()
    }

    /// Gives up this checkpoint for `reason`. Returns all that were passed over, for [`load_next`].
    #[must_use]
    pub fn pass_over(mut self, reason: String) -> Vec<Skipped> {
        self.skipped.push(Skipped { directory: self.directory, reason });
        self.skipped
    }
}

/// Writes a checkpoint into the folder `checkpoints`, then removes old ones up to this step but
/// for the newest `kept`, or [`CHECKPOINTS_KEPT_MIN`] where that is more. Where all of those hold numbers
/// that are not finite, the newest whose numbers are stays, too: a run that has gone wrong leaves one to go on
/// from.
///
/// Files are written to a hidden folder and forced to the disk before it gets its name, so that a
/// crash at any moment leaves a whole checkpoint. A checkpoint of the same step is replaced.
///
/// # Errors
/// [`CheckpointError::Write`] or [`CheckpointError::TooLong`]; the earlier checkpoints are untouched then.
///
/// # Panics
/// When the contents are not those of every fragment of a sum of contributions.
pub fn save(
    checkpoints: &Path,
    kept: usize,
    checkpoint: &Checkpoint<'_>,
) -> Result<Saved, CheckpointError> {
    let wanted =
        if checkpoint.replica.is_sum() { checkpoint.replica.fragments().count() } else { 0 };
    assert_eq!(checkpoint.contents.len(), wanted, "contents of every fragment of a sum");
    fs::create_dir_all(checkpoints).map_err(CheckpointError::write(checkpoints))?;
    remove_hidden(checkpoints, WRITING);
    let step = folder_name(checkpoint.step);
    let writing = checkpoints.join(format!("{WRITING}{step}"));
    let directory = checkpoints.join(&step);
    let written =
        write(&writing, checkpoint).and_then(|()| put_in_place(checkpoints, &writing, &directory));
    if let Err(error) = written {
        // What cannot be removed now is removed before the next checkpoint.
        let _ = fs::remove_dir_all(&writing);
        return Err(error);
    }
    remove_old(checkpoints, kept, checkpoint.step);
    let parameters = directory.join(PARAMETERS);
    let tail_average = checkpoint.tail_average.map(|_| directory.join(TAIL_AVERAGE));
    Ok(Saved { directory, parameters, tail_average })
}

/// Finds the newest whole checkpoint of `run` in the folder `checkpoints`; `None` when it has none at
/// all. Its numbers stay on the disk until [`Loaded::restore`].
///
/// Every length and hash is checked, lengths against `layout` before memory is allocated, and contents
/// against the number of `fragments`. A damaged checkpoint is passed over and reported in
/// [`Loaded::skipped`]. What a checkpoint's metadata say is compared with `description`; a checkpoint of an
/// earlier version has none, which is right.
///
/// # Errors
/// [`CheckpointError::OtherRun`] names both runs, [`CheckpointError::OtherModel`] what differs,
/// [`CheckpointError::NoneWhole`] every damage.
pub fn load_latest(
    checkpoints: &Path,
    run: &RunSpec,
    form: (&ParameterLayout, Fragments),
    description: &Description,
) -> Result<Option<Loaded>, CheckpointError> {
    load_next(checkpoints, run, form, description, Vec::new())
}

/// As [`load_latest`], of the checkpoints that were not `passed` over ([`Loaded::pass_over`]).
///
/// # Errors
/// As [`load_latest`].
pub fn load_next(
    checkpoints: &Path,
    run: &RunSpec,
    (layout, fragments): (&ParameterLayout, Fragments),
    description: &Description,
    mut passed: Vec<Skipped>,
) -> Result<Option<Loaded>, CheckpointError> {
    let mut skipped = Vec::new();
    for (_, directory) in list(checkpoints)? {
        if let Some(index) = passed.iter().position(|known| known.directory == directory) {
            skipped.push(passed.remove(index));
            continue;
        }
        let reason = match Manifest::read(&directory) {
            Ok(manifest) => {
                check_run(&directory, &manifest, run)?;
                match Stored::open(&directory, &manifest, (layout, fragments), description) {
                    Ok((stored, contents)) => {
                        let Manifest { step, micro_steps, end, samples, clock, .. } = manifest;
                        let clock = Clock(clock);
                        return Ok(Some(Loaded {
                            step,
                            micro_steps,
                            end,
                            samples,
                            clock,
                            contents,
                            directory,
                            skipped,
                            stored,
                        }));
                    }
                    Err(Refused::Other(difference)) => {
                        return Err(CheckpointError::OtherModel { directory, difference });
                    }
                    Err(Refused::Damaged(reason)) => reason,
                }
            }
            Err(reason) => reason,
        };
        skipped.push(Skipped { directory, reason });
    }
    if skipped.is_empty() {
        return Ok(None);
    }
    Err(CheckpointError::NoneWhole { path: checkpoints.to_owned(), skipped })
}

fn folder_name(step: u64) -> String {
    format!("{step:012}")
}

/// The file of parameters that `place` means: such a file itself, or that of a checkpoint's folder, or the
/// newest one in a data directory. `None` where there is none.
#[must_use]
pub fn parameters_at(place: &Path) -> Option<PathBuf> {
    if place.is_file() {
        return Some(place.to_path_buf());
    }
    let newest = list(&place.join(CHECKPOINTS)).unwrap_or_default();
    let folders = [place.to_path_buf()].into_iter().chain(newest.into_iter().map(|(_, path)| path));
    folders.map(|folder| folder.join(PARAMETERS)).find(|file| file.is_file())
}

/// Opens a file of parameters. Where it lies in a checkpoint, its length and hash must be those of the
/// manifest.
pub(crate) fn open_parameters(path: &Path) -> Result<TensorFile, String> {
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let listed = [PARAMETERS, TAIL_AVERAGE].contains(&name.as_str());
    let file = if listed && Manifest::lies_in(folder) {
        reading::listed(folder, Manifest::read(folder)?.file(&name)?)?
    } else {
        File::open(path).map_err(|error| error.to_string())?
    };
    TensorFile::new(name, file, HEADER_MAX)
}

/// What the file `name` holds that lies in the checkpoint of these parameters, if its manifest lists one
/// of at most `most` bytes, which is whole.
pub(crate) fn listed_beside(
    parameters: &Path,
    name: &str,
    most: u64,
) -> Result<Option<Vec<u8>>, String> {
    let folder = parameters.parent().unwrap_or_else(|| Path::new(""));
    if !Manifest::lies_in(folder) {
        return Ok(None);
    }
    let manifest = Manifest::read(folder)?;
    let Ok(entry) = manifest.file(name) else { return Ok(None) };
    reading::bytes(folder, entry, most).map(Some)
}

/// Checkpoints with their steps, newest first; of two of one step, the one in place first.
fn list(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let fail = CheckpointError::list(checkpoints);
    let entries = match fs::read_dir(checkpoints) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(&fail)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let replaced = name.strip_prefix(REPLACED);
        if let Ok(step) = replaced.unwrap_or(name).parse::<u64>() {
            found.push((step, replaced.is_none(), path));
        }
    }
    found.sort();
    Ok(found.into_iter().rev().map(|(step, _, path)| (step, path)).collect())
}

fn write(writing: &Path, checkpoint: &Checkpoint<'_>) -> Result<(), CheckpointError> {
    let held = checkpoint.replica;
    let contents = Contents::write(checkpoint.contents)
        .map_err(|reason| CheckpointError::write(writing)(io::Error::other(reason)))?;
    fs::create_dir(writing).map_err(CheckpointError::write(writing))?;
    let trainer = held.trainer_state();
    let put = |name: &str, tensors: &[Tensor<'_>], metadata: Option<BTreeMap<String, String>>| {
        let path = writing.join(name);
        tensors::write(&path, tensors, metadata).map_err(CheckpointError::write(&path))
    };
    let state = state_tensors(held, &contents, &trainer);
    tensors::check_length(&state, stored::state_bytes_max(held.fragments()))
        .map_err(|reason| CheckpointError::TooLong { path: writing.join(STATE), reason })?;
    let parameters =
        put(PARAMETERS, &parameter_tensors(held, None), Some(metadata::of(checkpoint, None)))?;
    let state = put(STATE, &state, None)?;
    let is_finite = parameters.is_finite && state.is_finite;
    let mut files = vec![parameters.entry, state.entry];
    if let Some(average) = checkpoint.tail_average {
        let metadata = metadata::of(checkpoint, Some(average.moments()));
        let tensors = parameter_tensors(held, Some(average));
        files.push(put(TAIL_AVERAGE, &tensors, Some(metadata))?.entry);
    }
    if let Some(tokenizer) = checkpoint.description.tokenizer() {
        let path = writing.join(TOKENIZER_FILE);
        let written = tensors::write_bytes(&path, tokenizer);
        files.push(written.map_err(CheckpointError::write(&path))?);
    }
    let manifest = Manifest::new(checkpoint, &trainer, (files, is_finite));
    manifest.write(writing).map_err(CheckpointError::write(writing))?;
    sync_folder(writing).map_err(CheckpointError::write(writing))
}

/// The parameters of the replica, or their average.
fn parameter_tensors<'a>(replica: Source<'a>, average: Option<&'a TailAverage>) -> Vec<Tensor<'a>> {
    let tensors = replica.layout().tensors().iter();
    let tensor = |spec: &TensorSpec| Tensor {
        name: spec.name.clone(),
        shape: spec.shape.clone(),
        numbers: match average {
            Some(average) => DeviceVector::Slice((&average.mean()[spec.range()]).into()),
            None => DeviceVector::Weights(replica, spec.offset),
        },
    };
    tensors.map(tensor).collect()
}

fn state_tensors<'a>(
    replica: Source<'a>,
    contents: &'a Contents,
    trainer: &'a TrainerState<'_>,
) -> Vec<Tensor<'a>> {
    let mut tensors = Vec::new();
    let fragments = replica.fragments();
    if fragments.first_of_moments().is_some() {
        let parameters = fragments.parameters();
        tensors.push(Tensor {
            name: MOMENTS.to_owned(),
            shape: vec![parameters],
            numbers: DeviceVector::Weights(replica, parameters),
        });
    }
    if let Some(momentum) = replica.momentum() {
        tensors.push(Tensor {
            name: LIVE.to_owned(),
            shape: vec![momentum.len()],
            numbers: DeviceVector::Live(replica),
        });
        tensors.push(Tensor::flat(MOMENTUM.to_owned(), momentum));
    }
    if let Some((accumulators, residual)) = replica.fixed() {
        tensors.push(Tensor::signed(ACCUMULATORS, accumulators));
        tensors.push(Tensor::flat(RESIDUAL.to_owned(), residual));
        tensors.push(Tensor::unsigned(AUTHORS, &contents.authors));
        tensors.push(Tensor::unsigned(NUMBERS, &contents.numbers));
    }
    let own = trainer.tensors.iter();
    tensors.extend(own.map(|own| Tensor::of(format!("{TRAINER}{}", own.name), &own.values)));
    tensors
}

/// Gives the written folder its name.
fn put_in_place(
    checkpoints: &Path,
    writing: &Path,
    directory: &Path,
) -> Result<(), CheckpointError> {
    let fail = CheckpointError::write(directory);
    let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let replaced = checkpoints.join(format!("{REPLACED}{name}"));
    let replaces = directory.exists();
    if replaces {
        if replaced.exists() {
            fs::remove_dir_all(&replaced).map_err(&fail)?;
        }
        fs::rename(directory, &replaced).map_err(&fail)?;
    }
    if let Err(error) = fs::rename(writing, directory) {
        if replaces {
            // Under its hidden name it is found, too.
            let _ = fs::rename(&replaced, directory);
        }
        return Err(fail(error));
    }
    sync_folder(checkpoints).map_err(fail)
}

/// Removes what [`save`] supersedes; what cannot be removed now is removed next time.
fn remove_old(checkpoints: &Path, kept: usize, step: u64) {
    remove_hidden(checkpoints, REPLACED);
    let (all, kept) = (list(checkpoints).unwrap_or_default(), kept.max(CHECKPOINTS_KEPT_MIN));
    let up_to_now = all.iter().filter(|(of, _)| *of <= step).map(|(_, directory)| directory);
    let mut sound = false;
    for (index, directory) in up_to_now.enumerate() {
        let is_first =
            !sound && Manifest::read(directory).is_ok_and(|manifest| manifest.is_sound());
        sound |= is_first;
        if index >= kept && !is_first {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn remove_hidden(checkpoints: &Path, prefix: &str) {
    for entry in fs::read_dir(checkpoints).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn check_run(directory: &Path, manifest: &Manifest, run: &RunSpec) -> Result<(), CheckpointError> {
    if manifest.run == manifest::run_name(run.id()) {
        return Ok(());
    }
    let difference = manifest.run_spec().and_then(|theirs| run.difference(&theirs));
    Err(CheckpointError::OtherRun {
        directory: directory.to_owned(),
        found: manifest.run.chars().take(16).collect(),
        expected: run.id(),
        difference: difference.map(Box::new),
    })
}

#[cfg(test)]
mod tests;
