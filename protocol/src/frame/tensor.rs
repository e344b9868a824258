//! Tensor frames: a fixed header, the elements as their codec writes them, a checksum over both.

use std::ops::Range;

use twox_hash::XxHash3_128;

use super::{Codec, DecodeError};
use crate::limits::{FRAGMENT_ELEMENTS_MAX, FRAGMENTS_MAX, PROTOCOL_VERSION};
use crate::{Clock, ExchangeId, FragmentId, PeerId};

/// First bytes of every tensor frame.
pub const TENSOR_MAGIC: [u8; 4] = *b"dnT\xf5";

/// Length of a [`TensorHeader`] with its checksum on the wire, bytes.
pub const TENSOR_HEADER_BYTES: usize = FIELDS_BYTES + CHECKSUM_BYTES;

/// Length of the header without its checksum.
const FIELDS_BYTES: usize = 80;

/// 128 bits: random corruption passes once in 2^128, and the sender is authenticated by the carrier.
const CHECKSUM_BYTES: usize = 16;

/// Bytes of one f32.
const ELEMENT_BYTES: usize = size_of::<f32>();

/// Which tensor of an exchange a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Leg {
    /// The initiator's fragment, to the responder.
    Offer = 0,
    /// The responder's answer, to the initiator.
    Reply = 1,
    /// A donor's fragment, to the peer that pulls it.
    Snapshot = 2,
    /// A piece of a ring all-reduce, to the next peer of the ring.
    Ring = 3,
    /// A contribution, to the peer that fetches it.
    Contribution = 4,
}

impl TryFrom<u8> for Leg {
    type Error = DecodeError;

    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        match byte {
            0 => Ok(Self::Offer),
            1 => Ok(Self::Reply),
            2 => Ok(Self::Snapshot),
            3 => Ok(Self::Ring),
            4 => Ok(Self::Contribution),
            other => Err(DecodeError::Leg(other)),
        }
    }
}

/// What precedes the payload of a tensor frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorHeader {
    /// The exchange this tensor belongs to.
    pub exchange: ExchangeId,
    /// Which tensor of the exchange.
    pub leg: Leg,
    /// How the elements are written.
    pub codec: Codec,
    /// The fragment the tensor is of.
    pub fragment: FragmentId,
    /// The sender's clock when it read the fragment.
    pub clock: Clock,
    /// Elements of the whole tensor, 1 to [`FRAGMENT_ELEMENTS_MAX`].
    pub elements: u32,
    /// First element of this frame, a multiple of [`Codec::frame_elements`].
    pub offset: u32,
    /// Elements of this frame: [`Codec::frame_elements`], or what the tensor has left.
    pub count: u32,
}

impl TensorHeader {
    /// The header on the wire, its checksum over header and `payload` included.
    ///
    /// # Panics
    /// When the header breaks a limit or `payload` is not [`TensorHeader::payload_bytes`] long: both
    /// come from this process, so either is a defect here.
    #[must_use]
    pub fn encode(&self, payload: &[u8]) -> [u8; TENSOR_HEADER_BYTES] {
        if let Err(error) = self.check() {
            panic!("send a tensor frame within the limits: {error}");
        }
        assert_eq!(
            payload.len(),
            self.payload_bytes(),
            "the header announces the payload's length"
        );
        let mut bytes = [0; TENSOR_HEADER_BYTES];
        let (fields, checksum) = bytes.split_at_mut(FIELDS_BYTES);
        self.write_fields(fields);
        checksum.copy_from_slice(&checksum_of(fields, payload));
        bytes
    }

    fn write_fields(&self, mut fields: &mut [u8]) {
        let mut put = |bytes: &[u8]| {
            let (head, rest) = std::mem::take(&mut fields).split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            fields = rest;
        };
        put(&TENSOR_MAGIC);
        put(&[PROTOCOL_VERSION, self.leg as u8, self.codec as u8, 0]);
        put(self.exchange.initiator.public_key());
        put(&self.exchange.incarnation.to_le_bytes());
        put(&self.exchange.sequence.to_le_bytes());
        put(&self.clock.0.to_le_bytes());
        put(&self.fragment.0.to_le_bytes());
        put(&self.elements.to_le_bytes());
        put(&self.offset.to_le_bytes());
        put(&self.count.to_le_bytes());
        assert!(fields.is_empty(), "the fields fill the header");
    }

