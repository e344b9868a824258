//! The few statistics of a report.

use super::units::to_f64;

/// Smallest, middle and largest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MinMedianMax {
    /// Smallest value.
    pub min: f64,
    /// Median; the mean of the two middle values if their number is even.
    pub median: f64,
    /// Largest value.
    pub max: f64,
}

impl MinMedianMax {
    /// The spread of `values`, or nothing if there are none. NaN counts as larger than any number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { min: first, median, max: last })
    }
}

/// Mean and sample standard deviation over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanSd {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (divisor n − 1); nothing for a single value.
    pub sd: Option<f64>,
}

impl MeanSd {
    /// Mean and deviation of `values`, or nothing if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() {
            return None;
        }
        let count = to_f64(values.len() as u64);
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let sd = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
        Some(Self { mean, sd })
    }

    /// `mean ± sd`, each written by `show`.
    pub fn show(self, show: impl Fn(f64) -> String) -> String {
        let mean = show(self.mean);
        match self.sd {
            Some(sd) => format!("{mean} ± {}", show(sd)),
            None => mean,
        }
    }
}

/// The smallest index at which the running sum of `histogram` reaches `share` of its total.
///
/// `share` in `(0, 1]`; nothing if the histogram is empty.
pub fn percentile(histogram: &[u64], share: f64) -> Option<u64> {
    let total: u64 = histogram.iter().sum();
    let mut sum = 0;
    for (index, count) in histogram.iter().enumerate() {
        sum += count;
        if total > 0 && to_f64(sum) >= share * to_f64(total) {
            return Some(index as u64);
        }
    }
    None
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected values are exact")]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_middle() {
        assert_eq!(MinMedianMax::of([]), None);
        let odd = MinMedianMax::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 3.0));
        assert_eq!(MinMedianMax::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert!(MinMedianMax::of([1.0, f64::NAN]).unwrap().max.is_nan());
    }

    #[test]
    fn mean_and_deviation_over_seeds() {
        assert_eq!(MeanSd::of([]), None);
        assert_eq!(MeanSd::of([5.0]).unwrap().sd, None);
        let many = MeanSd::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(many.mean, 5.0);
        assert!((many.sd.unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(many.show(|value| format!("{value:.1}")), "5.0 ± 2.1");
    }

    #[test]
    fn percentiles_come_from_the_histogram() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[0, 0], 0.5), None);
        let histogram = [50, 45, 4, 1];
        assert_eq!(percentile(&histogram, 0.5), Some(0));
        assert_eq!(percentile(&histogram, 0.95), Some(1));
        assert_eq!(percentile(&histogram, 1.0), Some(3));
        assert_eq!(percentile(&[3, 0, 0], 1.0), Some(0));
    }
}
