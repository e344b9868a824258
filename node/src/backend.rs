//! The embedded trainer, as the configuration describes it.

use dnode_trainer::{
    DataConfig, DataError, Dataset, ModelConfig, NativeConfig, NativeTrainer, OptimizerConfig,
    Trainer,
};

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
    let data = DataConfig {
        kind: match config.data.kind {
            config::DataKind::Digits => dnode_trainer::DataKind::Digits,
            config::DataKind::Mnist => dnode_trainer::DataKind::Mnist,
            config::DataKind::Text => dnode_trainer::DataKind::Text,
        },
        path: config.data.path.clone(),
        shards: u32::try_from(config.data.shards).unwrap_or(u32::MAX),
        shard: u32::try_from(config.data.shard).unwrap_or(u32::MAX),
        skew: match config.data.skew {
            config::Skew::Iid(_) => dnode_trainer::Skew::Iid,
            config::Skew::Dirichlet(alpha) => dnode_trainer::Skew::Dirichlet(alpha),
        },
    };
    let dataset = Dataset::open(&data, config.run.seed, config.model.context)?
        .with_micro_batches(config.optimizer.accumulate);
    let native = NativeConfig {
        model: model(&config.model),
        optimizer: optimizer(&config.optimizer),
        seed: config.run.seed,
        batch: config.run.batch,
        steps: config.run.steps,
        threads: config.node.threads,
    };
    Ok(Box::new(NativeTrainer::new(native, Box::new(dataset))?))
}

fn model(model: &config::Model) -> ModelConfig {
    ModelConfig {
        kind: match model.kind {
            config::ModelKind::Mlp => dnode_trainer::ModelKind::Mlp,
            config::ModelKind::Cnn => dnode_trainer::ModelKind::Cnn,
            config::ModelKind::Gpt => dnode_trainer::ModelKind::Gpt,
        },
        hidden: model.hidden.clone(),
        layers: model.layers,
        heads: model.heads,
        width: model.width,
        context: model.context,
    }
}

fn optimizer(optimizer: &config::Optimizer) -> OptimizerConfig {
    let kind = match optimizer.kind {
        config::OptimizerKind::Sgd => dnode_trainer::OptimizerKind::Sgd,
        config::OptimizerKind::Adamw => dnode_trainer::OptimizerKind::Adamw,
    };
    OptimizerConfig {
        kind,
        learning_rate: optimizer.learning_rate as f32,
        momentum: optimizer.momentum as f32,
        beta1: optimizer.beta1 as f32,
        beta2: optimizer.beta2 as f32,
        weight_decay: optimizer.weight_decay as f32,
        warmup_steps: optimizer.warmup_steps,
        schedule: match optimizer.schedule {
            config::Schedule::Cosine => dnode_trainer::Schedule::Cosine,
            config::Schedule::Constant => dnode_trainer::Schedule::Constant,
        },
        final_fraction: optimizer.final_fraction as f32,
        clip_norm: optimizer.clip_norm as f32,
        accumulate: optimizer.accumulate,
        ..OptimizerConfig::default_of(kind)
    }
}
