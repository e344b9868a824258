//! The word that ends an operation from outside.

use std::sync::{Arc, OnceLock};

/// Ends the operation of a group that another thread waits in; clones mean the same group.
#[derive(Clone, Debug, Default)]
pub struct Abort {
    reason: Arc<OnceLock<String>>,
}

impl Abort {
    /// Ends what is under way, and everything after it, within a few hundredths of a second. The
    /// first reason stays.
    pub fn abort(&self, reason: impl Into<String>) {
        let _ = self.reason.set(reason.into());
    }

    /// Why the group was given up, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Whether nobody has the group any more, nor another clone of this.
    #[must_use]
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.reason) == 1
    }
}
