//! Planted defects: each is caught by an invariant, which shows that the invariant can fail.

use dnode_gossip::{Input, Output, Role};
use dnode_protocol::Clock;

/// A deliberate mistake of the simulated driver or trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Defect {
    /// A responder that is told to undo its half says so and does not.
    ForgetsUndo,
    /// An initiator applies each reply twice.
    AppliesTwice,
    /// A responder uses a tenth less weight than agreed.
    UnequalWeights,
    /// A weight is doubled at both ends.
    DoubleWeight,
    /// The trainer commits beyond the limit.
    IgnoresCommitLimit,
    /// The trainer applies snapshots of any age.
    IgnoresSnapshotAge,
    /// The driver never calls the core when its deadline has come.
    DeafToDeadlines,
}

impl Defect {
    /// Changes a piece of trainer work before it is done.
    pub(super) const fn bend(self, task: &mut Output) {
        if let Output::Mix { weight, clock_max, role, .. } = task {
            match self {
                Self::UnequalWeights => {
                    if matches!(role, Role::Responder) {
                        *weight *= 0.9;
                    }
                }
                Self::DoubleWeight => *weight *= 2.0,
                Self::IgnoresSnapshotAge => *clock_max = Clock(u64::MAX),
                Self::ForgetsUndo
                | Self::AppliesTwice
                | Self::IgnoresCommitLimit
                | Self::DeafToDeadlines => {}
            }
        }
    }

    /// Changes the fragment after a piece of trainer work.
    pub(super) fn spoil(self, work: (&Output, &Input), before: &[f64], fragment: &mut [f64]) {
        match (self, work) {
            (Self::ForgetsUndo, (Output::Undo { .. }, _)) => fragment.copy_from_slice(before),
            (
                Self::AppliesTwice,
                (Output::Mix { role: Role::Initiator, .. }, Input::Mixed { .. }),
            ) => {
                for (value, before) in fragment.iter_mut().zip(before) {
                    *value += *value - before;
                }
            }
            _ => {}
        }
    }
}
