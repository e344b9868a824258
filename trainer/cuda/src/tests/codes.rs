//! Codes of plain numbers.

use std::sync::Arc;

use dnode_protocol::frame::Codec;
use dnode_trainer::codec::{CodecError, Encoded, decode};
use dnode_trainer::{Device, DeviceVector, encode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{KINDS, Words, assert_same, devices, downloaded, drawn, kind, uploaded};

/// The codes of a device.
const CODECS: [Codec; 7] =
    [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8, Codec::Int4, Codec::Int2, Codec::Sign];

/// The device writes what the host writes, and reads what the host reads.
#[track_caller]
fn check(device: &Arc<dyn Device>, codec: Codec, values: &[f32], what: &str) {
    let want = encode(codec, values);
    let numbers = uploaded(device, values);
    let mut bytes = vec![0xa5; want.bytes.len()];
    device.encode(codec, numbers.span(0..values.len()), &mut bytes).unwrap();
    assert_eq!(bytes, *want.bytes, "{what}, {codec}, {} elements", values.len());
    check_read(device, codec, bytes, values.len());
}

#[track_caller]
fn check_read(device: &Arc<dyn Device>, codec: Codec, bytes: Vec<u8>, elements: usize) {
    let mut found = DeviceVector::new(device, elements).unwrap();
    device.decode(codec, &bytes, found.span_mut(0..elements)).unwrap().unwrap();
    let mut want = vec![0.0; elements];
    decode(&Encoded { codec, elements, bytes: bytes.into() }, &mut want).unwrap();
    let what = format!("read {codec}, {elements} elements");
    assert_same(&downloaded(device, &found), &want, &what);
}

#[test]
fn codes_of_every_length_are_those_of_the_host() {
    for (name, device) in devices() {
        let mut words = Words(1);
        for len in 1..=2100 {
            let values = kind(len % KINDS, len, &mut words);
            for codec in CODECS {
                check(&device, codec, &values, &name);
                check_read(&device, codec, words.bytes(codec.payload_bytes(len)), len);
            }
        }
    }
}

#[test]
fn codes_of_every_kind_are_those_of_the_host() {
    for (name, device) in devices() {
        let mut words = Words(2);
        for len in [1, 33, 256, 1024, 1025, 4096, 4097, 12_288, 13_065, 100_003] {
            for number in 0..KINDS {
                let values = kind(number, len, &mut words);
                for codec in CODECS {
                    check(&device, codec, &values, &format!("{name}, kind {number}"));
                }
            }
            for codec in CODECS {
                check_read(&device, codec, words.bytes(codec.payload_bytes(len)), len);
            }
        }
    }
}

#[test]
fn every_sixteen_bits_are_read_and_any_thirty_two_are_written() {
    for (name, device) in devices() {
        let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut words = Words(3);
        // All exponents and signs, with fractions around the ties.
        let edges = (0..512_u32).flat_map(|top| {
            [
                0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000,
                0x7f_ffff,
            ]
            .map(|low| f32::from_bits((top << 23) | low))
        });
        let any = std::iter::repeat_with(|| f32::from_bits(words.next())).take(200_000);
        let values: Vec<f32> = edges.chain(any).collect();
        for codec in [Codec::Bf16, Codec::F16] {
            check_read(&device, codec, codes.clone(), 1 << 16);
            check(&device, codec, &values, &name);
        }
    }
}

#[test]
fn any_numbers_are_written_and_any_bytes_are_read() {
    let devices = devices();
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() };
    let mut runner = TestRunner::new_with_rng(config, drawn());
    // Of NaN the sign alone is anybody's: what else it has may be lost on the way.
    let bits = any::<u32>().prop_map(f32::from_bits);
    let number = bits.prop_map(|it: f32| if it.is_nan() { f32::NAN.copysign(it) } else { it });
    let cases = (vec(number, 1..3000), any::<u64>());
    let tested = runner.run(&cases, |(values, seed)| {
        for (name, device) in &devices {
            for codec in CODECS {
                check(device, codec, &values, name);
                let bytes = Words(seed).bytes(codec.payload_bytes(values.len()));
                check_read(device, codec, bytes, values.len());
            }
        }
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn a_part_is_worked_on_and_nothing_beside_it() {
    for (name, device) in devices() {
        let values = Words(4).gaussian(9001);
        let range = 3..8995;
        for codec in CODECS {
            let want = encode(codec, &values[range.clone()]);
            let mut numbers = uploaded(&device, &values);
            let mut bytes = vec![0; want.bytes.len()];
            device.encode(codec, numbers.span(range.clone()), &mut bytes).unwrap();
            assert_eq!(bytes, *want.bytes, "{name}, {codec}");
            device.decode(codec, &bytes, numbers.span_mut(range.clone())).unwrap().unwrap();
            let mut expected = values.clone();
            decode(&want, &mut expected[range.clone()]).unwrap();
            assert_same(&downloaded(&device, &numbers), &expected, &format!("{name}, {codec}"));
        }
    }
}

#[test]
fn other_lengths_and_other_codes_are_refused_and_change_nothing() {
    for (_, device) in devices() {
        let mut numbers = uploaded(&device, &[1.0; 300]);
        for codec in Codec::ALL {
            assert_eq!(device.codes(codec), CODECS.contains(&codec), "{codec}");
            let expected = codec.payload_bytes(300);
            for found in [0, expected - 1, expected + 1] {
                let read = device.decode(codec, &vec![1; found], numbers.span_mut(0..300)).unwrap();
                let want = if CODECS.contains(&codec) {
                    CodecError::Bytes { codec, expected, found }
                } else {
                    CodecError::Codec(codec)
                };
                assert_eq!(read, Err(want));
            }
        }
        assert_same(&downloaded(&device, &numbers), &[1.0; 300], "unchanged");
    }
}

#[test]
fn nothing_has_no_bytes() {
    for (_, device) in devices() {
        let mut none = DeviceVector::new(&device, 0).unwrap();
        for codec in CODECS {
            device.encode(codec, none.span(0..0), &mut []).unwrap();
            device.decode(codec, &[], none.span_mut(0..0)).unwrap().unwrap();
        }
        device.scale(none.span_mut(0..0), 2.0).unwrap();
        assert_eq!(device.squares(none.span(0..0)).unwrap().to_bits(), 0);
        assert_eq!(device.least(none.span(0..0)).unwrap().to_bits(), f32::INFINITY.to_bits());
    }
}
