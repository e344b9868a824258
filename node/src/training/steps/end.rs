//! Why the loop of the training thread ended.

use dnode_trainer::TrainError;

/// Why the loop of the training thread ended.
#[derive(Debug)]
pub(super) enum End {
    /// [`Command::Stop`](crate::training::Command::Stop).
    Stopped { evaluate: bool },
    /// The driver is gone.
    Abandoned,
    /// Training failed.
    Failed(TrainError),
}

impl From<TrainError> for End {
    fn from(error: TrainError) -> Self {
        Self::Failed(error)
    }
}
