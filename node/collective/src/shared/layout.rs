//! Where everything is in the memory of a group.

use super::{LINE, WIDTH};
use crate::limits::{BUFFERS, CHUNK_ELEMENTS, STAGED_ELEMENTS};

/// Words of a rank: the counters of [`super::Done`], and how many sleep on each.
pub(super) const WORDS: usize = 6;

/// Where everything is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) size: usize,
    /// Elements of a piece in a chunk.
    pub(super) window: usize,
}

impl Layout {
    pub(super) fn new(size: usize) -> Self {
        let elements = CHUNK_ELEMENTS.min(STAGED_ELEMENTS / size);
        Self { size, window: elements.div_ceil(size) }
    }

    /// Elements of a chunk.
    pub(super) const fn elements(self) -> usize {
        self.window * self.size
    }

    pub(super) const fn chunk(self) -> usize {
        self.elements() * WIDTH
    }

    pub(super) const fn word(rank: usize, word: usize) -> usize {
        (rank * WORDS + word) * LINE
    }

    pub(super) const fn header(self, rank: usize, buffer: usize) -> usize {
        Self::word(self.size, 0) + (rank * BUFFERS + buffer) * LINE
    }

    pub(super) const fn staged(self, rank: usize, buffer: usize) -> usize {
        self.header(self.size, 0) + (buffer * self.size + rank) * self.chunk()
    }

    pub(super) const fn result(self, buffer: usize) -> usize {
        self.staged(0, BUFFERS) + buffer * self.chunk()
    }

    pub(super) const fn length(self) -> usize {
        self.result(BUFFERS)
    }
}
