//! What all parts of the training thread work with.

use dnode_trainer::{Encoded, Replica, SharedReplica};

use super::averaging::Averaging;
use super::bounds::Bounds;
use super::cursor::Cursor;
use super::end::End;
use super::pace::Pace;
use super::queues::Queues;
use crate::training::{Position, Report};

/// The replica, the queues, and the parts that the others ask or change through their methods.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) replica: Replica,
    /// What the replica shares with the mixing thread.
    pub(super) shared: SharedReplica,
    pub(super) queues: Queues,
    pub(super) cursor: Cursor,
    pub(super) bounds: Bounds,
    pub(super) pace: Pace,
    pub(super) averaging: Averaging,
}

impl Context {
    /// Before the first step.
    pub(super) fn new(
        replica: Replica,
        (cursor, averaging): (Cursor, Averaging),
        queues: Queues,
        batch: u32,
    ) -> Self {
        let shared = replica.shared();
        let (bounds, pace) = (Bounds::new(), Pace::new(batch));
        Self { replica, shared, queues, cursor, bounds, pace, averaging }
    }

    /// Parameters of the model.
    pub(super) fn parameters(&self) -> usize {
        self.replica.fragments().parameters()
    }

    /// A local step is over: its weights may count in the average.
    pub(super) fn average(&mut self) {
        let at = (self.cursor.position(), self.cursor.end());
        self.averaging.stepped(&self.replica, at);
    }

    /// A commit was made.
    pub(super) fn committed(&mut self) {
        self.bounds.release();
        self.cursor.committed();
    }

    /// Tells of a commit; under the lock under which the exchanged weights changed.
    pub(super) fn tell_committed(&self, contributions: Vec<Encoded>) -> Result<(), End> {
        let pace = self.pace.of_steps();
        let Position { samples, clock, .. } = self.cursor.position();
        self.queues.tell(Report::Committed { clock, samples, pace, contributions })
    }
}
