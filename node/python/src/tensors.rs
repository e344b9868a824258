//! Parameters that are tensors of Python's: read and moved where they lie in host memory, by way of a
//! mirror there, or as one vector on a CUDA device.
//!
//! Tensors of 16 bits keep an f32 master beside them. What the optimizer has done to a tensor is added
//! to its master, and the tensor is the master rounded. So a displacement that is smaller than the
//! spacing of the tensor's numbers is not lost.

#![expect(unsafe_code, reason = "a tensor is told by its address")]

use std::cell::RefCell;
use std::ops::Range;

use std::sync::Arc;

use dnode::{
    Device, DeviceError, Displacer, Parameters, Resident, Span, SpanMut, TrainError, TrainerState,
};
use half::{bf16, f16};

use crate::callbacks::Callbacks;

/// How a tensor's numbers lie at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    F32,
    F64,
    Bf16,
    F16,
    /// The address is that of a mirror of f32 in host memory, which Python fills and empties.
    Mirror,
}

/// One tensor.
#[derive(Debug)]
struct Tensor {
    form: Form,
    /// Of its first number; the numbers lie one behind the other.
    address: usize,
    /// In the flat vector.
    range: Range<usize>,
    /// The master of a tensor of 16 bits; empty for others.
    master: Vec<f32>,
    /// Whether the mirror has what the tensor has.
    fetched: bool,
    /// Whether the mirror has what the tensor is to get.
    moved: bool,
}

/// A number of 16 bits.
trait Narrow: Copy + PartialEq {
    fn widen(self) -> f32;
    fn round(value: f32) -> Self;
}

impl Narrow for bf16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Narrow for f16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Tensor {
    fn new(form: &str, address: usize, range: Range<usize>) -> Option<Self> {
        let form = match form {
            "float32" => Form::F32,
            "float64" => Form::F64,
            "bfloat16" => Form::Bf16,
            "float16" => Form::F16,
            "mirror" => Form::Mirror,
            _ => return None,
        };
        let master = Vec::new();
        Some(Self { form, address, range, master, fetched: false, moved: false })
    }

    /// The numbers of `part`, relative to the tensor.
    ///
    /// The lifetime is that of a call of a handle, in which nobody else touches the tensor: the thread of
    /// the loop waits, and holds the object that keeps it alive.
    fn numbers<T>(&mut self, part: Range<usize>) -> &mut [T] {
        debug_assert!(part.end <= self.range.len(), "a part is within its tensor");
        let first = self.address as *mut T;
        // SAFETY: the address is that of `range.len()` numbers of this form (`Node::set_addresses`), and
        // the caller of `step` neither frees nor uses them until the parameters are handed back.
        unsafe { std::slice::from_raw_parts_mut(first.add(part.start), part.len()) }
    }

    /// Brings master and tensor together, and calls `visit` with both.
    fn masters<T: Narrow>(&mut self, part: Range<usize>, mut visit: impl FnMut(&mut f32, &mut T)) {
        if self.master.is_empty() {
            let all = 0..self.range.len();
            self.master = self.numbers::<T>(all).iter().map(|value| value.widen()).collect();
        }
        let mut master = std::mem::take(&mut self.master);
        for (master, value) in master[part.clone()].iter_mut().zip(self.numbers::<T>(part)) {
            let written = T::round(*master);
            if *value != written {
                // What the loop has changed has the digits below it of before, as long as they are below it.
                let followed = *master + (value.widen() - written.widen());
                let below = T::round(followed) == *value;
                *master = if below { followed } else { value.widen() };
            }
            visit(master, value);
            *value = T::round(*master);
        }
        self.master = master;
    }

    fn read(&mut self, part: Range<usize>, out: &mut [f32]) {
        let mut out = out.iter_mut();
        let mut put = |value: f32| {
            if let Some(out) = out.next() {
                *out = value;
            }
        };
        match self.form {
            Form::F32 | Form::Mirror => {
                self.numbers::<f32>(part).iter().for_each(|value| put(*value));
            }
            Form::F64 => self.numbers::<f64>(part).iter().for_each(|value| put(*value as f32)),
            Form::Bf16 => self.masters::<bf16>(part, |master, _| put(*master)),
            Form::F16 => self.masters::<f16>(part, |master, _| put(*master)),
        }
    }

