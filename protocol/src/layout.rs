//! The parameter layout: which tensor lies where in the flat parameter vector.

use std::ops::Range;

use crate::limits::{PARAMETERS_MAX, TENSOR_RANK_MAX, TENSORS_MAX};

/// One tensor of the layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, unique in the layout, for example `layer0.weight`.
    pub name: String,
    /// Extent of each dimension, row major.
    pub shape: Vec<usize>,
    /// First element in the flat vector.
    pub offset: usize,
}

impl TensorSpec {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The tensor's slice of the flat vector.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// Names, shapes and offsets of all tensors in the flat parameter vector, without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    tensors: Vec<TensorSpec>,
    parameters: usize,
}

/// Why a tensor cannot be added to a layout; the layout is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Two tensors have one name.
    #[error("add tensor \"{0}\": the layout already has one of that name")]
    Duplicate(String),
    /// No dimension, an empty one, or more than [`TENSOR_RANK_MAX`] of them.
    #[error("add tensor \"{name}\" of shape {shape:?}: 1 to {TENSOR_RANK_MAX} non-zero dimensions")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// More than [`PARAMETERS_MAX`] parameters or [`TENSORS_MAX`] tensors.
    #[error(
        "add tensor \"{0}\": the model would exceed {PARAMETERS_MAX} parameters or {TENSORS_MAX} tensors"
    )]
    TooLarge(String),
}

impl ParameterLayout {
    /// A layout without tensors.
    #[must_use]
    pub const fn new() -> Self {
        Self { tensors: Vec::new(), parameters: 0 }
    }

    /// Appends a tensor behind the last one and returns its slice of the flat vector.
    ///
    /// # Errors
    /// [`LayoutError`] when the name is taken, the shape is empty or a limit is exceeded.
    pub fn push(&mut self, name: &str, shape: &[usize]) -> Result<Range<usize>, LayoutError> {
        let elements =
            shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
        let shaped = !shape.is_empty() && shape.len() <= TENSOR_RANK_MAX && elements != Some(0);
        if !shaped {
            return Err(LayoutError::Shape { name: name.to_owned(), shape: shape.to_vec() });
        }
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(LayoutError::Duplicate(name.to_owned()));
        }
        let end = elements
            .and_then(|elements| self.parameters.checked_add(elements))
            .filter(|&end| end <= PARAMETERS_MAX && self.tensors.len() < TENSORS_MAX)
            .ok_or_else(|| LayoutError::TooLarge(name.to_owned()))?;
        let range = self.parameters..end;
        self.tensors.push(TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            offset: range.start,
        });
        self.parameters = end;
        Ok(range)
    }

    /// The tensors in the order of their offsets.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Length of the flat parameter vector, elements.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.parameters
    }

    /// Hash of names and shapes in order; equal exactly for equal layouts.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("dnode parameter layout v1");
        for tensor in &self.tensors {
            hasher.update(&(tensor.name.len() as u64).to_le_bytes());
            hasher.update(tensor.name.as_bytes());
            hasher.update(&(tensor.shape.len() as u64).to_le_bytes());
            for &extent in &tensor.shape {
                hasher.update(&(extent as u64).to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_follow_each_other_and_names_are_unique() {
        let mut layout = ParameterLayout::new();
        assert_eq!(layout.push("weight", &[2, 3]), Ok(0..6));
        assert_eq!(layout.push("bias", &[3]), Ok(6..9));
        assert_eq!(layout.push("bias", &[3]), Err(LayoutError::Duplicate("bias".to_owned())));
        assert_eq!(layout.parameters(), 9);
        assert_eq!(layout.tensors()[1].range(), 6..9);
    }

    #[test]
    fn empty_and_overflowing_shapes_are_refused() {
        let mut layout = ParameterLayout::new();
        assert!(matches!(layout.push("a", &[]), Err(LayoutError::Shape { .. })));
        assert!(matches!(layout.push("a", &[0]), Err(LayoutError::Shape { .. })));
        assert!(matches!(layout.push("a", &[usize::MAX, 2]), Err(LayoutError::TooLarge(_))));
        assert_eq!(layout, ParameterLayout::new());
    }

    #[test]
    fn digest_tells_layouts_apart() {
        let mut a = ParameterLayout::new();
        let mut b = ParameterLayout::new();
        a.push("w", &[2, 3]).unwrap();
        b.push("w", &[3, 2]).unwrap();
        assert_ne!(a.digest(), b.digest());
    }
}
