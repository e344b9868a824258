//! Which samples of the training set belong to which shard.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::DataError;
use super::order::{Permutation, Purpose, derive};

/// Most shards; a limit against typing errors.
pub(crate) const SHARDS_MAX: u32 = 65_536;

/// How labels are spread over shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Form", into = "Form")]
pub enum Skew {
    /// A random partition: every shard looks like the whole.
    #[default]
    Iid,
    /// Each class is spread by shares drawn from a symmetric Dirichlet distribution with this
    /// parameter, `> 0`; 0.1 is strongly skewed, 100 is almost iid.
    ///
    /// Source: Hsu, Qi, Brown 2019, arXiv 1909.06335, §3.1 (shares drawn per class here, per
    /// client there).
    Dirichlet(f64),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Word(String),
    Number(f64),
}

impl TryFrom<Form> for Skew {
    type Error = String;

    fn try_from(form: Form) -> Result<Self, String> {
        match form {
            Form::Word(word) if word == "iid" => Ok(Self::Iid),
            Form::Number(alpha) if alpha > 0.0 && alpha.is_finite() => Ok(Self::Dirichlet(alpha)),
            Form::Word(found) => {
                Err(format!("expected \"iid\" or a positive number, found \"{found}\""))
            }
            Form::Number(found) => {
                Err(format!("expected \"iid\" or a positive number, found {found}"))
            }
        }
    }
}

impl From<Skew> for Form {
    fn from(skew: Skew) -> Self {
        match skew {
            Skew::Iid => Self::Word("iid".to_owned()),
            Skew::Dirichlet(alpha) => Self::Number(alpha),
        }
    }
}

/// One shard of `shards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The run's seed.
    pub(crate) seed: u64,
    /// Number of shards.
    pub(crate) shards: u32,
    /// This one, from 0.
    pub(crate) shard: u32,
}

/// The samples of one shard, by their index in the training set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// A piece of a permutation of everything.
    Piece { order: Permutation, start: usize, len: usize },
    /// These.
    List(Vec<u32>),
}

impl Members {
    /// The shard at `place` of a random partition of `total` samples into pieces of equal length,
    /// to one sample.
    pub(crate) fn iid(place: Place, total: usize) -> Result<Self, DataError> {
        check(place, total)?;
        let cut =
            |shard: u32| (total as u128 * u128::from(shard) / u128::from(place.shards)) as usize;
        let (start, end) = (cut(place.shard), cut(place.shard + 1));
        let order = Permutation::new(total, Purpose::Shards, &[place.seed]);
        Ok(Self::Piece { order, start, len: end - start })
    }

    /// The shard at `place` of images with these labels.
    pub(crate) fn of_images(place: Place, skew: Skew, labels: &[u8]) -> Result<Self, DataError> {
        match skew {
            Skew::Iid => Self::iid(place, labels.len()),
            Skew::Dirichlet(alpha) => Self::skewed(place, alpha, labels),
        }
    }

    /// The shard at `place` when each class is spread by Dirichlet(`alpha`) shares.
    ///
    /// Every sample is in one shard; a shard that got none takes one from the largest.
    pub(crate) fn skewed(place: Place, alpha: f64, labels: &[u8]) -> Result<Self, DataError> {
        check(place, labels.len())?;
        let mut shards = vec![Vec::new(); place.shards as usize];
        for class in 0..=u8::MAX {
            let of_class: Vec<u32> =
                (0..).zip(labels).filter(|&(_, &label)| label == class).map(|(i, _)| i).collect();
            if !of_class.is_empty() {
                deal(place.seed, class, alpha, &of_class, &mut shards);
            }
        }
        fill_empty(&mut shards);
        Ok(Self::List(std::mem::take(&mut shards[place.shard as usize])))
    }

    /// Number of samples, at least 1.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Piece { len, .. } => *len,
            Self::List(list) => list.len(),
        }
    }

    /// The sample at `index < len`.
    pub(crate) fn at(&self, index: usize) -> usize {
        match self {
            Self::Piece { order, start, .. } => order.apply(start + index),
            Self::List(list) => list[index] as usize,
        }
    }
}

