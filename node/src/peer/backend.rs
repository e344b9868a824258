//! The trainer of this repository, as the configuration describes it.

use dnode_torch::{Device, Precision, TorchConfig, TorchError};
use dnode_trainer::{
    BatchSource as _, DataError, Dataset, LocalConfig, LocalTrainer, Memory, OptimizerConfig,
    Trainer, free_memory,
};

use super::memory::{self, MemoryError};
use crate::config::{self, Backend, Config, Node};

/// Why the configured model cannot be trained on the configured data. The cause is the configuration, a
/// data file, or a library that is missing.
#[derive(thiserror::Error)]
pub enum BackendError {
    /// The data set.
    #[error("{error}{}", advice(error))]
    Data {
        /// What was found.
        #[from]
        error: DataError,
    },
    /// The model or the optimizer.
    #[error(transparent)]
    Model(#[from] dnode_trainer::ConfigError),
    /// It takes more memory than there is.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// libtorch or a device.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

/// What to do about data that are not there, or not what was expected.
const fn advice(error: &DataError) -> &'static str {
    match error {
        DataError::Missing { .. } | DataError::Read { .. } | DataError::Content { .. } => {
            "; --data-path names another file or folder"
        }
        DataError::Config { .. } | DataError::Tokenizer(_) => "",
    }
}

/// Builds the trainer of `config`: opens the data, and makes the model on the device that computes it.
///
/// # Errors
/// [`BackendError`] names the file, the key, or what is missing.
pub fn trainer(config: &Config) -> Result<Box<dyn Trainer>, BackendError> {
    Ok(Box::new(local(config, torch(&config.node))?))
}

/// The data of a configuration, and what is to be trained on it.
pub(crate) struct Opened {
    dataset: Dataset,
    local: LocalConfig,
    torch: Option<TorchConfig>,
}

impl Opened {
    /// Opens the data.
    ///
    /// # Errors
    /// [`BackendError`] names the file, or the key.
    pub(crate) fn open(config: &Config, torch: Option<TorchConfig>) -> Result<Self, BackendError> {
        let dataset = Dataset::open(&config.data, config.run.seed, config.model.context)?
            .with_micro_batches(config.optimizer.accumulate);
        Ok(Self { dataset, local: local_config(config), torch })
    }

    /// What training takes, before any of it is taken.
    ///
    /// # Errors
    /// [`BackendError`] names the key.
    pub(crate) fn memory(&self) -> Result<Memory, BackendError> {
        let shape = self.dataset.shape();
        Ok(match self.torch {
            None => Memory::of_training(&self.local, shape)?,
            Some(_) => Memory::of_libtorch(&self.local, shape)?,
        })
    }

    /// Makes the model on the device that computes it.
    ///
    /// # Errors
    /// [`BackendError`] names the key, or what is missing.
    pub(crate) fn build(self, config: &Config) -> Result<LocalTrainer, BackendError> {
        let Self { dataset, local, torch } = self;
        let Some(torch) = torch else {
            memory::check((config, &local, dataset.shape()), free_memory())?;
            return Ok(LocalTrainer::new(local, Box::new(dataset))?);
        };
        let engine = dnode_torch::engine(&local, torch, dataset.shape())?;
        Ok(LocalTrainer::on(engine, local, Box::new(dataset))?)
    }
}

/// As [`trainer`], on libtorch as `torch` says, or on the embedded engine.
pub(crate) fn local(
    config: &Config,
    torch: Option<TorchConfig>,
) -> Result<LocalTrainer, BackendError> {
    Opened::open(config, torch)?.build(config)
}

/// What an engine is built from.
pub(super) fn local_config(config: &Config) -> LocalConfig {
    LocalConfig {
        model: config.model.clone(),
        optimizer: optimizer(&config.optimizer),
        seed: config.run.seed,
        batch: config.run.batch,
        steps: config.run.steps,
        threads: config.node.threads,
        recompute: config.node.recompute,
    }
}

/// What to do about a GPU that `auto` leaves unused, if the driver lists one.
pub(super) fn about_unused_gpu(node: &Node) -> Option<&'static str> {
    let leaves = node.device == Device::Auto && node.backend == Backend::Auto;
    let leaves = leaves && torch(node).is_none();
    if !leaves || !dnode_cuda::driver::devices().is_ok_and(|devices| devices > 0) {
        return None;
    }
    Some(if dnode_torch::is_built() {
        "put the lib folder of a CUDA build of libtorch first in LD_LIBRARY_PATH"
    } else {
        "`testnet/scripts/torch.sh build` builds libtorch in"
    })
}

/// How libtorch is to compute; `None` if the embedded engine computes.
pub(crate) fn torch(node: &Node) -> Option<TorchConfig> {
    let torch = TorchConfig { device: node.device, precision: node.precision };
    let embedded = match node.backend {
        Backend::Embedded => true,
        Backend::Libtorch => false,
        Backend::Auto => {
            let plain = node.precision == Precision::F32;
            match node.device {
                Device::Cpu => plain,
                Device::Auto => plain && dnode_torch::cuda_devices() == 0,
                Device::Cuda(_) => false,
            }
        }
    };
    (!embedded).then_some(torch)
}

fn optimizer(optimizer: &config::Optimizer) -> OptimizerConfig {
    OptimizerConfig {
        kind: optimizer.kind,
        learning_rate: optimizer.learning_rate as f32,
        momentum: optimizer.momentum as f32,
        beta1: optimizer.beta1 as f32,
        beta2: optimizer.beta2 as f32,
        weight_decay: optimizer.weight_decay as f32,
        decayed: optimizer.decayed,
        warmup_steps: optimizer.warmup_steps,
        schedule: optimizer.schedule,
        final_fraction: optimizer.final_fraction as f32,
        decay_fraction: optimizer.decay_fraction as f32,
        clip_norm: optimizer.clip_norm as f32,
        label_smoothing: optimizer.label_smoothing as f32,
        z_loss: optimizer.z_loss as f32,
        accumulate: optimizer.accumulate,
        moments: optimizer.moments,
        ..OptimizerConfig::default_of(optimizer.kind)
    }
}