    /// Reads a header and checks every limit; the caller may then allocate
    /// [`TensorHeader::payload_bytes`].
    ///
    /// The checksum is verified with the payload: [`Checksum::verify`].
    ///
    /// # Errors
    /// [`DecodeError`]; the peer is at fault and its connection should be closed.
    pub fn decode(bytes: &[u8; TENSOR_HEADER_BYTES]) -> Result<(Self, Checksum), DecodeError> {
        let mut reader = FieldReader { bytes };
        let magic = reader.take();
        if magic != TENSOR_MAGIC {
            return Err(DecodeError::Magic(magic));
        }
        let [version, leg, codec, reserved] = reader.take();
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version(version));
        }
        if reserved != 0 {
            return Err(DecodeError::Reserved(reserved));
        }
        let header = Self {
            leg: Leg::try_from(leg)?,
            codec: Codec::try_from(codec)?,
            exchange: ExchangeId {
                initiator: PeerId::from_public_key(reader.take()),
                incarnation: u64::from_le_bytes(reader.take()),
                sequence: u64::from_le_bytes(reader.take()),
            },
            clock: Clock(u64::from_le_bytes(reader.take())),
            fragment: FragmentId(u32::from_le_bytes(reader.take())),
            elements: u32::from_le_bytes(reader.take()),
            offset: u32::from_le_bytes(reader.take()),
            count: u32::from_le_bytes(reader.take()),
        };
        header.check()?;
        Ok((header, Checksum { header: *bytes }))
    }

    /// The elements of the tensor that the payload holds.
    ///
    /// Within `0..elements` for every header that [`TensorHeader::decode`] returned.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start + self.count as usize
    }

    /// Length of the payload, bytes.
    ///
    /// At most [`crate::limits::TENSOR_PAYLOAD_BYTES_MAX`] for every header that
    /// [`TensorHeader::decode`] returned.
    #[must_use]
    pub const fn payload_bytes(&self) -> usize {
        self.codec.payload_bytes(self.count as usize)
    }

    /// Cuts a whole tensor into its frames, in order: the header of each, and its payload.
    ///
    /// `self` describes the tensor; its `offset` and `count` do not matter.
    /// `payload`: the tensor, `codec.payload_bytes(elements)` bytes; a frame that it does not hold
    /// is left out, with all behind it.
    pub fn frames(self, payload: &[u8]) -> impl Iterator<Item = (Self, &[u8])> {
        let frame = self.codec.frame_elements();
        let mut rest = payload;
        (0..self.elements).step_by(frame).map_while(move |offset| {
            let count = u32::try_from(frame).unwrap_or(u32::MAX).min(self.elements - offset);
            let header = Self { offset, count, ..self };
            let (slice, behind) = rest.split_at_checked(header.payload_bytes())?;
            rest = behind;
            Some((header, slice))
        })
    }

    fn check(&self) -> Result<(), DecodeError> {
        if !fragment_exists(self.fragment) {
            return Err(DecodeError::Fragment(self.fragment));
        }
        let Self { codec, elements, offset, count, .. } = *self;
        if elements == 0 || elements as usize > FRAGMENT_ELEMENTS_MAX {
            return Err(DecodeError::Elements { codec, elements });
        }
        if count == 0 || count as usize > codec.frame_elements() {
            return Err(DecodeError::Count { codec, count });
        }
        let left = elements.checked_sub(offset).map_or(0, |left| left as usize);
        let begins = (offset as usize).is_multiple_of(codec.frame_elements());
        if !begins || count as usize != left.min(codec.frame_elements()) {
            return Err(DecodeError::Range { offset, count, elements });
        }
        Ok(())
    }
}

/// A received checksum, with the received header bytes it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    header: [u8; TENSOR_HEADER_BYTES],
}

impl Checksum {
    /// Checks that header and `payload` are those that were sent.
    ///
    /// # Errors
    /// [`DecodeError::Checksum`]; the payload must not be used.
    pub fn verify(&self, payload: &[u8]) -> Result<(), DecodeError> {
        let (fields, checksum) = self.header.split_at(FIELDS_BYTES);
        if checksum == checksum_of(fields, payload) { Ok(()) } else { Err(DecodeError::Checksum) }
    }
}

/// XXH3 of header fields and payload, 128 bits, least significant byte first.
///
/// No key and no cryptography: whoever can change a frame can compute its checksum, as with any hash
/// without a key. It is for faults of memory, drivers and programs, at the speed of memory
/// (docs/adr/0039).
fn checksum_of(fields: &[u8], payload: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = XxHash3_128::new();
    hasher.write(fields);
    hasher.write(payload);
    hasher.finish_128().to_le_bytes()
}

/// Whether a model may have a fragment of this number.
pub(super) const fn fragment_exists(fragment: FragmentId) -> bool {
    (fragment.0 as usize) < FRAGMENTS_MAX
}

/// Reads fields in order from a header whose length the compiler knows.
struct FieldReader<'a> {
    bytes: &'a [u8],
}

impl FieldReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .bytes
            .split_first_chunk()
            .expect("the fields together are shorter than the header");
        self.bytes = rest;
        *field
    }
}

/// Appends `values` to `bytes`, little-endian, at memory speed.
pub fn write_f32s(values: &[f32], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + size_of_val(values), 0);
    let (chunks, _) = bytes[start..].as_chunks_mut::<ELEMENT_BYTES>();
    for (chunk, value) in chunks.iter_mut().zip(values) {
        *chunk = value.to_le_bytes();
    }
}

/// Reads little-endian `bytes` into `values`, at memory speed.
///
/// NaN and infinity pass; whoever uses the values must judge them.
///
/// # Errors
/// [`DecodeError::Length`] unless `bytes` is four times as long; `values` is then unchanged.
pub fn read_f32s(bytes: &[u8], values: &mut [f32]) -> Result<(), DecodeError> {
    let expected = size_of_val(values);
    if bytes.len() != expected {
        return Err(DecodeError::Length { expected, found: bytes.len() });
    }
    let (chunks, _) = bytes.as_chunks::<ELEMENT_BYTES>();
    for (value, chunk) in values.iter_mut().zip(chunks) {
        *value = f32::from_le_bytes(*chunk);
    }
    Ok(())
}
