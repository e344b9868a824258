//! What all parts of the training thread work with.

use dnode_metrics::Revealed;
use dnode_trainer::{Encoded, Replica, SharedReplica, TrainError};

use super::averaging::Averaging;
use super::bounds::Bounds;
use super::cursor::Cursor;
use super::end::End;
use super::pace::Pace;
use super::queues::Queues;
use crate::training::privacy::NoiseLedger;
use crate::training::{Plan, Report};

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
    /// The account of commits with noise; `None` where they get none.
    ledger: Option<NoiseLedger>,
}

impl Context {
    /// Before the first step.
    pub(super) fn new(
        replica: Replica,
        (cursor, averaging): (Cursor, Averaging),
        queues: Queues,
        plan: &Plan,
    ) -> Self {
        let shared = replica.shared();
        let (bounds, pace) = (Bounds::new(), Pace::new(plan.batch));
        let ledger = plan.noise.clone().map(NoiseLedger::new);
        Self { replica, shared, queues, cursor, bounds, pace, averaging, ledger }
    }

    /// What commits with noise have revealed so far.
    pub(super) fn revealed(&self) -> Option<Revealed> {
        self.ledger.as_ref().map(NoiseLedger::revealed)
    }

    /// A commit is about to be made: its noise is counted first, so that no crash leaves it out.
    ///
    /// # Errors
    /// [`End::Failed`] when it cannot be written down.
    pub(super) fn reserve_noise(&mut self) -> Result<(), End> {
        let reserved = self.ledger.as_mut().map_or(Ok(()), NoiseLedger::reserve);
        reserved.map_err(|error| End::Failed(TrainError::Other(error.to_string())))
    }

    /// No commit follows: the account of noise says what was made.
    pub(super) fn close_noise(&mut self) {
        let closed = self.ledger.as_mut().map_or(Ok(()), NoiseLedger::close);
        if let Err(error) = closed {
            tracing::warn!("{error}; the next start counts some commits that were not made");
        }
    }

    /// Parameters of the model.
    pub(super) fn parameters(&self) -> usize {
        self.replica.fragments().parameters()
    }

    /// The run ends at this step.
    pub(super) fn set_end(&mut self, steps: u64) {
        self.cursor.set_end(steps);
        self.replica.set_steps(steps);
        self.averaging.set_end(steps);
    }

    /// The last rank of a group ends at this step, so this one does, too.
    pub(super) fn end_with(&mut self, last: Option<u64>) {
        let own = self.cursor.end();
        if let Some(end) = last.filter(|end| *end != own) {
            tracing::warn!("ends at step {end}, as another rank does, not at {own}");
            self.set_end(end);
        }
    }

    /// A local step is over: its weights may count in the average.
    pub(super) fn average(&mut self) {
        self.averaging.stepped(&self.replica, self.cursor.position());
    }

    /// A commit was made.
    pub(super) fn committed(&mut self) {
        self.bounds.release();
        self.cursor.committed();
        if let Some(ledger) = &mut self.ledger {
            ledger.commit();
        }
    }

    /// Tells of a commit; under the lock under which the exchanged weights changed.
    pub(super) fn tell_committed(&self, contributions: Vec<Encoded>) -> Result<(), End> {
        let pace = self.pace.of_steps();
        let at = self.cursor.position();
        self.queues.tell(Report::Committed { at, pace, contributions })
    }
}
