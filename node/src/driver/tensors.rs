//! The tensors of open exchanges: those being assembled, and those kept to be sent, mixed or undone.
//!
//! The driver reads no element: it keeps tensors as they were coded, and the replica decodes them.

use std::collections::BTreeMap;

use bytes::BytesMut;
use dnode_gossip::ContributionId;
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Fragments, Origin, PeerId};
use dnode_trainer::Encoded;

/// A tensor that the core expects.
#[derive(Debug)]
struct Expected {
    from: PeerId,
    leg: Leg,
    fragment: FragmentId,
    /// Elements of the fragment.
    elements: usize,
    /// Codec and elements of what has arrived so far, in order from offset 0.
    codec: Codec,
    arrived: usize,
    bytes: BytesMut,
}

/// Tensors of open exchanges. Bounded by what the core has open: nothing is kept that the core did
/// not ask for, and memory for a tensor is taken only when its first frame is there.
#[derive(Debug)]
pub(super) struct Tensors {
    /// How the parameters are divided, which gives the length of each tensor.
    fragments: Fragments,
    expected: BTreeMap<ExchangeId, Expected>,
    received: BTreeMap<ExchangeId, Encoded>,
    kept: BTreeMap<ExchangeId, Encoded>,
    contributions: BTreeMap<ContributionId, Encoded>,
    including: BTreeMap<ExchangeId, (ContributionId, Encoded)>,
    /// Contributions of the commit that was just reported, one for each fragment.
    unpublished: Vec<Encoded>,
}

/// What a tensor frame led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
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

impl Tensors {
    pub(super) const fn new(fragments: Fragments) -> Self {
        Self {
            fragments,
            expected: BTreeMap::new(),
            received: BTreeMap::new(),
            kept: BTreeMap::new(),
            contributions: BTreeMap::new(),
            including: BTreeMap::new(),
            unpublished: Vec::new(),
        }
    }

    /// Takes the frames of this tensor from now on.
    pub(super) fn expect(
        &mut self,
        exchange: ExchangeId,
        from: PeerId,
        leg: Leg,
        fragment: FragmentId,
    ) {
        let range = self.fragments.range(fragment);
        let elements = range.expect("the core checks every fragment id").len();
        let (codec, arrived, bytes) = (Codec::F32, 0, BytesMut::new());
        let expected = Expected { from, leg, fragment, elements, codec, arrived, bytes };
        self.expected.insert(exchange, expected);
    }

    pub(super) fn arrive(
        &mut self,
        from: PeerId,
        header: &TensorHeader,
        payload: BytesMut,
    ) -> Arrival {
        let Some(expected) = self.expected.get_mut(&header.exchange) else {
            return Arrival::Unexpected;
        };
        if expected.from != from || expected.leg != header.leg {
            return Arrival::Unexpected;
        }
        let elements = expected.elements;
        let whole = header.elements as usize == elements;
        let fills = payload.len() == header.codec.payload_bytes(header.count as usize);
        if !whole || !fills || header.fragment != expected.fragment {
            return Arrival::Misshapen;
        }
        let offset = header.offset as usize;
        if offset == 0 {
            (expected.codec, expected.arrived) = (header.codec, 0);
            expected.bytes = BytesMut::new();
        }
        if offset != expected.arrived || header.codec != expected.codec {
            // The rest of a tensor whose beginning was lost with its connection.
            return Arrival::Partial;
        }
        // Without a copy, as the network has put it right behind.
        expected.bytes.unsplit(payload);
        expected.arrived += header.count as usize;
        if expected.arrived < elements {
            return Arrival::Partial;
        }
        let bytes = std::mem::take(&mut expected.bytes).freeze();
        self.expected.remove(&header.exchange);
        self.received.insert(header.exchange, Encoded { codec: header.codec, elements, bytes });
        Arrival::Complete { clock: header.clock }
    }

    /// Keeps a tensor that is to be sent, or to be undone.
    pub(super) fn keep(&mut self, exchange: ExchangeId, numbers: Encoded) {
        self.kept.insert(exchange, numbers);
    }

    pub(super) fn kept(&self, exchange: ExchangeId) -> Option<Encoded> {
        self.kept.get(&exchange).cloned()
    }

    /// The tensor that has arrived whole under the exchange, if it was not taken yet.
    pub(super) fn received(&self, exchange: ExchangeId) -> Option<&Encoded> {
        self.received.get(&exchange)
    }

    pub(super) fn take_received(&mut self, exchange: ExchangeId) -> Option<Encoded> {
        self.received.remove(&exchange)
    }

    pub(super) fn forget(&mut self, exchange: ExchangeId) {
        self.expected.remove(&exchange);
        self.received.remove(&exchange);
        self.kept.remove(&exchange);
        self.including.remove(&exchange);
    }

    /// Holds the contributions of a commit until the core has numbered them.
    pub(super) fn committed(&mut self, contributions: Vec<Encoded>) {
        self.unpublished = contributions;
    }

    pub(super) fn publish(&mut self, origin: Origin, number: u64) {
        let fragments = (0..).map(FragmentId);
        for (fragment, numbers) in fragments.zip(self.unpublished.drain(..)) {
            self.contributions.insert(ContributionId { origin, number, fragment }, numbers);
        }
    }

