//! The code for receivers whose numbers are near.

use std::sync::Arc;

use dnode_protocol::frame::Codec;
use dnode_trainer::codec::{Encoded, decode_modular, encode_modular};
use dnode_trainer::{DEVICE_BLOCK, Device, DeviceVector};

use super::{KINDS, Words, assert_same, devices, downloaded, kind, uploaded};

/// The device writes what the host writes; returns that.
#[track_caller]
fn written(device: &Arc<dyn Device>, codec: Codec, values: &[f32], spread: &[f32]) -> Encoded {
    let want = encode_modular(codec, values, spread);
    let (numbers, spread) = (uploaded(device, values), uploaded(device, spread));
    let mut bytes = vec![0xa5; want.bytes.len()];
    let (from, spread) = (numbers.span(0..values.len()), spread.span(0..spread.len()));
    device.encode_modular(codec, from, spread, &mut bytes).unwrap();
    assert_eq!(bytes, *want.bytes, "{codec} {} elements", values.len());
    want
}

/// The device reads what the host reads; returns the number of blocks that could not be read.
#[track_caller]
fn check_read(device: &Arc<dyn Device>, encoded: &Encoded, near: &[f32]) -> usize {
    let mut want = vec![0.0; near.len()];
    let unread = decode_modular(encoded, near, &mut want).unwrap();
    let own = uploaded(device, near);
    let mut found = DeviceVector::new(device, near.len()).unwrap();
    let (near, to) = (own.span(0..near.len()), found.span_mut(0..near.len()));
    assert_eq!(device.decode_modular(encoded.codec, &encoded.bytes, near, to).unwrap(), unread);
    assert_same(&downloaded(device, &found), &want, "read");
    unread
}

/// Numbers that are apart by this times a Gaussian.
fn moved(values: &[f32], apart: f32, words: &mut Words) -> Vec<f32> {
    values.iter().map(|value| value + apart * words.normal()).collect()
}

/// Every device with every modular code.
fn both() -> impl Iterator<Item = (Arc<dyn Device>, Codec)> {
    let with = |device: Arc<dyn Device>| Codec::MODULAR.map(|codec| (Arc::clone(&device), codec));
    devices().into_iter().flat_map(move |(_, device)| with(device))
}

#[test]
fn every_length_is_written_and_read_as_on_the_host() {
    for (device, codec) in both() {
        let mut words = Words(10);
        for len in (1..=2100).chain([4096, 4097, 12_289, 70_001]) {
            let values = kind(len % KINDS, len, &mut words);
            let near = moved(&values, 0.01, &mut words);
            let spread = vec![0.06; len.div_ceil(DEVICE_BLOCK)];
            let encoded = written(&device, codec, &values, &spread);
            check_read(&device, &encoded, &near);
        }
    }
}

#[test]
fn blocks_that_are_far_or_not_finite_are_counted_and_kept() {
    for (device, codec) in both() {
        let mut words = Words(11);
        let blocks = 41;
        let len = blocks * DEVICE_BLOCK - 100;
        let at = |block: usize| block * DEVICE_BLOCK + 300;
        let mut values = words.gaussian(len);
        let mut near = moved(&values, 0.01, &mut words);
        let mut spread = vec![0.06; blocks];
        // Far, NaN here and there, infinite, and spreads of all kinds.
        near[at(1)] += 5.0;
        near[at(2)] = f32::NAN;
        near[at(3)] = f32::INFINITY;
        values[at(4)] = f32::NAN;
        values[at(5)] = f32::NEG_INFINITY;
        near[len - 1] -= 3.0;
        (spread[6], spread[7], spread[8]) = (f32::INFINITY, f32::NAN, 0.0);
        (spread[9], spread[10]) = (-0.06, f32::MAX);
        let encoded = written(&device, codec, &values, &spread);
        let unread = check_read(&device, &encoded, &near);
        // Those six, the infinite spread, and the two whose step is too small.
        assert_eq!(unread, 9);
        values[at(4)] = 0.0;
        values[at(5)] = 0.0;
        let encoded = written(&device, codec, &values, &vec![0.06; blocks]);
        assert_eq!(check_read(&device, &encoded, &values), 0);
    }
}

#[test]
fn one_element_that_is_one_turn_off_is_put_right_as_on_the_host() {
    for (device, codec) in both() {
        let mut words = Words(14);
        let len = 3 * DEVICE_BLOCK + 77;
        let values = words.gaussian(len);
        let spread = vec![0.06; len.div_ceil(DEVICE_BLOCK)];
        let encoded = written(&device, codec, &values, &spread);
        for place in [0, 31, 32, 1023, 1024, 2000, len - 1] {
            for side in [0.12, -0.12] {
                let mut near = moved(&values, 0.01, &mut words);
                near[place] = values[place] + side;
                assert_eq!(check_read(&device, &encoded, &near), 0, "{codec} {place}");
                let next = (place + 1) % DEVICE_BLOCK;
                near[place / DEVICE_BLOCK * DEVICE_BLOCK + next % 77] += 2.0 * side;
                let unread = check_read(&device, &encoded, &near);
                assert!(unread <= 1, "{codec} {place}: {unread}");
            }
        }
    }
}

#[test]
fn any_bytes_are_read_as_on_the_host() {
    for (device, codec) in both() {
        let mut words = Words(12);
        for len in [1, 100, 256, 257, 5000] {
            let near = words.gaussian(len);
            for _ in 0..20 {
                let bytes = words.bytes(codec.payload_bytes(len)).into();
                let encoded = Encoded { codec, elements: len, bytes };
                assert_eq!(check_read(&device, &encoded, &near), len.div_ceil(DEVICE_BLOCK));
            }
        }
    }
}

#[test]
fn bytes_of_another_length_leave_the_own_numbers() {
    for (device, codec) in both() {
        let near = Words(13).gaussian(700);
        let own = uploaded(&device, &near);
        for bytes in [0, 300, codec.payload_bytes(700) + 1] {
            let mut found = DeviceVector::new(&device, 700).unwrap();
            let (from, to) = (own.span(0..700), found.span_mut(0..700));
            assert_eq!(device.decode_modular(codec, &vec![7; bytes], from, to).unwrap(), 1);
            assert_same(&downloaded(&device, &found), &near, "own");
        }
    }
}
