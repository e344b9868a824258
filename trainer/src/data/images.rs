//! Labelled grey images in memory, as bytes, and how they become a batch.

use crate::batch::{Batch, Input};

/// Labelled grey images of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Images {
    /// Pixels of one image, `I`.
    pub(crate) size: usize,
    /// `[N, I]` row major.
    pub(crate) pixels: Vec<u8>,
    /// `[N]`.
    pub(crate) labels: Vec<u8>,
}

impl Images {
    /// The images at `indices`, in that order.
    pub(crate) fn select(&self, indices: impl ExactSizeIterator<Item = usize>) -> Self {
        let mut chosen = Self {
            size: self.size,
            pixels: Vec::with_capacity(indices.len() * self.size),
            labels: Vec::with_capacity(indices.len()),
        };
        for index in indices {
            chosen.pixels.extend_from_slice(self.image(index));
            chosen.labels.push(self.labels[index]);
        }
        chosen
    }

    /// Mean and deviation of all pixels here.
    ///
    /// Sums are of integers, so that every machine gets the same bits.
    pub(crate) fn moments(&self) -> (f64, f64) {
        let mut counts = [0_u64; 256];
        for &pixel in &self.pixels {
            counts[usize::from(pixel)] += 1;
        }
        let (mut sum, mut squares) = (0_u64, 0_u64);
        for (value, count) in (0_u64..).zip(counts) {
            sum += value * count;
            squares += value * value * count;
        }
        let total = self.pixels.len().max(1) as f64;
        let mean = sum as f64 / total;
        let deviation = (squares as f64 / total - mean * mean).sqrt();
        (mean, if deviation > 0.0 { deviation } else { 1.0 })
    }

    /// What each pixel value becomes: standardised by this mean and deviation.
    pub(crate) fn standardise((mean, deviation): (f64, f64)) -> [f32; 256] {
        let mut table = [0.0; 256];
        for (value, entry) in (0_u8..=255).zip(&mut table) {
            *entry = ((f64::from(value) - mean) / deviation) as f32;
        }
        table
    }

    /// Fills `batch` with the images at `indices`, pixels translated by `table`.
    pub(crate) fn fill(
        &self,
        table: &[f32; 256],
        indices: impl Iterator<Item = usize>,
        batch: &mut Batch,
    ) {
        let mut values = match std::mem::replace(&mut batch.input, Input::Images(Vec::new())) {
            Input::Images(values) => values,
            Input::Tokens(_) => Vec::new(),
        };
        values.clear();
        batch.targets.clear();
        for index in indices {
            values.extend(self.image(index).iter().map(|&pixel| table[usize::from(pixel)]));
            batch.targets.push(self.labels[index].into());
        }
        batch.samples = batch.targets.len();
        batch.input = Input::Images(values);
    }

    fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * self.size..(index + 1) * self.size]
    }
}
