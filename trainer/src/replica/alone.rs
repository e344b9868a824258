//! Mixing in the thread that trains: every piece of work is whole when its call returns.

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Origin};

use super::{Replica, Turn};
use crate::codec::Encoded;
use crate::mix::{MixError, MixReport, Tolerance};
use crate::mixer::Reading;

impl Replica {
    /// As [`Turn::read`].
    ///
    /// # Panics
    /// When the model has no such fragment.
    pub fn read(&mut self, fragment: FragmentId, what: Reading) -> Encoded {
        self.alone(fragment, |turn| turn.read(fragment, what))
    }

    /// As [`Turn::tolerate`].
    pub fn tolerate(&mut self, tolerance: Tolerance) {
        self.commons.turn().tolerate(tolerance);
    }

    /// As [`Turn::answer`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn answer(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        offer: &Encoded,
        reply: Codec,
    ) -> Result<(Encoded, MixReport), MixError> {
        self.alone(fragment, |turn| turn.answer(fragment, weight, offer, reply))
    }

    /// As [`Turn::apply`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        self.alone(fragment, |turn| turn.apply(fragment, weight, reply))
    }

    /// As [`Turn::undo`].
    ///
    /// # Panics
    /// When `reply` is not what [`Self::answer`] returned for this fragment.
    pub fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &Encoded) {
        self.alone(fragment, |turn| turn.undo(fragment, weight, reply));
    }

    /// As [`Turn::absorb`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn absorb(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        from: Origin,
        push: &Encoded,
    ) -> Result<MixReport, MixError> {
        self.alone(fragment, |turn| turn.absorb(fragment, weight, from, push))
    }

    /// As [`Turn::acknowledged`].
    pub fn acknowledged(&mut self, fragment: FragmentId, edge: Origin, received: u64) {
        self.commons.turn().acknowledged(fragment, edge, received);
    }

    /// As [`Turn::forget`].
    pub fn forget(&mut self, edge: Origin) -> bool {
        self.commons.turn().forget(edge)
    }

    /// As [`Turn::include`].
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn include(
        &mut self,
        fragment: FragmentId,
        contribution: &Encoded,
    ) -> Result<MixReport, MixError> {
        self.alone(fragment, |turn| turn.include(fragment, contribution))
    }

    /// As [`Turn::adopt`].
    ///
    /// # Errors
    /// [`MixError`] when the numbers are not finite or do not fit; the replica is unchanged then.
    pub fn adopt(&mut self, fragment: FragmentId, snapshot: &Encoded) -> Result<(), MixError> {
        self.alone(fragment, |turn| turn.adopt(fragment, snapshot))
    }

    /// Mixes in the thread that trains.
    fn alone<T>(&mut self, fragment: FragmentId, work: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let commons = self.commons.clone();
        commons.want(fragment);
        self.catch_up();
        let result = work(&mut commons.turn());
        self.catch_up();
        result
    }
}
