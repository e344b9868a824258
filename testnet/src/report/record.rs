//! What was run, as written to the folder, and everything read back from there.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::judged::Judged;
use super::machine::Machine;
use crate::local::arm_run::ArmRun;
use crate::local::{Arm, Experiment};
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
    pub experiment: Experiment,
    /// What was completed, in order.
    pub runs: Vec<ArmRun>,
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
    /// The record names an arm that its plan does not have.
    #[error("{} speaks of an arm `{arm}` that is not in its plan", path.display())]
    UnknownArm {
        /// The file.
        path: PathBuf,
        /// The name.
        arm: String,
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
        std::fs::write(&path, text + "\n").map_err(|source| RecordError::File { path, source })
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

/// Folder of one arm and seed.
pub fn run_folder(folder: &Path, arm: &str, seed: u64) -> PathBuf {
    folder.join(arm).join(seed.to_string())
}

/// A record with the metrics of all its peers.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// What was run.
    pub record: Record,
    /// What came of it, in the order of the record; without runs that failed.
    pub runs: Vec<RunResult>,
}

/// One arm and seed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// The arm.
    pub arm: Arm,
    /// Times and kills.
    pub run: ArmRun,
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
            let arms = &record.experiment.arms;
            let Some(arm) = arms.iter().find(|arm| arm.name == run.arm) else {
                return Err(RecordError::UnknownArm { path, arm: run.arm.clone() });
            };
            let home = run_folder(folder, &run.arm, run.seed);
            let judged = Judged::load(&home);
            let peers = (0..arm.peers).map(|index| {
                let mut peer = read_peer(&home, index)?;
                judged.iter().for_each(|judged| judged.tell(index, &mut peer.log));
                Ok::<_, MetricsError>(peer)
            });
            let peers = peers.collect::<Result<_, _>>()?;
            runs.push(RunResult { arm: arm.clone(), run: run.clone(), peers, judged });
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
