//! Numbers that stay on a device, and what exchanges compute with them there.
//!
//! A trainer whose weights lie on a device hands out a [`Resident`]; slow weights, outer momentum and
//! differences then live beside them, and only codes cross to the host (docs/adr/0022).

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::frame::{Codec, MODULAR_BLOCK_ELEMENTS};

use crate::codec::CodecError;

/// Elements of a block of [`Device::learn`] and [`Device::encode_modular`].
pub const DEVICE_BLOCK: usize = MODULAR_BLOCK_ELEMENTS;

/// What a device could not do; nothing that it holds may be relied upon any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// What a block of a difference that is zero throughout says of how far others are ([`Device::learn`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// The other end could not read the block of an offer from here, whose bound was too small:
    /// `bound ← −4 · bound` where that was positive, else 0.
    Unread,
    /// Nothing. Where the other end's offer could not be read here, its bound was too small, not the own one.
    Nothing,
}

/// One order of work on a device: what is asked of it is done one after the other, and on its own time
/// unless a call returns numbers or bytes.
///
/// Two orders work on a replica, one for each of its threads: that of training, which the trainer's own
/// work is part of, and [`Device::beside`] it that of mixing. What one of them wrote the other may
/// only touch after a [`Device::hand_over`].
///
/// After a failure every call fails with the same words. Arithmetic is that of the host: f32 without
/// fused operations, codes equal to those of [`encode`](crate::encode) to the last bit.
/// Spans of one call have equal lengths unless said otherwise, and callers see to it.
pub trait Device: fmt::Debug + Send + Sync {
    /// Another order of work on the same memory, which does not wait for this one.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn beside(&self) -> Result<Arc<dyn Device>, DeviceError>;

    /// Whatever the other orders are asked from now on happens after all that this one was asked.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn hand_over(&self) -> Result<(), DeviceError>;

    /// The failure of an earlier call, if there was one.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn check(&self) -> Result<(), DeviceError>;

    /// Where `len` new numbers begin, all zero; `len` is at least 1.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn allocate(&self, len: usize) -> Result<u64, DeviceError>;

    /// Takes back what [`Device::allocate`] gave, when all orders are done with it.
    fn free(&self, address: u64, len: usize);

    /// Copies from the host.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn upload(&self, from: &[f32], to: SpanMut<'_>) -> Result<(), DeviceError>;

    /// Copies to the host, and waits for that.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn download(&self, from: Span<'_>, to: &mut [f32]) -> Result<(), DeviceError>;

    /// `to ← weight · from`; with a weight of 1 a copy of the bits.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn set_scaled(&self, to: SpanMut<'_>, from: Span<'_>, weight: f32) -> Result<(), DeviceError>;

    /// `to ← to + weight · from`, product and sum rounded one after the other.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn add_scaled(&self, to: SpanMut<'_>, from: Span<'_>, weight: f32) -> Result<(), DeviceError>;

    /// `to ← factor · to`.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn scale(&self, to: SpanMut<'_>, factor: f32) -> Result<(), DeviceError>;

    /// An outer step: `v ← β v + Δ ; Δ ← α (Δ + β v)`, each operation rounded, in this order.
    ///
    /// `step`: α and β.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn direct(
        &self,
        progress: SpanMut<'_>,
        momentum: SpanMut<'_>,
        step: (f32, f32),
    ) -> Result<(), DeviceError>;

    /// Sum of the squares in f64, in any order; waits for it.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn squares(&self, from: Span<'_>) -> Result<f64, DeviceError>;

    /// The least magnitude of the numbers, NaN left out; infinity where there is none. Waits for it.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn least(&self, from: Span<'_>) -> Result<f32, DeviceError>;

    /// Learns how far others are by block of [`DEVICE_BLOCK`], as exchanges in host memory do: with `m`
    /// the largest magnitude of a block, `bound ← max(factor · m, 0.95 · |bound|)` where `m > 0`, else
    /// what `zeros` says. NaN is larger than infinity, and `max` with NaN is the other number, as
    /// [`f32::max`] has it.
    ///
    /// `bounds` has one number per block, the last of which may be short.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn learn(
        &self,
        bounds: SpanMut<'_>,
        values: Span<'_>,
        factor: f32,
        zeros: Zeros,
    ) -> Result<(), DeviceError>;

    /// As [`encode`](crate::encode) with any of [`Device::codes`]; waits for the bytes.
    ///
    /// `bytes`: as many as the elements take.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn encode(&self, codec: Codec, from: Span<'_>, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// As [`decode`](crate::codec::decode) with any of [`Device::codes`].
    ///
    /// `bytes`: as many as the elements take, of anybody's making.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn decode(
        &self,
        codec: Codec,
        bytes: &[u8],
        to: SpanMut<'_>,
    ) -> Result<Result<(), CodecError>, DeviceError>;

    /// As [`encode_modular`](crate::codec::encode_modular); `spread` has one number per block.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn encode_modular(
        &self,
        codec: Codec,
        from: Span<'_>,
        spread: Span<'_>,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError>;

    /// As [`decode_modular`](crate::codec::decode_modular): how many blocks could not be read; waits for it.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn decode_modular(
        &self,
        codec: Codec,
        bytes: &[u8],
        near: Span<'_>,
        to: SpanMut<'_>,
    ) -> Result<usize, DeviceError>;

    /// Whether it has this code; of those of plain numbers.
    fn codes(&self, codec: Codec) -> bool;
}