    /// The contribution that arrived under the exchange, else the kept one.
    pub(super) fn include(
        &mut self,
        exchange: ExchangeId,
        contribution: ContributionId,
    ) -> Option<Encoded> {
        let received = self.received.remove(&exchange);
        let numbers = received.or_else(|| self.contribution(contribution))?;
        self.including.insert(exchange, (contribution, numbers.clone()));
        Some(numbers)
    }

    /// The replica has added the contribution: keep it for others.
    pub(super) fn included(&mut self, exchange: ExchangeId) {
        if let Some((contribution, numbers)) = self.including.remove(&exchange) {
            self.contributions.insert(contribution, numbers);
        }
    }

    pub(super) fn contribution(&self, contribution: ContributionId) -> Option<Encoded> {
        self.contributions.get(&contribution).cloned()
    }

    pub(super) fn drop_contribution(&mut self, contribution: ContributionId) {
        self.contributions.remove(&contribution);
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::frame::write_f32s;
    use dnode_trainer::encode;

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

    fn bytes(values: [f32; 2]) -> BytesMut {
        let mut bytes = Vec::new();
        write_f32s(&values, &mut bytes);
        BytesMut::from(&bytes[..])
    }

    fn of(parameters: usize) -> Tensors {
        Tensors::new(Fragments::new(parameters, 1).unwrap())
    }

    fn expecting() -> Tensors {
        let mut tensors = of(4);
        tensors.expect(exchange(), peer(1), Leg::Offer, FragmentId(0));
        tensors
    }

    #[test]
    fn a_tensor_is_whole_when_all_its_frames_are_there() {
        let mut tensors = expecting();
        let (first, second) = (bytes([1.0, 2.0]), bytes([3.0, 4.0]));
        assert_eq!(tensors.arrive(peer(1), &header(0, 4), first.clone()), Arrival::Partial);
        let complete = tensors.arrive(peer(1), &header(2, 4), second);
        assert_eq!(complete, Arrival::Complete { clock: Clock(3) });
        assert_eq!(
            tensors.take_received(exchange()),
            Some(encode(Codec::F32, &[1.0, 2.0, 3.0, 4.0]))
        );
        assert_eq!(tensors.arrive(peer(1), &header(0, 4), first), Arrival::Unexpected);
    }

    #[test]
    fn a_resent_tensor_starts_anew_and_a_torn_one_is_never_completed() {
        let mut tensors = expecting();
        let first = bytes([1.0, 2.0]);
        tensors.arrive(peer(1), &header(0, 4), first.clone());
        assert_eq!(tensors.arrive(peer(1), &header(0, 4), first.clone()), Arrival::Partial);
        let mut torn = expecting();
        assert_eq!(torn.arrive(peer(1), &header(2, 4), first), Arrival::Partial);
        assert_eq!(torn.take_received(exchange()), None);
    }

    #[test]
    fn what_nobody_expects_takes_no_memory_and_a_wrong_shape_is_told_apart() {
        let mut tensors = expecting();
        let first = bytes([1.0, 2.0]);
        assert_eq!(tensors.arrive(peer(2), &header(0, 4), first.clone()), Arrival::Unexpected);
        assert_eq!(tensors.arrive(peer(1), &header(0, 5), first.clone()), Arrival::Misshapen);
        tensors.forget(exchange());
        assert_eq!(tensors.arrive(peer(1), &header(0, 4), first), Arrival::Unexpected);
    }

    #[test]
    fn kept_tensors_come_back_as_they_were() {
        let mut tensors = of(2);
        let kept = encode(Codec::Int4, &[1.5, -2.0]);
        tensors.keep(exchange(), kept.clone());
        assert_eq!(tensors.kept(exchange()), Some(kept));
        tensors.forget(exchange());
        assert_eq!(tensors.kept(exchange()), None);
    }

    #[test]
    fn a_contribution_is_kept_for_others_once_the_replica_has_it_until_it_is_dropped() {
        let mut tensors = of(2);
        let origin = Origin { peer: peer(1), incarnation: 1 };
        let id = ContributionId { origin, number: 3, fragment: FragmentId(0) };
        tensors.expect(exchange(), peer(1), Leg::Contribution, FragmentId(0));
        let header = TensorHeader { leg: Leg::Contribution, elements: 2, count: 2, ..header(0, 2) };
        tensors.arrive(peer(1), &header, bytes([1.0, 2.0]));
        let arrived = encode(Codec::F32, &[1.0, 2.0]);
        assert_eq!(tensors.include(exchange(), id), Some(arrived.clone()));
        assert_eq!(tensors.contribution(id), None);
        tensors.included(exchange());
        tensors.forget(exchange());
        assert_eq!(tensors.contribution(id), Some(arrived));
        tensors.drop_contribution(id);
        assert_eq!(tensors.contribution(id), None);
    }

    #[test]
    fn a_tensor_whose_codec_changes_in_the_middle_is_never_completed() {
        let mut tensors = of(4);
        tensors.expect(exchange(), peer(1), Leg::Offer, FragmentId(0));
        tensors.arrive(peer(1), &header(0, 4), bytes([1.0, 2.0]));
        let other = TensorHeader { codec: Codec::Bf16, ..header(2, 4) };
        assert_eq!(tensors.arrive(peer(1), &other, BytesMut::zeroed(4)), Arrival::Partial);
        assert_eq!(tensors.take_received(exchange()), None);
    }
}
