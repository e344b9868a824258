//! Data sets: which samples a peer trains on, and the batch that belongs to each local step.

mod about;
mod digits;
mod error;
mod file;
mod images;
mod mnist;
mod order;
mod shakespeare;
mod shard;
mod stream;
mod text;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::about::{About, Pictures};
use self::images::Images;
use self::order::{Permutation, Purpose};
use self::shard::{Members, Place};
use self::text::Text;
use crate::batch::{Batch, BatchSource, SampleShape};
use crate::description::{Description, DescriptionError};
use crate::seam::{DataIdentity, DataShare};
use crate::vocabulary::Tokens;

pub use self::error::DataError;
pub use self::shakespeare::shakespeare_text;
pub use self::shard::Skew;
pub use self::stream::{Drawn, Stream, expected_overlap};
pub use self::text::read_text;
pub(crate) use self::text::train_len;

/// Which data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataKind {
    /// 1,797 handwritten digits of 8×8 pixels, embedded.
    #[default]
    Digits,
    /// Four IDX files of 28×28 images in a folder: MNIST, Fashion-MNIST, KMNIST.
    Mnist,
    /// Any UTF-8 text file, as characters or as a tokenizer's tokens.
    Text,
    /// Two plays by Shakespeare, embedded.
    Shakespeare,
}

impl DataKind {
    /// Whether samples are windows of a text.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Shakespeare)
    }

    /// Whether it is part of the program, so that no path belongs to it.
    #[must_use]
    pub const fn is_embedded(self) -> bool {
        matches!(self, Self::Digits | Self::Shakespeare)
    }
}

/// The data and this peer's share of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Which data set. Default digits.
    pub kind: DataKind,
    /// The folder (mnist) or file (text); unused by embedded data.
    pub path: Option<PathBuf>,
    /// Shards that the training set is cut into, `1..=65536`, at most one per sample. Default 1.
    pub shards: u32,
    /// This peer's shard, `0..shards`; unset until [`BatchSource::set_shard`] tells it, 0 before that.
    /// Default unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// How labels are spread over shards; only iid for text. Default iid.
    pub skew: Skew,
    /// The order in which this peer draws its shard's samples. Default one of its own.
    pub stream: Stream,
    /// What characters of a text become: those of this text file in the order of their code points,
    /// or `bytes`; unset: those of the text itself. Unused by images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PathBuf>,
    /// The `tokenizer.json` that makes tokens of a text, in place of its characters; not together
    /// with a vocabulary. Unused by images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// What is subtracted from a pixel, `0..=255`; unset: the mean of the training images. Given
    /// together with the deviation, or not at all. Unused by digits and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixel_mean: Option<f64>,
    /// What a pixel is divided by after that, above 0; unset: their deviation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixel_deviation: Option<f64>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            kind: DataKind::Digits,
            path: None,
            shards: 1,
            shard: None,
            skew: Skew::Iid,
            stream: Stream::Auto,
            vocabulary: None,
            tokenizer: None,
            pixel_mean: None,
            pixel_deviation: None,
        }
    }
}

enum Samples {
    Images {
        /// The shard's images, in the order of its members; all of them where the shard may change.
        train: Images,
        /// Whether those are all.
        whole: bool,
        held_out: Images,
        /// What pixel values become.
        table: Box<[f32; 256]>,
    },
    Text(Text),
}

/// One shard of a data set, in memory.
///
/// A training batch is a function of (seed, shard, stream, step, micro-batch) alone. Every pass over
/// the shard (epoch) has its own order, in which each sample comes once; for text, a sample is the
/// window that begins at one token. Peers of one shard draw in different orders unless their streams
/// are set to one number: [`BatchSource::set_stream`].
pub struct Dataset {
    samples: Samples,
    shape: SampleShape,
    members: Members,
    place: Place,
    /// As configured.
    configured: Stream,
    /// In force.
    stream: u64,
    micro_batches: u64,
    skew: Skew,
    identity: DataIdentity,
    about: About,
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("shape", &self.shape)
            .field("place", &self.place)
            .field("stream", &self.stream)
            .field("train", &self.train_len())
            .field("held_out", &self.evaluation_len())
            .finish_non_exhaustive()
    }
}

