//! Distributions of initial parameters, built from additions and products only, so that every
//! machine draws the same bits.
//!
//! A long tensor is drawn in parts by several threads. Each begins where the generator would stand, so
//! the bits are those of one thread.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, available_parallelism};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use crate::kernel::vectorized;

/// Most threads that draw one tensor.
const DRAWING_THREADS_MAX: usize = 16;
/// Least elements that a thread draws: fewer take less time than it takes to start one.
const PART_ELEMENTS_MIN: usize = 1 << 18;
/// Uniform numbers of which a normal one is the sum.
const TERMS: usize = 12;
/// Elements whose random words are drawn at once: those of a normal tensor stay in the first cache.
const ROW_ELEMENTS: usize = 256;

/// A random word as the generator writes it.
type Word = [u8; 4];

/// The number in `[0, 1)` that 24 bits of the word say.
#[inline(always)]
const fn unit_of(word: Word) -> f32 {
    (u32::from_le_bytes(word) >> 8) as f32 / 16_777_216.0
}

/// Uniform in `[0, 1)`, 24 random bits.
pub(crate) fn unit(random: &mut ChaCha8Rng) -> f32 {
    unit_of(random.next_u32().to_le_bytes())
}

/// Uniform with mean 0 and variance `gain / fan_in`.
///
/// Gain 2 keeps the variance through a ReLU (He et al., arXiv:1502.01852, eq. 10).
pub(crate) fn uniform(random: &mut ChaCha8Rng, values: &mut [f32], fan_in: usize, gain: f32) {
    let bound = (3.0 * gain / fan_in as f32).sqrt();
    fill(
        random,
        values,
        #[inline(always)]
        |&[word]| bound * (2.0 * unit_of(word) - 1.0),
    );
}

/// Normal with mean 0, as the sum of twelve uniform numbers; never beyond 6 deviations.
pub(crate) fn normal(random: &mut ChaCha8Rng, values: &mut [f32], deviation: f32) {
    fill(
        random,
        values,
        #[inline(always)]
        |words: &[Word; TERMS]| {
            let sum: f32 = words.iter().map(|word| unit_of(*word)).sum();
            deviation * (sum - 6.0)
        },
    );
}

/// Fills `values`, each with what `number` makes of the next words of the generator.
fn fill<const WORDS: usize>(
    random: &mut ChaCha8Rng,
    values: &mut [f32],
    number: impl Fn(&[Word; WORDS]) -> f32 + Sync,
) {
    let most = available_parallelism().map_or(1, NonZero::get).min(DRAWING_THREADS_MAX);
    let threads = (values.len() / PART_ELEMENTS_MIN).clamp(1, most);
    if threads == 1 {
        return fill_part(random, values, &number);
    }
    let parts = values.chunks_mut(values.len().div_ceil(threads)).map(|part| {
        let here = random.clone();
        random.set_word_pos(here.get_word_pos() + (part.len() * WORDS) as u128);
        (here, part)
    });
    let parts = Mutex::new(parts.collect::<Vec<_>>().into_iter());
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((mut here, part)) = next() {
            fill_part(&mut here, part, &number);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that the system does not give leaves its part to the others.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

fn fill_part<const WORDS: usize>(
    random: &mut ChaCha8Rng,
    values: &mut [f32],
    number: &impl Fn(&[Word; WORDS]) -> f32,
) {
    let mut words = [[[0; size_of::<Word>()]; WORDS]; ROW_ELEMENTS];
    for row in values.chunks_mut(ROW_ELEMENTS) {
        let words = &mut words[..row.len()];
        random.fill_bytes(words.as_flattened_mut().as_flattened_mut());
        vectorized(
            #[inline(always)]
            || {
                for (value, words) in row.iter_mut().zip(&*words) {
                    *value = number(words);
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::initial_random;

    #[test]
    fn draws_have_the_stated_variance() {
        let mut values = vec![0.0; 40_000];
        let check = |values: &[f32], variance: f64| {
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let second = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
            assert!(mean.abs() < 0.02 * variance.sqrt(), "mean {mean}");
            assert!((second / variance - 1.0).abs() < 0.03, "variance {second}");
        };
        uniform(&mut initial_random(1), &mut values, 50, 2.0);
        check(&values, 0.04);
        normal(&mut initial_random(2), &mut values, 0.02);
        check(&values, 0.0004);
    }

    #[test]
    fn numbers_are_those_of_one_word_after_the_other_however_many_draw_them() {
        for elements in [1, 300, 3 * PART_ELEMENTS_MIN + 77] {
            let (mut random, mut plain) = (initial_random(3), initial_random(3));
            let mut values = vec![0.0; elements];
            // Not at the beginning of a block of the generator.
            assert_eq!(random.next_u32(), plain.next_u32());
            normal(&mut random, &mut values, 0.02);
            let same = values.iter().all(|value| {
                let sum: f32 = (0..TERMS).map(|_| unit(&mut plain)).sum();
                value.to_bits() == (0.02 * (sum - 6.0)).to_bits()
            });
            assert!(same, "normal, {elements} of them");
            uniform(&mut random, &mut values, 3, 1.0);
            let same = values
                .iter()
                .all(|value| value.to_bits() == (2.0 * unit(&mut plain) - 1.0).to_bits());
            assert!(same, "uniform, {elements} of them");
            assert_eq!(random.next_u32(), plain.next_u32(), "behind {elements} of them");
        }
    }
}
