//! Codecs: how the elements of a tensor are written, and how many bytes that takes.
//!
//! A codec writes blocks of a fixed number of elements, and a frame holds whole blocks except at
//! the end of a tensor. So every frame decodes by itself, and its length follows from the number of
//! its elements. The arithmetic is in the trainer; the bytes are in `docs/protocol.md`, section 6.

use std::fmt;
use std::str::FromStr;

use wincode::{SchemaRead, SchemaWrite};

use super::DecodeError;
use crate::limits::{
    FIXED_FRAME_ELEMENTS, FRAME_ELEMENTS, PROTOCOL_VERSION, TENSOR_PAYLOAD_BYTES_MAX,
};

/// Elements of one block of [`Codec::Int8`] and [`Codec::Int4`].
///
/// Source: Dettmers et al., block-wise quantization (arXiv 2110.02861). They take 2048; a block of
/// 256 has a smaller largest element, and its word costs 0.125 bits per element.
pub const BLOCK_ELEMENTS: usize = 256;
/// Elements of one block of [`Codec::Int2`].
pub const INT2_BLOCK_ELEMENTS: usize = 1024;
/// Elements of one block of [`Codec::Sign`].
pub const SIGN_BLOCK_ELEMENTS: usize = 1024;
/// Elements of one block of the codes of [`Codec::MODULAR`]: a block that cannot be read is then a whole
/// block of every reply, which shows it as zeros.
pub const MODULAR_BLOCK_ELEMENTS: usize = 1024;
/// Elements of one chunk of [`Codec::TopK`]: a position in it takes 12 bits.
pub const TOP_K_CHUNK_ELEMENTS: usize = 4096;
/// One of this many elements is sent by [`Codec::TopK`].
pub const TOP_K_ONE_IN: usize = 64;
/// Bits of one element that [`Codec::TopK`] sends: 12 of its position, 2 of its value.
pub const TOP_K_ENTRY_BITS: usize = 14;

/// Bytes of an f32 or a u32 beside the elements of a block.
const WORD_BYTES: usize = 4;

/// How the elements of a tensor are written. Numbers stay those of their codecs; 8 is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SchemaRead, SchemaWrite)]
#[repr(u8)]
pub enum Codec {
    /// IEEE 754 binary32, little-endian, four bytes each.
    F32 = 0,
    /// The upper half of a binary32, rounded to nearest even: two bytes each.
    Bf16 = 1,
    /// IEEE 754 binary16, two bytes each.
    F16 = 2,
    /// Blocks of [`BLOCK_ELEMENTS`]: the largest magnitude, then a signed byte each.
    Int8 = 3,
    /// Blocks of [`BLOCK_ELEMENTS`]: the largest magnitude, then four bits each.
    Int4 = 4,
    /// Blocks of [`INT2_BLOCK_ELEMENTS`]: two magnitudes, then two bits each.
    Int2 = 5,
    /// Chunks of [`TOP_K_CHUNK_ELEMENTS`]: two magnitudes, then the largest elements alone.
    TopK = 6,
    /// Blocks of [`MODULAR_BLOCK_ELEMENTS`]: a step, a hash, then each multiple of the step modulo 256.
    Modular = 7,
    /// Fixed point: i64, little-endian, eight bytes each.
    #[wincode(tag = 9)]
    Fixed64 = 9,
    /// As [`Codec::Modular`], modulo 16.
    #[wincode(tag = 10)]
    Modular4 = 10,
    /// Blocks of [`SIGN_BLOCK_ELEMENTS`]: one magnitude, then one bit each.
    #[wincode(tag = 11)]
    Sign = 11,
}