impl Dataset {
    /// Reads the data set and picks this peer's shard.
    ///
    /// `seed` decides shards and order, never what is held out. `context`: tokens per sample, at
    /// least 1; unused by images.
    ///
    /// # Errors
    /// [`DataError`] names the file or key, what was expected and what was found.
    pub fn open(config: &DataConfig, seed: u64, context: usize) -> Result<Self, DataError> {
        let shard = config.shard.unwrap_or(0);
        let place = Place { seed, shards: config.shards, shard };
        let mut opened = Self::at_place(config, place, context)?;
        (opened.configured, opened.skew) = (config.stream, config.skew);
        opened.set_stream(0);
        Ok(opened)
    }

    fn at_place(config: &DataConfig, place: Place, context: usize) -> Result<Self, DataError> {
        match config.kind {
            DataKind::Digits => {
                Self::images(config, place, digits::load()?, (digits::SIDE, digits::CLASSES))
            }
            DataKind::Mnist => {
                let folder = path(config, "the folder with the MNIST files")?;
                Self::images(config, place, mnist::load(folder)?, (mnist::SIDE, mnist::CLASSES))
            }
            DataKind::Text | DataKind::Shakespeare => Self::text(config, place, context),
        }
    }

    fn images(
        config: &DataConfig,
        place: Place,
        (all, held_out): (Images, Images),
        (side, classes): (usize, usize),
    ) -> Result<Self, DataError> {
        let members = Members::of_images(place, config.skew, &all.labels)?;
        let digest = digest(&[&all.pixels, &all.labels, &held_out.pixels, &held_out.labels]);
        let given = config.pixel_mean.zip(config.pixel_deviation);
        let given = given.filter(|_| config.kind == DataKind::Mnist);
        let (mean, deviation) = given.unwrap_or_else(|| all.moments());
        let table = Box::new(Images::standardise((mean, deviation)));
        let bits: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
        let pixels = format!(
            "{side}x{side} grey pixels, mean {mean:.3}, deviation {deviation:.3} ({})",
            short(&bits)
        );
        let labels = format!("{classes} labels, 0 to {}", classes - 1);
        let maps = vec![("data.labels", labels), ("data.preprocessing", pixels)];
        let counts = (all.labels.len(), held_out.labels.len());
        let kind = config.kind;
        let about = Pictures { kind, side, classes, mean, deviation, counts };
        let about = About::images(about, digest)?;
        let whole = config.shard.is_none() && place.shards > 1;
        let train =
            if whole { all } else { all.select((0..members.len()).map(|index| members.at(index))) };
        let samples = Samples::Images { train, whole, held_out, table };
        let shape = SampleShape::Image { height: side, width: side, classes };
        let identity = DataIdentity { maps, digest: Some(digest) };
        Ok(Self::new((samples, shape), (members, place), (identity, about)))
    }

    fn text(config: &DataConfig, place: Place, context: usize) -> Result<Self, DataError> {
        if let Skew::Dirichlet(alpha) = config.skew {
            let expected = "\"iid\": text has no labels to skew".to_owned();
            return Err(DataError::Config { key: "data.skew", value: alpha.to_string(), expected });
        }
        if context == 0 {
            let expected = "at least 1 for text".to_owned();
            return Err(DataError::Config {
                key: "model.context",
                value: "0".to_owned(),
                expected,
            });
        }
        let vocabulary = text::configured(config)?;
        let text = match config.kind {
            DataKind::Shakespeare => shakespeare::load(vocabulary, context)?,
            DataKind::Digits | DataKind::Mnist | DataKind::Text => {
                Text::load(path(config, "the text file")?, vocabulary, context)?
            }
        };
        let members = Members::iid(place, text.train_windows())?;
        let digest = text_digest(text.tokens());
        let about = About::text(config.kind, &text, digest);
        let maps = vec![("data.vocabulary", text.vocabulary.words())];
        let identity = DataIdentity { maps, digest: Some(digest) };
        let shape = SampleShape::Text { context, vocabulary: text.vocabulary.len() };
        Ok(Self::new((Samples::Text(text), shape), (members, place), (identity, about)))
    }

