//! The embedded trainer, as the configuration describes it.

use dnode_trainer::{DataError, Dataset, LocalConfig, LocalTrainer, OptimizerConfig, Trainer};

use crate::config::{self, Config};

/// Why the configured model cannot be trained on the configured data; the person who configures
/// is at fault, or a data file.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The data set.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model or the optimizer.
    #[error(transparent)]
    Model(#[from] dnode_trainer::ConfigError),
}

/// Builds the embedded trainer of `config`: opens the data, makes the model.
///
/// # Errors
/// [`BackendError`] names the file or the key.
pub fn trainer(config: &Config) -> Result<Box<dyn Trainer>, BackendError> {
    let dataset = Dataset::open(&config.data, config.run.seed, config.model.context)?
        .with_micro_batches(config.optimizer.accumulate);
    let native = LocalConfig {
        model: config.model.clone(),
        optimizer: optimizer(&config.optimizer),
        seed: config.run.seed,
        batch: config.run.batch,
        steps: config.run.steps,
        threads: config.node.threads,
    };
    Ok(Box::new(LocalTrainer::new(native, Box::new(dataset))?))
}

fn optimizer(optimizer: &config::Optimizer) -> OptimizerConfig {
    OptimizerConfig {
        kind: optimizer.kind,
        learning_rate: optimizer.learning_rate as f32,
        momentum: optimizer.momentum as f32,
        beta1: optimizer.beta1 as f32,
        beta2: optimizer.beta2 as f32,
        weight_decay: optimizer.weight_decay as f32,
        warmup_steps: optimizer.warmup_steps,
        schedule: optimizer.schedule,
        final_fraction: optimizer.final_fraction as f32,
        clip_norm: optimizer.clip_norm as f32,
        accumulate: optimizer.accumulate,
        ..OptimizerConfig::default_of(optimizer.kind)
    }
}
