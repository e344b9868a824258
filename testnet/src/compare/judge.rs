//! Measures the parameters of a run on all held-out data: of every peer on the way, from its
//! checkpoints, of every peer at the end, and of their mean.
//!
//! Peers measure themselves at the end, too. Here one program measures all variants alike, so that a variant
//! that measures on other data, or reports what it does not have, is found (`fairness.rs`), and so
//! that measuring on the way takes nobody's time.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use dnode_trainer::{
    DataConfig, DataError, Dataset, LocalConfig, LocalTrainer, ModelConfig, OptimizerConfig,
    Trainer,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::learn::swarm::evaluate;
use crate::local::process::{PARAMETERS_FILE, TAIL_AVERAGE_FILE};
use crate::metrics::Stamp;
use crate::report::consensus::{self, ConsensusError};
use crate::report::judged::{Judged, Measured, Waypoint};
use crate::report::numbers::{here, parameters};
use crate::report::record::PeerResult;

/// In the folder of a peer: settings of its loop, section by section, in JSON.
const SETTINGS_FILE: &str = "settings.json";
/// Samples that are measured at a time.
const BATCH: usize = 48;
/// Most threads for it.
const THREADS_MAX: usize = 8;
/// Name of the event that names the folder of a checkpoint.
const CHECKPOINT: &str = "checkpoint";

