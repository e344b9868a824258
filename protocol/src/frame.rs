//! Frames: the bytes of a control message and of a piece of a tensor, and every check on arrival.
//!
//! ```text
//! control   version u8 │ body_bytes u32 │ body (bincode wire format)
//! tensor    header, 96 bytes raw        │ payload: f32, little-endian
//! ```
//!
//! Bytes from a peer are hostile: no function here panics on them, and none allocates more than
//! [`crate::limits`] says. The two kinds of frame never share a stream. Normative text:
//! `docs/protocol.md`.

mod control;
mod error;
mod tensor;

pub use control::{
    CONTROL_HEADER_BYTES, ControlHeader, DECODED_BYTES_MAX, decode_control, encode_control,
};
pub use error::{DecodeError, EncodeError, MessageError};
pub use tensor::{
    Checksum, Codec, Leg, TENSOR_HEADER_BYTES, TENSOR_MAGIC, TensorHeader, read_f32s, write_f32s,
};
