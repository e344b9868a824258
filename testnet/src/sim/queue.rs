//! The events to come, in order of virtual time and of scheduling.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dnode_gossip::testing::Effect;
use dnode_protocol::Time;

use super::fault::Fault;

/// Something that will happen.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A message or tensor arrives at one end of an edge.
    Arrive { edge: u32, toward: usize, generation: u32, payload: Effect },
    /// A tensor of `bytes`, whose first byte was here at `head`, waits for the receiver's downlink.
    Land { edge: u32, toward: usize, generation: u32, payload: Effect, bytes: u64, head: Time },
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

/// The event heap.
///
/// The heap holds 24-byte keys; what happens lies in slots, so that ordering moves no messages.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    slots: Vec<Option<Happening>>,
    free: Vec<u32>,
    scheduled: u64,
}

impl Queue {
    pub(super) fn push(&mut self, time: Time, happening: Happening) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[slot as usize] = Some(happening);
        self.heap.push(Reverse((time, self.scheduled, slot)));
        self.scheduled += 1;
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((time, _, _))| *time)
    }

    pub(super) fn pop(&mut self) -> Option<(Time, Happening)> {
        let Reverse((time, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        Some((time, self.slots[slot as usize].take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_scheduling() {
        let mut queue = Queue::default();
        for (millis, peer) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.push(Time::from_millis(millis), Happening::Wake { peer });
        }
        let mut order = Vec::new();
        while let Some((_, Happening::Wake { peer })) = queue.pop() {
            order.push(peer);
        }
        assert_eq!(order, [1, 3, 0, 2]);
    }
}
