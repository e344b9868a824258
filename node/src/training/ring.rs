//! Ring all-reduce through the network, among a fixed set of peers that are not all near each other.
//! It averages gradients or progress, for the synchronous baselines.
//!
//! Reduce-scatter, then all-gather (Patarasuk and Yuan 2009): `2(n−1)` pieces of `P/n` elements are
//! sent by every peer, which is optimal in bytes. It needs every peer every time, which is what
//! the gossip rules avoid; a peer that falls silent ends it.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use bytes::Bytes;
use dnode_collective::Place;
use dnode_protocol::frame::Codec;
use dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX;
use dnode_trainer::{Encoded, TrainError, encode};

/// How long a peer of the ring may be silent before the all-reduce fails, beside the time that its
/// local steps may take.
pub(super) const RING_TIMEOUT: Duration = Duration::from_secs(60);

/// Elements of a chunk in a small ring: 1 MiB.
const CHUNK_ELEMENTS: usize = FRAGMENT_ELEMENTS_MAX / 4;
/// Largest number of peers of a small ring.
const SMALL_RING: usize = 8;

// A sender queues at most the chunks of all pieces but one.
const _: () = assert!(
    (SMALL_RING - 1) * (FRAGMENT_ELEMENTS_MAX / CHUNK_ELEMENTS)
        <= dnode_network::limits::BULK_QUEUE_MAX
);

/// A tensor for the next peer of the ring: a chunk of a piece.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RingChunk {
    /// Counts the chunks of one sender from 0.
    pub(crate) sequence: u64,
    pub(crate) numbers: Encoded,
}

/// A frame of a chunk from the previous peer of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingFrame {
    /// Which chunk.
    pub(crate) sequence: u64,
    /// First element within the chunk.
    pub(crate) offset: usize,
    /// Elements of the whole chunk.
    pub(crate) elements: usize,
    /// Little-endian f32.
    pub(crate) payload: Bytes,
}

/// A ring as one peer sees it.
#[derive(Debug)]
pub(crate) struct Ring {
    place: Place,
    /// Chunks sent and received so far.
    sent: u64,
    received: u64,
}

impl Ring {
    pub(crate) const fn new(place: Place) -> Self {
        Self { place, sent: 0, received: 0 }
    }

    /// Replaces `values` by their mean over all peers of the ring, equal bits at every peer.
    ///
    /// `send` hands a chunk to the next peer and returns whether it could; `receive` yields the frames
    /// of the previous peer in order, each within the given time.
    pub(crate) fn all_reduce_mean(
        &mut self,
        values: &mut [f32],
        mut send: impl FnMut(RingChunk) -> bool,
        receive: (&Receiver<RingFrame>, Duration),
    ) -> Result<(), TrainError> {
        let peers = self.place.size;
        for bucket in values.chunks_mut(peers * FRAGMENT_ELEMENTS_MAX) {
            self.reduce_bucket(bucket, &mut send, receive)?;
        }
        let scale = 1.0 / peers as f32;
        values.iter_mut().for_each(|value| *value *= scale);
        Ok(())
    }

