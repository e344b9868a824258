//! The arithmetic on one machine: models, data, optimizers, mixing, checkpoints.
//!
//! No network and no tokio. The seam to embedding users is [`Trainer`]; [`Replica`] adds to any
//! trainer what the swarm needs: slow weights, the outer step, and a [`Mixer`]. Numbers travel as
//! [`codec`] writes them. [`LocalTrainer`] trains the
//! reference models on an [`Engine`], of which the embedded one needs nothing but this crate.

mod batch;
pub mod checkpoint;
mod choice_score;
pub mod codec;
mod config;
mod data;
mod description;
mod device;
mod displacement;
mod engine;
mod files;
mod generate;
mod hugging_face;
mod idle;
mod interrupt;
mod kernel;
mod learning_rate;
mod local;
mod lora;
mod memory;
mod mix;
mod mixer;
mod model;
pub mod optimizer;
mod outer;
mod predictor;
pub mod privacy;
mod replica;
mod room;
mod seam;
mod sketch;
mod slow;
mod tail_average;
mod tensor_file;
#[cfg(test)]
mod testing;
mod text_score;
mod tokenizer;
mod trainer_state;
mod vocabulary;
mod weights;

pub use batch::{Batch, BatchSource, Input, SampleShape};
pub use checkpoint::Checkpoint;
pub use choice_score::{ChoiceCosts, ChoiceScorer, ChoiceTally, Question};
pub use codec::{Encoded, encode};
pub use config::{
    CONTEXT_MAX, ConfigError, Decayed, ModelConfig, ModelKind, MomentFormat, OptimizerConfig,
    OptimizerKind, RotaryScaling, Schedule,
};
pub use data::{
    DataConfig, DataError, DataKind, Dataset, Drawn, Skew, Stream, expected_overlap, read_text,
    shakespeare_text,
};
pub use description::{
    DESCRIPTION_BYTES_MAX, DESCRIPTION_ENTRIES_MAX, DESCRIPTION_NAME_BYTES_MAX, Description,
    DescriptionError,
};
pub use device::{
    DEVICE_BLOCK, Device, DeviceError, DeviceVector, Displacer, Resident, Span, SpanMut, Zeros,
};
pub use engine::{Engine, initial_parameters};
pub use generate::{GENERATED_MAX, GenerateError, Generation, generate, generate_to};
pub use hugging_face::{
    ExportError, Exported, InitError, ModelError, Positions, export, model_of, read_model_file,
};
pub use idle::IdleTrainer;
pub use interrupt::Interrupt;
pub use kernel::Compute;
pub use kernel::dropout::{Draws, Dropout, Dropped};
pub use kernel::loss::{Objective, Score};
pub use kernel::rotation::Rotation;
pub use learning_rate::learning_rate;
pub use local::{LocalConfig, LocalTrainer};
pub use lora::BaseError;
pub use memory::{Memory, free_memory};
pub use mix::{MixError, MixReport, MixTerms, NORM_FACTOR_MAX, NORM_SLACK_RMS, Tolerance};
pub use mixer::{Mixer, Reading};
pub use optimizer::Optimizer;
pub use outer::OuterStep;
pub use replica::{
    Beside, CommitReport, FixedState, Held, OuterState, Replica, ReplicaConfig, ReplicaCopy,
    ReplicaLock, ReplicaState, SharedReplica, Source,
};
pub use room::RoomFile;
pub use seam::{
    DataIdentity, DataShare, Evaluation, GradientStep, Requests, StepId, StepReport, TrainError,
    Trainer, weights_digest,
};
pub use sketch::{SKETCH_LEN, gradient_sketch};
pub use tail_average::TailAverage;
pub use text_score::{TextScore, score_text};
pub use tokenizer::{
    TOKENIZER_BYTES_MAX, TOKENIZER_FILE, TOKENIZER_VOCABULARY_MAX, TOKENIZER_VOCABULARY_MIN,
    Tokenizer, TokenizerError, train_tokenizer,
};
pub use trainer_state::{StateTensor, StateValues, TrainerState};
