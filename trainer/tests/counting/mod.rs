//! An allocator that counts what is large, for tests that say that nothing large is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LARGE_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator. It counts allocations of `LARGE` bytes and more.
pub(crate) struct Counting<const LARGE: usize>;

/// Large allocations since the process began.
pub(crate) fn large_allocations() -> usize {
    LARGE_ALLOCATIONS.load(Ordering::Relaxed)
}

impl<const LARGE: usize> Counting<LARGE> {
    fn note(layout: Layout) {
        if layout.size() >= LARGE {
            LARGE_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: everything is left to the system's allocator.
unsafe impl<const LARGE: usize> GlobalAlloc for Counting<LARGE> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout);
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(place, layout) }
    }
}