/// Numbers on a device that somebody owns.
#[derive(Debug)]
pub struct DeviceVector {
    device: Arc<dyn Device>,
    address: u64,
    len: usize,
}

/// A part of numbers on a device, which their owner lends as `L`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpan<L> {
    address: u64,
    len: usize,
    lent: PhantomData<L>,
}

/// A part of numbers on a device, to be read.
pub type Span<'a> = DeviceSpan<&'a [f32]>;

/// A part of numbers on a device, to be written.
pub type SpanMut<'a> = DeviceSpan<&'a mut [f32]>;

/// A trainer's weights on a device.
#[derive(Debug)]
pub struct Resident<'a> {
    /// The order of work that training is part of.
    pub device: Arc<dyn Device>,
    /// The live weights x, `[P]`.
    pub weights: SpanMut<'a>,
}

/// Displaces numbers on a device by numbers of the host, and keeps the room that these take there.
#[derive(Debug, Default)]
pub struct Displacer(Option<DeviceVector>);

impl Displacer {
    /// `x ← x + weight · delta`.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn displace(
        &mut self,
        device: &Arc<dyn Device>,
        (delta, weight): (&[f32], f32),
        x: SpanMut<'_>,
    ) -> Result<(), DeviceError> {
        if delta.is_empty() {
            return Ok(());
        }
        let all = 0..delta.len();
        let numbers = match self.0.take() {
            Some(numbers) if numbers.len() >= delta.len() => numbers,
            _ => DeviceVector::new(device, delta.len())?,
        };
        let numbers = self.0.insert(numbers);
        device.upload(delta, numbers.span_mut(all.clone()))?;
        device.add_scaled(x, numbers.span(all), weight)
    }
}

impl DeviceVector {
    /// `len` numbers on the device, all zero.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(device: &Arc<dyn Device>, len: usize) -> Result<Self, DeviceError> {
        let address = if len == 0 { 0 } else { device.allocate(len)? };
        Ok(Self { device: Arc::clone(device), address, len })
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of them.
    ///
    /// # Panics
    /// When they have no such part.
    #[must_use]
    pub fn span(&self, range: Range<usize>) -> Span<'_> {
        DeviceSpan { address: self.address, len: self.len, lent: PhantomData }.part(range)
    }

    /// A part of them to be written.
    ///
    /// # Panics
    /// When they have no such part.
    #[must_use]
    pub fn span_mut(&mut self, range: Range<usize>) -> SpanMut<'_> {
        DeviceSpan { address: self.address, len: self.len, lent: PhantomData }.part(range)
    }
}

impl Drop for DeviceVector {
    fn drop(&mut self) {
        if self.len > 0 {
            self.device.free(self.address, self.len);
        }
    }
}

/// Where a part begins, in bytes from the beginning of the whole.
fn offset(len: usize, range: &Range<usize>) -> u64 {
    assert!(range.start <= range.end && range.end <= len, "a part of the numbers");
    (range.start * size_of::<f32>()) as u64
}

impl<L> DeviceSpan<L> {
    /// Numbers of somebody else, who lends them for as long as `L` lasts.
    ///
    /// # Safety
    /// `len` f32 begin at `address` of the device's memory. For so long nobody writes to what is lent
    /// to be read, and nobody but the device's orders of work touches what is lent to be written.
    #[expect(unsafe_code, reason = "an address says nothing of what lies there")]
    #[must_use]
    pub const unsafe fn borrowed(address: u64, len: usize) -> Self {
        Self { address, len, lent: PhantomData }
    }

    /// Where it begins on the device.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many numbers it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// When it has no such part.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        let address = self.address + offset(self.len, &range);
        Self { address, len: range.len(), lent: PhantomData }
    }
}

impl SpanMut<'_> {
    /// A part of it, for a while.
    ///
    /// # Panics
    /// When it has no such part.
    #[must_use]
    pub fn part_mut(&mut self, range: Range<usize>) -> SpanMut<'_> {
        let address = self.address + offset(self.len, &range);
        DeviceSpan { address, len: range.len(), lent: PhantomData }
    }

    /// The same to be read.
    #[must_use]
    pub const fn shared(&self) -> Span<'_> {
        DeviceSpan { address: self.address, len: self.len, lent: PhantomData }
    }
}
