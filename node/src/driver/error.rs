//! Why a run could not go on.

use dnode_network::NotLetIn;
use dnode_protocol::RunDifference;
use dnode_trainer::TrainError;

use super::refusal::{advice, way_in};

/// Why a run could not go on.
#[derive(thiserror::Error)]
pub enum DriveError {
    /// Every bootstrap peer is of another run, or its settings differ too much. The configuration is at
    /// fault.
    #[error("join the run: {0}; {advice}", advice = advice(&.0.field))]
    OtherRun(RunDifference),
    /// No bootstrap address leads to a member of this peer's run, or this peer is none of theirs. The
    /// configuration is at fault.
    #[error("join at {address}: {}", way_in(*.why))]
    NotLetIn {
        /// The last of the addresses.
        address: String,
        /// Why.
        why: NotLetIn,
    },
    /// This peer was removed from the run, or its invitation has ended.
    #[error("leave the run: {0}; ask an owner of the run for a new invitation")]
    NoMember(String),
    /// The trainer failed.
    #[error("train: {0}")]
    Train(#[from] TrainError),
    /// A loss or gradient was not finite, and the run was to end in that case.
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