    /// As [`Tensor::read`]; of a mirror that could not be filled NaN, which no peer takes.
    fn show(&mut self, part: Range<usize>, out: &mut [f32]) {
        if self.form == Form::Mirror && !self.fetched {
            out.fill(f32::NAN);
        } else {
            self.read(part, out);
        }
    }

    fn displace(&mut self, part: Range<usize>, delta: &[f32], weight: f32) {
        let mut moves = delta.iter().map(|delta| weight * delta);
        let mut next = || moves.next().unwrap_or(0.0);
        match self.form {
            Form::F32 | Form::Mirror => {
                self.numbers::<f32>(part).iter_mut().for_each(|value| *value += next());
            }
            Form::F64 => {
                self.numbers::<f64>(part).iter_mut().for_each(|value| *value += f64::from(next()));
            }
            Form::Bf16 => self.masters::<bf16>(part, |master, _| *master += next()),
            Form::F16 => self.masters::<f16>(part, |master, _| *master += next()),
        }
    }

    /// Makes the numbers of `part` these.
    fn set(&mut self, part: Range<usize>, values: &[f32]) {
        let mut values = values.iter().copied();
        let mut next = || values.next().unwrap_or(f32::NAN);
        match self.form {
            Form::F32 | Form::Mirror => {
                self.numbers::<f32>(part).iter_mut().for_each(|value| *value = next());
            }
            Form::F64 => {
                self.numbers::<f64>(part).iter_mut().for_each(|value| *value = f64::from(next()));
            }
            Form::Bf16 => self.masters::<bf16>(part, |master, _| *master = next()),
            Form::F16 => self.masters::<f16>(part, |master, _| *master = next()),
        }
    }
}

/// One vector of f32 on a CUDA device, of which the tensors are parts, one behind the other.
#[derive(Debug)]
struct OnDevice {
    device: Arc<dyn Device>,
    address: u64,
    elements: usize,
    displacer: Displacer,
}

impl OnDevice {
    fn weights(&mut self) -> SpanMut<'_> {
        // SAFETY: so many f32 begin there (`Tensors::on_device`), and between two calls of the handle nobody
        // but the loop touches them, whose work and the device's are on one stream.
        unsafe { SpanMut::borrowed(self.address, self.elements) }
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        // SAFETY: as in `weights`.
        let all = unsafe { Span::borrowed(self.address, self.elements) };
        if self.device.download(all.part(range), out).is_err() {
            // No peer takes such numbers, and the next step tells the failure.
            out.fill(f32::NAN);
        }
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        // SAFETY: as in `weights`.
        let x = unsafe { SpanMut::borrowed(self.address, self.elements) }.part(range);
        // The next step tells a failure.
        let _ = self.displacer.displace(&self.device, (delta, weight), x);
    }
}

/// All tensors of a model, one behind the other.
#[derive(Debug)]
pub(crate) struct Tensors {
    tensors: RefCell<Vec<Tensor>>,
    /// Mirrors of the optimizer's first moments, one for each tensor; none where they are not averaged.
    moments: RefCell<Vec<Tensor>>,
    /// Where they are parts of one vector, that; they are not reached one by one then.
    on_device: Option<OnDevice>,
    callbacks: Callbacks,
    /// Whether any number was moved since the loop last asked.
    moved: bool,
}

impl Tensors {
    /// Tensors of these forms at these addresses, with the number of their elements; `None` when a form
    /// is not known.
    pub(crate) fn new(described: &[(String, usize, usize)], callbacks: Callbacks) -> Option<Self> {
        let mut end = 0;
        let tensors = described.iter().map(|(form, address, elements)| {
            let range = end..end + elements;
            end = range.end;
            Tensor::new(form, *address, range)
        });
        let tensors = RefCell::new(tensors.collect::<Option<Vec<_>>>()?);
        let moments = RefCell::default();
        Some(Self { tensors, moments, on_device: None, callbacks, moved: false })
    }

    /// The same, whose optimizer's first moments have mirrors at these addresses.
    pub(crate) fn with_moments(mut self, mirrors: &[usize]) -> Self {
        let ranges = self.tensors.get_mut().iter().map(|tensor| tensor.range.clone());
        let moments = mirrors.iter().zip(ranges);
        let moments = moments.filter_map(|(address, range)| Tensor::new("mirror", *address, range));
        self.moments = RefCell::new(moments.collect());
        self
    }