/// Why parameters cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// No peer has said what it trains.
    #[error("no peer has written its configuration")]
    NoStart,
    /// The configuration of the run is not one of the trainer's.
    #[error("configuration of the run, [{section}]: {source}")]
    Config {
        /// The section.
        section: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model.
    #[error(transparent)]
    Model(#[from] dnode_trainer::ConfigError),
    /// The parameter files.
    #[error(transparent)]
    Parameters(#[from] ConsensusError),
    /// A file holds parameters of another model.
    #[error("{} does not hold the tensors of the model", .0.display())]
    Layout(PathBuf),
    /// The measurement failed.
    #[error("measure {}: {what}", path.display())]
    Evaluate {
        /// The parameters.
        path: PathBuf,
        /// What happened.
        what: String,
    },
}

/// Measures what the peers of a run had on the way, and what they ended with.
///
/// # Errors
/// [`JudgeError`]: a file, or a configuration, is not what a run leaves.
pub fn judge(peers: &[PeerResult]) -> Result<Judged, JudgeError> {
    let settings = peers.iter().find_map(settings).ok_or(JudgeError::NoStart)?;
    let mut trainer = trainer(&settings)?;
    let mut judged = Judged::default();
    let mut known = Known::default();
    let mut mean = vec![0.0_f64; trainer.layout().parameters()];
    let mut paths = Vec::new();
    for peer in peers {
        judged.way.push(way(peer, &mut trainer, &mut known)?);
        let path = peer.log.end.as_ref().and_then(|_| parameters(peer));
        let Some(path) = path else {
            judged.peers.push(None);
            judged.averaged.push(None);
            continue;
        };
        let values = read(&path, &trainer)?;
        mean.iter_mut().zip(&values).for_each(|(sum, value)| *sum += f64::from(*value));
        judged.peers.push(Some(known.measure(&mut trainer, &values, &path)?));
        judged.averaged.push(averaged(&path, &mut trainer, &mut known)?);
        paths.push(path);
    }
    judged.consensus = consensus::exact(&paths)?;
    if let Some(path) = paths.first() {
        #[expect(clippy::cast_precision_loss, reason = "a swarm has few peers")]
        let count = paths.len() as f64;
        #[expect(clippy::cast_possible_truncation, reason = "parameters are f32")]
        let mean: Vec<f32> = mean.iter().map(|sum| (sum / count) as f32).collect();
        judged.mean = Some(measure(&mut trainer, &mean, path)?);
    }
    Ok(judged)
}

/// What lies beside these final parameters, averaged over the last part of the run.
fn averaged(
    parameters: &Path,
    trainer: &mut LocalTrainer,
    known: &mut Known,
) -> Result<Option<Measured>, JudgeError> {
    let path = parameters.with_file_name(TAIL_AVERAGE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let values = read(&path, trainer)?;
    known.measure(trainer, &values, &path).map(Some)
}

/// What was measured already, by hash of the parameters: replicas of synchronous variants are equal.
#[derive(Default)]
struct Known(BTreeMap<u64, Measured>);

impl Known {
    fn measure(
        &mut self,
        trainer: &mut LocalTrainer,
        parameters: &[f32],
        path: &Path,
    ) -> Result<Measured, JudgeError> {
        let mut hasher = DefaultHasher::new();
        parameters.iter().for_each(|value| value.to_bits().hash(&mut hasher));
        let hash = hasher.finish();
        if let Some(measured) = self.0.get(&hash) {
            return Ok(*measured);
        }
        let measured = measure(trainer, parameters, path)?;
        self.0.insert(hash, measured);
        Ok(measured)
    }
}

/// The checkpoints that a peer says it wrote and that are there, in the order of their times.
fn way(
    peer: &PeerResult,
    trainer: &mut LocalTrainer,
    known: &mut Known,
) -> Result<Vec<Waypoint>, JudgeError> {
    let mut written = BTreeMap::new();
    for (at, event) in peer.log.events.iter().filter(|(_, event)| event.name == CHECKPOINT) {
        let folder = &event.detail;
        // What was written twice is what was written last.
        written.insert(here(peer, &Path::new(folder).join(PARAMETERS_FILE)), at);
    }
    let mut points = Vec::new();
    for (path, at) in written.into_iter().filter(|(path, _)| path.exists()) {
        let values = read(&path, trainer)?;
        let measured = known.measure(trainer, &values, &path)?;
        let Stamp { time_s, step, samples, clock, .. } = *at;
        points.push(Waypoint { time_s, step, samples, clock, measured });
    }
    points.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
    Ok(points)
}

fn measure(
    trainer: &mut LocalTrainer,
    parameters: &[f32],
    path: &Path,
) -> Result<Measured, JudgeError> {
    let evaluation = evaluate(trainer, parameters);
    let evaluation =
        evaluation.map_err(|what| JudgeError::Evaluate { path: path.to_owned(), what })?;
    let (loss, accuracy, count) = (evaluation.loss, evaluation.accuracy, evaluation.count);
    Ok(Measured { loss, accuracy, count })
}

/// The tensors of a file in the order of the model's layout, `[P]`.
fn read(path: &Path, trainer: &LocalTrainer) -> Result<Vec<f32>, JudgeError> {
    let mut tensors = consensus::tensors(path)?;
    let mut values = Vec::new();
    for tensor in trainer.layout().tensors() {
        let found = tensors.remove(&tensor.name).filter(|found| found.len() == tensor.elements());
        values.extend(found.ok_or_else(|| JudgeError::Layout(path.to_owned()))?);
    }
    Ok(values)
}

/// The settings of what a peer trains. The node of a program with a loop of its own does not know them:
/// such a program leaves them in [`SETTINGS_FILE`].
pub(super) fn settings(peer: &PeerResult) -> Option<Value> {
    let left = std::fs::read(peer.directory.join(SETTINGS_FILE)).ok();
    let left = left.and_then(|text| serde_json::from_slice(&text).ok());
    left.or_else(|| peer.log.start.as_ref().map(|start| start.config.clone()))
}

/// Whether the peer is a program with a loop of its own.
pub(super) fn has_own_loop(peer: &PeerResult) -> bool {
    peer.directory.join(SETTINGS_FILE).exists()
}

/// A trainer with the model and the held-out data of a run.
fn trainer(config: &Value) -> Result<LocalTrainer, JudgeError> {
    let model: ModelConfig = section(config, "model")?;
    let data: DataConfig = section(config, "data")?;
    let seed = config.get("run").and_then(|run| run.get("seed")?.as_u64()).unwrap_or(1);
    // Held-out data are the same for every shard.
    let data = DataConfig { shards: 1, shard: Some(0), ..data };
    let source = Box::new(Dataset::open(&data, seed, model.context)?);
    let optimizer = OptimizerConfig::default_of(dnode_trainer::OptimizerKind::Adamw);
    let threads =
        std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS_MAX));
    let config =
        LocalConfig { model, optimizer, seed, batch: BATCH, steps: 1, threads, recompute: false };
    Ok(LocalTrainer::new(config, source)?)
}

/// A section of the configuration, without what only the product's own configuration knows.
fn section<T: DeserializeOwned>(config: &Value, name: &'static str) -> Result<T, JudgeError> {
    let value = config.get(name).cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    serde_json::from_value(value).map_err(|source| JudgeError::Config { section: name, source })
}
