//! A batch of samples, as data sets fill it and models read it, and where batches come from.
//!
//! Shape letters: `B` samples, `I` pixels per image, `T` tokens per sequence.

use std::fmt;

use crate::description::{Description, DescriptionError};
use crate::seam::{DataIdentity, DataShare, TrainError};

/// What one sample of a data set looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleShape {
    /// A grey image and one label.
    Image {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Labels are `0..classes`.
        classes: usize,
    },
    /// A token sequence, every token with its successor as target.
    Text {
        /// Tokens per sequence.
        context: usize,
        /// Tokens are `0..vocabulary`.
        vocabulary: usize,
    },
}

impl fmt::Display for SampleShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { height, width, classes } => {
                write!(formatter, "images of {height} x {width} pixels in {classes} classes")
            }
            Self::Text { context, vocabulary } => {
                write!(formatter, "text of {context} tokens per sample from {vocabulary} kinds")
            }
        }
    }
}

/// The inputs of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// `[B, I]` row major, already normalised.
    Images(Vec<f32>),
    /// `[B, T]` row major.
    Tokens(Vec<u32>),
}

/// A batch of samples; buffers are reused from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// What the model sees.
    pub input: Input,
    /// `[B]` labels, or `[B, T]` next tokens.
    pub targets: Vec<u32>,
    /// `B`.
    pub samples: usize,
}

impl Batch {
    /// Keeps the first `samples` of the batch; nothing changes when it has no more.
    pub fn truncate(&mut self, samples: usize) {
        if samples >= self.samples {
            return;
        }
        // `B` divides both lengths.
        let kept = |length: usize| length / self.samples * samples;
        match &mut self.input {
            Input::Images(pixels) => pixels.truncate(kept(pixels.len())),
            Input::Tokens(tokens) => tokens.truncate(kept(tokens.len())),
        }
        self.targets.truncate(kept(self.targets.len()));
        self.samples = samples;
    }

    /// An empty batch for samples of `shape`.
    #[must_use]
    pub const fn new(shape: SampleShape) -> Self {
        let input = match shape {
            SampleShape::Image { .. } => Input::Images(Vec::new()),
            SampleShape::Text { .. } => Input::Tokens(Vec::new()),
        };
        Self { input, targets: Vec::new(), samples: 0 }
    }

    /// Refuses a batch that is not of `shape`: a model would read outside its tables.
    pub(crate) fn check(&self, shape: SampleShape) -> Result<(), TrainError> {
        let (per_sample, targets, classes) = match shape {
            SampleShape::Image { height, width, classes } => (height * width, 1, classes),
            SampleShape::Text { context, vocabulary } => (context, context, vocabulary),
        };
        let below =
            |values: &[u32], limit: usize| values.iter().all(|&value| (value as usize) < limit);
        let input = match (&self.input, shape) {
            (Input::Images(images), SampleShape::Image { .. }) => {
                images.len() == self.samples * per_sample
            }
            (Input::Tokens(tokens), SampleShape::Text { .. }) => {
                tokens.len() == self.samples * per_sample && below(tokens, classes)
            }
            (Input::Images(_), SampleShape::Text { .. })
            | (Input::Tokens(_), SampleShape::Image { .. }) => false,
        };
        let targets = self.targets.len() == self.samples * targets && below(&self.targets, classes);
        if input && targets && self.samples > 0 {
            return Ok(());
        }
        Err(TrainError::Other(format!(
            "the data set gave a batch that is not {} samples of {shape}",
            self.samples
        )))
    }
}

/// Where batches come from; a data set with its seed and shard.
pub trait BatchSource: Send {
    /// What samples look like; must not change.
    fn shape(&self) -> SampleShape;

    /// Fills `batch` with `samples` training samples, a function of the stream, `step` and `micro`
    /// alone.
    ///
    /// `micro` is the index of the micro-batch within local step `step`.
    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch);

    /// As [`Trainer::set_stream`](crate::Trainer::set_stream).
    fn set_stream(&mut self, stream: u64) {
        let _ = stream;
    }

    /// Adds what the data are, and how they become inputs and targets, as
    /// [`Trainer::describe`](crate::Trainer::describe) tells it.
    ///
    /// # Errors
    /// [`DescriptionError`] when it is too much.
    fn describe(&self, description: &mut Description) -> Result<(), DescriptionError> {
        let _ = description;
        Ok(())
    }

    /// As [`Trainer::set_shard`](crate::Trainer::set_shard).
    fn set_shard(&mut self, shard: u32) -> bool {
        let _ = shard;
        false
    }

    /// As [`Trainer::data_identity`](crate::Trainer::data_identity).
    fn identity(&self) -> DataIdentity {
        DataIdentity::default()
    }

    /// As [`Trainer::data_share`](crate::Trainer::data_share).
    fn share(&self) -> Option<DataShare> {
        None
    }

    /// Fills `batch` with up to `samples` held-out samples from index `offset`; false when there
    /// is none.
    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool;

    /// Number of held-out samples.
    fn evaluation_len(&self) -> usize;
}
