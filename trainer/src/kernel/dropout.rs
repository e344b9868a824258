//! Dropout: elements that a step leaves out, drawn from a seed by their place and their number alone.
//!
//! Source: Srivastava et al. 2014, JMLR 15, §4, with the elements that stay scaled in training, so that
//! nothing is to do without dropout. Nothing of a mask is kept: who needs it again draws it again.

use super::vectorized;

/// Where elements are dropped, as in GPT-2 (`embd_pdrop`, `resid_pdrop`); blocks count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Of the first residual stream: embeddings, with those of positions.
    Embedding,
    /// Of what the attention of this block adds to the residual stream.
    Attention(usize),
    /// Of what the inner layer of this block adds to the residual stream.
    Inner(usize),
}

impl Dropped {
    const fn number(self) -> u64 {
        match self {
            Self::Embedding => 0,
            Self::Attention(block) => 2 * block as u64 + 1,
            Self::Inner(block) => 2 * block as u64 + 2,
        }
    }
}

/// What a step drops of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Elements whose number is lower are dropped.
    threshold: u32,
    /// What those that stay are multiplied by.
    scale: f32,
    /// Of the step.
    seed: u64,
    /// Samples of the step before the batch.
    before: usize,
    /// Samples of the batch.
    samples: usize,
}

impl Dropout {
    /// Shifts of `mixed`, a bijection of 32-bit numbers: `x ← x ⊕ (x >> shift)`, one before each factor and
    /// one behind the last.
    pub const SHIFTS: [u32; 3] = [16, 15, 16];
    /// Factors of `mixed`: `x ← x · factor` modulo 2³².
    pub const FACTORS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

    /// Drops the share `rate` of the elements of a batch of `samples` samples, before which the step had
    /// `before` others; `None` where that is 0.
    ///
    /// `rate`: in `[0, 1)`.
    #[must_use]
    pub fn new(rate: f64, seed: u64, (before, samples): (usize, usize)) -> Option<Self> {
        // Rounded down to a multiple of 2⁻³².
        let threshold = (rate * 2.0_f64.powi(32)) as u32;
        let scale = (1.0 / (1.0 - rate)) as f32;
        (threshold > 0).then_some(Self { threshold, scale, seed, before, samples })
    }

    /// Elements whose number is lower are dropped: see [`Self::keys`].
    #[must_use]
    pub const fn threshold(self) -> u32 {
        self.threshold
    }

    /// What the elements that stay are multiplied by.
    #[must_use]
    pub const fn scale(self) -> f32 {
        self.scale
    }

    /// Index within the step of the first of the batch's `count` elements, modulo 2³²: how a step is cut
    /// into micro-batches does not change what it drops.
    #[must_use]
    pub const fn first(self, count: usize) -> u32 {
        (count / self.samples).wrapping_mul(self.before) as u32
    }

    /// The keys `[k, l]` of a place, whose element `i` has the number `mixed(mixed(i ⊕ k) ⊕ l)`.
    ///
    /// Source: SplitMix64, Steele et al., OOPSLA 2014.
    #[must_use]
    pub const fn keys(self, place: Dropped) -> [u32; 2] {
        let step = (place.number() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut key = self.seed.wrapping_add(step);
        key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        key ^= key >> 31;
        [key as u32, (key >> 32) as u32]
    }

    /// Replaces the elements of a place, those of whole samples: `[N, C]`.
    pub(crate) fn apply(self, place: Dropped, values: &mut [f32]) {
        let ([inner, outer], first) = (self.keys(place), self.first(values.len()));
        let Self { threshold, scale, .. } = self;
        vectorized(
            #[inline(always)]
            || {
                for (index, value) in values.iter_mut().enumerate() {
                    let element = first.wrapping_add(index as u32);
                    let number = mixed(mixed(element ^ inner) ^ outer);
                    *value = if number < threshold { 0.0 } else { *value * scale };
                }
            },
        );
    }
}

/// What the steps of an engine drop.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    rate: f64,
    /// Of the step.
    seed: u64,
    /// Samples of the step so far.
    samples: usize,
}

impl Draws {
    /// A step that drops the share `rate`, by `seed`.
    #[must_use]
    pub const fn new(rate: f64, seed: u64) -> Self {
        Self { rate, seed, samples: 0 }
    }

