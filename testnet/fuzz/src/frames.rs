//! Bytes from a peer through the decoders of frames.

use dnode_protocol::frame::{
    CONTROL_HEADER_BYTES, Codec, ControlHeader, TENSOR_HEADER_BYTES, TensorHeader,
    decode_control as decode, encode_control, read_f32s, write_f32s,
};
use dnode_protocol::limits::{CONTROL_BYTES_MAX, TENSOR_PAYLOAD_BYTES_MAX};

/// Reads control frames from `data` until one is refused, as a stream of a peer is read.
pub fn decode_control(mut data: &[u8]) {
    while let Some((header, rest)) = data.split_first_chunk::<CONTROL_HEADER_BYTES>() {
        let Ok(header) = ControlHeader::decode(*header) else { return };
        assert!(header.body_bytes <= CONTROL_BYTES_MAX, "the length is checked first");
        let Some((body, rest)) = rest.split_at_checked(header.body_bytes) else { return };
        let Ok(message) = decode(body) else { return };
        let frame = encode_control(&message).expect("what was accepted can be sent");
        assert_eq!(&frame[CONTROL_HEADER_BYTES..], body, "a message has one encoding");
        data = rest;
    }
}

/// Reads tensor frames from `data` until one is refused. A frame whose header is sound is also
/// tried with a right checksum, which no fuzzer would find.
pub fn decode_tensor(mut data: &[u8]) {
    while let Some((bytes, rest)) = data.split_first_chunk::<TENSOR_HEADER_BYTES>() {
        let Ok((header, checksum)) = TensorHeader::decode(bytes) else { return };
        let length = header.payload_bytes();
        assert!(length <= TENSOR_PAYLOAD_BYTES_MAX, "the length is checked first");
        assert!(header.range().end <= header.elements as usize, "the payload lies in the tensor");
        let Some((payload, rest)) = rest.split_at_checked(length) else { return };
        let right = header.encode(payload);
        let (again, verified) =
            TensorHeader::decode(&right).expect("what was accepted can be sent");
        assert_eq!(again, header, "a header has one encoding");
        verified.verify(payload).expect("the right checksum is right");
        assert_eq!(checksum.verify(payload).is_ok(), right == *bytes, "only the right one is");
        if header.codec == Codec::F32 {
            let mut values = vec![0.0; header.range().len()];
            read_f32s(payload, &mut values).expect("the lengths agree");
            let mut written = Vec::new();
            write_f32s(&values, &mut written);
            assert_eq!(written, payload, "numbers come back as they were, NaN too");
        }
        data = rest;
    }
}
