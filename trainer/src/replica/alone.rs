//! Mixing in the thread that trains: every piece of work is whole when its call returns.

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use super::{Replica, ReplicaLock};
use crate::codec::Encoded;
use crate::mix::{MixError, MixReport, MixTerms};
use crate::mixer::Reading;

impl Replica {
    /// As [`ReplicaLock::read`].
    ///
    /// # Panics
    /// When the model has no such fragment.
    pub fn read(&mut self, fragment: FragmentId, what: Reading) -> Encoded {
        self.alone(fragment, |lock| lock.read(fragment, what))
    }

    /// As [`ReplicaLock::answer`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn answer(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        offer: &Encoded,
        reply: Codec,
    ) -> Result<(Encoded, MixReport), MixError> {
        self.alone(fragment, |lock| lock.answer(fragment, terms, offer, reply))
    }

    /// As [`ReplicaLock::apply`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        self.alone(fragment, |lock| lock.apply(fragment, terms, reply))
    }

    /// As [`ReplicaLock::undo`].
    ///
    /// # Panics
    /// When `reply` is not what [`Self::answer`] returned for this fragment.
    pub fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &Encoded) {
        self.alone(fragment, |lock| lock.undo(fragment, weight, reply));
    }

    /// As [`ReplicaLock::include`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn include(
        &mut self,
        fragment: FragmentId,
        contribution: &Encoded,
    ) -> Result<MixReport, MixError> {
        self.alone(fragment, |lock| lock.include(fragment, contribution))
    }

    /// As [`ReplicaLock::adopt`].
    ///
    /// # Errors
    /// As [`ReplicaLock::adopt`].
    pub fn adopt(&mut self, fragment: FragmentId, snapshot: &Encoded) -> Result<(), MixError> {
        self.alone(fragment, |lock| lock.adopt(fragment, snapshot))
    }

    /// Mixes in the thread that trains.
    fn alone<T>(
        &mut self,
        fragment: FragmentId,
        work: impl FnOnce(&mut ReplicaLock<'_>) -> T,
    ) -> T {
        let shared = self.shared.clone();
        shared.want(fragment);
        self.catch_up();
        let result = work(&mut shared.lock());
        self.catch_up();
        result
    }
}
