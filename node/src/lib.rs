//! The dnode process: configuration, identity, files, signals and the loop around the pure cores.
//!
//! As a library: implement [`Trainer`] for your own model and pass it to [`join`] or
//! [`join_blocking`]; `examples/embed.rs` does so in about 60 lines.

#![expect(clippy::disallowed_methods, reason = "the process is where clocks are read")]

mod about;
mod acquaintances;
pub mod backend;
pub mod check;
pub mod cli;
pub mod config;
pub mod console;
pub mod data_dir;
pub mod diagnosis;
pub mod doctor;
mod driver;
pub mod identity;
pub mod link_bench;
pub mod log;
pub mod metrics;
mod peer;
pub mod progress;
mod pulled;
mod rules;
pub mod signals;
pub mod tensorboard;
mod told;
pub mod top;
pub mod traces;
mod trainer_identity;
mod training;
mod unsaved;
pub mod view;

pub use acquaintances::PeersFileError;
pub use config::Config;
pub use console::Console;
pub use dnode_gossip::ConfigError as GossipError;
pub use dnode_network::{Carrier, DirectConfig, Found, Multiaddr, NetworkError};
pub use dnode_protocol::{LayoutError, ParameterLayout, PeerId, RunDifference, TensorSpec, Time};
pub use dnode_trainer::checkpoint::CheckpointError;
pub use dnode_trainer::{
    DataIdentity, DataShare, Description, DescriptionError, Device, DeviceError, Evaluation,
    GradientStep, Interrupt, Numbers, Resident, Score, Span, SpanMut, StateTensor, StepId,
    StepReport, TrainError, Trainer, TrainerState,
};
pub use driver::{ADDRESS_FILE, DriveError};
pub use peer::{
    JoinError, LastEvaluation, Options, Outcome, join, join_blocking, join_until, with_peers_file,
};
/// Where a program says that a run is to end ([`join_until`]).
pub use tokio::sync::watch;
pub use told::told;
pub use trainer_identity::{AGREED_MAX, AGREED_NAME_MAX, IdentityError, TrainerIdentity};
