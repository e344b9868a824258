//! The limits of a tensor header depend on its codec.

use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX;
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

#[test]
fn limits_are_those_of_the_codec() {
    let header = |codec: Codec, elements, offset, count| TensorHeader {
        exchange: ExchangeId {
            initiator: PeerId::from_public_key([3; 32]),
            incarnation: 1,
            sequence: 2,
        },
        leg: Leg::Offer,
        codec,
        fragment: FragmentId(5),
        clock: Clock(9),
        elements,
        offset,
        count,
    };
    let accepted = |header: TensorHeader| {
        let mut bytes = TensorHeader { elements: 1, offset: 0, count: 1, ..header }
            .encode(&vec![0; header.codec.payload_bytes(1)]);
        let fields = [header.elements, header.offset, header.count];
        for (field, value) in bytes[68..80].chunks_exact_mut(4).zip(fields) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        TensorHeader::decode(&bytes).is_ok()
    };
    let most = u32::try_from(FRAGMENT_ELEMENTS_MAX).unwrap();
    assert!(!accepted(header(Codec::Int4, most + 2, most, 2)));
    assert!(accepted(header(Codec::Fixed64, most, most - 32_768, 32_768)));
    assert!(!accepted(header(Codec::Fixed64, most, 0, 65_536)));
    assert!(accepted(header(Codec::Int4, most, 0, 65_536)));
    assert!(!accepted(header(Codec::Int4, most, 32_768, 32_768)));
}
