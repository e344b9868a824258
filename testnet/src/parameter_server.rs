//! The classic baseline: one process holds the parameters, peers send it gradients whenever they
//! have one, and nobody waits for anybody (asynchronous SGD; Dean et al., NIPS 2012, §4.1).
//!
//! ```text
//! peer ── gradient at the parameters it has ──▶ server: one optimizer step, at once
//! peer ◀── the parameters of now ─────────────  server
//! ```
//!
//! It is here to be compared with, and no part of the product. A peer takes the arguments of `dnode
//! join` and writes the same files, so that the harness treats it like any other.

mod arguments;
mod peer;
mod server;
mod wire;

pub use arguments::{Arguments, Role};
pub use peer::write_parameters;

use crate::experiment::settings::sections;

/// Why a process of the baseline failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or a setting cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The settings.
    #[error(transparent)]
    Read(#[from] crate::file::ReadError),
    /// The data.
    #[error(transparent)]
    Data(#[from] dnode_trainer::DataError),
    /// The model or the optimizer.
    #[error(transparent)]
    Config(#[from] dnode_trainer::ConfigError),
    /// The training.
    #[error(transparent)]
    Train(#[from] dnode_trainer::TrainError),
    /// A socket or a file.
    #[error("{what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}

impl Error {
    fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Writes the initial parameters of a run to `path` (safetensors), for programs that do not draw
/// them themselves.
///
/// # Errors
/// [`Error`].
pub fn initial<'a>(
    settings: impl Iterator<Item = &'a String>,
    seed: u64,
    path: &std::path::Path,
) -> Result<(), Error> {
    let seed = format!("run.seed={seed}");
    let settings: Vec<String> = settings.cloned().chain([seed]).collect();
    let trainer = arguments::Plan::of(sections(None, &settings)?)?.trainer()?;
    write_parameters(&trainer, path)
}

/// Runs a process of the baseline to its end; `now_s` is the time, seconds since 1970.
///
/// # Errors
/// [`Error`].
pub fn run(role: Role, arguments: Arguments, now_s: f64) -> Result<(), Error> {
    match role {
        Role::Serve => server::run(&arguments),
        Role::Work => peer::run(&arguments, now_s),
    }
}
