//! Dropout with the masks of the embedded engine, drawn where the tensors are.

use dnode_trainer::{Dropout, Dropped};
use tch::{Kind, TchError, Tensor};

/// Numbers of 32 bits lie in a kind of 64 of which none is negative, so that shifts bring in zeros.
const LOW: i64 = 0xffff_ffff;

/// `x`, `[B, ..]`, with zeros in the place of what `dropout` drops of it.
pub(crate) fn dropped(
    x: Tensor,
    dropout: Option<Dropout>,
    place: Dropped,
) -> Result<Tensor, TchError> {
    let Some(dropout) = dropout else { return Ok(x) };
    let mask = tch::no_grad(|| mask(&x, dropout, place))?;
    x.f_masked_fill(&mask, 0.0)?.f_mul_scalar(f64::from(dropout.scale()))
}

/// Which elements are dropped.
fn mask(x: &Tensor, dropout: Dropout, place: Dropped) -> Result<Tensor, TchError> {
    let [inner, outer] = dropout.keys(place).map(i64::from);
    let first = i64::from(dropout.first(x.numel()));
    let past = first + x.numel() as i64;
    let mut number = Tensor::f_arange_start(first, past, (Kind::Int64, x.device()))?;
    let _ = number.f_bitwise_and_(LOW)?;
    for key in [inner, outer] {
        let _ = number.f_bitwise_xor_(key)?;
        mix(&mut number)?;
    }
    number.f_lt(i64::from(dropout.threshold()))?.f_view(x.size().as_slice())
}

/// `mixed` of every number, as [`Dropout::SHIFTS`] and [`Dropout::FACTORS`] say.
fn mix(number: &mut Tensor) -> Result<(), TchError> {
    let [first, second, last] = Dropout::SHIFTS.map(i64::from);
    let [one, other] = Dropout::FACTORS.map(i64::from);
    for (shift, factor) in [(first, Some(one)), (second, Some(other)), (last, None)] {
        let high = number.f_bitwise_right_shift_tensor_scalar(shift)?;
        let _ = number.f_bitwise_xor_tensor_(&high)?;
        if let Some(factor) = factor {
            // What overflows 64 bits is above the lower 32.
            let _ = number.f_mul_scalar_(factor)?.f_bitwise_and_(LOW)?;
        }
    }
    Ok(())
}