    /// In phase `s` this peer takes in piece `rank − s − 1`, which it passes on in the next phase,
    /// chunk by chunk: while one is added, the next is on its way.
    fn reduce_bucket(
        &mut self,
        bucket: &mut [f32],
        send: &mut impl FnMut(RingChunk) -> bool,
        receive: (&Receiver<RingFrame>, Duration),
    ) -> Result<(), TrainError> {
        let Place { rank, size: peers } = self.place;
        let len = bucket.len();
        let piece = |index: usize| -> Range<usize> {
            let index = index % peers;
            len * index / peers..len * (index + 1) / peers
        };
        let phases = 2 * (peers - 1);
        if phases > 0 {
            for chunk in chunks(piece(rank), peers) {
                self.send(&bucket[chunk], send)?;
            }
        }
        for phase in 0..phases {
            // In the second half of the phases, finished sums travel.
            let adds = phase < peers - 1;
            for chunk in chunks(piece(rank + 2 * peers - phase - 1), peers) {
                let target = &mut bucket[chunk];
                self.take_in(target, adds, receive)?;
                if phase + 1 < phases {
                    self.send(target, send)?;
                }
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        values: &[f32],
        send: &mut impl FnMut(RingChunk) -> bool,
    ) -> Result<(), TrainError> {
        let chunk = RingChunk { sequence: self.sent, numbers: encode(Codec::F32, values) };
        self.sent += 1;
        if send(chunk) { Ok(()) } else { Err(broken("the driver is gone")) }
    }

    /// Adds the next chunk of the previous peer to `target`, or puts it there.
    fn take_in(
        &mut self,
        target: &mut [f32],
        adds: bool,
        receive: (&Receiver<RingFrame>, Duration),
    ) -> Result<(), TrainError> {
        let (elements, mut offset) = (target.len(), 0);
        while offset < elements {
            let frame = receive_frame(receive)?;
            let (numbers, rest) = frame.payload.as_chunks::<{ size_of::<f32>() }>();
            let fits = frame.sequence == self.received
                && (frame.offset, frame.elements) == (offset, elements)
                && rest.is_empty()
                && (1..=elements - offset).contains(&numbers.len());
            if !fits {
                return Err(broken("the previous peer of the ring is out of step"));
            }
            let target = &mut target[offset..offset + numbers.len()];
            for (value, number) in target.iter_mut().zip(numbers) {
                let number = f32::from_le_bytes(*number);
                *value = if adds { *value + number } else { number };
            }
            offset += numbers.len();
        }
        self.received += 1;
        Ok(())
    }
}

fn receive_frame(receive: (&Receiver<RingFrame>, Duration)) -> Result<RingFrame, TrainError> {
    let (frames, patience) = receive;
    frames.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => broken("the previous peer of the ring is silent"),
        RecvTimeoutError::Disconnected => broken("a peer of the ring has left"),
    })
}

/// Divides a piece into the tensors that it travels as. In a small ring there are several, which
/// overlap. In a large ring there is one, as a slow link may have to queue those of all peers.
fn chunks(piece: Range<usize>, peers: usize) -> impl Iterator<Item = Range<usize>> {
    let elements = if peers <= SMALL_RING { CHUNK_ELEMENTS } else { FRAGMENT_ELEMENTS_MAX };
    let Range { start, end } = piece;
    (start..end).step_by(elements).map(move |start| start..end.min(start + elements))
}

fn broken(why: &str) -> TrainError {
    TrainError::Other(format!(
        "ring all-reduce: {why}; synchronous training needs every peer: start all again with --resume"
    ))
}

/// The one frame of a short chunk.
#[cfg(test)]
impl From<RingChunk> for RingFrame {
    fn from(RingChunk { sequence, numbers }: RingChunk) -> Self {
        let payload = numbers.bytes;
        Self { sequence, offset: 0, elements: numbers.elements, payload }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn every_peer_of_a_ring_gets_the_mean_whatever_the_length() {
        for peers in [1_usize, 2, 3, 5] {
            for len in [1_usize, 4, 7, 100] {
                let (senders, receivers): (Vec<_>, Vec<_>) =
                    (0..peers).map(|_| sync_channel::<RingFrame>(64)).unzip();
                let threads: Vec<_> = receivers
                    .into_iter()
                    .enumerate()
                    .map(|(rank, receive)| {
                        let next = senders[(rank + 1) % peers].clone();
                        std::thread::spawn(move || {
                            let mut values: Vec<f32> =
                                (0..len).map(|i| (i * peers + rank) as f32).collect();
                            let mut ring = Ring::new(Place { rank, size: peers });
                            for _ in 0..2 {
                                let send = |chunk: RingChunk| next.send(chunk.into()).is_ok();
                                ring.all_reduce_mean(&mut values, send, (&receive, RING_TIMEOUT))
                                    .unwrap();
                            }
                            values
                        })
                    })
                    .collect();
                let results: Vec<Vec<f32>> =
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                for (i, value) in results[0].iter().enumerate() {
                    let mean = (i * peers) as f32 + (peers - 1) as f32 / 2.0;
                    assert!((value - mean).abs() < 1e-3, "{peers} peers, {len}: {value} {mean}");
                }
                assert!(results.iter().all(|result| result == &results[0]), "{peers} {len}");
            }
        }
    }

    #[test]
    fn a_peer_that_leaves_ends_the_all_reduce_with_its_reason() {
        let (sender, receive) = sync_channel(1);
        drop(sender);
        let mut ring = Ring::new(Place { rank: 0, size: 2 });
        let error =
            ring.all_reduce_mean(&mut [1.0, 2.0], |_| true, (&receive, RING_TIMEOUT)).unwrap_err();
        assert!(error.to_string().contains("a peer of the ring has left"), "{error}");
    }
}