    fn new(
        (samples, shape): (Samples, SampleShape),
        (members, place): (Members, Place),
        (identity, about): (DataIdentity, About),
    ) -> Self {
        let (configured, stream, micro_batches, skew) = (Stream::Auto, 0, 1, Skew::Iid);
        Self {
            samples,
            shape,
            members,
            place,
            configured,
            stream,
            micro_batches,
            skew,
            identity,
            about,
        }
    }

    /// The same data for steps of `count` micro-batches each (`optimizer.accumulate`), at least 1.
    ///
    /// A step of `count` micro-batches of `n` samples then sees the samples of one batch of
    /// `count · n`.
    ///
    /// # Panics
    /// When `count` is 0.
    #[must_use]
    pub fn with_micro_batches(mut self, count: usize) -> Self {
        assert!(count > 0, "a step has at least one micro-batch");
        self.micro_batches = count as u64;
        self
    }

    /// Number of training samples of this shard.
    #[must_use]
    pub const fn train_len(&self) -> usize {
        self.members.len()
    }

    /// Hash of the whole data set, all shards and the held-out part; equal exactly for equal data.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.identity.digest.unwrap_or_default()
    }

    /// Number of training samples that this shard and `other` have in common.
    ///
    /// Zero for different shards of one run: same data, seed, `shards` and skew. Windows of text
    /// are compared by their first token.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> usize {
        if self.identity != other.identity || self.shape != other.shape {
            return 0;
        }
        let indices = |data: &Self| {
            let mut all: Vec<usize> = (0..data.train_len()).map(|i| data.members.at(i)).collect();
            all.sort_unstable();
            all
        };
        let (ours, theirs) = (indices(self), indices(other));
        ours.iter().filter(|index| theirs.binary_search(index).is_ok()).count()
    }

    /// As [`DataShare::label_distance`].
    fn label_distance(&self) -> Option<f64> {
        match &self.samples {
            Samples::Images { train, whole: false, held_out, .. } => {
                Some(total_variation(train.labels.iter(), held_out.labels.iter()))
            }
            Samples::Images { train, held_out, .. } => {
                let own = (0..self.members.len()).map(|at| &train.labels[self.members.at(at)]);
                Some(total_variation(own, held_out.labels.iter()))
            }
            Samples::Text(_) => None,
        }
    }

    /// Positions in the shard of the samples from `first` on, counted over all epochs.
    fn positions(&self, first: u64, samples: usize) -> impl Iterator<Item = usize> {
        let len = self.train_len() as u64;
        let mut current: Option<(u64, Permutation)> = None;
        let Place { seed, shards, shard } = self.place;
        let stream = self.stream;
        (first..first.saturating_add(samples as u64)).map(move |at| {
            let epoch = at / len;
            let order = match current.take() {
                Some((of, order)) if of == epoch => order,
                _ => {
                    let parts = [seed, shards.into(), shard.into(), stream, epoch];
                    Permutation::new(len as usize, Purpose::Epoch, &parts)
                }
            };
            let position = order.apply((at % len) as usize);
            current = Some((epoch, order));
            position
        })
    }

    fn held_out(&self, range: Range<usize>, batch: &mut Batch) {
        match &self.samples {
            Samples::Images { held_out, table, .. } => held_out.fill(table, range, batch),
            Samples::Text(text) => {
                text.fill(range.map(|window| text.held_out_start(window)), batch);
            }
        }
    }
}

