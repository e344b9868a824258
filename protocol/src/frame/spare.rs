//! Buffers of bytes that are used again, so that tensors that come and go take no new memory.
//!
//! New memory is dear: the system hands it out page by page, each one cleared, and takes it back
//! (docs/measurements.md, "Exchanges from end to end").

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Most buffers that are remembered, in use or not.
const BUFFERS_MAX: usize = 256;

/// Buffers that are used again once nobody else holds them. Of those that nobody holds it keeps the ones that
/// came last, up to a number of bytes. Those in use take no memory of its own.
#[derive(Debug)]
pub struct SpareBuffers {
    kept: VecDeque<Bytes>,
    idle_bytes_max: usize,
}

impl SpareBuffers {
    /// Keeps at most so many bytes that nobody else holds, as of the last [`Self::keep`].
    #[must_use]
    pub const fn new(idle_bytes_max: usize) -> Self {
        Self { kept: VecDeque::new(), idle_bytes_max }
    }

    /// A buffer of `len` bytes that nobody else holds. What is in it means nothing.
    #[must_use]
    pub fn take(&mut self, len: usize) -> BytesMut {
        let free = |buffer: &Bytes| buffer.len() == len && buffer.is_unique();
        // The one that was used last is the likeliest to be in a cache.
        if let Some(index) = self.kept.iter().rposition(free)
            && let Some(buffer) = self.kept.remove(index)
            && let Ok(buffer) = buffer.try_into_mut()
        {
            return buffer;
        }
        BytesMut::zeroed(len)
    }

    /// A buffer of `len` bytes that `write` has filled, to be used again when all others have dropped it.
    ///
    /// `write` finds anything in it, so it has to write every byte.
    #[must_use]
    pub fn filled(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Bytes {
        let mut buffer = self.take(len);
        write(&mut buffer);
        let buffer = buffer.freeze();
        self.keep(&buffer);
        buffer
    }

    /// Keeps a buffer, to be used again when all others have dropped it.
    pub fn keep(&mut self, buffer: &Bytes) {
        let idle = self.kept.iter().filter(|buffer| buffer.is_unique());
        let mut idle_bytes: usize = idle.map(Bytes::len).sum();
        while idle_bytes > self.idle_bytes_max
            && let Some(oldest) = self.kept.iter().position(Bytes::is_unique)
            && let Some(oldest) = self.kept.remove(oldest)
        {
            idle_bytes -= oldest.len();
        }
        self.kept.push_back(buffer.clone());
        if self.kept.len() > BUFFERS_MAX {
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_when_nobody_holds_it_and_only_then() {
        let mut buffers = SpareBuffers::new(100);
        let first = buffers.filled(10, |bytes| bytes.fill(7));
        let place = first.as_ptr();
        let second = buffers.filled(10, |bytes| bytes.fill(8));
        assert_eq!((&first[..], &second[..]), (&[7; 10][..], &[8; 10][..]));
        drop(first);
        assert_eq!(buffers.take(9).len(), 9, "another length is another buffer");
        let third = buffers.take(10);
        assert_eq!(third.as_ptr(), place);
        assert_ne!(buffers.take(10).as_ptr(), place, "it was taken");
        assert_eq!(second[..], [8; 10]);
    }

    #[test]
    fn a_buffer_that_was_put_together_of_its_parts_is_used_again() {
        let mut buffers = SpareBuffers::new(100);
        let mut rest = buffers.take(12);
        let place = rest.as_ptr();
        for round in 0..3 {
            let mut whole = rest.split_to(5);
            whole.unsplit(rest.split_to(5));
            whole.unsplit(rest);
            let whole = whole.freeze();
            assert_eq!((whole.as_ptr(), whole.len()), (place, 12), "round {round}");
            buffers.keep(&whole);
            drop(whole);
            rest = buffers.take(12);
        }
        assert_eq!(rest.as_ptr(), place);
    }

    #[test]
    fn no_more_is_kept_idle_than_was_said_and_those_in_use_do_not_count() {
        let mut buffers = SpareBuffers::new(25);
        let places: Vec<_> = (0..5).map(|_| buffers.filled(10, |_| {})).collect();
        assert_eq!(buffers.kept.len(), 5, "all are in use");
        drop(places);
        let held = buffers.filled(30, |_| {});
        assert_eq!(buffers.kept.len(), 3, "two idle ones, and the one in use");
        drop(held);
        drop(buffers.filled(10, |_| {}));
        assert_eq!(buffers.kept.len(), 1, "one place was used again, the others are too much");
        let held: Vec<_> = (0..2 * BUFFERS_MAX).map(|_| buffers.filled(1, |_| {})).collect();
        assert_eq!((held.len(), buffers.kept.len()), (2 * BUFFERS_MAX, BUFFERS_MAX));
    }
}
