//! A batch of samples, as data sets fill it and models read it.
//!
//! Shape letters: `B` samples, `I` pixels per image, `T` tokens per sequence.

use std::fmt;

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
}
