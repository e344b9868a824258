//! [`Device`] over any [`Machine`]: pieces, lengths, failures.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dnode_protocol::frame::Codec;
use dnode_trainer::codec::CodecError;
use dnode_trainer::{DEVICE_BLOCK, Device, DeviceError, Span, SpanMut, Zeros};

use crate::kernels::{Kernel, Work};
use crate::machine::{Machine, ROOMS, TAIL_BYTES};

/// Most shares that a reduction has: warps enough for any device. Guess.
const SHARES_MAX: u64 = 4096;
/// Least numbers of a share.
const SHARE_ELEMENTS_MIN: u64 = 8192;

const _: () = assert!(SHARES_MAX as usize * size_of::<f64>() <= TAIL_BYTES, "shares have room");

/// An order of work on a machine.
pub(crate) struct Order<M> {
    machine: Mutex<M>,
    /// The first failure of any order of this device.
    failure: Arc<OnceLock<String>>,
}

impl<M: fmt::Debug> fmt::Debug for Order<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Order")
            .field("failure", &self.failure.get())
            .finish_non_exhaustive()
    }
}

impl<M: Machine> Order<M> {
    /// The first order of a device.
    pub(crate) fn first(machine: M) -> Arc<dyn Device> {
        Arc::new(Self { machine: Mutex::new(machine), failure: Arc::default() })
    }

    /// Asks the machine for something, unless there was a failure; remembers one.
    fn ask<R>(&self, what: impl FnOnce(&mut M) -> Result<R, String>) -> Result<R, DeviceError> {
        self.ask_for_room(what)
            .map_err(|DeviceError(why)| DeviceError(self.failure.get_or_init(|| why).clone()))
    }

    /// Asks the machine for memory, unless there was a failure. What there is no room for harms nothing that
    /// is there, so the device goes on.
    fn ask_for_room<R>(
        &self,
        what: impl FnOnce(&mut M) -> Result<R, String>,
    ) -> Result<R, DeviceError> {
        // Whoever panicked while it held the lock left a machine that is sound by itself.
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        what(&mut machine).map_err(DeviceError)
    }

    /// One kernel over whole spans.
    fn launch(&self, kernel: Kernel, work: Work) -> Result<(), DeviceError> {
        self.ask(|machine| if work.len == 0 { Ok(()) } else { machine.launch(kernel, &work) })
    }

    /// What a reduction leaves of each share, `bytes` each.
    fn reduce(&self, kernel: Kernel, from: Span<'_>, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let len = from.len() as u64;
        if len == 0 {
            return self.check().map(|()| Vec::new());
        }
        let share = len.div_ceil(SHARES_MAX).max(SHARE_ELEMENTS_MIN);
        let units = len.div_ceil(share);
        self.ask(|machine| {
            let room = machine.room(0);
            let work =
                Work { from: from.address(), bytes: room, len, units, share, ..Work::default() };
            machine.launch(kernel, &work)?;
            let mut left = vec![0; units as usize * bytes];
            machine.fetch(0, room, left.len())?;
            machine.collect(0, &mut left)?;
            Ok(left)
        })
    }
}

/// `elements` in pieces, each with its room.
fn pieces<M: Machine>(elements: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let starts = (0..elements).step_by(M::PIECE_ELEMENTS);
    let ranges = starts.map(move |start| start..elements.min(start + M::PIECE_ELEMENTS));
    ranges.enumerate().map(|(index, range)| (index % ROOMS, range))
}

/// The bytes of a piece, which begins with a block.
const fn part(codec: Codec, piece: &Range<usize>) -> Range<usize> {
    codec.payload_bytes(piece.start)..codec.payload_bytes(piece.end)
}

/// Where a part of numbers begins.
const fn behind(address: u64, elements: usize) -> u64 {
    address + (elements * size_of::<f32>()) as u64
}

/// Brings the codes of all elements to the host: `write` puts those of a piece somewhere, given its room
/// and elements, and says where. While a piece is worked on, the one before it is handed out.
fn pull<M: Machine>(
    machine: &mut M,
    codec: Codec,
    (elements, bytes): (usize, &mut [u8]),
    write: impl Fn(&mut M, u64, Range<usize>) -> Result<u64, String>,
) -> Result<(), String> {
    let mut before: Option<(usize, Range<usize>)> = None;
    for (room, piece) in pieces::<M>(elements) {
        let range = part(codec, &piece);
        let beginning = machine.room(room);
        let from = write(machine, beginning, piece)?;
        machine.fetch(room, from, range.len())?;
        if let Some((room, range)) = before.replace((room, range)) {
            machine.collect(room, &mut bytes[range])?;
        }
    }
    before.map_or(Ok(()), |(room, range)| machine.collect(room, &mut bytes[range]))
}

