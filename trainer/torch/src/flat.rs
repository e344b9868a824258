//! All parameters and their gradient as one flat tensor each.

use std::ops::Range;

use dnode_protocol::ParameterLayout;
use dnode_trainer::{Span, SpanMut};
use tch::{Device, Kind, TchError, Tensor};

/// `[P]` parameters and `[P]` gradient on one device, f32, and the model's views of them.
#[derive(Debug)]
pub(crate) struct Flat {
    pub(crate) parameters: Tensor,
    pub(crate) gradient: Tensor,
    /// Leaves whose gradients are views of `gradient`; kept so that they stay so.
    leaves: Vec<Tensor>,
}

/// An index as libtorch wants it; no tensor has more than `i64::MAX` elements.
fn index(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The part `range` of a flat tensor, sharing its memory.
pub(crate) fn part(flat: &Tensor, range: &Range<usize>) -> Result<Tensor, TchError> {
    flat.f_narrow(0, index(range.start), index(range.len()))
}

impl Flat {
    /// Copies `initial` to `device` and makes a leaf for each tensor of `layout`.
    pub(crate) fn new(
        layout: &ParameterLayout,
        initial: &[f32],
        device: Device,
    ) -> Result<Self, TchError> {
        let parameters = Tensor::f_from_slice(initial)?.f_to(device)?;
        let gradient = parameters.f_zeros_like()?;
        let view = |flat: &Tensor, tensor: &dnode_protocol::TensorSpec| {
            let shape: Vec<i64> = tensor.shape.iter().map(|&extent| index(extent)).collect();
            part(flat, &tensor.range())?.f_view(shape.as_slice())?.f_detach()
        };
        let mut leaves = Vec::new();
        for tensor in layout.tensors() {
            leaves.push(view(&parameters, tensor)?.f_set_requires_grad(true)?);
        }
        // libtorch makes gradients with the first backward pass; from then on it adds to them in
        // place, so memory of ours can be put behind them.
        for (leaf, tensor) in leaves.iter().zip(layout.tensors()) {
            (leaf.f_sum(Kind::Float)? * 0.0).f_backward()?;
            leaf.f_grad()?.f_set_data(&view(&gradient, tensor)?)?;
        }
        Ok(Self { parameters, gradient, leaves })
    }

    /// Handles of the leaves, in the order of the layout.
    pub(crate) fn leaves(&self) -> Vec<Tensor> {
        self.leaves.iter().map(Tensor::shallow_clone).collect()
    }

    /// Sets the gradient to zero; never by dropping the leaves' gradients, which are views.
    pub(crate) fn clear(&mut self) -> Result<(), TchError> {
        self.gradient.f_zero_().map(drop)
    }

    pub(crate) fn on_host(&self) -> bool {
        self.parameters.device() == Device::Cpu
    }
}

/// The elements of a flat f32 tensor on a CUDA device.
pub(crate) fn span(tensor: &Tensor) -> Span<'_> {
    check_flat(tensor);
    #[expect(unsafe_code, reason = "libtorch gives its memory as a raw pointer")]
    // SAFETY: `check_flat` has seen that the memory holds so many f32 one after the other; it lives as
    // long as the tensor that is borrowed, and what libtorch writes to it is of one order with whatever
    // reads it here, that of the default stream.
    unsafe {
        Span::borrowed(tensor.data_ptr() as u64, tensor.numel())
    }
}

/// As [`span`], to be written to.
pub(crate) fn span_mut(tensor: &mut Tensor) -> SpanMut<'_> {
    check_flat(tensor);
    #[expect(unsafe_code, reason = "libtorch gives its memory as a raw pointer")]
    // SAFETY: as in `span`; the tensor is borrowed as mutable, and its views are used in passes alone,
    // which borrow the engine that owns the tensor.
    unsafe {
        SpanMut::borrowed(tensor.data_ptr() as u64, tensor.numel())
    }
}

/// The elements of a flat f32 tensor in host memory.
pub(crate) fn host(tensor: &Tensor) -> &[f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "libtorch gives its memory as a raw pointer")]
    // SAFETY: `check` has seen that the memory holds so many f32 one after the other; it lives as
    // long as the tensor that is borrowed, and nobody writes to it between two passes.
    unsafe {
        std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>().cast_const(), tensor.numel())
    }
}

/// As [`host`], to be written to.
pub(crate) fn host_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "libtorch gives its memory as a raw pointer")]
    // SAFETY: as in `host`; the tensor is borrowed as mutable, and its views are used in passes
    // alone, which borrow the engine that owns the tensor.
    unsafe {
        std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

fn check(tensor: &Tensor) {
    check_flat(tensor);
    assert!(tensor.device() == Device::Cpu, "a tensor in host memory");
}

fn check_flat(tensor: &Tensor) {
    let flat = tensor.kind() == Kind::Float && tensor.is_contiguous() && tensor.numel() > 0;
    assert!(flat, "a flat f32 tensor");
}
