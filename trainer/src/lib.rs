//! The arithmetic on one machine: models, data, optimizers, mixing, checkpoints.
//!
//! No network and no tokio. The seam to embedding users is [`Trainer`]; [`Replica`] adds to any
//! trainer what the swarm needs: slow weights, the outer step, and the additive halves of an
//! exchange. The embedded backend is [`NativeTrainer`].

mod batch;
mod config;
mod kernel;
mod learning_rate;
mod model;
mod native;
mod optimizer;
mod seam;

pub use batch::{Batch, Input, SampleShape};
pub use config::{
    ConfigError, ModelConfig, ModelKind, OptimizerConfig, OptimizerKind, OptimizerOverrides,
    Schedule,
};
pub use learning_rate::learning_rate;
pub use native::{BatchSource, NativeConfig, NativeTrainer};
pub use seam::{
    Evaluation, GradientStep, StateTensor, StepReport, TrainError, Trainer, TrainerState,
};