    /// The same for the step of `seed`.
    pub const fn begin(&mut self, seed: u64) {
        *self = Self::new(self.rate, seed);
    }

    /// What is dropped of the step's next samples.
    pub fn next(&mut self, samples: usize) -> Option<Dropout> {
        let before = self.samples;
        self.samples += samples;
        Dropout::new(self.rate, self.seed, (before, samples))
    }
}

/// The gradient before a place of that behind it, which is left alone: in `spare` where there is dropout.
pub(crate) fn before<'a>(
    dropout: Option<Dropout>,
    place: Dropped,
    gradient: &'a [f32],
    spare: &'a mut Vec<f32>,
) -> &'a [f32] {
    let Some(dropout) = dropout else { return gradient };
    spare.clear();
    spare.extend_from_slice(gradient);
    dropout.apply(place, spare);
    spare
}

/// A bijection of 32-bit numbers in which each bit of the result hangs on all bits of the argument.
///
/// Source: Wellons 2018, "Prospecting for hash functions" (`lowbias32`).
#[inline(always)]
const fn mixed(mut value: u32) -> u32 {
    let ([first, second, last], [one, other]) = (Dropout::SHIFTS, Dropout::FACTORS);
    value = (value ^ (value >> first)).wrapping_mul(one);
    value = (value ^ (value >> second)).wrapping_mul(other);
    value ^ (value >> last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 1 << 16;

    /// Which of [`COUNT`] elements stay.
    fn kept(dropout: Dropout, place: Dropped) -> Vec<bool> {
        let mut values = vec![1.0; COUNT];
        dropout.apply(place, &mut values);
        let legal = |&value: &f32| value.abs() < 1e-6 || (value - dropout.scale()).abs() < 1e-6;
        assert!(values.iter().all(legal));
        values.iter().map(|&value| value > 0.5).collect()
    }

    fn share(mut of: impl Iterator<Item = bool>, count: usize) -> f64 {
        of.by_ref().filter(|&it| it).count() as f64 / count as f64
    }

    #[test]
    fn the_share_that_is_asked_for_is_dropped_and_the_mean_stays() {
        assert_eq!(Dropout::new(0.0, 1, (0, 1)), None);
        for rate in [0.1, 0.5, 0.9] {
            let dropout = Dropout::new(rate, 1, (0, 1)).unwrap();
            let stay = share(kept(dropout, Dropped::Embedding).into_iter(), COUNT);
            assert!((stay - (1.0 - rate)).abs() < 0.01, "{rate}: {stay}");
            assert!((f64::from(dropout.scale()) * (1.0 - rate) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn masks_of_seeds_places_and_shifted_elements_have_nothing_to_do_with_each_other() {
        let new = |seed| Dropout::new(0.5, seed, (0, 1)).unwrap();
        let places =
            [Dropped::Embedding, Dropped::Attention(0), Dropped::Inner(0), Dropped::Attention(1)];
        let seeds = [0, 1, 2, 1 << 32, u64::MAX];
        let all = seeds.iter().flat_map(|&seed| places.map(|place| kept(new(seed), place)));
        let masks: Vec<Vec<bool>> = all.collect();
        for (index, one) in masks.iter().enumerate() {
            for (other, shift) in
                masks[..index].iter().map(|it| (it, 0)).chain([(one, 1), (one, 768)])
            {
                let pairs = one.iter().zip(&other[shift..]);
                let equal = share(pairs.map(|(one, other)| one == other), COUNT - shift);
                assert!((equal - 0.5).abs() < 0.01, "{index} {shift}: {equal}");
            }
        }
    }

    #[test]
    fn micro_batches_drop_what_the_whole_batch_drops() {
        let whole = kept(Dropout::new(0.3, 9, (0, 8)).unwrap(), Dropped::Inner(3));
        let part = Dropout::new(0.3, 9, (3, 2)).unwrap();
        let mut values = vec![1.0; COUNT / 4];
        part.apply(Dropped::Inner(3), &mut values);
        let stay: Vec<bool> = values.iter().map(|&value| value > 0.5).collect();
        assert_eq!(stay, whole[COUNT / 8 * 3..COUNT / 8 * 5]);
    }
}
