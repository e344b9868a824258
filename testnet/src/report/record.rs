//! What was run, as written to the folder, and everything read back from there.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::judged::Judged;
use super::machine::Machine;
use crate::file::write_whole;
use crate::local::variant_run::VariantRun;
use crate::local::{LocalExperiment, Variant};
use crate::metrics::{Log, MetricsError};

/// Name of the record inside the folder.
pub const RECORD_FILE: &str = "experiment.json";

/// What was run, where and how it ended; the numbers are in the metrics files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The exact command line.
    pub command: String,
    /// When it began, RFC 3339 in UTC.
    pub begun: String,
    /// The machine.
    pub machine: Machine,
    /// The plan.
    pub experiment: LocalExperiment,
    /// What was completed, in order.
    pub runs: Vec<VariantRun>,
    /// Why the plan was not completed, if it was not.
    pub failure: Option<String>,
}

/// Why an experiment cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record is missing or cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The record is not one.
    #[error("{} is not the record of an experiment: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The record names a variant that its plan does not have.
    #[error("{} speaks of a variant `{variant}` that is not in its plan", path.display())]
    UnknownVariant {
        /// The file.
        path: PathBuf,
        /// The name.
        variant: String,
    },
    /// The metrics of a peer cannot be used.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

impl Record {
    /// Writes the record into `folder`.
    ///
    /// # Errors
    /// [`RecordError::File`] if the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), RecordError> {
        let path = folder.join(RECORD_FILE);
        let format = |source| RecordError::Format { path: path.clone(), source };
        let text = serde_json::to_string_pretty(self).map_err(format)?;
        write_whole(&path, &(text + "\n")).map_err(|source| RecordError::File { path, source })
    }

    /// Reads the record in `folder`.
    ///
    /// # Errors
    /// [`RecordError`] naming the file.
    pub fn load(folder: &Path) -> Result<Self, RecordError> {
        let path = folder.join(RECORD_FILE);
        let text = std::fs::read_to_string(&path)
            .map_err(|source| RecordError::File { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| RecordError::Format { path, source })
    }
}

/// Folder of one variant and seed.
pub fn run_folder(folder: &Path, variant: &str, seed: u64) -> PathBuf {
    folder.join(variant).join(seed.to_string())
}

/// A record with the metrics of all its peers.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// What was run.
    pub record: Record,
    /// What came of it, in the order of the record; without runs that failed.
    pub runs: Vec<RunResult>,
}

/// One variant and seed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// The variant.
    pub variant: Variant,
    /// Times and kills.
    pub run: VariantRun,
    /// The peers, by index.
    pub peers: Vec<PeerResult>,
    /// What the harness measured of their parameters, if it did.
    pub judged: Option<Judged>,
}

/// One peer.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerResult {
    /// Its data directory.
    pub directory: PathBuf,
    /// What it said.
    pub log: Log,
}

impl Results {
    /// Reads the experiment in `folder`.
    ///
    /// # Errors
    /// [`RecordError`] naming the file at fault.
    pub fn load(folder: &Path) -> Result<Self, RecordError> {
        Self::read(folder, Record::load(folder)?)
    }

    /// Reads the metrics of the runs of a record that belongs to `folder`.
    ///
    /// # Errors
    /// [`RecordError`] naming the file at fault.
    pub fn read(folder: &Path, record: Record) -> Result<Self, RecordError> {
        let path = folder.join(RECORD_FILE);
        let mut runs = Vec::new();
        for run in record.runs.iter().filter(|run| run.failure.is_none()) {
            let variants = &record.experiment.variants;
            let Some(variant) = variants.iter().find(|variant| variant.name == run.variant) else {
                return Err(RecordError::UnknownVariant { path, variant: run.variant.clone() });
            };
            let home = run_folder(folder, &run.variant, run.seed);
            let judged = Judged::load(&home);
            let peers = (0..variant.peers).map(|index| {
                let mut peer = read_peer(&home, index)?;
                judged.iter().for_each(|judged| judged.tell(index, &mut peer.log));
                Ok::<_, MetricsError>(peer)
            });
            let peers = peers.collect::<Result<_, _>>()?;
            runs.push(RunResult { variant: variant.clone(), run: run.clone(), peers, judged });
        }
        Ok(Self { record, runs })
    }
}

/// What a peer of the run in `home` said.
///
/// # Errors
/// [`MetricsError`] naming the file at fault.
pub fn read_peer(home: &Path, index: usize) -> Result<PeerResult, MetricsError> {
    let directory = home.join(format!("peer-{index}"));
    let log = Log::read(&directory)?;
    Ok(PeerResult { directory, log })
}
