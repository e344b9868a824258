//! [`Codec::Fixed64`] and [`Codec::Running32`]: integers, whose sums do not depend on the order.
//!
//! Running sums travel as their low 32 bits: the receiver subtracts what it got last, modulo 2³²,
//! and has the exact increment while that is below 2³¹.

use dnode_protocol::frame::{Codec, RUNNING_WEIGHT_ELEMENTS};

use super::{CodecError, Encoded};

/// Writes fixed-point numbers.
#[must_use]
pub fn encode_i64(values: &[i64]) -> Encoded {
    Encoded::filled(Codec::Fixed64, values.len(), |bytes| {
        let (places, _) = bytes.as_chunks_mut();
        for (place, value) in places.iter_mut().zip(values) {
            *place = value.to_le_bytes();
        }
    })
}

/// Reads fixed-point numbers into `out`, `[elements]`.
///
/// # Errors
/// [`CodecError`]; `out` is then unchanged.
pub fn decode_i64(encoded: &Encoded, out: &mut [i64]) -> Result<(), CodecError> {
    encoded.check(Codec::Fixed64, out.len())?;
    let (places, _) = encoded.bytes.as_chunks();
    for (value, place) in out.iter_mut().zip(places) {
        *value = i64::from_le_bytes(*place);
    }
    Ok(())
}

/// Writes the low 32 bits of running sums, and a weight behind them.
#[must_use]
pub fn encode_running(values: &[i64], weight: u64) -> Encoded {
    let elements = values.len() + RUNNING_WEIGHT_ELEMENTS;
    Encoded::filled(Codec::Running32, elements, |bytes| {
        let (sums, end) = bytes.split_at_mut(size_of::<i32>() * values.len());
        let (places, _) = sums.as_chunks_mut();
        for (place, value) in places.iter_mut().zip(values) {
            *place = (*value as i32).to_le_bytes();
        }
        end.copy_from_slice(&weight.to_le_bytes());
    })
}

/// Reads the low 32 bits of running sums into `out`, `[elements − 2]`; returns the weight.
///
/// # Errors
/// [`CodecError`]; `out` is then unchanged.
pub fn decode_running(encoded: &Encoded, out: &mut [i32]) -> Result<u64, CodecError> {
    let expected = out.len() + RUNNING_WEIGHT_ELEMENTS;
    encoded.check(Codec::Running32, expected)?;
    let (sums, end) = encoded.bytes.split_at(size_of_val(out));
    let (places, _) = sums.as_chunks();
    for (value, place) in out.iter_mut().zip(places) {
        *value = i32::from_le_bytes(*place);
    }
    let mut weight = [0; size_of::<u64>()];
    weight.copy_from_slice(end);
    Ok(u64::from_le_bytes(weight))
}
