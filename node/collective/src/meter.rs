//! What a group moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes that a rank moves; clones count for the same group.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    pub(crate) fn sent(&self, bytes: usize) {
        self.counts.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.counts.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes sent and received since the last call: on sockets, or written to and read from shared
    /// memory.
    #[must_use]
    pub fn take(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.counts.sent), take(&self.counts.received))
    }
}
