//! What training and mixing of one replica share, so that each has a thread of its own.
//!
//! Training owns the live weights x; slow weights, momentum and the state of the mixer are behind a
//! lock that each side holds for one piece of work at a time: an exchange's half, a commit. Mixing
//! moves φ at once and leaves the displacement of x among the pending updates; training makes it
//! between two steps. Where x
//! itself is what is exchanged, training shows a fragment when mixing asks for it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dnode_protocol::{FragmentId, Fragments};

use super::on_device::DevicePending;
use super::pending::PendingUpdates;
use super::store::Store;
use crate::mix::MixError;
use crate::mixer::Slice;

struct Shared {
    fragments: Fragments,
    /// Whether x is exchanged, and so must be shown.
    shows: bool,
    /// Held while waiting for the store, so that the two sides take turns.
    queue: Mutex<()>,
    store: Mutex<Store>,
    pending: Mutex<PendingUpdates>,
    /// Pending updates have changed.
    changed: Condvar,
}

/// A replica's exchanged weights, for the thread that mixes; cheap to clone.
#[derive(Clone)]
pub struct SharedReplica(Arc<Shared>);

impl fmt::Debug for SharedReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReplica")
            .field("fragments", &self.0.fragments)
            .finish_non_exhaustive()
    }
}

impl SharedReplica {
    pub(super) fn new(fragments: Fragments, store: Store, pending: Option<DevicePending>) -> Self {
        let shows = store.outer().is_none();
        let (queue, pending) = (Mutex::default(), Mutex::new(PendingUpdates::new(pending)));
        let (store, changed) = (Mutex::new(store), Condvar::new());
        Self(Arc::new(Shared { fragments, shows, queue, store, pending, changed }))
    }

    /// Whether x itself is exchanged.
    pub(super) fn shows(&self) -> bool {
        self.0.shows
    }

    /// Waits until the other side has done its piece of work.
    #[must_use]
    pub fn lock(&self) -> ReplicaLock<'_> {
        let queue = lock(&self.0.queue);
        let store = lock(&self.0.store);
        drop(queue);
        ReplicaLock { shared: self, store }
    }

    /// Says that mixing will read a fragment, so that training shows it at its next boundary; returns
    /// whether that is needed.
    pub fn want(&self, fragment: FragmentId) -> bool {
        let slice = self.slice(fragment).ok().filter(|_| self.shows());
        slice.is_some_and(|slice| self.pending().want(slice.index))
    }

    /// Waits until mixing can work on a fragment, whose weights it reads if `reads`; false when the
    /// replica is gone. `wake` is called when training has to do something for that. What it reads is
    /// kept for it until it has worked on it.
    ///
    /// Not to be called during a [`ReplicaLock`].
    pub fn wait(&self, fragment: FragmentId, reads: bool, wake: impl Fn()) -> bool {
        // What is not a fragment is refused later.
        let Ok(slice) = self.slice(fragment) else { return true };
        let reads = reads && self.shows();
        let mut pending = self.pending();
        while !pending.is_closed() && !pending.is_ready(slice.index, reads) {
            if reads {
                pending.want(slice.index);
            }
            drop(pending);
            wake();
            pending = self.pending();
            if !pending.is_closed() && !pending.is_ready(slice.index, reads) {
                pending = self.0.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if reads {
            pending.keep(slice.index);
        }
        !pending.is_closed()
    }

    /// Ends every wait for training, for ever.
    pub fn close(&self) {
        self.pending().close();
        self.0.changed.notify_all();
    }

    /// Whether one side has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.pending().is_closed()
    }

    pub(super) fn pending(&self) -> MutexGuard<'_, PendingUpdates> {
        lock(&self.0.pending)
    }

    /// Lets mixing look at the pending updates again.
    pub(super) fn notify(&self) {
        self.0.changed.notify_all();
    }

    pub(super) fn parameters(&self) -> usize {
        self.0.fragments.parameters()
    }

    /// Where a fragment lies.
    pub(super) fn range(&self, index: usize) -> Option<Range<usize>> {
        u32::try_from(index).ok().and_then(|index| self.0.fragments.range(FragmentId(index)))
    }

    pub(super) fn slice(&self, fragment: FragmentId) -> Result<Slice, MixError> {
        let range = self.0.fragments.range(fragment);
        match (usize::try_from(fragment.0), range) {
            (Ok(index), Some(range)) => Ok(Slice { index, range }),
            _ => Err(MixError::Fragment(fragment)),
        }
    }
}

/// The exchanged weights, in the hands of one side.
pub struct ReplicaLock<'a> {
    pub(super) shared: &'a SharedReplica,
    pub(super) store: MutexGuard<'a, Store>,
}

impl fmt::Debug for ReplicaLock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaLock").field("shared", self.shared).finish_non_exhaustive()
    }
}

/// A side that panics ends the process' part in the run, so what it has left half done is not used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