fn check(place: Place, total: usize) -> Result<(), DataError> {
    let Place { shards, shard, .. } = place;
    let samples = total.min(SHARDS_MAX as usize);
    if shards == 0 || shards as usize > samples {
        let expected = format!("1 to {samples} (the training set has {total} samples)");
        return Err(DataError::Config { key: "data.shards", value: shards.to_string(), expected });
    }
    if shard >= shards {
        let expected = format!("less than data.shards = {shards}");
        return Err(DataError::Config { key: "data.shard", value: shard.to_string(), expected });
    }
    Ok(())
}

/// Deals the samples of one class to the shards.
fn deal(seed: u64, class: u8, alpha: f64, of_class: &[u32], shards: &mut [Vec<u32>]) {
    let order = Permutation::new(of_class.len(), Purpose::Class, &[seed, class.into()]);
    let mut bytes = [0; 32];
    derive(Purpose::Shares, &[seed, class.into(), shards.len() as u64], &mut bytes);
    let shares = dirichlet(alpha, shards.len(), &mut ChaCha8Rng::from_seed(bytes));
    let (mut start, mut sum) = (0, 0.0);
    let last = shards.len() - 1;
    for (index, (shard, share)) in shards.iter_mut().zip(shares).enumerate() {
        sum += share;
        let cut = (sum * of_class.len() as f64).round() as usize;
        let end = if index == last { of_class.len() } else { cut.clamp(start, of_class.len()) };
        shard.extend((start..end).map(|at| of_class[order.apply(at)]));
        start = end;
    }
}

/// Moves one sample from the largest shard (the first of them) to each empty one, in order.
fn fill_empty(shards: &mut [Vec<u32>]) {
    let sizes = shards.iter().enumerate().map(|(index, shard)| (shard.len(), Reverse(index)));
    let mut largest: BinaryHeap<(usize, Reverse<usize>)> = sizes.collect();
    for empty in 0..shards.len() {
        if !shards[empty].is_empty() {
            continue;
        }
        if let Some((_, Reverse(donor))) = largest.pop() {
            let moved = shards[donor].pop();
            shards[empty].extend(moved);
            largest.push((shards[donor].len(), Reverse(donor)));
        }
    }
}

/// A draw from the symmetric Dirichlet distribution: `count` shares that add up to 1.
fn dirichlet(alpha: f64, count: usize, random: &mut ChaCha8Rng) -> Vec<f64> {
    let logs: Vec<f64> = (0..count).map(|_| log_gamma_variate(alpha, random)).collect();
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// The logarithm of a Gamma(`alpha`, 1) variate; the logarithm because small `alpha` underflows.
///
/// Source: Marsaglia, Tsang 2000, "A simple method for generating gamma variables", with
/// their reduction `Γ(α) = Γ(α + 1) · U^(1/α)`, which is good for every `alpha`.
fn log_gamma_variate(alpha: f64, random: &mut ChaCha8Rng) -> f64 {
    let d = alpha + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let boost = uniform(random).ln() / alpha;
    loop {
        let x = normal(random);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && uniform(random).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln() + boost;
        }
    }
}

/// A standard normal variate (Box, Muller 1958).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * uniform(random).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(random)).cos()
}

