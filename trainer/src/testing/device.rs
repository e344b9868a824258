//! A device in host memory with the host's codecs, that finds work which is not in order.
//!
//! Every element remembers when which order of work wrote and read it last. An order that touches
//! what another one wrote, or writes what another one may still read, without a hand-over in between
//! panics: on a real device that would be a race.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dnode_protocol::frame::Codec;

use crate::codec::{
    CodecError, Encoded, decode, decode_modular, encode, encode_modular, largest_magnitude,
};
use crate::device::{
    DEVICE_BLOCK, Device, DeviceError, DeviceVector, Resident, Span, SpanMut, Zeros,
};
use crate::mixer::learnt;
use crate::outer::OuterStep;

/// Two orders of work: that of training, and that of mixing.
const ORDERS: usize = 2;
/// Between two allocations, so that none of them reaches the next one.
const GAP: u64 = 1 << 32;

#[derive(Clone, Copy, Default)]
struct Touched {
    /// Who wrote it last, and when.
    written: (usize, u64),
    /// When each order read it last without waiting for that.
    read: [u64; ORDERS],
}

#[derive(Default)]
struct Block {
    values: Vec<f32>,
    touched: Vec<Touched>,
}

#[derive(Default)]
struct Memory {
    blocks: BTreeMap<u64, Block>,
    next: u64,
    /// Calls of each order so far.
    time: [u64; ORDERS],
    /// `seen[a][b]`: up to which call of `b` order `a` comes after it.
    seen: [[u64; ORDERS]; ORDERS],
    failed: Option<DeviceError>,
    /// Numbers that crossed to the host and from it.
    crossed: usize,
}

/// One order of work on the memory of a test.
pub(crate) struct TestDevice {
    memory: Arc<Mutex<Memory>>,
    order: usize,
}

impl std::fmt::Debug for TestDevice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TestDevice").field("order", &self.order).finish_non_exhaustive()
    }
}

impl Memory {
    fn place(&mut self, address: u64) -> (&mut Block, usize) {
        let (&base, block) = self.blocks.range_mut(..=address).next_back().expect("a block");
        (block, usize::try_from((address - base) / 4).expect("a small block"))
    }

    fn read(&mut self, order: usize, (address, len): (u64, usize), waits: bool) -> Vec<f32> {
        let (time, seen) = (self.time[order], self.seen[order]);
        let (block, start) = self.place(address);
        for touched in &mut block.touched[start..start + len] {
            let (writer, at) = touched.written;
            assert!(writer == order || at <= seen[writer], "read before what wrote it was done");
            if !waits {
                touched.read[order] = time;
            }
        }
        block.values[start..start + len].to_vec()
    }

    fn write(&mut self, order: usize, address: u64, values: &[f32]) {
        let (time, seen) = (self.time[order], self.seen[order]);
        let (block, start) = self.place(address);
        for touched in &mut block.touched[start..start + values.len()] {
            let (writer, at) = touched.written;
            assert!(writer == order || at <= seen[writer], "written twice without an order");
            let unread = |other: usize| other != order && touched.read[other] > seen[other];
            assert!(!(0..ORDERS).any(unread), "written before it was read");
            touched.written = (order, time);
        }
        block.values[start..start + values.len()].copy_from_slice(values);
    }
}

/// A test that has failed in one thread must not look well in another.
fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().expect("no thread has found a race")
}

impl TestDevice {
    /// The order of training on a memory of its own.
    pub(crate) fn new() -> Self {
        Self { memory: Arc::default(), order: 0 }
    }

    /// The same order of work, for somebody else.
    pub(crate) fn same(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), order: self.order }
    }

    /// From now on everything fails.
    pub(crate) fn fail(&self) {
        lock(&self.memory).failed = Some(DeviceError("the device is gone".to_owned()));
    }

    /// Numbers that have crossed since the last question.
    pub(crate) fn crossed(&self) -> usize {
        std::mem::take(&mut lock(&self.memory).crossed)
    }

    fn begin(&self) -> Result<MutexGuard<'_, Memory>, DeviceError> {
        let mut memory = lock(&self.memory);
        memory.time[self.order] += 1;
        memory.failed.clone().map_or(Ok(memory), Err)
    }

    /// `to ← f(to, from)`.
    fn zip(
        &self,
        to: &SpanMut<'_>,
        from: Span<'_>,
        f: impl Fn(f32, f32) -> f32,
    ) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        assert_eq!(to.len(), from.len());
        let from = memory.read(self.order, (from.address(), from.len()), false);
        let old = memory.read(self.order, (to.address(), to.len()), false);
        let new: Vec<f32> = old.iter().zip(&from).map(|(&to, &from)| f(to, from)).collect();
        memory.write(self.order, to.address(), &new);
        Ok(())
    }
}

impl Device for TestDevice {
    fn beside(&self) -> Result<Arc<dyn Device>, DeviceError> {
        drop(self.begin()?);
        Ok(Arc::new(Self { memory: Arc::clone(&self.memory), order: 1 - self.order }))
    }

    fn hand_over(&self) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        let (own, now) = (self.order, memory.time[self.order]);
        let seen = memory.seen[own];
        for other in (0..ORDERS).filter(|&other| other != own) {
            // Whoever comes after this order comes after what that has seen, too.
            for (known, also) in memory.seen[other].iter_mut().zip(seen) {
                *known = also.max(*known);
            }
            memory.seen[other][own] = now;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.begin().map(drop)
    }

    fn allocate(&self, len: usize) -> Result<u64, DeviceError> {
        let mut memory = self.begin()?;
        memory.next += GAP;
        let address = memory.next;
        let touched = vec![Touched::default(); len];
        memory.blocks.insert(address, Block { values: vec![0.0; len], touched });
        Ok(address)
    }

