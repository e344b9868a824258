//! Numbers of 8 bits in blocks that have a scale each.
//!
//! Source: Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", arXiv:2110.02861: blocks, and
//! codes that are finer for small numbers. There a code stands for an entry of a table. Here it is the upper
//! bits of a float with an exponent of four bits, which needs none.
//!
//! Rounding is stochastic: on average it changes nothing. A second moment moves by a hundredth or a thousandth
//! in a step; rounded to the nearest code it would stand still.

use crate::kernel::{reduce, vectorized};

/// Numbers that share a scale.
pub(super) const BLOCK: usize = 256;

/// Blocks whose largest number is below this are zero: scales must have an inverse.
const LARGEST_MIN: f32 = 1e-36;

/// Bits of the mantissa of an f32.
const F32_MANTISSA: u32 = 23;
/// The exponent of 1, as an f32 has it. The largest codes are between 1 and 2 scales.
const EXPONENT_OF_ONE: u32 = 127;

/// Takes numbers that follow each other far apart (2³² over the golden ratio).
const GOLDEN: u32 = 0x9e37_79b9;

/// What a code is made of beside the four bits of its exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A sign and an exponent of two bits: what counts is the error of many numbers together.
    Signed,
    /// An exponent of three bits. Nothing but zero becomes zero: who divides by the root of it is safe.
    Unsigned,
}

/// A number in `0..2³²` for each place of a block.
const PLACES: [u32; BLOCK] = {
    let (mut places, mut place) = ([0; BLOCK], 0);
    while place < BLOCK {
        places[place] = drawn((place as u32).wrapping_mul(GOLDEN), 0);
        place += 1;
    }
    places
};

/// A number in `0..2³²` that belongs to `index` and `key`, as good as drawn (the last steps of MurmurHash3).
const fn drawn(index: u32, key: u32) -> u32 {
    let mut bits = index ^ key;
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

/// A key for a purpose in an update; updates that differ have different keys.
pub(super) const fn key(update: u64, purpose: u32) -> u32 {
    let update = update as u32 ^ (update >> 32) as u32;
    drawn(update.wrapping_mul(GOLDEN), purpose)
}

/// The sign of a code, where it has one.
const SIGN: u32 = 0x80;

/// Bits of the mantissa of a code.
const MANTISSA: u32 = 5;

/// Constants of a form.
#[derive(Clone, Copy)]
struct Shape<const EXPONENT: u32>;

impl<const EXPONENT: u32> Shape<EXPONENT> {
    /// As an f32 has it, the exponent of the smallest codes with an exponent of their own, which are this many
    /// scales; those below are evenly spaced down to zero.
    const EXPONENT_MIN: u32 = EXPONENT_OF_ONE + 2 - (1 << EXPONENT);
    const EVEN: f32 = f32::from_bits(Self::EXPONENT_MIN << F32_MANTISSA);
    const SHIFT: u32 = F32_MANTISSA - MANTISSA;
    /// Largest code without a sign.
    const CODE_MAX: u32 = (1 << (EXPONENT + MANTISSA)) - 1;
    /// What that stands for, in scales.
    const LARGEST: f32 = 2.0 - 1.0 / (1_u32 << MANTISSA) as f32;

    #[inline(always)]
    fn decode(code: u32) -> f32 {
        let bits = code << Self::SHIFT;
        let even = f32::from_bits(bits + (Self::EXPONENT_MIN << F32_MANTISSA)) - Self::EVEN;
        let value = f32::from_bits(bits + ((Self::EXPONENT_MIN - 1) << F32_MANTISSA));
        if code < 1 << MANTISSA { even } else { value }
    }

    /// `size`: in scales, 0 or more. The result may be above the largest code.
    #[inline(always)]
    const fn code(size: f32, place: u32, key: u32) -> i32 {
        // One product of what is as good as drawn twice, of the place and of the block.
        let up = (place ^ key).wrapping_mul(GOLDEN) >> (u32::BITS - Self::SHIFT);
        let (size, before) = if size < Self::EVEN {
            (size + Self::EVEN, Self::EXPONENT_MIN)
        } else {
            (size, Self::EXPONENT_MIN - 1)
        };
        let bits = (size.to_bits() + up) >> Self::SHIFT;
        bits.cast_signed() - (before << MANTISSA).cast_signed()
    }
}

type Signed = Shape<2>;
type Unsigned = Shape<3>;

/// The numbers of some blocks, one scale for each; the last block may be short.
pub(super) fn decode(form: Form, codes: &[u8], scales: &[f32], out: &mut [f32]) {
    let blocks = codes.chunks(BLOCK).zip(out.chunks_mut(BLOCK)).zip(scales);
    vectorized(
        #[inline(always)]
        || {
            for ((codes, out), &scale) in blocks {
                match form {
                    Form::Signed => {
                        for (&code, out) in codes.iter().zip(out) {
                            let size = Signed::decode(u32::from(code) & Signed::CODE_MAX) * scale;
                            let sign = (u32::from(code) & SIGN) << (u32::BITS - u8::BITS);
                            *out = f32::from_bits(size.to_bits() | sign);
                        }
                    }
                    Form::Unsigned => {
                        for (&code, out) in codes.iter().zip(out) {
                            *out = Unsigned::decode(code.into()) * scale;
                        }
                    }
                }
            }
        },
    );
}

/// Writes `values` as codes of some blocks with a scale for each. `first` is where they lie in their vector:
/// what is drawn for a number belongs to its place and to `key`.
pub(super) fn encode(
    form: Form,
    values: &[f32],
    (first, key): (usize, u32),
    (codes, scales): (&mut [u8], &mut [f32]),
) {
    let blocks = values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(scales);
    let mut first = first as u32;
    vectorized(
        #[inline(always)]
        || {
            for ((values, codes), scale) in blocks {
                let largest = reduce::largest(values);
                let one = match form {
                    Form::Signed => Signed::LARGEST,
                    Form::Unsigned => Unsigned::LARGEST,
                };
                let (up, down) =
                    if largest > LARGEST_MIN { (one / largest, largest / one) } else { (0.0, 0.0) };
                *scale = down;
                let key = drawn(first.wrapping_mul(GOLDEN), key);
                match form {
                    Form::Signed => {
                        for ((&value, code), &place) in values.iter().zip(codes).zip(&PLACES) {
                            let size = Signed::code(value.abs() * up, place, key);
                            let size = size.clamp(0, Signed::CODE_MAX.cast_signed()) as u32;
                            let sign = (value.to_bits() >> (u32::BITS - u8::BITS)) & SIGN;
                            *code = (size | sign) as u8;
                        }
                    }
                    Form::Unsigned => {
                        for ((&value, code), &place) in values.iter().zip(codes).zip(&PLACES) {
                            let size = Unsigned::code(value * up, place, key);
                            let size = size.clamp(1, Unsigned::CODE_MAX.cast_signed());
                            *code = if value * up > 0.0 { size as u8 } else { 0 };
                        }
                    }
                }
                first = first.wrapping_add(BLOCK as u32);
            }
        },
    );
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "zero is exact")]
mod tests {
    use super::*;