/// What a kernel of a code is told about a piece: numbers read and written, those beside, and codes.
fn piece_work(len: usize, block: usize) -> Work {
    Work { len: len as u64, units: len.div_ceil(block) as u64, ..Work::default() }
}

/// The same for a code of [`Codec::MODULAR`].
fn modular_work(codec: Codec, len: usize) -> Work {
    let bits = codec.modular_bits().expect("a modular code");
    Work { share: u64::from(bits), ..piece_work(len, DEVICE_BLOCK) }
}

fn same(left: usize, right: usize) {
    assert_eq!(left, right, "spans of one length");
}

fn blocks(numbers: usize, elements: usize) {
    assert_eq!(numbers, elements.div_ceil(DEVICE_BLOCK), "one number per block");
}

impl<M: Machine> Device for Order<M> {
    fn beside(&self) -> Result<Arc<dyn Device>, DeviceError> {
        let machine = Mutex::new(self.ask_for_room(M::beside)?);
        Ok(Arc::new(Self { machine, failure: Arc::clone(&self.failure) }))
    }

    fn hand_over(&self) -> Result<(), DeviceError> {
        self.ask(M::hand_over)
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.failure.get().map_or(Ok(()), |why| Err(DeviceError(why.clone())))
    }

    fn allocate(&self, len: usize) -> Result<u64, DeviceError> {
        self.ask_for_room(|machine| match len.checked_mul(size_of::<f32>()) {
            Some(bytes) => machine.allocate(bytes),
            None => Err(format!("allocate {len} numbers on the device: too many")),
        })
    }

    fn free(&self, address: u64, len: usize) {
        // Also after a failure: what the host has must go.
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.free(address, len * size_of::<f32>());
    }

    fn upload(&self, from: &[f32], to: SpanMut<'_>) -> Result<(), DeviceError> {
        same(from.len(), to.len());
        self.ask(|machine| {
            for (room, piece) in pieces::<M>(from.len()) {
                let target = behind(to.address(), piece.start);
                machine.send(room, bytemuck::cast_slice(&from[piece]), target)?;
            }
            Ok(())
        })
    }

    fn download(&self, from: Span<'_>, to: &mut [f32]) -> Result<(), DeviceError> {
        same(from.len(), to.len());
        self.encode(Codec::F32, from, bytemuck::cast_slice_mut(to))
    }

    fn set_scaled(&self, to: SpanMut<'_>, from: Span<'_>, weight: f32) -> Result<(), DeviceError> {
        same(to.len(), from.len());
        let (len, to, from) = (to.len() as u64, to.address(), from.address());
        self.launch(Kernel::SetScaled, Work { to, from, len, first: weight, ..Work::default() })
    }

    fn add_scaled(&self, to: SpanMut<'_>, from: Span<'_>, weight: f32) -> Result<(), DeviceError> {
        same(to.len(), from.len());
        let (len, to, from) = (to.len() as u64, to.address(), from.address());
        self.launch(Kernel::AddScaled, Work { to, from, len, first: weight, ..Work::default() })
    }

    fn scale(&self, to: SpanMut<'_>, factor: f32) -> Result<(), DeviceError> {
        let (len, to) = (to.len() as u64, to.address());
        self.launch(Kernel::Scale, Work { to, len, first: factor, ..Work::default() })
    }

    fn direct(
        &self,
        progress: SpanMut<'_>,
        momentum: SpanMut<'_>,
        (first, second): (f32, f32),
    ) -> Result<(), DeviceError> {
        same(progress.len(), momentum.len());
        let (to, beside) = (progress.address(), momentum.address());
        let len = progress.len() as u64;
        self.launch(Kernel::Direct, Work { to, beside, len, first, second, ..Work::default() })
    }

    fn squares(&self, from: Span<'_>) -> Result<f64, DeviceError> {
        let left = self.reduce(Kernel::Squares, from, size_of::<f64>())?;
        let (shares, _) = left.as_chunks();
        // Not `sum`, which begins with a negative zero.
        Ok(shares.iter().fold(0.0, |sum, share| sum + f64::from_ne_bytes(*share)))
    }

    fn least(&self, from: Span<'_>) -> Result<f32, DeviceError> {
        let left = self.reduce(Kernel::Least, from, size_of::<f32>())?;
        let (shares, _) = left.as_chunks();
        Ok(shares.iter().map(|share| f32::from_ne_bytes(*share)).fold(f32::INFINITY, f32::min))
    }

