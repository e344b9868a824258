//! Frames: the bytes of a control message and of a piece of a tensor, and every check on arrival.
//!
//! ```text
//! control   version u8 │ body_bytes u32 │ body (bincode wire format)
//! tensor    header, 96 bytes raw        │ payload: elements as the codec writes them
//! ```
//!
//! Bytes from a peer are hostile: no function here panics on them, and none allocates more than
//! [`crate::limits`] says. The two kinds of frame never share a stream. Normative text:
//! `docs/protocol.md`.

mod codec;
mod control;
mod error;
mod spare;
mod tensor;

pub use codec::{
    BLOCK_ELEMENTS, Codec, INT2_BLOCK_ELEMENTS, MODULAR_BLOCK_ELEMENTS, ParseCodecError,
    SIGN_BLOCK_ELEMENTS, TOP_K_CHUNK_ELEMENTS, TOP_K_ENTRY_BITS, TOP_K_ONE_IN, top_k_entries,
};
pub use control::{
    CONTROL_HEADER_BYTES, ControlHeader, DECODED_BYTES_MAX, control_bytes, decode_control,
    encode_control,
};
pub use error::{DecodeError, EncodeError, MessageError};
pub use spare::SpareBuffers;
pub use tensor::{
    Checksum, Leg, TENSOR_HEADER_BYTES, TENSOR_MAGIC, TensorHeader, read_f32s, write_f32s,
};