    fn free(&self, address: u64, _: usize) {
        // The end of a failed test comes here, too.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).blocks.remove(&address);
    }

    fn upload(&self, from: &[f32], to: SpanMut<'_>) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        assert_eq!(from.len(), to.len());
        memory.crossed += from.len();
        memory.write(self.order, to.address(), from);
        Ok(())
    }

    fn download(&self, from: Span<'_>, to: &mut [f32]) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        memory.crossed += to.len();
        to.copy_from_slice(&memory.read(self.order, (from.address(), from.len()), true));
        Ok(())
    }

    fn set_scaled(&self, to: SpanMut<'_>, from: Span<'_>, weight: f32) -> Result<(), DeviceError> {
        // A product with 1 keeps every bit of a number.
        self.zip(&to, from, |_, from| weight * from)
    }

    fn add_scaled(&self, to: SpanMut<'_>, from: Span<'_>, weight: f32) -> Result<(), DeviceError> {
        self.zip(&to, from, |to, from| to + weight * from)
    }

    fn scale(&self, to: SpanMut<'_>, factor: f32) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        let old = memory.read(self.order, (to.address(), to.len()), false);
        let new: Vec<f32> = old.iter().map(|&to| factor * to).collect();
        memory.write(self.order, to.address(), &new);
        Ok(())
    }

    fn direct(
        &self,
        progress: SpanMut<'_>,
        momentum: SpanMut<'_>,
        (learning_rate, beta): (f32, f32),
    ) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        let step = OuterStep { learning_rate, momentum: beta };
        let mut delta = memory.read(self.order, (progress.address(), progress.len()), false);
        let mut v = memory.read(self.order, (momentum.address(), momentum.len()), false);
        step.direct(&mut delta, &mut v);
        memory.write(self.order, progress.address(), &delta);
        memory.write(self.order, momentum.address(), &v);
        Ok(())
    }

    fn squares(&self, from: Span<'_>) -> Result<f64, DeviceError> {
        let mut memory = self.begin()?;
        let values = memory.read(self.order, (from.address(), from.len()), true);
        Ok(crate::kernel::reduce::squares(&values))
    }

    fn least(&self, from: Span<'_>) -> Result<f32, DeviceError> {
        let mut memory = self.begin()?;
        let values = memory.read(self.order, (from.address(), from.len()), true);
        Ok(values.into_iter().map(f32::abs).fold(f32::INFINITY, f32::min))
    }

    fn learn(
        &self,
        bounds: SpanMut<'_>,
        values: Span<'_>,
        factor: f32,
        zeros: Zeros,
    ) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        let values = memory.read(self.order, (values.address(), values.len()), false);
        let old = memory.read(self.order, (bounds.address(), bounds.len()), false);
        let blocks = old.iter().zip(values.chunks(DEVICE_BLOCK));
        let found = |block| factor * largest_magnitude(block);
        let new: Vec<f32> = blocks.map(|(&old, block)| learnt(old, found(block), zeros)).collect();
        memory.write(self.order, bounds.address(), &new);
        Ok(())
    }

    fn encode(&self, codec: Codec, from: Span<'_>, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        let values = memory.read(self.order, (from.address(), from.len()), true);
        bytes.copy_from_slice(&encode(codec, &values).bytes);
        Ok(())
    }

    fn decode(
        &self,
        codec: Codec,
        bytes: &[u8],
        to: SpanMut<'_>,
    ) -> Result<Result<(), CodecError>, DeviceError> {
        let mut memory = self.begin()?;
        let mut values = vec![0.0; to.len()];
        let encoded = Encoded { codec, elements: to.len(), bytes: bytes.to_vec().into() };
        let read = decode(&encoded, &mut values);
        memory.write(self.order, to.address(), &values);
        Ok(read)
    }

    fn encode_modular(
        &self,
        codec: Codec,
        from: Span<'_>,
        spread: Span<'_>,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let mut memory = self.begin()?;
        let values = memory.read(self.order, (from.address(), from.len()), true);
        let spread = memory.read(self.order, (spread.address(), spread.len()), true);
        bytes.copy_from_slice(&encode_modular(codec, &values, &spread).bytes);
        Ok(())
    }

    fn decode_modular(
        &self,
        codec: Codec,
        bytes: &[u8],
        near: Span<'_>,
        to: SpanMut<'_>,
    ) -> Result<usize, DeviceError> {
        let mut memory = self.begin()?;
        let near = memory.read(self.order, (near.address(), near.len()), true);
        let mut values = vec![0.0; to.len()];
        let encoded = Encoded { codec, elements: to.len(), bytes: bytes.to_vec().into() };
        let unread = decode_modular(&encoded, &near, &mut values);
        let unread = unread.map_err(|error| DeviceError(error.to_string()))?;
        memory.write(self.order, to.address(), &values);
        Ok(unread)
    }

    fn codes(&self, codec: Codec) -> bool {
        Codec::CHOICES.contains(&codec) && codec != Codec::TopK
    }
}

/// The trainer's weights of a test.
pub(crate) struct TestWeights {
    device: Arc<dyn Device>,
    numbers: DeviceVector,
}

impl TestWeights {
    pub(crate) fn new(device: &Arc<dyn Device>, values: &[f32]) -> Self {
        let mut numbers = DeviceVector::new(device, values.len()).unwrap();
        device.upload(values, numbers.span_mut(0..values.len())).unwrap();
        Self { device: Arc::clone(device), numbers }
    }

    pub(crate) fn span(&self, range: Range<usize>) -> Span<'_> {
        self.numbers.span(range)
    }

    pub(crate) fn resident(&mut self) -> Resident<'_> {
        let all = 0..self.numbers.len();
        Resident { device: Arc::clone(&self.device), weights: self.numbers.span_mut(all) }
    }
}
