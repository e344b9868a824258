//! The dnode process: configuration, identity, files, signals and the loop around the pure cores.
//!
//! As a library: implement [`Trainer`] for your own model and pass it to [`join`] or
//! [`join_blocking`]; `examples/embed.rs` does so in about 100 lines. Or keep your training loop and
//! call [`Swarm::step`] in it, as `examples/own_loop.rs` does.

#![expect(clippy::disallowed_methods, reason = "the process is where clocks are read")]

pub mod cli;
pub mod config;
mod driver;
mod handle;
mod peer;
mod process;
mod program;
mod storage;
mod telemetry;
mod tools;
mod training;

pub use config::Config;
pub use dnode_gossip::ConfigError as GossipError;
pub use dnode_network::{Carrier, DirectConfig, Found, Multiaddr, NetworkError};
pub use dnode_protocol::membership::{RunSecret, Ticket, TicketError};
pub use dnode_protocol::{LayoutError, ParameterLayout, PeerId, RunDifference, TensorSpec, Time};
pub use dnode_trainer::checkpoint::CheckpointError;
pub use dnode_trainer::{
    DataIdentity, DataShare, Description, DescriptionError, Device, DeviceError, DeviceVector,
    Displacer, Evaluation, GradientStep, Interrupt, Memory, Requests, Resident, Score, Span,
    SpanMut, StateTensor, StateValues, StepId, StepReport, TrainError, Trainer, TrainerState,
};
pub use driver::{ADDRESS_FILE, DriveError};
pub use handle::{Membership, NextStep, Parameters, Swarm, SwarmError};
pub use peer::trainer_identity::{AGREED_MAX, AGREED_NAME_MAX, IdentityError, TrainerIdentity};
pub use peer::{
    JoinError, LastEvaluation, Options, Outcome, join, join_blocking, join_until, with_peers_file,
};
pub use peer::{backend, membership};
pub use process::console::{self, Console};
pub use process::error_text::error_text;
pub use process::{log, signals};
pub use program::program;
pub use storage::peer_store::PeersFileError;
pub use storage::{data_dir, identity};
pub use telemetry::{diagnosis, metrics, progress, tensorboard, traces, view};
/// Where a program says that a run is to end ([`join_until`]).
pub use tokio::sync::watch;
pub use tools::{check, doctor, exchange_bench, link_bench, top};