impl Codec {
    /// Codecs that a run may choose for its numbers; the others belong to an algorithm.
    pub const CHOICES: [Self; 8] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::Int8,
        Self::Int4,
        Self::Int2,
        Self::Sign,
        Self::TopK,
    ];

    /// Codecs of a replica's own numbers for one whose numbers are near, from fine to coarse.
    pub const MODULAR: [Self; 2] = [Self::Modular, Self::Modular4];

    /// Bits of an element of a code of [`Codec::MODULAR`].
    #[must_use]
    pub const fn modular_bits(self) -> Option<u32> {
        match self {
            Self::Modular => Some(8),
            Self::Modular4 => Some(4),
            Self::F32
            | Self::Bf16
            | Self::F16
            | Self::Int8
            | Self::Int4
            | Self::Int2
            | Self::Sign
            | Self::TopK
            | Self::Fixed64 => None,
        }
    }

    /// Every codec, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::Int8,
        Self::Int4,
        Self::Int2,
        Self::TopK,
        Self::Modular,
        Self::Fixed64,
        Self::Modular4,
        Self::Sign,
    ];

    /// Its name, in configurations and in print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Int2 => "int2",
            Self::TopK => "top-k",
            Self::Modular => "modular",
            Self::Fixed64 => "fixed64",
            Self::Modular4 => "modular4",
            Self::Sign => "sign",
        }
    }

    /// The code of an initiator's weights where differences are written in this one.
    #[must_use]
    pub const fn of_offer(self) -> Self {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => self,
            Self::Int8 | Self::TopK => Self::Modular,
            Self::Int4 | Self::Int2 | Self::Sign => Self::Modular4,
            Self::Modular | Self::Modular4 | Self::Fixed64 => Self::F32,
        }
    }

    /// Length of a run of `elements` that begins at a multiple of [`Codec::frame_elements`], bytes.
    ///
    /// A whole tensor is as long as its frames together.
    #[must_use]
    pub const fn payload_bytes(self, elements: usize) -> usize {
        let blocks = elements.div_ceil(BLOCK_ELEMENTS);
        match self {
            Self::F32 => elements * size_of::<f32>(),
            Self::Bf16 | Self::F16 => elements * size_of::<u16>(),
            Self::Int8 => blocks * WORD_BYTES + elements,
            // Only the last block can be odd, so halves round up once.
            Self::Int4 => blocks * WORD_BYTES + elements.div_ceil(2),
            Self::Int2 => {
                elements.div_ceil(INT2_BLOCK_ELEMENTS) * 2 * WORD_BYTES + elements.div_ceil(4)
            }
            Self::Sign => {
                elements.div_ceil(SIGN_BLOCK_ELEMENTS) * WORD_BYTES + elements.div_ceil(8)
            }
            Self::TopK => {
                let rest = elements % TOP_K_CHUNK_ELEMENTS;
                let last = if rest == 0 { 0 } else { top_k_chunk_bytes(rest) };
                elements / TOP_K_CHUNK_ELEMENTS * top_k_chunk_bytes(TOP_K_CHUNK_ELEMENTS) + last
            }
            Self::Modular => modular_words(elements) + elements,
            Self::Modular4 => modular_words(elements) + elements.div_ceil(2),
            Self::Fixed64 => elements * size_of::<i64>(),
        }
    }

    /// Elements of every frame of a tensor but its last one.
    #[must_use]
    pub const fn frame_elements(self) -> usize {
        match self {
            Self::Fixed64 => FIXED_FRAME_ELEMENTS,
            Self::F32
            | Self::Bf16
            | Self::F16
            | Self::Int8
            | Self::Int4
            | Self::Int2
            | Self::Sign
            | Self::TopK
            | Self::Modular
            | Self::Modular4 => FRAME_ELEMENTS,
        }
    }

    /// Bits of one element of a long tensor, its share of the block's words included.
    #[must_use]
    pub fn bits_per_element(self) -> f64 {
        // Every block divides a frame.
        let elements = self.frame_elements();
        (self.payload_bytes(elements) * 8) as f64 / elements as f64
    }
}

/// Bytes of the steps and the hashes of a code of [`Codec::MODULAR`].
const fn modular_words(elements: usize) -> usize {
    elements.div_ceil(MODULAR_BLOCK_ELEMENTS) * 2 * WORD_BYTES
}

/// Elements that [`Codec::TopK`] sends of a chunk of `elements`.
#[must_use]
pub const fn top_k_entries(elements: usize) -> usize {
    elements.div_ceil(TOP_K_ONE_IN)
}

/// Bytes of a chunk of [`Codec::TopK`].
const fn top_k_chunk_bytes(elements: usize) -> usize {
    2 * WORD_BYTES + (top_k_entries(elements) * TOP_K_ENTRY_BITS).div_ceil(8)
}

impl fmt::Display for Codec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// No codec of that name can be chosen; the configuration is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read codec \"{0}\": one of f32, bf16, f16, int8, int4, int2, sign, top-k")]
pub struct ParseCodecError(pub String);

impl FromStr for Codec {
    type Err = ParseCodecError;

