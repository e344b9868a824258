//! What a trainer keeps beside the parameters, on its way to and from a checkpoint.

use std::borrow::Cow;

/// The numbers of a [`StateTensor`], flat: lent by a trainer, or owned.
#[derive(Clone, Debug, PartialEq)]
pub enum StateValues<'a> {
    /// Numbers of single precision.
    F32(Cow<'a, [f32]>),
    /// Codes of one byte, whose meaning only the trainer knows.
    U8(Cow<'a, [u8]>),
}

impl StateValues<'_> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U8(codes) => codes.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of single precision; `None` where these are codes.
    #[must_use]
    pub fn f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::U8(_) => None,
        }
    }

    /// The numbers of single precision, to be changed; `None` where these are codes. Copies what was lent.
    pub fn f32_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::F32(values) => Some(values.to_mut()),
            Self::U8(_) => None,
        }
    }

    /// The same, borrowed.
    #[must_use]
    pub fn lend(&self) -> StateValues<'_> {
        match self {
            Self::F32(values) => StateValues::F32(Cow::Borrowed(values)),
            Self::U8(codes) => StateValues::U8(Cow::Borrowed(codes)),
        }
    }

    /// The same, owned; copies what was lent.
    #[must_use]
    pub fn into_owned(self) -> StateValues<'static> {
        match self {
            Self::F32(values) => StateValues::F32(Cow::Owned(values.into_owned())),
            Self::U8(codes) => StateValues::U8(Cow::Owned(codes.into_owned())),
        }
    }
}

impl From<Vec<f32>> for StateValues<'_> {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(Cow::Owned(values))
    }
}

impl<'a> From<&'a [f32]> for StateValues<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(Cow::Borrowed(values))
    }
}

impl From<Vec<u8>> for StateValues<'_> {
    fn from(codes: Vec<u8>) -> Self {
        Self::U8(Cow::Owned(codes))
    }
}

impl<'a> From<&'a [u8]> for StateValues<'a> {
    fn from(codes: &'a [u8]) -> Self {
        Self::U8(Cow::Borrowed(codes))
    }
}

/// One tensor of a trainer's private state, for example an optimizer moment.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor<'a> {
    /// Name, unique among the trainer's state, for example `adamw.first_moment`.
    pub name: String,
    /// Values, flat.
    pub values: StateValues<'a>,
}

impl<'a> StateTensor<'a> {
    /// A tensor of these values.
    pub fn new(name: impl Into<String>, values: impl Into<StateValues<'a>>) -> Self {
        Self { name: name.into(), values: values.into() }
    }
}

/// What a trainer needs, besides the parameters, to continue as if it had never stopped.
///
/// It lends its vectors where it can: they may be as long as the parameters, or twice that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainerState<'a> {
    /// Tensors, in a fixed order.
    pub tensors: Vec<StateTensor<'a>>,
}

impl TrainerState<'_> {
    /// The same, borrowed.
    #[must_use]
    pub fn lend(&self) -> TrainerState<'_> {
        let tensors = self.tensors.iter();
        let lent =
            tensors.map(|tensor| StateTensor::new(tensor.name.clone(), tensor.values.lend()));
        TrainerState { tensors: lent.collect() }
    }

    /// The same, owned; copies what was lent.
    #[must_use]
    pub fn into_owned(self) -> TrainerState<'static> {
        let tensors = self.tensors.into_iter();
        let owned = tensors.map(|tensor| StateTensor::new(tensor.name, tensor.values.into_owned()));
        TrainerState { tensors: owned.collect() }
    }
}
