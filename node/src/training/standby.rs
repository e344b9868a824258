//! Decides which thread writes the last checkpoint.
//! The training thread does or, if it does not return from its trainer in time, the driver.
//!
//! The state before a long step is kept if its trainer cannot break the step off. One lock decides who
//! may write, so two never do.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dnode_protocol::Versions;
use dnode_trainer::{ReplicaCopy, Source};

use super::{Ending, Plan, Position, Report};
use crate::storage::checkpoint_lag::CheckpointLag;

/// The state before a step.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) position: Position,
    /// Step at which the run ends.
    pub(super) end: u64,
    /// Which contributions the replica contains, if it is a sum of them.
    pub(super) contents: Vec<Versions>,
    pub(super) replica: ReplicaCopy,
}

/// Where the training thread is.
#[derive(Debug, Default)]
enum Whereabouts {
    /// Between two steps, or at a checkpoint: it soon writes the last checkpoint itself.
    #[default]
    Outside,
    /// In its trainer, with the state before if that is kept.
    Trainer(Option<Box<Before>>),
    /// It is not waited for any more, and writes nothing.
    GivenUp,
}

/// Where the training thread is, known to that thread and the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Standby(Arc<Mutex<Whereabouts>>);

/// What the driver can do about a training thread that does not come back.
#[derive(Debug)]
pub(super) enum Overdue {
    /// It is outside its trainer.
    Outside,
    /// It is in its trainer, and the state before is not kept.
    NotKept,
    /// The state before the step; the training thread writes nothing from now on.
    Kept(Box<Before>),
}

impl Standby {
    /// The thread goes into its trainer.
    pub(super) fn enter(&self, before: Option<Box<Before>>) {
        *self.lock() = Whereabouts::Trainer(before);
    }

    /// The thread comes back; `false` when it has been given up.
    pub(super) fn leave(&self) -> bool {
        let mut whereabouts = self.lock();
        if matches!(*whereabouts, Whereabouts::GivenUp) {
            return false;
        }
        let before = mem::take(&mut *whereabouts);
        drop(whereabouts);
        // Not under the lock: it may be large.
        drop(before);
        true
    }

    /// Gives the thread up if the state before its step is there.
    pub(super) fn take(&self) -> Overdue {
        let mut whereabouts = self.lock();
        match mem::replace(&mut *whereabouts, Whereabouts::GivenUp) {
            Whereabouts::Trainer(Some(before)) => Overdue::Kept(before),
            Whereabouts::Trainer(None) => {
                *whereabouts = Whereabouts::Trainer(None);
                Overdue::NotKept
            }
            Whereabouts::Outside => {
                *whereabouts = Whereabouts::Outside;
                Overdue::Outside
            }
            Whereabouts::GivenUp => Overdue::Outside,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Whereabouts> {
        // Each value is whole, even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Before {
    /// Writes the last checkpoint and tells of it as the training thread does.
    pub(super) fn write(self, plan: &Plan, lag: &CheckpointLag, tell: impl Fn(Report)) {
        let Self { position, end, contents, replica } = self;
        tell(Report::Saving { position });
        // An average over the last part of the run begins anew in the next start.
        let saved = plan.save(lag, (position, end), &contents, (Source::Copy(&replica), None));
        let mut ending = Ending { position, ..Ending::default() };
        match saved {
            Ok(saved) => {
                ending.parameters = Some(saved.parameters.clone());
                tell(Report::Checkpointed { saved });
            }
            Err(failed) => {
                tell(Report::CheckpointFailed { error: failed.error.clone() });
                ending.not_saved = Some(failed);
            }
        }
        tell(Report::Ended(Ok(Box::new(ending))));
    }
}
