//! Buffers of bytes that are used again, so that tensors that come and go take no new memory.
//!
//! New memory is dear: the system hands it out page by page, each one cleared, and takes it back
//! (docs/measurements.md, "Exchanges from end to end").

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Buffers that are used again once nobody else holds them. It keeps those that came last, up to a number
/// of bytes, whether they are in use or not.
#[derive(Debug)]
pub struct SpareBuffers {
    kept: VecDeque<Bytes>,
    /// Bytes of those that are kept.
    bytes: usize,
    bytes_max: usize,
}

impl SpareBuffers {
    /// Keeps at most so many bytes.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// A buffer of `len` bytes that nobody else holds. What is in it means nothing.
    #[must_use]
    pub fn take(&mut self, len: usize) -> BytesMut {
        let free = |buffer: &Bytes| buffer.len() == len && buffer.is_unique();
        // The one that was used last is the likeliest to be in a cache.
        if let Some(index) = self.kept.iter().rposition(free)
            && let Some(buffer) = self.kept.remove(index)
        {
            self.bytes -= len;
            if let Ok(buffer) = buffer.try_into_mut() {
                return buffer;
            }
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
        self.kept.push_back(buffer.clone());
        self.bytes += buffer.len();
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.len();
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
    fn no_more_is_kept_than_was_said() {
        let mut buffers = SpareBuffers::new(25);
        let places: Vec<_> = (0..3).map(|_| buffers.filled(10, |_| {})).collect();
        assert_eq!((buffers.kept.len(), buffers.bytes), (2, 20));
        drop(places);
        drop(buffers.filled(30, |_| {}));
        assert_eq!((buffers.kept.len(), buffers.bytes), (0, 0));
    }
}
