//! Why a checkpoint cannot be written or read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use dnode_protocol::{RunDifference, RunId};

/// A checkpoint that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The checkpoint's folder.
    pub directory: PathBuf,
    /// What is wrong with it: the file, what was expected and what was found.
    pub reason: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.directory.display(), self.reason)
    }
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The machine refused a write, for example because the disk is full; earlier checkpoints are
    /// untouched and nothing half-written is left.
    #[error("write checkpoint {}: {source}; is there room, and may it be written?", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The trainer keeps so much that the checkpoint could never be loaded; earlier ones are untouched.
    #[error("write checkpoint {}: {reason}; have the trainer keep less", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What is too long, and the bound.
        reason: String,
    },
    /// The folder of checkpoints cannot be listed.
    #[error("list checkpoints in {}: {source}; make it readable, or use another data directory", path.display())]
    List {
        /// The folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The newest checkpoint is another run's.
    #[error(
        "open checkpoint {}: it belongs to run {found}, this is run {expected}{}; use another data directory, or that run's configuration",
        directory.display(),
        because(difference.as_deref())
    )]
    OtherRun {
        /// The checkpoint's folder.
        directory: PathBuf,
        /// The run it was written by, as far as names are shown.
        found: String,
        /// This run.
        expected: RunId,
        /// The first field that differs (`here` is this run, `there` the checkpoint).
        difference: Option<Box<RunDifference>>,
    },
    /// The newest checkpoint is of this run and of another model or other inputs.
    #[error(
        "open checkpoint {}: {difference}; use another data directory, or the model and the data that it was written with",
        directory.display()
    )]
    OtherModel {
        /// The checkpoint's folder.
        directory: PathBuf,
        /// The first thing that differs.
        difference: String,
    },
    /// There are checkpoints, and none of them is whole.
    #[error("open checkpoints in {}: none is whole ({}); use another data directory, the peer then takes the model from its neighbours", path.display(), list(skipped))]
    NoneWhole {
        /// The folder of checkpoints.
        path: PathBuf,
        /// Each of them, newest first.
        skipped: Vec<Skipped>,
    },
}

impl CheckpointError {
    pub(super) fn write(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Write { path: path.to_owned(), source }
    }

    pub(super) fn list(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::List { path: path.to_owned(), source }
    }
}

fn because(difference: Option<&RunDifference>) -> String {
    difference.map(|difference| format!(" ({difference})")).unwrap_or_default()
}

fn list(skipped: &[Skipped]) -> String {
    skipped.iter().map(Skipped::to_string).collect::<Vec<_>>().join("; ")
}
