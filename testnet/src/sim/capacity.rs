//! The bandwidth of a peer: its uplink and its downlink carry one tensor after the other.

use std::time::Duration;

use dnode_protocol::Message;
use dnode_protocol::Time;
use dnode_protocol::frame::{TENSOR_HEADER_BYTES, control_bytes};
use dnode_protocol::limits::TENSOR_PAYLOAD_BYTES_MAX;

use crate::scenario::Scenario;

/// How long bytes take on one direction of a peer's line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// Microseconds per byte; 0 without limit.
    micros_per_byte: f64,
}

impl Rate {
    /// How long `bytes` take.
    pub(super) fn time(self, bytes: u64) -> Duration {
        if self.micros_per_byte <= 0.0 {
            return Duration::ZERO;
        }
        // At most one hour: a scenario that asks for more has no use for the result.
        let micros = (self.micros_per_byte * bytes as f64).min(3.6e9);
        Duration::from_micros(micros as u64)
    }
}

/// One direction of a peer's line.
///
/// Tensors wait for each other. Control messages overtake them and wait for each other only; the
/// time that they take is added to that of the tensor under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    rate: Rate,
    bulk_free: Time,
    control_free: Time,
}

impl Capacity {
    /// A line of this many bits per second; 0 for no limit.
    pub(super) fn new(bits_per_second: f64) -> Self {
        let micros_per_byte = if bits_per_second > 0.0 { 8e6 / bits_per_second } else { 0.0 };
        Self { rate: Rate { micros_per_byte }, ..Self::default() }
    }

    /// How long bytes take on it.
    pub(super) const fn rate(self) -> Rate {
        self.rate
    }

    /// The same line at another rate, in bits per second; what is under way keeps its times.
    pub(super) fn at_rate(self, bits_per_second: f64) -> Self {
        Self { rate: Self::new(bits_per_second).rate, ..self }
    }

    /// The same line with nothing under way.
    pub(super) fn idle(self) -> Self {
        Self { rate: self.rate, ..Self::default() }
    }

    /// Queues a tensor of `bytes` whose first byte is there at `head`, and returns when its last
    /// byte has passed.
    pub(super) fn bulk(&mut self, bytes: u64, head: Time) -> Time {
        let end = self.bulk_free.max(head) + self.rate.time(bytes);
        self.bulk_free = end;
        end
    }

    /// Queues a control message of `bytes` now, and returns when it has passed.
    pub(super) fn control(&mut self, bytes: u64, now: Time) -> Time {
        let time = self.rate.time(bytes);
        if time.is_zero() {
            return now;
        }
        let end = self.control_free.max(now) + time;
        self.control_free = end;
        if self.bulk_free > now {
            self.bulk_free = self.bulk_free + time;
        }
        end
    }
}

impl Scenario {
    /// How long the tensors of one exchange take on the slowest lines, if nothing else is on them.
    #[must_use]
    pub fn transfer_time(&self) -> Duration {
        let link = &self.link;
        if link.bandwidth <= 0.0 {
            return Duration::ZERO;
        }
        let slowest = link.bandwidth * link.spread.smallest() * link.uplink;
        let bytes = self.sizes().tensor(self.width) as f64;
        Duration::from_secs_f64((2.0 * 8.0 * bytes / slowest).min(3600.0))
    }

    pub(super) fn sizes(&self) -> Sizes {
        Sizes::new(self.fragments as usize * self.width, self.parameters, self.codec_bits)
    }
}

/// How many bytes the messages of a scenario have on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Elements of the model that stands behind one element of the toy replica.
    scale: f64,
    /// Bits of one element on the wire.
    bits: f64,
}

impl Sizes {
    /// Sizes when `elements` toy parameters stand for `parameters` of the model (0 for themselves),
    /// `bits` each.
    pub(super) fn new(elements: usize, parameters: u64, bits: u32) -> Self {
        let scale = if parameters == 0 { 1.0 } else { parameters as f64 / elements.max(1) as f64 };
        Self { scale, bits: f64::from(bits) }
    }

    /// A tensor of so many toy elements: its frames, with their headers.
    pub(super) fn tensor(&self, elements: usize) -> u64 {
        let payload = (elements as f64 * self.scale * self.bits / 8.0).ceil();
        let frames = (payload / TENSOR_PAYLOAD_BYTES_MAX as f64).ceil().max(1.0);
        (payload + frames * TENSOR_HEADER_BYTES as f64) as u64
    }

    /// A control message: the frame that the real process would send.
    pub(super) fn control(message: &Message) -> u64 {
        control_bytes(message) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = Time::from_millis(1000);

    #[test]
    fn tensors_wait_for_their_turn_and_control_messages_do_not() {
        let mut line = Capacity::new(8000.0);
        assert_eq!(line.bulk(1000, Time::ZERO), SECOND);
        assert_eq!(line.bulk(500, Time::ZERO), Time::from_millis(1500));
        assert_eq!(line.control(10, Time::ZERO), Time::from_millis(10));
        assert_eq!(line.control(10, Time::ZERO), Time::from_millis(20));
        // The two control messages took 20 ms of the line.
        assert_eq!(line.bulk(0, Time::ZERO), Time::from_millis(1520));
        assert_eq!(line.bulk(0, Time::from_millis(5000)), Time::from_millis(5000));
    }

    #[test]
    fn a_line_without_limit_takes_no_time() {
        let mut line = Capacity::new(0.0);
        assert_eq!(line.bulk(u64::MAX, SECOND), SECOND);
        assert_eq!(line.control(u64::MAX, SECOND), SECOND);
    }

    #[test]
    fn a_toy_tensor_has_the_bytes_of_the_model_that_it_stands_for() {
        let header = TENSOR_HEADER_BYTES as u64;
        assert_eq!(Sizes::new(8, 0, 32).tensor(2), 8 + header);
        // 124 M parameters in 4 fragments of 2 toy elements, 4 bits each: 15.5 MB per fragment.
        let frames = 15_500_000_u64.div_ceil(TENSOR_PAYLOAD_BYTES_MAX as u64);
        assert_eq!(Sizes::new(8, 124_000_000, 4).tensor(2), 15_500_000 + frames * header);
    }
}
