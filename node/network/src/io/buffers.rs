//! The buffers in which tensors are put together, shared by all readers and the owner of the network.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use dnode_protocol::frame::{Leg, SpareBuffers, TensorHeader};

use crate::limits::TENSOR_BUFFERS_BYTES_MAX;

/// Buffers of whole tensors, which are used again.
#[derive(Clone, Debug)]
pub(crate) struct TensorBuffers(Arc<Mutex<SpareBuffers>>);

impl TensorBuffers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(SpareBuffers::new(TENSOR_BUFFERS_BYTES_MAX))))
    }

    /// Keeps the buffer of a tensor, to be used again when all others have dropped it.
    pub(crate) fn keep(&self, tensor: &Bytes) {
        self.lock().keep(tensor);
    }

    fn lock(&self) -> MutexGuard<'_, SpareBuffers> {
        // No code panics while it holds the lock; and if it did, the buffers would stay whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where one reader puts the frames of a tensor, one behind the other, so that they need not be copied to
/// be put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    buffers: TensorBuffers,
    /// Room for the frames of the tensor that are still to come.
    rest: BytesMut,
}

impl Assembly {
    pub(crate) fn new(buffers: &TensorBuffers) -> Self {
        Self { buffers: buffers.clone(), rest: BytesMut::new() }
    }

    /// Room for the payload of the next frame, whose header was checked.
    pub(super) fn room(&mut self, header: &TensorHeader) -> BytesMut {
        if header.leg == Leg::Ring {
            // Its frames are used one by one, and recycled likewise.
            return self.buffers.lock().take(header.payload_bytes());
        }
        if header.offset == 0 {
            let whole = header.codec.payload_bytes(header.elements as usize);
            // Not to hold the buffer before, which may be the one to take.
            self.rest = BytesMut::new();
            self.rest = self.buffers.lock().take(whole);
        }
        let len = header.payload_bytes();
        match len.cmp(&self.rest.len()) {
            Ordering::Less => self.rest.split_to(len),
            Ordering::Equal => std::mem::take(&mut self.rest),
            // A frame without those before it has a place of its own.
            Ordering::Greater => BytesMut::zeroed(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::frame::Codec;
    use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

    use super::*;

    fn header(offset: u32, count: u32) -> TensorHeader {
        let initiator = PeerId::from_public_key([1; 32]);
        TensorHeader {
            exchange: ExchangeId { initiator, incarnation: 1, sequence: 7 },
            leg: Leg::Offer,
            codec: Codec::F32,
            fragment: FragmentId(0),
            clock: Clock(3),
            elements: 150_000,
            offset,
            count,
        }
    }

    #[test]
    fn frames_of_one_tensor_are_put_together_without_a_copy_and_their_buffer_is_used_again() {
        let buffers = TensorBuffers::new();
        let mut assembly = Assembly::new(&buffers);
        let mut places = Vec::new();
        for _ in 0..3 {
            let mut whole = assembly.room(&header(0, 65_536));
            for (offset, count) in [(65_536, 65_536), (131_072, 18_928)] {
                let behind = assembly.room(&header(offset, count));
                assert_eq!(whole[whole.len()..].as_ptr(), behind.as_ptr());
                whole.unsplit(behind);
            }
            let whole = whole.freeze();
            assert_eq!(whole.len(), 600_000);
            places.push(whole.as_ptr());
            buffers.keep(&whole);
        }
        assert!(places.iter().all(|place| *place == places[0]));
    }

    #[test]
    fn a_frame_that_nothing_precedes_has_the_length_that_it_says() {
        let mut assembly = Assembly::new(&TensorBuffers::new());
        assert_eq!(assembly.room(&header(131_072, 18_928)).len(), 4 * 18_928);
        assert_eq!(assembly.room(&header(0, 65_536)).len(), 4 * 65_536);
        for _ in 0..3 {
            assert_eq!(assembly.room(&header(65_536, 65_536)).len(), 4 * 65_536);
        }
    }
}
