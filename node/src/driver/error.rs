//! Why a run could not go on.

use dnode_protocol::RunDifference;
use dnode_trainer::TrainError;

use super::refusal::advice;

/// Why a run could not go on.
#[derive(thiserror::Error)]
pub enum DriveError {
    /// Every bootstrap peer is of another run, or has settings too far from these; the person who
    /// configures is at fault.
    #[error("join the run: {0}; {advice}", advice = advice(&.0.field))]
    OtherRun(RunDifference),
    /// The trainer failed.
    #[error("train: {0}")]
    Train(#[from] TrainError),
    /// The same, of a loss or gradient that is no number, where that is to end the run.
    #[error("training diverged, and was stopped: {0}")]
    Diverged(TrainError),
    /// The training thread panicked; a defect.
    #[error(
        "train: the training thread died, a defect: the log has its last words; --resume goes on from the newest checkpoint"
    )]
    ThreadDied,
    /// The network stopped; a defect.
    #[error("run the network: it stopped, a defect: --resume goes on from the newest checkpoint")]
    NetworkStopped,
}
