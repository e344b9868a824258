//! [`Codec::F32`](dnode_protocol::frame::Codec::F32): every bit of every number.

use super::vectorized;

/// The numbers where they lie, if this machine keeps them as they travel.
pub(super) fn view(bytes: &[u8]) -> Option<&[f32]> {
    if cfg!(target_endian = "little") { bytemuck::try_cast_slice(bytes).ok() } else { None }
}

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    let (places, _) = bytes.as_chunks_mut();
    for (place, value) in places.iter_mut().zip(values) {
        *place = value.to_le_bytes();
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (places, _) = bytes.as_chunks();
    for (value, place) in out.iter_mut().zip(places) {
        *value = f32::from_le_bytes(*place);
    }
}

/// `target ← target + weight · decoded`.
pub(super) fn displace(bytes: &[u8], weight: f32, target: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            let (places, _) = bytes.as_chunks();
            for (value, place) in target.iter_mut().zip(places) {
                *value += weight * f32::from_le_bytes(*place);
            }
        },
    );
}
