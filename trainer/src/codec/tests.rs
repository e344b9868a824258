//! Properties of all codecs: bounds on the error, lengths, cuts, and bytes that mean nothing.

#![expect(clippy::float_cmp, reason = "zeros and what is copied are exact")]

use dnode_protocol::frame::{BLOCK_ELEMENTS, Codec, MODULAR_BLOCK_ELEMENTS, SIGN_BLOCK_ELEMENTS};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Normally distributed numbers, the same for the same seed.
fn gaussian(elements: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f64 + 0.5) / f64::from(1 << 24)
    };
    let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..elements).map(|_| normal() as f32).collect()
}

fn decoded(encoded: &Encoded) -> Vec<f32> {
    let mut out = vec![f32::NAN; encoded.elements];
    decode(encoded, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn relative_error(codec: Codec, values: &[f32]) -> f64 {
    let square = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
    let out = decoded(&encode(codec, values));
    let difference: Vec<f32> = values.iter().zip(&out).map(|(a, b)| a - b).collect();
    // Of zeros alone nothing is lost.
    (square(&difference) / square(values).max(f64::MIN_POSITIVE)).sqrt()
}

fn choice() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::CHOICES.to_vec())
}

fn modular() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::MODULAR.to_vec())
}

/// Finite numbers of all sizes, mostly of one.
fn numbers(elements: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    let near = -2.0_f32..2.0;
    vec(prop_oneof![20 => near, 1 => -1e20_f32..1e20, 1 => Just(0.0), 1 => Just(-1e-42)], elements)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rounded_codes_are_at_most_half_a_step_off(values in numbers(1..1200), magnitude in -30..30) {
        let scale = 2.0_f32.powi(magnitude);
        let values: Vec<f32> = values.iter().map(|value| value * scale).collect();
        for (codec, top) in [(Codec::Int8, 127.0), (Codec::Int4, 7.0)] {
            let out = decoded(&encode(codec, &values));
            for (block, out) in values.chunks(BLOCK_ELEMENTS).zip(out.chunks(BLOCK_ELEMENTS)) {
                let most = largest_magnitude(block);
                let bound = most / top * 0.5 * (1.0 + 1e-4) + TINY;
                for (value, out) in block.iter().zip(out) {
                    prop_assert!((value - out).abs() <= bound, "{codec} {value} {out} {most}");
                }
            }
        }
    }

    #[test]
    fn small_floats_have_their_relative_error(values in vec(-6e4_f32..6e4, 1..600)) {
        for (codec, bound) in [(Codec::Bf16, 1.0 / 256.0), (Codec::F16, 1.0 / 2048.0)] {
            for (value, out) in values.iter().zip(decoded(&encode(codec, &values))) {
                prop_assert!((value - out).abs() <= value.abs() * bound + 1e-7, "{codec} {value}");
            }
        }
    }

    #[test]
    fn the_two_levels_keep_signs_and_shrink_the_norm(values in numbers(1..3000)) {
        let out = decoded(&encode(Codec::Int2, &values));
        for (value, out) in values.iter().zip(&out) {
            prop_assert!(out.abs() == 0.0 || value.is_sign_negative() == out.is_sign_negative());
        }
        prop_assert!(relative_error(Codec::Int2, &values) <= 1.0 + 1e-5);
    }

    #[test]
    fn a_sign_and_the_mean_magnitude_lose_what_the_specification_says(values in numbers(1..3000)) {
        let out = decoded(&encode(Codec::Sign, &values));
        for (values, out) in values.chunks(SIGN_BLOCK_ELEMENTS).zip(out.chunks(SIGN_BLOCK_ELEMENTS)) {
            let square = |values: &[f32]| values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            let sum: f64 = values.iter().map(|&x| f64::from(x.abs())).sum();
            let lost: Vec<f32> = values.iter().zip(out).map(|(x, out)| x - out).collect();
            let expected = square(values) - sum * sum / values.len() as f64;
            prop_assert!((square(&lost) - expected).abs() <= 1e-4 * square(values) + 1e-30);
            for (value, out) in values.iter().zip(out) {
                prop_assert!(value.is_sign_negative() == out.is_sign_negative());
            }
        }
    }

    #[test]
    fn top_k_sends_the_largest(values in numbers(1..9000)) {
        let out = decoded(&encode(Codec::TopK, &values));
        let chunks = values.chunks(TOP_K_CHUNK_ELEMENTS).zip(out.chunks(TOP_K_CHUNK_ELEMENTS));
        for (values, out) in chunks {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
            let sent = dnode_protocol::frame::top_k_entries(values.len());
            for (rank, &index) in order.iter().enumerate() {
                let zero = out[index] == 0.0;
                prop_assert!(zero || rank < sent, "{rank} of {sent}");
                prop_assert!(!zero || rank >= sent || values[order[sent - 1]].abs() < 1e-30);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_decoded_without_a_panic(
        codec in choice(),
        modular in modular(),
        elements in 0_usize..5000,
        seed in vec(any::<u8>(), 1..64),
    ) {
        let bytes: Vec<u8> = seed.iter().copied().cycle().take(codec.payload_bytes(elements)).collect();
        let encoded = Encoded { codec, elements, bytes: bytes.into() };
        let mut out = vec![0.0; elements];
        let read = decode(&encoded, &mut out);
        prop_assert!(read.is_ok() || codec == Codec::TopK);
        prop_assert_eq!(decode_displace(&encoded, 0.5, &mut out).is_ok(), read.is_ok());
        let bytes: Vec<u8> =
            seed.iter().copied().cycle().take(modular.payload_bytes(elements)).collect();
        let encoded = Encoded { codec: modular, elements, bytes: bytes.into() };
        let near = vec![1.0; elements];
        prop_assert!(decode_modular(&encoded, &near, &mut out).is_ok());
    }

    #[test]
    fn wrong_lengths_and_codecs_are_refused(
        codec in choice(),
        modular in modular(),
        elements in 1_usize..3000,
    ) {
        let whole = encode(codec, &vec![1.0; elements]);
        let mut out = vec![0.0; elements];
        let cut = Encoded { bytes: whole.bytes.slice(1..), ..whole };
        prop_assert!(matches!(decode(&cut, &mut out), Err(CodecError::Bytes { .. })), "{}", codec);
        let longer = Encoded { elements: elements + 1, ..whole.clone() };
        let refused = matches!(decode(&longer, &mut out), Err(CodecError::Elements { .. }));
        prop_assert!(refused);
        let near = vec![0.0; elements];
        let other = decode_modular(&whole, &near, &mut out);
        prop_assert_eq!(other, Err(CodecError::Codec(codec)));
        let modular = Encoded { codec: modular, ..whole };
        prop_assert!(decode(&modular, &mut out).is_err());
        prop_assert!(decode_i64(&modular, &mut [0]).is_err());
    }

    #[test]
    fn a_fused_displacement_is_the_same_bit_by_bit(codec in choice(), elements in 1_usize..9000) {
        let encoded = encode(codec, &gaussian(elements, 1));
        let mut fused = gaussian(elements, 2);
        let mut apart = fused.clone();
        decode_displace(&encoded, 0.3, &mut fused).unwrap();
        for (target, delta) in apart.iter_mut().zip(decoded(&encoded)) {
            *target += 0.3 * delta;
        }
        prop_assert_eq!(bits(&fused), bits(&apart));
    }

    #[test]
    fn modular_is_exact_to_half_a_step_within_the_spread(
        codec in modular(),
        own in numbers(1..800),
        apart in -1.0_f32..1.0,
        spread in 1e-4_f32..10.0,
        seed in any::<u64>(),
    ) {
        let noise = gaussian(own.len(), seed);
        let near: Vec<f32> = own
            .iter()
            .zip(&noise)
            .map(|(own, noise)| own + spread * (apart + 0.3 * noise).clamp(-1.0, 1.0))
            .collect();
        let blocks = own.len().div_ceil(MODULAR_BLOCK_ELEMENTS);
        let encoded = encode_modular(codec, &own, &vec![spread; blocks]);
        let mut out = vec![0.0; own.len()];
        prop_assert_eq!(decode_modular(&encoded, &near, &mut out), Ok(0));
        let blocks = own.chunks(MODULAR_BLOCK_ELEMENTS).zip(out.chunks(MODULAR_BLOCK_ELEMENTS));
        for (block, out) in blocks {
            let step = step_of_block(codec, block, spread);
            for (own, out) in block.iter().zip(out) {
                let bound = 0.501 * step + own.abs() / (1 << 22) as f32;
                prop_assert!((own - out).abs() <= bound, "{codec} {own} {out} {step}");
            }
        }
    }

    #[test]
    fn modular_puts_one_element_right_that_is_one_turn_off(
        codec in modular(),
        elements in 1_usize..5000,
        at in any::<prop::sample::Index>(),
        farther in prop_oneof![1.3_f32..2.7, -2.7_f32..-1.3],
    ) {
        let own = gaussian(elements, 3);
        let mut near = own.clone();
        let at = at.index(elements);
        near[at] += 0.01 * farther;
        let blocks = elements.div_ceil(MODULAR_BLOCK_ELEMENTS);
        let encoded = encode_modular(codec, &own, &vec![0.01; blocks]);
        let mut out = vec![0.0; elements];
        prop_assert_eq!(decode_modular(&encoded, &near, &mut out), Ok(0));
        let step = step_of_block(codec, &own, 0.01);
        prop_assert!((own[at] - out[at]).abs() <= 0.501 * step + 1e-6, "{}", codec);
    }

    #[test]
    fn modular_tells_blocks_that_are_farther_apart(
        codec in modular(),
        elements in 2_usize..5000,
        at in any::<prop::sample::Index>(),
        farther in prop_oneof![4.0_f32..10.0, -10.0_f32..-4.0],
    ) {
        let own = gaussian(elements, 3);
        let mut near = own.clone();
        let at = at.index(elements);
        near[at] += 0.01 * farther;
        let blocks = elements.div_ceil(MODULAR_BLOCK_ELEMENTS);
        let encoded = encode_modular(codec, &own, &vec![0.01; blocks]);
        let mut out = vec![0.0; elements];
        prop_assert_eq!(decode_modular(&encoded, &near, &mut out), Ok(1));
        let block = at / MODULAR_BLOCK_ELEMENTS * MODULAR_BLOCK_ELEMENTS;
        let end = elements.min(block + MODULAR_BLOCK_ELEMENTS);
        prop_assert_eq!(bits(&out[block..end]), bits(&near[block..end]));
    }

    #[test]
    fn two_elements_that_are_one_turn_off_are_not_read(
        codec in modular(),
        places in vec(0_usize..1024, 2..4),
        side in prop_oneof![1.3_f32..2.7, -2.7_f32..-1.3],
    ) {
        let own = gaussian(1024, 3);
        let mut near = own.clone();
        let places: std::collections::BTreeSet<usize> = places.into_iter().collect();
        for &place in &places {
            near[place] += 0.01 * side;
        }
        let encoded = encode_modular(codec, &own, &[0.01]);
        let mut out = vec![0.0; 1024];
        let read = decode_modular(&encoded, &near, &mut out);
        prop_assert_eq!(read, Ok(usize::from(places.len() > 1)));
    }

    #[test]
    fn integers_come_back(values in vec(any::<i64>(), 0..600)) {
        let mut out = vec![0; values.len()];
        decode_i64(&encode_i64(&values), &mut out).unwrap();
        prop_assert_eq!(&out, &values);
    }
}

/// The step that the documentation promises.
fn step_of_block(codec: Codec, values: &[f32], spread: f32) -> f32 {
    let bits = codec.modular_bits().unwrap();
    let turn = (1_u32 << bits) as f32;
    let apart = turn / 2.0 - 0.5 - turn / 256.0;
    (spread / apart).max(largest_magnitude(values) / (turn * 8192.0))
}

#[test]
fn zeros_and_nothing_come_back() {
    for codec in Codec::CHOICES {
        for elements in [0, 1, 300, 5000] {
            assert!(decoded(&encode(codec, &vec![0.0; elements])).iter().all(|&v| v == 0.0));
        }
    }
    for codec in Codec::MODULAR {
        let encoded = encode_modular(codec, &[0.0; 1300], &[0.0; 2]);
        let mut out = [1.0; 1300];
        assert_eq!(decode_modular(&encoded, &[0.0; 1300], &mut out), Ok(0));
        assert!(out.iter().all(|&v| v == 0.0));
    }
}

#[test]
fn every_length_is_written_as_announced() {
    let values = gaussian(10_000, 5);
    for codec in Codec::CHOICES {
        // Every byte of the longest encoding is written over what was there before.
        for elements in (1..=10_000).step_by(97).chain([2, 3, 5, 255, 257, 1023, 1025, 4095, 4097])
        {
            let encoded = encode(codec, &values[..elements]);
            assert_eq!(encoded.bytes.len(), codec.payload_bytes(elements), "{codec} {elements}");
            assert!(decoded(&encoded).iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn every_byte_is_written_whatever_was_there_before() {
    let values = gaussian(5000, 12);
    for codec in [&Codec::CHOICES[..], &Codec::MODULAR].concat() {
        for elements in (1..70).chain([255, 257, 300, 1023, 1025, 4095, 4097, 5000]) {
            let values = &values[..elements];
            let [zeros, ones] = [0, 0xff].map(|before| {
                let mut bytes = vec![before; codec.payload_bytes(elements)];
                if Codec::MODULAR.contains(&codec) {
                    let spread = vec![0.01; elements.div_ceil(MODULAR_BLOCK_ELEMENTS)];
                    encode_modular_slice(codec, values, &spread, &mut bytes);
                } else {
                    encode_slice(codec, values, &mut bytes);
                }
                bytes
            });
            assert_eq!(zeros, ones, "{codec} {elements}");
        }
    }
}

#[test]
fn the_encoding_of_each_frame_is_its_part_of_the_whole() {
    let elements = 2 * Codec::F32.frame_elements() + 4999;
    let values = gaussian(elements, 6);
    let spread = vec![0.01; elements.div_ceil(MODULAR_BLOCK_ELEMENTS)];
    for codec in [&Codec::CHOICES[..], &Codec::MODULAR].concat() {
        let whole = |values: &[f32], spread: &[f32]| {
            if Codec::MODULAR.contains(&codec) {
                encode_modular(codec, values, spread)
            } else {
                encode(codec, values)
            }
        };
        let all = whole(&values, &spread);
        let frames = values.chunks(codec.frame_elements());
        let spreads = spread.chunks(codec.frame_elements() / MODULAR_BLOCK_ELEMENTS);
        let parts: Vec<_> =
            frames.zip(spreads).map(|(values, spread)| whole(values, spread).bytes).collect();
        assert!(parts.concat() == all.bytes[..], "{codec}");
    }
}

#[test]
fn errors_of_normal_data_are_those_of_the_documentation() {
    let values = gaussian(1 << 16, 7);
    let expected = [
        (Codec::F32, 0.0),
        (Codec::Bf16, 0.0017),
        (Codec::F16, 0.000_21),
        (Codec::Int8, 0.0065),
        (Codec::Int4, 0.118),
        (Codec::Int2, 0.36),
        (Codec::Sign, 0.603),
        (Codec::TopK, 0.95),
    ];
    for (codec, expected) in expected {
        let found = relative_error(codec, &values);
        assert!((found - expected).abs() <= 0.1 * expected, "{codec}: {found}");
    }
}

#[test]
fn what_is_not_finite_does_not_become_finite() {
    for codec in Codec::CHOICES {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = gaussian(6000, 8);
            values[4500] = bad;
            let out = decoded(&encode(codec, &values));
            assert!(!out.iter().all(|value| value.is_finite()), "{codec} {bad}");
        }
    }
    for codec in Codec::MODULAR {
        let mut own = gaussian(2400, 9);
        let near = own.clone();
        own[1300] = f32::NAN;
        let mut out = vec![0.0; 2400];
        let encoded = encode_modular(codec, &own, &[0.1; 3]);
        assert_eq!(decode_modular(&encoded, &near, &mut out), Ok(1));
        assert_eq!(bits(&out[1024..2048]), bits(&near[1024..2048]));
        // A receiver that is not finite cannot read the block either.
        let encoded = encode_modular(codec, &near, &[0.1; 3]);
        assert_eq!(decode_modular(&encoded, &own, &mut out), Ok(1));
        // Nor can one whose spread is not.
        let encoded = encode_modular(codec, &near, &[f32::INFINITY; 3]);
        assert_eq!(decode_modular(&encoded, &near, &mut out), Ok(3));
    }
}

#[test]
fn equal_magnitudes_are_taken_from_the_front() {
    let out = decoded(&encode(Codec::TopK, &vec![-1.0; 4096]));
    assert!(out[..64].iter().all(|&value| value == -1.0));
    assert!(out[64..].iter().all(|&value| value == 0.0));
}

#[test]
fn bytes_are_those_of_the_specification() {
    let check = |codec: Codec, values: &[f32], want: &[u8]| {
        assert_eq!(encode(codec, values).bytes[..], *want, "{codec}");
    };
    let one = 1.0_f32.to_le_bytes();
    check(Codec::Bf16, &[1.0, -2.0], &[0x80, 0x3f, 0x00, 0xc0]);
    check(Codec::F16, &[1.0, -2.0], &[0x00, 0x3c, 0x00, 0xc0]);
    check(Codec::Int8, &[1.0, -0.5], &[&one[..], &[127, 0xc0]].concat());
    check(Codec::Int4, &[1.0, -1.0, 0.0], &[&one[..], &[0x8f, 0x01]].concat());
    // Elements 0, 2, 4 in the lowest bits of three bytes, and so on: two per part.
    let levels = [0.5_f32.to_le_bytes(), 2.0_f32.to_le_bytes()].concat();
    check(Codec::Int2, &[0.5, -0.5, 2.0, -2.0, 0.5], &[&levels[..], &[0b1000, 0b1101]].concat());
    // One element of each byte's eighth: two bytes of nine elements.
    let signs = [0.5, -0.5, 1.0, -1.0, -1.0, 1.0, 2.0, 2.0, -0.0];
    check(Codec::Sign, &signs, &[&one[..], &[0b10100, 0b00011]].concat());
    check(Codec::TopK, &[0.0, -3.0], &[&3.0_f32.to_le_bytes()[..], &[0; 4], &[1, 0x10]].concat());
}

#[test]
fn bytes_of_modular_codes_are_those_of_the_specification() {
    // The step is 1, and 1, −1, 2, 3, 9, 0, −8, 5 and 4 are multiples of it.
    let values = [1.0, -1.0, 2.0, 3.0, 9.0, 0.0, -8.0, 5.0, 4.0];
    let check = |codec: Codec, hashed: &[(usize, i32)], planes: &[u8]| {
        let bits = codec.modular_bits().unwrap();
        let turn = (1_u32 << bits) as f32;
        let encoded = encode_modular(codec, &values, &[turn / 2.0 - 0.5 - turn / 256.0]);
        let power = |index: usize| 0x9e37_79b1_u32.wrapping_pow(index as u32 + 1);
        let terms = hashed.iter().map(|&(index, m)| m.cast_unsigned().wrapping_mul(power(index)));
        let hash = terms.fold(0, u32::wrapping_add);
        let want = [&1.0_f32.to_le_bytes()[..], &hash.to_le_bytes(), planes].concat();
        assert_eq!(encoded.bytes[..], want, "{codec}");
    };
    let bytes = values.map(|value: f32| value as i32 as u8);
    check(Codec::Modular, &[(1, -1), (6, -1)], &bytes);
    // Elements 0 to 4 in the low halves of five bytes, 5 to 8 in the high ones.
    check(Codec::Modular4, &[(1, -1), (6, -1)], &[0x01, 0x8f, 0x52, 0x43, 0x09]);
}
