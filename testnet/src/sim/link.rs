//! One connection between two simulated peers: who is at its ends, what it lost, its order.

use std::time::Duration;

use dnode_protocol::{Clock, Time};

use super::capacity::Rate;

/// Which kind of stream a message travels on; kinds may overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Control messages.
    Control,
    /// Tensors.
    Bulk,
}

/// A pair of peers that want to be connected, and how they are.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    /// Indices of the two peers.
    pub(super) ends: [u32; 2],
    /// Grows with every new connection; what was sent on an older one never arrives.
    pub(super) generation: u32,
    /// Whether each end believes to be connected.
    pub(super) up: [bool; 2],
    /// The newest connection that each end has ended, by its process or by its own wish.
    pub(super) ended: [u32; 2],
    /// Whether messages towards each end are cut off.
    pub(super) cut: [bool; 2],
    /// Neither end connects before.
    pub(super) back_off_until: Time,
    /// Whether an attempt to connect is already scheduled.
    pub(super) dialling: bool,
    /// Newest clock of the other end that has reached each end, and in which life of the other.
    pub(super) heard: [Option<Clock>; 2],
    pub(super) heard_life: [u64; 2],
    /// The downlink of each end: kept here too, because most messages are sent long before their
    /// receiver is looked at.
    pub(super) downlinks: [Rate; 2],
    /// What the own line of each end adds to the delay and loses, beside what all lines do.
    pub(super) delays: [Duration; 2],
    pub(super) losses: [f64; 2],
    last_arrival: [[Time; 2]; 2],
}

impl Edge {
    pub(super) const fn new(ends: [u32; 2], downlinks: [Rate; 2]) -> Self {
        Self {
            ends,
            downlinks,
            delays: [Duration::ZERO; 2],
            losses: [0.0; 2],
            generation: 0,
            up: [false; 2],
            ended: [0; 2],
            cut: [false; 2],
            back_off_until: Time::ZERO,
            dialling: false,
            heard: [None; 2],
            heard_life: [0; 2],
            last_arrival: [[Time::ZERO; 2]; 2],
        }
    }

    /// Share of what is sent that the own lines of the ends lose.
    pub(super) fn own_loss(&self) -> f64 {
        1.0 - (1.0 - self.losses[0]) * (1.0 - self.losses[1])
    }

    /// Which end (0 or 1) the peer is.
    pub(super) fn end_of(&self, peer: u32) -> usize {
        usize::from(self.ends[1] == peer)
    }

    /// The arrival time after keeping the order of the lane.
    pub(super) fn in_order(&mut self, toward: usize, lane: Lane, arrival: Time) -> Time {
        let last = &mut self.last_arrival[toward][lane as usize];
        *last = arrival.max(*last);
        *last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_its_order_and_the_other_may_overtake() {
        let mut edge = Edge::new([0, 1], [Rate::default(); 2]);
        let late = Time::from_millis(9);
        assert_eq!(edge.in_order(1, Lane::Control, late), late);
        assert_eq!(edge.in_order(1, Lane::Control, Time::from_millis(3)), late);
        assert_eq!(edge.in_order(1, Lane::Bulk, Time::from_millis(3)), Time::from_millis(3));
    }
}
