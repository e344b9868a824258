//! Bytes of frames, counted by several tasks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of frames that a peer, or all peers, exchanged with this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

/// Counts bytes from several tasks.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    pub(crate) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: Bytes) {
        self.received.fetch_add(bytes.received, Ordering::Relaxed);
        self.sent.fetch_add(bytes.sent, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes {
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B in, {} B out", self.received, self.sent)
    }
}