/// Half the sum of the differences between the shares of each label; 0 where one has none.
fn total_variation<'a>(
    one: impl ExactSizeIterator<Item = &'a u8>,
    other: impl ExactSizeIterator<Item = &'a u8>,
) -> f64 {
    let (ours, theirs) = (one.len(), other.len());
    if ours == 0 || theirs == 0 {
        return 0.0;
    }
    let mut shares = [0.0; 256];
    one.for_each(|label| shares[usize::from(*label)] += 1.0 / ours as f64);
    other.for_each(|label| shares[usize::from(*label)] -= 1.0 / theirs as f64);
    shares.iter().map(|difference: &f64| difference.abs()).sum::<f64>() / 2.0
}

impl BatchSource for Dataset {
    fn shape(&self) -> SampleShape {
        self.shape
    }

    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        let micro_batches = self.micro_batches;
        assert!(micro < micro_batches, "micro-batch {micro} of {micro_batches}");
        let number = step.saturating_mul(micro_batches).saturating_add(micro);
        let first = number.saturating_mul(samples as u64);
        let positions = self.positions(first, samples);
        match &self.samples {
            Samples::Images { train, table, whole: false, .. } => {
                train.fill(table, positions, batch);
            }
            Samples::Images { train, table, .. } => {
                train.fill(table, positions.map(|position| self.members.at(position)), batch);
            }
            Samples::Text(text) => {
                text.fill(positions.map(|position| self.members.at(position)), batch);
            }
        }
    }

    fn set_stream(&mut self, stream: u64) {
        self.stream = match self.configured {
            Stream::Auto => stream,
            Stream::Fixed(number) => number,
        };
    }

    fn describe(&self, description: &mut Description) -> Result<(), DescriptionError> {
        self.about.tell(description)
    }

    fn set_shard(&mut self, shard: u32) -> bool {
        let place = Place { shard, ..self.place };
        let members = match &self.samples {
            Samples::Images { whole: false, .. } => return shard == self.place.shard,
            Samples::Images { train, .. } => Members::of_images(place, self.skew, &train.labels),
            Samples::Text(text) => Members::iid(place, text.train_windows()),
        };
        let Ok(members) = members else { return false };
        (self.members, self.place) = (members, place);
        true
    }

    fn identity(&self) -> DataIdentity {
        self.identity.clone()
    }

    fn share(&self) -> Option<DataShare> {
        let Place { shards, shard, .. } = self.place;
        Some(DataShare {
            shards,
            shard,
            samples: self.train_len() as u64,
            stream: self.stream,
            label_distance: self.label_distance(),
        })
    }

    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool {
        let end = self.evaluation_len().min(offset.saturating_add(samples));
        if offset >= end {
            return false;
        }
        self.held_out(offset..end, batch);
        true
    }

    fn evaluation_len(&self) -> usize {
        match &self.samples {
            Samples::Images { held_out, .. } => held_out.labels.len(),
            Samples::Text(text) => text.held_out_windows(),
        }
    }
}

fn path<'a>(config: &'a DataConfig, expected: &str) -> Result<&'a Path, DataError> {
    config.path.as_deref().ok_or_else(|| DataError::Config {
        key: "data.path",
        value: "(not given)".to_owned(),
        expected: expected.to_owned(),
    })
}

/// Eight bytes of a hash, in hexadecimal: what tells two maps apart in a line.
pub(crate) fn short(bytes: &[u8]) -> String {
    about::hex(digest(&[bytes]))[..16].to_owned()
}

/// The context of the hash of a data set.
const DIGESTED: &str = "dnode data set v1";

/// As [`digest`] of a text's tokens.
fn text_digest(tokens: &Tokens) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(DIGESTED);
    hasher.update(&(tokens.byte_len() as u64).to_le_bytes());
    tokens.bytes(&mut |bytes| {
        hasher.update(bytes);
    });
    *hasher.finalize().as_bytes()
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(DIGESTED);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
