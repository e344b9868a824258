//! Why there is no emulated network.

use std::io;

use super::plan::PlanError;
use super::router::NoSuchNode;

/// Why a network could not be made, entered or changed. Nothing is left behind by a failure.
#[derive(Debug, thiserror::Error)]
pub enum WanError {
    /// The machine or its user lacks something that no other run will have either.
    #[error("cannot emulate a network here; missing: {0}")]
    Missing(String),
    /// Another process has a network of this name.
    #[error("the network `{0}` is in use; name another one with --name")]
    InUse(String),
    /// A name that cannot be part of a file name.
    #[error("`{0}` names no network: use up to 40 of a-z, 0-9 and -")]
    Name(String),
    /// The namespace is not there.
    #[error("there is no namespace {0}; is the network running?")]
    NoSuchMachine(String),
    /// A command names a machine that the network does not have.
    #[error(transparent)]
    NoSuchNode(#[from] NoSuchNode),
    /// The scenario describes no network.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// `ip` did not set a namespace up.
    #[error("ip could not set {namespace} up: {reason}")]
    Ip {
        /// The namespace.
        namespace: String,
        /// The first line it said.
        reason: String,
    },
    /// The system refused something it should not.
    #[error("cannot {0}: {1}")]
    System(String, #[source] io::Error),
    /// The thread that carries packets is gone; it has said why.
    #[error("the emulated network has ended")]
    Ended,
}
