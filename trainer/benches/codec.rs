//! Size, error and speed of every codec on one core, beside what memory allows.
//!
//! `cargo bench -p dnode-trainer --bench codec` prints the table of `docs/measurements.md`;
//! arguments name the codecs to measure. Speed is in bytes of f32 that a fragment would have. The
//! bound is the speed of a loop that reads and writes the same bytes and computes nothing. Every
//! number is the fastest tenth of many fragments, so that a busy machine spoils it little.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints, and stops at the first error"
)]

use std::hint::black_box;
use std::time::Instant;

use dnode_protocol::frame::{Codec, MODULAR_BLOCK_ELEMENTS};
use dnode_trainer::codec::{Encoded, decode_displace, decode_modular, encode, encode_modular};

/// Elements of one fragment: 4 MiB of f32.
const ELEMENTS: usize = 1 << 20;
/// Fragments: together three times a cache of 32 MiB.
const FRAGMENTS: usize = 24;
/// Times that each fragment is measured.
const PASSES: usize = 12;
/// Elements that are read, then written, at a time.
const PIECE: usize = 4096;
/// Standard deviation of the distance of the replicas that `modular` joins.
const APART: f32 = 0.01;

/// Seconds of the fastest tenth.
fn fastest(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// Seconds of the work and of its bound, measured in turns.
fn measure(mut work: impl FnMut(usize), mut bound: impl FnMut(usize)) -> (f64, f64) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..PASSES {
        for fragment in 0..FRAGMENTS {
            let start = Instant::now();
            work(fragment);
            times[0].push(start.elapsed().as_secs_f64());
        }
        for fragment in 0..FRAGMENTS {
            let start = Instant::now();
            bound(fragment);
            times[1].push(start.elapsed().as_secs_f64());
        }
    }
    let [work, bound] = times.map(fastest);
    (work, bound)
}

/// Normally distributed numbers.
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

/// Adds up all words, so that all are read.
fn read(words: &[u8]) -> u64 {
    let mut lanes = [0_u64; 16];
    let (rows, _) = words.as_chunks::<128>();
    for row in rows {
        let (places, _) = row.as_chunks::<8>();
        for (lane, place) in lanes.iter_mut().zip(places) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*place));
        }
    }
    lanes.iter().fold(0, |sum, &lane| sum.wrapping_add(lane))
}

fn read_numbers(values: &[f32]) -> u32 {
    let mut lanes = [0_u32; 32];
    let (rows, _) = values.as_chunks::<32>();
    for row in rows {
        for (lane, value) in lanes.iter_mut().zip(row) {
            *lane = lane.wrapping_add(value.to_bits());
        }
    }
    lanes.iter().fold(0, |sum, &lane| sum.wrapping_add(lane))
}

/// Reads all numbers and writes as many bytes as the codec does.
fn encode_bound(codec: Codec, values: &[f32], bytes: &mut [u8]) {
    let mut rest = bytes;
    for piece in values.chunks(PIECE) {
        let (bytes, behind) = rest.split_at_mut(codec.payload_bytes(piece.len()));
        rest = behind;
        bytes.fill(read_numbers(piece) as u8);
    }
}

/// Reads all bytes and changes all numbers.
fn mix_bound(codec: Codec, bytes: &[u8], target: &mut [f32]) {
    let mut rest = bytes;
    for piece in target.chunks_mut(PIECE) {
        let (bytes, behind) = rest.split_at(codec.payload_bytes(piece.len()));
        rest = behind;
        let shift = (read(bytes) & 1) as f32;
        for value in piece {
            *value += shift;
        }
    }
}

struct Data {
    values: Vec<Vec<f32>>,
    targets: Vec<Vec<f32>>,
    spread: Vec<f32>,
}

impl Data {
    fn new() -> Self {
        let values = gaussian(ELEMENTS, 1);
        let near: Vec<f32> =
            values.iter().zip(gaussian(ELEMENTS, 2)).map(|(v, noise)| v + APART * noise).collect();
        let apart = |(a, b): (&f32, &f32)| (a - b).abs();
        let blocks = values.chunks(MODULAR_BLOCK_ELEMENTS).zip(near.chunks(MODULAR_BLOCK_ELEMENTS));
        let spread = blocks.map(|(a, b)| a.iter().zip(b).map(apart).fold(0.0, f32::max)).collect();
        Self { values: vec![values; FRAGMENTS], targets: vec![near; FRAGMENTS], spread }
    }

    fn encode(&self, codec: Codec, fragment: usize) -> Encoded {
        if Codec::MODULAR.contains(&codec) {
            encode_modular(codec, &self.values[fragment], &self.spread)
        } else {
            encode(codec, &self.values[fragment])
        }
    }

    /// Root mean square error, relative to the numbers, or to the distance of the replicas.
    fn error(&self, codec: Codec) -> f64 {
        let (values, near) = (&self.values[0], &self.targets[0]);
        let encoded = self.encode(codec, 0);
        let mut out = vec![0.0; ELEMENTS];
        if Codec::MODULAR.contains(&codec) {
            assert_eq!(decode_modular(&encoded, near, &mut out), Ok(0));
        } else {
            decode_displace(&encoded, 1.0, &mut out).unwrap();
        }
        let error = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        let square: f64 = values.iter().zip(&out).map(error).sum();
        let scale = if Codec::MODULAR.contains(&codec) { f64::from(APART) } else { 1.0 };
        (square / ELEMENTS as f64).sqrt() / scale
    }

    fn report(&mut self, codec: Codec) {
        let bytes = codec.payload_bytes(ELEMENTS);
        let error = self.error(codec);
        let mut written = vec![vec![0_u8; bytes]; FRAGMENTS];
        let (work, bound) = measure(
            |fragment| {
                black_box(self.encode(codec, fragment));
            },
            |fragment| encode_bound(codec, &self.values[fragment], &mut written[fragment]),
        );
        let bits = codec.bits_per_element();
        let ratio = 32.0 / bits;
        print!("| {codec} | {bits:.3} | {ratio:.2} | {:.3} % ", error * 100.0);
        cell(work, bound);
        let encoded: Vec<Encoded> = (0..FRAGMENTS).map(|f| self.encode(codec, f)).collect();
        let bytes: Vec<_> = encoded.iter().map(|e| e.bytes.clone()).collect();
        let mut near = self.targets.clone();
        let mut out = vec![0.0; ELEMENTS];
        let (work, bound) = measure(
            |fragment| {
                if Codec::MODULAR.contains(&codec) {
                    decode_modular(&encoded[fragment], &near[fragment], &mut out).unwrap();
                } else {
                    decode_displace(&encoded[fragment], 1e-9, &mut near[fragment]).unwrap();
                }
            },
            |fragment| mix_bound(codec, &bytes[fragment], &mut self.targets[fragment]),
        );
        cell(work, bound);
        println!("|");
        *self = Self::new();
    }
}

/// Speed, bound, and how many times longer than the bound it takes.
fn cell(work: f64, bound: f64) {
    let speed = |seconds: f64| (ELEMENTS * size_of::<f32>()) as f64 / seconds / 1e9;
    print!("| {:.1} | {:.1} | {:.2} ", speed(work), speed(bound), work / bound);
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!(
        "| codec | bits per parameter | ratio to f32 | relative error | encode, GB/s | bound | \
         times longer | decode and mix, GB/s | bound | times longer |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut data = Data::new();
    for codec in Codec::CHOICES.into_iter().chain(Codec::MODULAR) {
        if wanted.is_empty() || wanted.iter().any(|name| codec.name() == name) {
            data.report(codec);
        }
    }
}
