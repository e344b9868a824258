//! One input after the other, the same ones for the same seed.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Longest input that is made.
const BYTES_MAX: usize = 16_384;
/// Most changes between an input and what is made of it, as a power of two.
const CHANGES_LOG2_MAX: u32 = 4;
/// Most inputs that are kept beside the first ones, so that changes add up.
const KEPT_MAX: usize = 512;
/// One of so many inputs is kept.
const KEPT_OF: u32 = 32;
/// Numbers at which lengths and counts are at an end.
const ENDS: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX];
/// What texts are made of.
const WORDS: [&str; 14] = [
    "0",
    "-1",
    "1e309",
    "NaN",
    "null",
    "true",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "\\u0000",
    "18446744073709551616",
    "\u{feff}",
];

/// Makes inputs.
#[derive(Debug)]
pub struct Mutator {
    random: ChaCha8Rng,
    first: Vec<Vec<u8>>,
    kept: Vec<Vec<u8>>,
}

impl Mutator {
    /// Begins with these inputs.
    #[must_use]
    pub fn new(seed: u64, first: Vec<Vec<u8>>) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), first, kept: Vec::new() }
    }

    /// The next input.
    pub fn input(&mut self) -> Vec<u8> {
        let mut input = self.known();
        for _ in 0..1_u32 << self.random.random_range(0..=CHANGES_LOG2_MAX) {
            self.change(&mut input);
        }
        input.truncate(BYTES_MAX);
        if self.random.random_ratio(1, KEPT_OF) {
            if self.kept.len() < KEPT_MAX {
                self.kept.push(input.clone());
            } else {
                let place = self.random.random_range(0..KEPT_MAX);
                self.kept[place].clone_from(&input);
            }
        }
        input
    }

    fn known(&mut self) -> Vec<u8> {
        let from =
            if self.kept.is_empty() || self.random.random() { &self.first } else { &self.kept };
        match from.len() {
            0 => Vec::new(),
            some => from[self.random.random_range(0..some)].clone(),
        }
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let place = self.random.random_range(0..=input.len());
        let length = self.random.random_range(1..=16_usize);
        let end = (place + length).min(input.len());
        match self.random.random_range(0..10) {
            0 | 1 if place < input.len() => input[place] ^= 1 << self.random.random_range(0..8),
            2 if place < input.len() => input[place] = self.random.random(),
            3 | 4 => self.number(input, place),
            5 => drop(input.drain(place..end)),
            6 => {
                let again = input[place..end].to_vec();
                input.splice(place..place, again);
            }
            7 => {
                // A piece of another input, in place of what is here or before it.
                let other = self.known();
                let from = self.random.random_range(0..=other.len());
                let to = self.random.random_range(from..=other.len());
                let end = if self.random.random() { end } else { place };
                input.splice(place..end, other[from..to].iter().copied());
            }
            8 => {
                let word = WORDS[self.random.random_range(0..WORDS.len())];
                let end = if self.random.random() { end } else { place };
                input.splice(place..end, word.bytes());
            }
            _ => {
                let new: Vec<u8> = (0..length).map(|_| self.random.random()).collect();
                input.splice(place..place, new);
            }
        }
    }

    /// Writes a number at an end, or near one, over what is here.
    fn number(&mut self, input: &mut [u8], place: usize) {
        let end = ENDS[self.random.random_range(0..ENDS.len())];
        let number = end.wrapping_add(self.random.random_range(0..3_u64)).wrapping_sub(1);
        let width = 1_usize << self.random.random_range(0..4);
        let Some(bytes) = input.get_mut(place..place + width) else { return };
        if self.random.random() {
            bytes.copy_from_slice(&number.to_le_bytes()[..width]);
        } else {
            bytes.copy_from_slice(&number.to_be_bytes()[8 - width..]);
        }
    }
}
