//! A flag by which another thread has a step or an evaluation break off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::seam::TrainError;

/// Raised once, for good: whoever holds a copy of it breaks off what it computes.
///
/// To look at it costs about as much as to read a number, so a computation may look often.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks everybody who holds a copy to break off.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether to break off.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// [`Self::is_raised`] for a computation that returns errors.
    ///
    /// # Errors
    /// [`TrainError::Interrupted`] once it is raised.
    pub fn check(&self) -> Result<(), TrainError> {
        if self.is_raised() { Err(TrainError::Interrupted) } else { Ok(()) }
    }
}