    /// The same where the tensors are parts of one vector of f32 on CUDA device `index`, which begins at
    /// `address`.
    ///
    /// # Errors
    /// [`DeviceError`], when the device cannot be used.
    pub(crate) fn on_device(self, (index, address): (usize, u64)) -> Result<Self, DeviceError> {
        let elements = self.tensors.borrow().last().map_or(0, |tensor| tensor.range.end);
        let device = dnode_cuda::open(index)?;
        let on_device = OnDevice { device, address, elements, displacer: Displacer::default() };
        Ok(Self { on_device: Some(on_device), ..self })
    }

    /// The tensors lie there from now on.
    pub(crate) fn set_addresses(&mut self, addresses: &[usize]) {
        for (tensor, address) in self.tensors.get_mut().iter_mut().zip(addresses) {
            tensor.address = *address;
        }
    }

    /// Whether any number was moved since this was last asked.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Calls `visit` with each tensor that has a part in `range`, that part of it, and the same part of
    /// the range.
    fn visit(
        &self,
        range: &Range<usize>,
        visit: impl FnMut(&mut Tensor, Range<usize>, Range<usize>),
    ) {
        self.visit_of((&mut self.tensors.borrow_mut(), 0), range, visit);
    }

    /// The same with moments.
    fn visit_moments(
        &self,
        range: &Range<usize>,
        visit: impl FnMut(&mut Tensor, Range<usize>, Range<usize>),
    ) {
        // Python numbers them after the tensors.
        let before = self.tensors.borrow().len();
        self.visit_of((&mut self.moments.borrow_mut(), before), range, visit);
    }

    fn visit_of(
        &self,
        (tensors, before): (&mut [Tensor], usize),
        range: &Range<usize>,
        mut visit: impl FnMut(&mut Tensor, Range<usize>, Range<usize>),
    ) {
        let first = tensors.partition_point(|tensor| tensor.range.end <= range.start);
        for (index, tensor) in tensors.iter_mut().enumerate().skip(first) {
            if tensor.range.start >= range.end {
                break;
            }
            if tensor.form == Form::Mirror && !tensor.fetched {
                tensor.fetched = self.callbacks.fetch(before + index);
            }
            let (start, end) =
                (tensor.range.start.max(range.start), tensor.range.end.min(range.end));
            let own = start - tensor.range.start..end - tensor.range.start;
            visit(tensor, own, start - range.start..end - range.start);
        }
    }
}

impl Parameters for Tensors {
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        if let Some(on_device) = &self.on_device {
            return on_device.read(range, out);
        }
        self.visit(&range, |tensor, own, part| tensor.show(own, &mut out[part]));
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.moved = true;
        if let Some(on_device) = &mut self.on_device {
            return on_device.displace(range, delta, weight);
        }
        self.visit(&range, |tensor, own, part| {
            tensor.moved = true;
            tensor.displace(own, &delta[part], weight);
        });
    }

    /// So that weights that were not finite can be replaced, too: no displacement makes a number of NaN.
    fn set(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        if self.on_device.is_some() {
            return false;
        }
        self.moved = true;
        self.visit(&range, |tensor, own, part| {
            tensor.moved = true;
            tensor.set(own, &values[part]);
        });
        true
    }

    fn share_moments(&mut self) -> bool {
        !self.moments.get_mut().is_empty()
    }

    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        self.visit_moments(&range, |moment, own, part| moment.show(own, &mut out[part]));
    }

    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.visit_moments(&range, |moment, own, part| {
            moment.moved = true;
            moment.displace(own, &delta[part], weight);
        });
    }

    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        let Some(on_device) = &mut self.on_device else { return Ok(None) };
        let device = Arc::clone(&on_device.device);
        Ok(Some(Resident { device, weights: on_device.weights() }))
    }

    fn on_moved(&mut self) {
        self.moved = true;
    }

    fn hand_back(&mut self) {
        let all = self.tensors.get_mut().iter_mut().chain(self.moments.get_mut());
        for (index, tensor) in all.enumerate() {
            if tensor.form == Form::Mirror && tensor.moved && tensor.fetched {
                self.callbacks.store(index);
            }
            (tensor.moved, tensor.fetched) = (false, false);
        }
    }

    fn save(&self) -> TrainerState<'_> {
        self.callbacks.save()
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.callbacks.restore(&state)
    }
}
