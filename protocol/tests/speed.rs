//! Prints how fast tensors are framed and read; asserts only that what arrives is what was sent.

use std::hint::black_box;
use std::time::Instant;

use dnode_protocol::frame::{Codec, Leg, TENSOR_HEADER_BYTES, TensorHeader, read_f32s, write_f32s};
use dnode_protocol::limits::TENSOR_PAYLOAD_BYTES_MAX;
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

const ELEMENTS: usize = TENSOR_PAYLOAD_BYTES_MAX / 4;
const ROUNDS: usize = 400;

#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement reads the clock and is printed"
)]
fn report(what: &str, mut work: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        work();
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = (ROUNDS * TENSOR_PAYLOAD_BYTES_MAX) as f64;
    println!("{what}: {:.2} GB/s", bytes / seconds / 1e9);
}

#[test]
fn full_frames_arrive_as_sent_and_their_speed_is_printed() {
    let values: Vec<f32> = (0..ELEMENTS).map(|index| index as f32).collect();
    let header = TensorHeader {
        exchange: ExchangeId {
            initiator: PeerId::from_public_key([1; 32]),
            incarnation: 1,
            sequence: 1,
        },
        leg: Leg::Offer,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock: Clock(0),
        elements: u32::try_from(ELEMENTS).unwrap(),
        offset: 0,
        count: u32::try_from(ELEMENTS).unwrap(),
    };
    let mut payload = Vec::new();
    let mut head = [0; TENSOR_HEADER_BYTES];
    let mut received = vec![0.0; ELEMENTS];
    report("f32 to bytes", || {
        payload.clear();
        write_f32s(black_box(&values), &mut payload);
    });
    report("bytes to f32", || {
        read_f32s(black_box(&payload), &mut received).unwrap();
    });
    report("header and checksum", || {
        head = header.encode(black_box(&payload));
    });
    report("check on arrival", || {
        let (_, checksum) = TensorHeader::decode(black_box(&head)).unwrap();
        checksum.verify(&payload).unwrap();
    });
    assert_eq!(received, values);
}
