//! The kernels by name, and what they are told.

use dnode_protocol::frame::SIGN_BLOCK_ELEMENTS;
use dnode_protocol::frame::{BLOCK_ELEMENTS, Codec, INT2_BLOCK_ELEMENTS, MODULAR_BLOCK_ELEMENTS};

/// What runs on a device, for NVRTC or a C++ compiler.
pub(crate) const SOURCE: &str = include_str!("kernels.cu");
/// Threads of a thread block: `WARPS` of the source, of `LANES` threads.
pub(crate) const THREADS: u32 = 256;
/// Threads that work on one unit.
pub(crate) const LANES: u64 = 32;

/// What a kernel is to do, as the structure of this name in the source: addresses on the device, counts.
/// What a kernel does not use is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Numbers that are read.
    pub(crate) from: u64,
    /// Numbers that are written.
    pub(crate) to: u64,
    /// Momentum, spread by block, or the receiver's own numbers.
    pub(crate) beside: u64,
    /// Codes, or what a reduction leaves.
    pub(crate) bytes: u64,
    /// The count of blocks that could not be read.
    pub(crate) unread: u64,
    /// Numbers.
    pub(crate) len: u64,
    /// Blocks, or shares of a reduction.
    pub(crate) units: u64,
    /// Numbers of a share, or bits of a modular code.
    pub(crate) share: u64,
    /// A factor.
    pub(crate) first: f32,
    /// Another.
    pub(crate) second: f32,
}

const _: () = assert!(size_of::<Work>() == 72, "as the source has it");
const _: () = assert!(BLOCK_ELEMENTS == 256 && INT2_BLOCK_ELEMENTS == 1024, "as the source has it");
const _: () = assert!(SIGN_BLOCK_ELEMENTS == 1024, "as the source has it");
const _: () = assert!(MODULAR_BLOCK_ELEMENTS == 1024, "as the source has it");

macro_rules! kernels {
    ($($name:ident $symbol:literal,)*) => {
        /// One of the functions of the source.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kernel {
            $($name,)*
        }

        impl Kernel {
            /// All, in the order of their numbers.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in the source.
            pub(crate) const fn symbol(self) -> &'static str {
                match self {
                    $(Self::$name => $symbol,)*
                }
            }
        }
    };
}

kernels! {
    SetScaled "set_scaled",
    AddScaled "add_scaled",
    Scale "scale",
    Direct "direct",
    Squares "squares",
    Least "least",
    Learn "learn",
    EncodeBf16 "encode_bf16",
    DecodeBf16 "decode_bf16",
    EncodeF16 "encode_f16",
    DecodeF16 "decode_f16",
    EncodeInt8 "encode_int8",
    DecodeInt8 "decode_int8",
    EncodeInt4 "encode_int4",
    DecodeInt4 "decode_int4",
    EncodeInt2 "encode_int2",
    DecodeInt2 "decode_int2",
    EncodeSign "encode_sign",
    DecodeSign "decode_sign",
    EncodeModular "encode_modular",
    DecodeModular "decode_modular",
}

impl Kernel {
    /// The pair that writes and reads a code of plain numbers, and the elements of its blocks; nothing
    /// where the device has none.
    pub(crate) const fn of(codec: Codec) -> Option<(Self, Self, usize)> {
        match codec {
            Codec::Bf16 => Some((Self::EncodeBf16, Self::DecodeBf16, 1)),
            Codec::F16 => Some((Self::EncodeF16, Self::DecodeF16, 1)),
            Codec::Int8 => Some((Self::EncodeInt8, Self::DecodeInt8, BLOCK_ELEMENTS)),
            Codec::Int4 => Some((Self::EncodeInt4, Self::DecodeInt4, BLOCK_ELEMENTS)),
            Codec::Int2 => Some((Self::EncodeInt2, Self::DecodeInt2, INT2_BLOCK_ELEMENTS)),
            Codec::Sign => Some((Self::EncodeSign, Self::DecodeSign, SIGN_BLOCK_ELEMENTS)),
            Codec::F32 | Codec::TopK | Codec::Modular | Codec::Modular4 | Codec::Fixed64 => None,
        }
    }

    /// How many threads it takes: one for each element, or a warp for each unit.
    pub(crate) const fn threads(self, work: &Work) -> u64 {
        match self {
            Self::SetScaled
            | Self::AddScaled
            | Self::Scale
            | Self::Direct
            | Self::EncodeBf16
            | Self::DecodeBf16
            | Self::EncodeF16
            | Self::DecodeF16 => work.len,
            Self::Squares
            | Self::Least
            | Self::Learn
            | Self::EncodeInt8
            | Self::DecodeInt8
            | Self::EncodeInt4
            | Self::DecodeInt4
            | Self::EncodeInt2
            | Self::DecodeInt2
            | Self::EncodeSign
            | Self::DecodeSign
            | Self::EncodeModular
            | Self::DecodeModular => work.units * LANES,
        }
    }
}