/// A uniform variate in `(0, 1]`, so that it has a logarithm.
fn uniform(random: &mut ChaCha8Rng) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<u8> {
        (0..1437_u32).map(|i| (i * i % 10) as u8).collect()
    }

    fn all(shards: u32, members: impl Fn(Place) -> Members) -> Vec<Vec<usize>> {
        (0..shards)
            .map(|shard| {
                let members = members(Place { seed: 5, shards, shard });
                (0..members.len()).map(|index| members.at(index)).collect()
            })
            .collect()
    }

    fn assert_partition(shards: &[Vec<usize>], total: usize) {
        assert!(shards.iter().all(|shard| !shard.is_empty()));
        let mut together = shards.concat();
        together.sort_unstable();
        assert_eq!(together, (0..total).collect::<Vec<_>>());
    }

    #[test]
    fn shards_are_disjoint_not_empty_and_together_everything() {
        let labels = labels();
        for shards in [1, 2, 7, 64, 1437] {
            let iid = all(shards, |place| Members::iid(place, labels.len()).unwrap());
            assert_partition(&iid, labels.len());
            assert!(iid.iter().all(|shard| shard.len().abs_diff(1437 / shards as usize) <= 1));
        }
        for (shards, alpha) in [(1, 0.1), (7, 1e-6), (7, 0.1), (64, 1e-6), (64, 1000.0)] {
            let skewed = all(shards, |place| Members::skewed(place, alpha, &labels).unwrap());
            assert_partition(&skewed, labels.len());
        }
        // As many shards as samples: each must end with exactly one.
        let few = &labels[..40];
        let single = all(40, |place| Members::skewed(place, 0.1, few).unwrap());
        assert_partition(&single, 40);
        assert!(single.iter().all(|shard| shard.len() == 1));
    }

    #[test]
    fn small_alpha_skews_labels_and_large_alpha_does_not() {
        let labels: Vec<u8> = (0..10_000_u32).map(|i| (i % 10) as u8).collect();
        // Mean over shards of the largest class's fraction: 0.1 is balanced, 1 is one class.
        let purity = |alpha: f64| {
            let shards = all(8, |place| Members::skewed(place, alpha, &labels).unwrap());
            let largest = shards.iter().map(|shard| {
                let mut counts = [0_u32; 10];
                shard.iter().for_each(|&sample| counts[labels[sample] as usize] += 1);
                f64::from(counts.into_iter().max().unwrap()) / shard.len() as f64
            });
            largest.sum::<f64>() / 8.0
        };
        let (skewed, balanced) = (purity(0.1), purity(1000.0));
        assert!(skewed > 0.35 && balanced < 0.13, "{skewed} {balanced}");
    }

    #[test]
    fn gamma_variates_have_the_right_mean_and_variance() {
        let mut random = ChaCha8Rng::from_seed([3; 32]);
        for alpha in [0.3, 1.0, 5.0] {
            let count = 40_000;
            let draws: Vec<f64> =
                (0..count).map(|_| log_gamma_variate(alpha, &mut random).exp()).collect();
            let mean = draws.iter().sum::<f64>() / f64::from(count);
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(count);
            // Five standard errors: of the mean √(α/n), of the variance about √((2α² + 6α)/n).
            let n = f64::from(count);
            assert!((mean - alpha).abs() < 5.0 * (alpha / n).sqrt(), "{alpha}: mean {mean}");
            let error = ((2.0 * alpha * alpha + 6.0 * alpha) / n).sqrt();
            assert!((variance - alpha).abs() < 5.0 * error, "{alpha}: variance {variance}");
        }
    }

    #[test]
    fn shards_that_cannot_be_are_refused_with_the_range() {
        let place = |shards, shard| Place { seed: 1, shards, shard };
        let message = |place| Members::iid(place, 10).unwrap_err().to_string();
        assert_eq!(
            message(place(11, 0)),
            "data.shards = 11: expected 1 to 10 (the training set has 10 samples)"
        );
        assert_eq!(message(place(4, 4)), "data.shard = 4: expected less than data.shards = 4");
        assert!(Members::skewed(place(0, 0), 0.1, &[1, 2]).is_err());
    }

    #[test]
    fn skew_is_a_word_or_a_positive_number() {
        let parse = |text| serde_json::from_str::<Skew>(text);
        assert_eq!(parse("\"iid\"").unwrap(), Skew::Iid);
        assert_eq!(parse("0.5").unwrap(), Skew::Dirichlet(0.5));
        assert_eq!(parse("1").unwrap(), Skew::Dirichlet(1.0));
        for bad in ["\"non-iid\"", "0", "-1.5", "true"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(serde_json::to_string(&Skew::Dirichlet(0.5)).unwrap(), "0.5");
    }
}
