//! Ring all-reduce among a fixed set of peers, of gradients or of progress: the synchronous
//! baselines.
//!
//! Reduce-scatter, then all-gather (Patarasuk and Yuan 2009): `2(n−1)` pieces of `P/n` elements are
//! sent by every peer, which is optimal in bytes. It needs every peer every time, which is what
//! the gossip rules avoid; a peer that falls silent ends it.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX;
use dnode_trainer::TrainError;

/// How long a peer of the ring may be silent before the all-reduce fails, beside the time that its
/// local steps may take.
pub(super) const RING_TIMEOUT: Duration = Duration::from_secs(60);

/// This peer's place in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    /// Position, `0..peers`, in the order of the peers' names.
    pub(crate) rank: usize,
    /// Peers of the ring.
    pub(crate) peers: usize,
}

/// One message of the ring: `sequence` counts the messages of one sender from 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RingPiece {
    pub(crate) sequence: u64,
    pub(crate) values: Vec<f32>,
}

/// A ring as one peer sees it.
#[derive(Debug)]
pub(crate) struct Ring {
    place: RingPlace,
    sequence: u64,
}

impl Ring {
    pub(crate) const fn new(place: RingPlace) -> Self {
        Self { place, sequence: 0 }
    }

    /// Replaces `values` by their mean over all peers of the ring, equal bits at every peer.
    ///
    /// `send` hands a piece to the next peer and returns whether it could; `receive` yields the
    /// pieces of the previous peer in order, each within the time beside it.
    pub(crate) fn all_reduce_mean(
        &mut self,
        values: &mut [f32],
        mut send: impl FnMut(RingPiece) -> bool,
        receive: (&Receiver<RingPiece>, Duration),
    ) -> Result<(), TrainError> {
        let RingPlace { peers, .. } = self.place;
        for bucket in values.chunks_mut(peers * FRAGMENT_ELEMENTS_MAX) {
            self.reduce_bucket(bucket, &mut send, receive)?;
        }
        let scale = 1.0 / peers as f32;
        values.iter_mut().for_each(|value| *value *= scale);
        Ok(())
    }

    fn reduce_bucket(
        &mut self,
        bucket: &mut [f32],
        send: &mut impl FnMut(RingPiece) -> bool,
        receive: (&Receiver<RingPiece>, Duration),
    ) -> Result<(), TrainError> {
        let RingPlace { rank, peers } = self.place;
        let len = bucket.len();
        let piece = |index: usize| -> Range<usize> {
            let index = index % peers;
            len * index / peers..len * (index + 1) / peers
        };
        for phase in 0..2 * (peers - 1) {
            // In phase s this peer passes on piece rank − s; in the second half the sums travel.
            let outgoing = piece(rank + 2 * peers - phase);
            let incoming = piece(rank + 2 * peers - phase - 1);
            let values = bucket[outgoing].to_vec();
            if !values.is_empty() && !send(RingPiece { sequence: self.sequence, values }) {
                return Err(broken("the driver is gone"));
            }
            let target = &mut bucket[incoming];
            if !target.is_empty() {
                let received = self.receive(target.len(), receive)?;
                if phase < peers - 1 {
                    target.iter_mut().zip(&received.values).for_each(|(sum, value)| *sum += value);
                } else {
                    target.copy_from_slice(&received.values);
                }
            }
            self.sequence += 1;
        }
        Ok(())
    }

    fn receive(
        &self,
        elements: usize,
        receive: (&Receiver<RingPiece>, Duration),
    ) -> Result<RingPiece, TrainError> {
        let (pieces, patience) = receive;
        let piece = pieces.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => broken("the previous peer of the ring is silent"),
            RecvTimeoutError::Disconnected => broken("a peer of the ring has left"),
        })?;
        if piece.sequence != self.sequence || piece.values.len() != elements {
            return Err(broken("the previous peer of the ring is out of step"));
        }
        Ok(piece)
    }
}

fn broken(why: &str) -> TrainError {
    TrainError::Other(format!("ring all-reduce: {why}; synchronous training needs every peer"))
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
                    (0..peers).map(|_| sync_channel::<RingPiece>(64)).unzip();
                let threads: Vec<_> = receivers
                    .into_iter()
                    .enumerate()
                    .map(|(rank, receive)| {
                        let next = senders[(rank + 1) % peers].clone();
                        std::thread::spawn(move || {
                            let mut values: Vec<f32> =
                                (0..len).map(|i| (i * peers + rank) as f32).collect();
                            let mut ring = Ring::new(RingPlace { rank, peers });
                            for _ in 0..2 {
                                let send = |piece| next.send(piece).is_ok();
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
        let mut ring = Ring::new(RingPlace { rank: 0, peers: 2 });
        let error =
            ring.all_reduce_mean(&mut [1.0, 2.0], |_| true, (&receive, RING_TIMEOUT)).unwrap_err();
        assert!(error.to_string().contains("a peer of the ring has left"), "{error}");
    }
}
