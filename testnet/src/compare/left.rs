//! How long a queue will take, from how long its runs have taken.

use std::collections::BTreeMap;
use std::time::Duration;

/// Times of runs, as core-seconds: seconds times the cores that the run took.
#[derive(Clone, Debug, Default)]
pub struct TimeLeft {
    by_arm: BTreeMap<(String, String), Vec<f64>>,
    by_cell: BTreeMap<String, Vec<f64>>,
    all: Vec<f64>,
}

impl TimeLeft {
    /// A run of an arm in a cell took `seconds` on `cores`.
    pub fn took(&mut self, cell: &str, arm: &str, seconds: f64, cores: f64) {
        let work = seconds * cores;
        self.by_arm.entry((cell.to_owned(), arm.to_owned())).or_default().push(work);
        self.by_cell.entry(cell.to_owned()).or_default().push(work);
        self.all.push(work);
    }

    /// Time that runs of these arms, each `(cell, arm, cores)`, will take on `cores`; nothing
    /// before the first run has ended.
    ///
    /// A run is taken for as long as those of its arm in its cell, else as those in its cell, else
    /// as all.
    pub fn estimate<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a str, &'a str, f64)>,
        cores: f64,
    ) -> Option<Duration> {
        let mut work = 0.0;
        for (cell, arm, _) in jobs {
            let same = self.by_arm.get(&(cell.to_owned(), arm.to_owned()));
            let near = same.or_else(|| self.by_cell.get(cell)).or(Some(&self.all));
            work += mean(near?)?;
        }
        Some(Duration::from_secs_f64(work / cores.max(1.0)))
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "there are few runs")]
    let count = values.len() as f64;
    (count > 0.0).then(|| values.iter().sum::<f64>() / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_best_is_used() {
        let mut left = TimeLeft::default();
        assert_eq!(left.estimate([("a", "x", 1.0)].into_iter(), 2.0), None);
        left.took("a", "x", 10.0, 2.0);
        left.took("a", "y", 30.0, 2.0);
        let of = |cell, arm| left.estimate([(cell, arm, 2.0)].into_iter(), 2.0).unwrap().as_secs();
        assert_eq!((of("a", "x"), of("a", "z"), of("b", "x")), (10, 20, 20));
        assert_eq!(left.estimate([].into_iter(), 2.0), Some(Duration::ZERO));
    }
}
