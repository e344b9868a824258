//! The two formats of 16 bits: bfloat16 and IEEE 754 binary16, rounded to nearest even.
//!
//! The relative error is at most 2⁻⁸ for `bf16`, which has the range of f32, and 2⁻¹¹ for `f16`
//! from 6·10⁻⁵ up; below that the absolute error of `f16` is at most 2⁻²⁵, and above 65,519 it is
//! infinite. NaN stays NaN.

use super::{magnitude_bits, vectorized};

/// Bits of infinity.
const INFINITY: u32 = 0xff << 23;
/// Smallest number, as bits, whose exponent binary16 has.
const F16_NORMAL: u32 = (127 - 14) << 23;
/// Smallest power of two, as bits, that binary16 cannot hold.
const F16_OVERFLOW: u32 = (127 + 16) << 23;
/// The exponent of f32 is larger by this, as bits.
const F16_BIAS: u32 = (127 - 15) << 23;
/// Bits of ½: its unit in the last place is the unit of the subnormal numbers of binary16.
const HALF: u32 = (127 - 1) << 23;

#[inline(always)]
const fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if magnitude_bits(value) > INFINITY { quiet } else { rounded }) as u16
}

#[inline(always)]
fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = magnitude_bits(value);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(F16_BIAS).wrapping_add(0xfff + odd) >> 13;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(HALF)).to_bits().wrapping_sub(HALF);
    let number = if magnitude < F16_NORMAL { subnormal } else { normal };
    let other = if magnitude > INFINITY { 0x7e00 } else { 0x7c00 };
    let code = if magnitude >= F16_OVERFLOW { other } else { number };
    (((bits >> 16) & 0x8000) | code) as u16
}

#[inline(always)]
fn from_f16(code: u16) -> f32 {
    let code = u32::from(code);
    let shifted = (code & 0x7fff) << 13;
    let exponent = shifted & (0x1f << 23);
    let normal = shifted + F16_BIAS;
    let subnormal = (f32::from_bits(shifted + F16_NORMAL) - f32::from_bits(F16_NORMAL)).to_bits();
    let number = if exponent == 0 { subnormal } else { normal };
    let bits = if exponent == 0x1f << 23 { shifted | INFINITY } else { number };
    f32::from_bits(bits | ((code & 0x8000) << 16))
}

pub(super) fn encode_bf16(values: &[f32], bytes: &mut [u8]) {
    encode(
        values,
        bytes,
        #[inline(always)]
        |value| to_bf16(value),
    );
}

pub(super) fn encode_f16(values: &[f32], bytes: &mut [u8]) {
    encode(
        values,
        bytes,
        #[inline(always)]
        |value| to_f16(value),
    );
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    decode(
        bytes,
        out,
        #[inline(always)]
        |code| f32::from_bits(u32::from(code) << 16),
    );
}

pub(crate) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    decode(
        bytes,
        out,
        #[inline(always)]
        |code| from_f16(code),
    );
}

#[inline(always)]
fn encode(values: &[f32], bytes: &mut [u8], code: impl Fn(f32) -> u16) {
    vectorized(
        #[inline(always)]
        || {
            let (places, _) = bytes.as_chunks_mut();
            for (place, &value) in places.iter_mut().zip(values) {
                *place = code(value).to_le_bytes();
            }
        },
    );
}

#[inline(always)]
fn decode(bytes: &[u8], out: &mut [f32], number: impl Fn(u16) -> f32) {
    vectorized(
        #[inline(always)]
        || {
            let (places, _) = bytes.as_chunks();
            for (value, place) in out.iter_mut().zip(places) {
                *value = number(u16::from_le_bytes(*place));
            }
        },
    );
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn every_binary16_comes_back() {
        for code in 0..=u16::MAX {
            let value = from_f16(code);
            let nan = code & 0x7c00 == 0x7c00 && code & 0x3ff != 0;
            assert_eq!(value.is_nan(), nan, "{code:#x}");
            assert!(nan || to_f16(value) == code, "{code:#x}");
            let wide = f32::from_bits(u32::from(code) << 16);
            assert!(wide.is_nan() || to_bf16(wide) == code, "{code:#x}");
        }
    }

    #[test]
    fn known_values_of_binary16() {
        let check = |value: f32, code: u16| {
            assert_eq!(to_f16(value), code, "{value}");
            assert_eq!(to_f16(-value), code | 0x8000, "{value}");
        };
        check(0.0, 0);
        check(1.0, 0x3c00);
        check(65504.0, 0x7bff);
        check(65519.9, 0x7bff);
        check(65520.0, 0x7c00);
        check(1e30, 0x7c00);
        check(f32::INFINITY, 0x7c00);
        check(f32::from_bits((127 - 24) << 23), 1);
        check(f32::from_bits((127 - 25) << 23), 0);
        check(1e-40, 0);
        assert_eq!(from_f16(0x3555), 0.333_251_95);
        assert!(from_f16(to_f16(f32::NAN)).is_nan());
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for exponent in -20..15_i32 {
            for fraction in 0..4096_u32 {
                let value = (1.0 + fraction as f32 / 4096.0) * 2.0_f32.powi(exponent);
                let code = to_f16(value);
                let found = from_f16(code);
                let error = (found - value).abs();
                for other in [code - 1, code + 1].map(from_f16) {
                    let distance = (other - value).abs();
                    assert!(error < distance || (error == distance && code.is_multiple_of(2)));
                }
            }
        }
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(to_bf16(f32::MAX), 0x7f80);
        for bits in [0x7f80_0001, 0x7fff_ffff, 0xffff_ffff] {
            assert!(f32::from_bits(u32::from(to_bf16(f32::from_bits(bits))) << 16).is_nan());
        }
    }
}
