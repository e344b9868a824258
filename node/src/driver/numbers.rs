//! The numbers that belong to open exchanges: tensors being assembled, and tensors kept to be sent,
//! mixed or undone.

use std::collections::BTreeMap;
use std::sync::Arc;

use dnode_protocol::frame::{Codec, Leg, TensorHeader, read_f32s, write_f32s};
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

/// A tensor that the core expects.
#[derive(Debug)]
struct Expected {
    from: PeerId,
    leg: Leg,
    fragment: FragmentId,
    elements: usize,
    /// What has arrived so far, in order from offset 0.
    values: Vec<f32>,
}

/// Tensors of open exchanges. Bounded by what the core has open: nothing is kept that the core did
/// not ask for, and memory for a tensor is taken only when its first frame is there.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    expected: BTreeMap<ExchangeId, Expected>,
    received: BTreeMap<ExchangeId, Vec<f32>>,
    kept: BTreeMap<ExchangeId, Arc<[u8]>>,
}

/// What a tensor frame led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// More frames are to come.
    Partial,
    /// The tensor is whole and kept.
    Complete {
        /// The sender's clock when it read the numbers.
        clock: Clock,
    },
    /// Nobody waits for it, for example because the lease has expired.
    Unexpected,
    /// Its shape is not that of the fragment: the peer is at fault.
    Misshapen,
}

impl Numbers {
    pub(crate) fn expect(
        &mut self,
        exchange: ExchangeId,
        from: PeerId,
        leg: Leg,
        (fragment, elements): (FragmentId, usize),
    ) {
        let expected = Expected { from, leg, fragment, elements, values: Vec::new() };
        self.expected.insert(exchange, expected);
    }

    pub(crate) fn arrive(
        &mut self,
        from: PeerId,
        header: &TensorHeader,
        payload: &[u8],
    ) -> Arrival {
        let Some(expected) = self.expected.get_mut(&header.exchange) else {
            return Arrival::Unexpected;
        };
        if expected.from != from || expected.leg != header.leg {
            return Arrival::Unexpected;
        }
        let whole = header.elements as usize == expected.elements;
        if !whole || header.fragment != expected.fragment || header.codec != Codec::F32 {
            return Arrival::Misshapen;
        }
        let offset = header.offset as usize;
        if offset == 0 {
            expected.values.clear();
            expected.values.reserve_exact(expected.elements);
        }
        if offset != expected.values.len() {
            // The rest of a tensor whose beginning was lost with its connection.
            return Arrival::Partial;
        }
        let begin = expected.values.len();
        expected.values.resize(begin + payload.len() / 4, 0.0);
        if read_f32s(payload, &mut expected.values[begin..]).is_err() {
            return Arrival::Misshapen;
        }
        if expected.values.len() < expected.elements {
            return Arrival::Partial;
        }
        let values = std::mem::take(&mut expected.values);
        self.expected.remove(&header.exchange);
        self.received.insert(header.exchange, values);
        Arrival::Complete { clock: header.clock }
    }

    /// Keeps numbers to be sent, and to be undone.
    pub(crate) fn keep(&mut self, exchange: ExchangeId, values: &[f32]) {
        let mut bytes = Vec::new();
        write_f32s(values, &mut bytes);
        self.kept.insert(exchange, bytes.into());
    }

    pub(crate) fn kept(&self, exchange: ExchangeId) -> Option<Arc<[u8]>> {
        self.kept.get(&exchange).cloned()
    }

    /// The kept numbers as numbers.
    pub(crate) fn kept_values(&self, exchange: ExchangeId) -> Option<Vec<f32>> {
        let bytes = self.kept.get(&exchange)?;
        let mut values = vec![0.0; bytes.len() / 4];
        read_f32s(bytes, &mut values).ok()?;
        Some(values)
    }

    pub(crate) fn take_received(&mut self, exchange: ExchangeId) -> Option<Vec<f32>> {
        self.received.remove(&exchange)
    }

    pub(crate) fn forget(&mut self, exchange: ExchangeId) {
        self.expected.remove(&exchange);
        self.received.remove(&exchange);
        self.kept.remove(&exchange);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u8) -> PeerId {
        PeerId::from_public_key([index; 32])
    }

    fn exchange() -> ExchangeId {
        ExchangeId { initiator: peer(1), incarnation: 1, sequence: 7 }
    }

    fn header(offset: u32, elements: u32) -> TensorHeader {
        TensorHeader {
            exchange: exchange(),
            leg: Leg::Offer,
            codec: Codec::F32,
            fragment: FragmentId(0),
            clock: Clock(3),
            elements,
            offset,
            count: 2,
        }
    }

    fn bytes(values: [f32; 2]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_f32s(&values, &mut bytes);
        bytes
    }

    fn expecting() -> Numbers {
        let mut numbers = Numbers::default();
        numbers.expect(exchange(), peer(1), Leg::Offer, (FragmentId(0), 4));
        numbers
    }

    #[test]
    fn a_tensor_is_whole_when_all_its_frames_are_there() {
        let mut numbers = expecting();
        let (first, second) = (bytes([1.0, 2.0]), bytes([3.0, 4.0]));
        assert_eq!(numbers.arrive(peer(1), &header(0, 4), &first), Arrival::Partial);
        let complete = numbers.arrive(peer(1), &header(2, 4), &second);
        assert_eq!(complete, Arrival::Complete { clock: Clock(3) });
        assert_eq!(numbers.take_received(exchange()), Some(vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(numbers.arrive(peer(1), &header(0, 4), &first), Arrival::Unexpected);
    }

    #[test]
    fn a_resent_tensor_starts_anew_and_a_torn_one_is_never_completed() {
        let mut numbers = expecting();
        let first = bytes([1.0, 2.0]);
        numbers.arrive(peer(1), &header(0, 4), &first);
        assert_eq!(numbers.arrive(peer(1), &header(0, 4), &first), Arrival::Partial);
        let mut torn = expecting();
        assert_eq!(torn.arrive(peer(1), &header(2, 4), &first), Arrival::Partial);
        assert_eq!(torn.take_received(exchange()), None);
    }

    #[test]
    fn what_nobody_expects_takes_no_memory_and_a_wrong_shape_is_told_apart() {
        let mut numbers = expecting();
        let first = bytes([1.0, 2.0]);
        assert_eq!(numbers.arrive(peer(2), &header(0, 4), &first), Arrival::Unexpected);
        assert_eq!(numbers.arrive(peer(1), &header(0, 5), &first), Arrival::Misshapen);
        numbers.forget(exchange());
        assert_eq!(numbers.arrive(peer(1), &header(0, 4), &first), Arrival::Unexpected);
    }

    #[test]
    fn kept_numbers_come_back_as_they_were() {
        let mut numbers = Numbers::default();
        numbers.keep(exchange(), &[1.5, -2.0]);
        assert_eq!(numbers.kept_values(exchange()), Some(vec![1.5, -2.0]));
        assert_eq!(numbers.kept(exchange()).map(|bytes| bytes.len()), Some(8));
    }
}