    /// Reads the name of one of [`Codec::CHOICES`].
    fn from_str(name: &str) -> Result<Self, ParseCodecError> {
        let found = Self::CHOICES.into_iter().find(|codec| codec.name() == name);
        found.ok_or_else(|| ParseCodecError(name.to_owned()))
    }
}

impl TryFrom<u8> for Codec {
    type Error = DecodeError;

    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        let found = Self::ALL.into_iter().find(|codec| *codec as u8 == byte);
        found.ok_or(DecodeError::Codec(byte))
    }
}

const _: () = {
    assert!(PROTOCOL_VERSION >= 2, "version 1 knows F32 alone");
    assert!(FRAME_ELEMENTS.is_multiple_of(FIXED_FRAME_ELEMENTS));
    assert!(FIXED_FRAME_ELEMENTS.is_multiple_of(TOP_K_CHUNK_ELEMENTS));
    assert!(TOP_K_CHUNK_ELEMENTS.is_multiple_of(INT2_BLOCK_ELEMENTS));
    assert!(INT2_BLOCK_ELEMENTS.is_multiple_of(BLOCK_ELEMENTS));
    assert!(SIGN_BLOCK_ELEMENTS == INT2_BLOCK_ELEMENTS);
    assert!(MODULAR_BLOCK_ELEMENTS.is_multiple_of(BLOCK_ELEMENTS));
    assert!(MODULAR_BLOCK_ELEMENTS.is_multiple_of(INT2_BLOCK_ELEMENTS));
    assert!(TOP_K_CHUNK_ELEMENTS.is_multiple_of(MODULAR_BLOCK_ELEMENTS));
    assert!(TOP_K_CHUNK_ELEMENTS <= 1 << 12);
    let mut index = 0;
    while index < Codec::ALL.len() {
        let codec = Codec::ALL[index];
        assert!(index == 0 || codec as usize > Codec::ALL[index - 1] as usize);
        assert!(codec.payload_bytes(codec.frame_elements()) <= TENSOR_PAYLOAD_BYTES_MAX);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_choices_are_read_back_and_others_are_refused() {
        for codec in Codec::ALL {
            let read = codec.name().parse::<Codec>();
            assert_eq!(read.is_ok(), Codec::CHOICES.contains(&codec), "{codec}");
            assert!(read.is_err() || read == Ok(codec));
            assert_eq!(Codec::try_from(codec as u8).unwrap(), codec);
        }
        assert!("F32".parse::<Codec>().is_err());
        for number in [8, 12] {
            assert!(matches!(Codec::try_from(number), Err(DecodeError::Codec(_))), "{number}");
        }
    }

    #[test]
    fn lengths_add_up_over_frames() {
        for codec in Codec::ALL {
            let frame = codec.frame_elements();
            for elements in [1, 2, 255, 256, 257, 4095, 4096, 4097, frame - 1, frame] {
                let whole = codec.payload_bytes(3 * frame + elements);
                let parts = 3 * codec.payload_bytes(frame) + codec.payload_bytes(elements);
                assert_eq!(whole, parts, "{codec} {elements}");
                assert!(codec.payload_bytes(elements) > 0);
            }
            assert_eq!(codec.payload_bytes(0), 0);
        }
    }

    #[test]
    fn sizes_are_those_of_the_specification() {
        let check = |codec: Codec, elements, bytes| {
            assert_eq!(codec.payload_bytes(elements), bytes, "{codec} {elements}");
        };
        check(Codec::F32, 3, 12);
        check(Codec::Bf16, 3, 6);
        check(Codec::Int8, 257, 265);
        check(Codec::Int4, 257, 4 + 128 + 4 + 1);
        check(Codec::Int2, 1025, 8 + 256 + 8 + 1);
        check(Codec::Sign, 1033, 4 + 128 + 4 + 2);
        check(Codec::TopK, 4096, 8 + 112);
        check(Codec::TopK, 65, 8 + 4);
        check(Codec::Modular, 1024, 1032);
        check(Codec::Modular4, 1025, 8 + 512 + 8 + 1);
        check(Codec::Fixed64, 5, 40);
        for (codec, bits) in
            [(Codec::Int4, 4.125), (Codec::Sign, 1.031_25), (Codec::TopK, 0.234_375)]
        {
            assert!((codec.bits_per_element() - bits).abs() < 1e-12, "{codec}");
        }
    }
}