    fn learn(
        &self,
        bounds: SpanMut<'_>,
        values: Span<'_>,
        factor: f32,
        zeros: Zeros,
    ) -> Result<(), DeviceError> {
        blocks(bounds.len(), values.len());
        let (to, from, first) = (bounds.address(), values.address(), factor);
        let second = if zeros == Zeros::Unread { 1.0 } else { 0.0 };
        let work = piece_work(values.len(), DEVICE_BLOCK);
        self.launch(Kernel::Learn, Work { to, from, first, second, ..work })
    }

    fn encode(&self, codec: Codec, from: Span<'_>, bytes: &mut [u8]) -> Result<(), DeviceError> {
        assert!(self.codes(codec), "the device has no {codec}");
        assert_eq!(bytes.len(), codec.payload_bytes(from.len()), "the bytes of the elements");
        let kernels = Kernel::of(codec);
        self.ask(|machine| {
            pull(machine, codec, (from.len(), bytes), |machine, room, piece| {
                let from = behind(from.address(), piece.start);
                let Some((encode, _, block)) = kernels else { return Ok(from) };
                let work = piece_work(piece.len(), block);
                machine.launch(encode, &Work { from, bytes: room, ..work })?;
                Ok(room)
            })
        })
    }

    fn decode(
        &self,
        codec: Codec,
        bytes: &[u8],
        to: SpanMut<'_>,
    ) -> Result<Result<(), CodecError>, DeviceError> {
        self.check()?;
        if !self.codes(codec) {
            return Ok(Err(CodecError::Codec(codec)));
        }
        let (expected, found) = (codec.payload_bytes(to.len()), bytes.len());
        if expected != found {
            return Ok(Err(CodecError::Bytes { codec, expected, found }));
        }
        let decoded = self.ask(|machine| {
            for (room, piece) in pieces::<M>(to.len()) {
                let bytes = &bytes[part(codec, &piece)];
                let target = behind(to.address(), piece.start);
                let Some((_, decode, block)) = Kernel::of(codec) else {
                    machine.send(room, bytes, target)?;
                    continue;
                };
                let codes = machine.room(room);
                machine.send(room, bytes, codes)?;
                let work = piece_work(piece.len(), block);
                machine.launch(decode, &Work { to: target, bytes: codes, ..work })?;
            }
            Ok(())
        });
        decoded.map(Ok)
    }

    fn encode_modular(
        &self,
        codec: Codec,
        from: Span<'_>,
        spread: Span<'_>,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        blocks(spread.len(), from.len());
        assert_eq!(bytes.len(), codec.payload_bytes(from.len()), "the bytes of the elements");
        self.ask(|machine| {
            pull(machine, codec, (from.len(), bytes), |machine, room, piece| {
                let beside = behind(spread.address(), piece.start / DEVICE_BLOCK);
                let from = behind(from.address(), piece.start);
                let work = modular_work(codec, piece.len());
                machine
                    .launch(Kernel::EncodeModular, &Work { from, beside, bytes: room, ..work })?;
                Ok(room)
            })
        })
    }

    fn decode_modular(
        &self,
        codec: Codec,
        bytes: &[u8],
        near: Span<'_>,
        to: SpanMut<'_>,
    ) -> Result<usize, DeviceError> {
        same(near.len(), to.len());
        if bytes.len() != codec.payload_bytes(to.len()) {
            // Nothing can be read of bytes that are those of other elements.
            let blocks = to.len().div_ceil(DEVICE_BLOCK);
            return self.set_scaled(to, near, 1.0).map(|()| blocks);
        }
        self.ask(|machine| {
            let unread = machine.room(0) + (M::ROOM_BYTES - TAIL_BYTES) as u64;
            let mut count = [0; size_of::<u32>()];
            machine.send(0, &count, unread)?;
            for (room, piece) in pieces::<M>(to.len()) {
                let codes = machine.room(room);
                machine.send(room, &bytes[part(codec, &piece)], codes)?;
                let beside = behind(near.address(), piece.start);
                let target = behind(to.address(), piece.start);
                let work = modular_work(codec, piece.len());
                machine.launch(
                    Kernel::DecodeModular,
                    &Work { to: target, beside, bytes: codes, unread, ..work },
                )?;
            }
            machine.fetch(0, unread, count.len())?;
            machine.collect(0, &mut count)?;
            Ok(u32::from_ne_bytes(count) as usize)
        })
    }

    fn codes(&self, codec: Codec) -> bool {
        codec == Codec::F32 || Kernel::of(codec).is_some()
    }
}
