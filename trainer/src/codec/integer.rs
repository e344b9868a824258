//! [`Codec::Fixed64`]: integers, whose sums do not depend on the order.

use dnode_protocol::frame::Codec;

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
