//! The events to come, in order of virtual time and of scheduling.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dnode_gossip::testing::Effect;
use dnode_protocol::Time;

use crate::scenario::fault::Fault;

/// A message or tensor on its way to one end of an edge.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) edge: u32,
    /// The end that it travels to.
    pub(super) toward: usize,
    /// The connection that it was sent on.
    pub(super) generation: u32,
    pub(super) payload: Effect,
}

/// Something that will happen.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A message or tensor arrives at one end of an edge.
    Arrive(Arrival),
    /// A tensor of `bytes`, whose first byte was here at `head`, waits for the receiver's downlink.
    Land { arrival: Arrival, bytes: u64, head: Time },
    /// A core asked to be called.
    Wake { peer: u32 },
    /// A trainer finishes a piece of work.
    Work { peer: u32, incarnation: u64 },
    /// A trainer has done the steps of a round.
    Tick { peer: u32, incarnation: u64 },
    /// One end learns that the connection is up.
    Up { edge: u32, end: usize, generation: u32 },
    /// One end learns that the connection is gone.
    Down { edge: u32, end: usize, generation: u32 },
    /// A connection that is cut has been idle for too long.
    Idle { edge: u32, generation: u32 },
    /// An attempt to connect.
    Dial { edge: u32 },
    /// A fault.
    Fault(Fault),
}

/// Length of a bucket of the near future, as a power of two of microseconds: 4 ms.
const BUCKET_BITS: u32 = 12;
/// Buckets of the near future: 17 s, which most events lie in.
const BUCKETS: u64 = 4096;

/// Time, order of scheduling, slot.
type Key = (Time, u64, u32);

/// The events to come.
///
/// Keys of the present bucket are sorted when its turn comes, those of the near future lie in a ring
/// of unsorted buckets, all others in a heap, so that the cost of an event does not grow with their
/// number. What happens lies in slots, so that ordering moves no messages.
#[derive(Debug)]
pub(super) struct Queue {
    /// The present bucket, the next key last.
    present: Vec<Key>,
    /// Keys of the present bucket that came after it was sorted.
    late: BinaryHeap<Reverse<Key>>,
    /// Number of the present bucket.
    bucket: u64,
    ring: Vec<Vec<Key>>,
    /// Keys in the ring.
    near: usize,
    far: BinaryHeap<Reverse<Key>>,
    slots: Vec<Option<Happening>>,
    free: Vec<u32>,
    scheduled: u64,
}

impl Default for Queue {
    fn default() -> Self {
        let ring = std::iter::repeat_with(Vec::new).take(BUCKETS as usize).collect();
        let (late, far) = (BinaryHeap::new(), BinaryHeap::new());
        let (present, slots, free) = (Vec::new(), Vec::new(), Vec::new());
        Self { present, late, bucket: 0, ring, near: 0, far, slots, free, scheduled: 0 }
    }
}

const fn bucket_of(time: Time) -> u64 {
    time.as_micros() >> BUCKET_BITS
}

impl Queue {
    pub(super) fn push(&mut self, time: Time, happening: Happening) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[slot as usize] = Some(happening);
        self.place((time, self.scheduled, slot));
        self.scheduled += 1;
        self.advance();
    }

    /// Events that were ever scheduled.
    #[cfg(test)]
    pub(super) const fn scheduled(&self) -> u64 {
        self.scheduled
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        let present = self.present.last().map(|(time, _, _)| *time);
        let late = self.late.peek().map(|Reverse((time, _, _))| *time);
        present.into_iter().chain(late).min()
    }

    pub(super) fn pop(&mut self) -> Option<(Time, Happening)> {
        let late = self.late.peek().map(|Reverse(key)| *key);
        let (time, _, slot) = match (self.present.last().copied(), late) {
            (present, Some(late)) if present.is_none_or(|present| late < present) => {
                self.late.pop();
                late
            }
            _ => self.present.pop()?,
        };
        self.advance();
        self.free.push(slot);
        Some((time, self.slots[slot as usize].take()?))
    }

    /// What happens next, as far as the present bucket tells: at most `count`, in order.
    pub(super) fn ahead(&self, count: usize) -> impl ExactSizeIterator<Item = Option<&Happening>> {
        let slots = self.present.iter().rev().take(count).map(|(_, _, slot)| *slot as usize);
        slots.map(|slot| self.slots[slot].as_ref())
    }

    fn place(&mut self, key: Key) {
        let bucket = bucket_of(key.0);
        if bucket <= self.bucket {
            self.late.push(Reverse(key));
        } else if bucket - self.bucket < BUCKETS {
            self.ring[(bucket % BUCKETS) as usize].push(key);
            self.near += 1;
        } else {
            self.far.push(Reverse(key));
        }
    }

    /// Makes the bucket of the next event the present one.
    fn advance(&mut self) {
        while self.present.is_empty() && self.late.is_empty() {
            let far = self.far.peek().map(|Reverse(key)| bucket_of(key.0));
            self.bucket = match far {
                None if self.near == 0 => return,
                Some(far) if self.near == 0 => far,
                _ => self.bucket + 1,
            };
            while let Some(Reverse(key)) = self.far.peek().copied()
                && bucket_of(key.0) < self.bucket + BUCKETS
            {
                self.far.pop();
                self.place(key);
            }
            let due = &mut self.ring[(self.bucket % BUCKETS) as usize];
            self.near -= due.len();
            std::mem::swap(&mut self.present, due);
            self.present.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(queue: &mut Queue) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some((_, Happening::Wake { peer })) = queue.pop() {
            order.push(peer);
        }
        order
    }

    #[test]
    fn events_come_by_time_and_then_by_scheduling() {
        let mut queue = Queue::default();
        for (millis, peer) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.push(Time::from_millis(millis), Happening::Wake { peer });
        }
        assert_eq!(order(&mut queue), [1, 3, 0, 2]);
    }

    #[test]
    fn near_and_far_events_come_in_order() {
        let mut queue = Queue::default();
        let mut times = Vec::new();
        for peer in 0..2000_u32 {
            let millis = u64::from(peer.wrapping_mul(2_654_435_761) % 100_000);
            times.push((millis, peer));
            queue.push(Time::from_millis(millis), Happening::Wake { peer });
            if peer % 3 == 0 {
                times.sort_unstable();
                let (millis, first) = times.remove(0);
                assert_eq!(queue.next_time(), Some(Time::from_millis(millis)));
                assert!(
                    matches!(queue.pop(), Some((_, Happening::Wake { peer })) if peer == first)
                );
            }
        }
        times.sort_unstable();
        let want: Vec<u32> = times.into_iter().map(|(_, peer)| peer).collect();
        assert_eq!(order(&mut queue), want);
        assert_eq!(queue.next_time(), None);
    }
}