    fn through(form: Form, values: &[f32], key: u32) -> Vec<f32> {
        let blocks = values.len().div_ceil(BLOCK);
        let (mut codes, mut scales) = (vec![0; values.len()], vec![0.0; blocks]);
        encode(form, values, (0, key), (&mut codes, &mut scales));
        let mut out = vec![f32::NAN; values.len()];
        decode(form, &codes, &scales, &mut out);
        out
    }

    #[test]
    fn every_code_comes_back_from_the_number_that_it_stands_for() {
        for form in [Form::Signed, Form::Unsigned] {
            let codes: Vec<u8> = (0..=255).rev().filter(|&code| code != 0x80).collect();
            let mut numbers = vec![0.0; codes.len()];
            decode(form, &codes, &[1.0], &mut numbers);
            for key in [0, 1, 0xffff_ffff] {
                let (mut again, mut scales) = (vec![0; codes.len()], [0.0]);
                encode(form, &numbers, (7, key), (&mut again, &mut scales));
                assert!((scales[0] - 1.0).abs() < 1e-6, "{form:?} {scales:?}");
                let near = |(&code, &again): (&u8, &u8)| code.abs_diff(again) <= 1;
                assert!(codes.iter().zip(&again).all(near), "{form:?}");
            }
        }
    }

    #[test]
    fn a_number_changes_by_a_step_of_its_exponent_at_most_and_by_nothing_on_average() {
        let values: Vec<f32> =
            (0..1_000).map(|i| ((i * i % 997) as f32 / 997.0 - 0.5) * 3e-4).collect();
        let sizes: Vec<f32> = values.iter().map(|value| value * value).collect();
        for (form, values, even) in
            [(Form::Signed, &values, Signed::EVEN), (Form::Unsigned, &sizes, Unsigned::EVEN)]
        {
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let step = 1.0 / 32.0;
            let smallest = largest * even * step;
            let mut mean = vec![0.0_f64; values.len()];
            let times = 400;
            for key in 0..times {
                for ((value, out), mean) in
                    values.iter().zip(through(form, values, key)).zip(&mut mean)
                {
                    let most = 1.001 * (value.abs() * step).max(smallest);
                    assert!((value - out).abs() <= most, "{form:?}: {value} became {out}");
                    *mean += f64::from(out) / f64::from(times);
                }
            }
            for (value, mean) in values.iter().zip(mean) {
                let apart = (f64::from(*value) - mean).abs();
                let most = f64::from(0.15 * value.abs() * step + smallest);
                assert!(apart <= most, "{form:?}: {value} is {mean} on average");
            }
        }
    }

    #[test]
    fn nothing_stays_nothing_and_what_is_divided_by_never_becomes_it() {
        for form in [Form::Signed, Form::Unsigned] {
            assert!(through(form, &[0.0; 300], 5).iter().all(|value| *value == 0.0));
            assert!(through(form, &[1e-38; 300], 5).iter().all(|value| *value == 0.0));
        }
        let mut values = vec![1e-20; 300];
        (values[3], values[299]) = (1.0, 0.0);
        let out = through(Form::Unsigned, &values, 9);
        assert!(out[..256].iter().all(|value| *value >= Unsigned::EVEN / 64.0), "{out:?}");
        assert!(out[299] == 0.0 && out[298] > 0.0);
        assert_eq!(through(Form::Signed, &values, 9)[0], 0.0);
    }

    #[test]
    fn what_is_not_a_number_does_no_harm() {
        for form in [Form::Signed, Form::Unsigned] {
            let _ = through(form, &[f32::NAN, 1.0, f32::INFINITY, -1.0, f32::MAX], 1);
        }
    }
}
