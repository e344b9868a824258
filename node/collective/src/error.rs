//! Why an operation could not end.

use std::io;
use std::time::Duration;

use crate::collective::Operation;

/// Why an operation could not end; the group is of no more use then, and the values that were
/// handed over are undefined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody called [`Abort::abort`](crate::Abort::abort).
    #[error("{operation}: given up: {reason}")]
    Aborted {
        /// What was under way.
        operation: Operation,
        /// What was said.
        reason: String,
    },
    /// The connection to a rank has ended: its process has died, or it has given the group up.
    #[error("{operation}: rank {rank} is gone ({source})")]
    Lost {
        /// What was under way.
        operation: Operation,
        /// The other end.
        rank: usize,
        /// What the connection says.
        source: io::Error,
    },
    /// Nothing has moved for too long.
    #[error("{operation}: rank {rank} has not moved for {silent:.1?}")]
    Stalled {
        /// What was under way.
        operation: Operation,
        /// The rank that is waited for.
        rank: usize,
        /// Since when.
        silent: Duration,
    },
    /// Another rank does something else.
    #[error("{ours}: rank {rank} is at {theirs}")]
    OutOfStep {
        /// What this rank does.
        ours: Operation,
        /// The other rank.
        rank: usize,
        /// What that one does.
        theirs: String,
    },
    /// The ranks could not get together.
    #[error("form the group")]
    Form(#[source] io::Error),
    /// An earlier operation failed.
    #[error("the group was given up before")]
    Ended,
    /// The operation cannot be: the reason.
    #[error("{0}")]
    Arguments(&'static str),
}

impl Error {
    /// Whether it may be the way between ranks that are there: nothing has moved, or what carries the
    /// group says so.
    #[must_use]
    pub fn blames_the_way(&self) -> bool {
        match self {
            Self::Stalled { .. } => true,
            Self::Lost { source, .. } => source.kind() == io::ErrorKind::Other,
            Self::Aborted { .. }
            | Self::OutOfStep { .. }
            | Self::Form(_)
            | Self::Ended
            | Self::Arguments(_) => false,
        }
    }
}
