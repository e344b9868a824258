//! How long a queue will take, from how long its runs have taken.

use std::collections::BTreeMap;
use std::time::Duration;

/// Times of runs, as core-seconds: seconds times the cores that the run took.
#[derive(Clone, Debug, Default)]
pub struct Eta {
    by_variant: BTreeMap<(String, String), Vec<f64>>,
    by_case: BTreeMap<String, Vec<f64>>,
    all: Vec<f64>,
}

impl Eta {
    /// A run of a variant in a case took `seconds` on `cores`.
    pub fn took(&mut self, case: &str, variant: &str, seconds: f64, cores: f64) {
        let work = seconds * cores;
        self.by_variant.entry((case.to_owned(), variant.to_owned())).or_default().push(work);
        self.by_case.entry(case.to_owned()).or_default().push(work);
        self.all.push(work);
    }

    /// Time that runs of these variants, each `(case, variant, cores)`, will take on `cores`; nothing
    /// before the first run has ended.
    ///
    /// A run is taken for as long as those of its variant in its case, else as those in its case, else
    /// as all.
    pub fn estimate<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a str, &'a str, f64)>,
        cores: f64,
    ) -> Option<Duration> {
        let mut work = 0.0;
        for (case, variant, _) in jobs {
            let same = self.by_variant.get(&(case.to_owned(), variant.to_owned()));
            let near = same.or_else(|| self.by_case.get(case)).or(Some(&self.all));
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

/// `[####      ] 12/40 runs, about 7 min left; what is running`.
pub(super) fn bar(done: usize, total: usize, left: Option<Duration>, now: &str) -> String {
    const WIDTH: usize = 20;
    let filled = (WIDTH * done).checked_div(total).unwrap_or(WIDTH);
    let left = left.map_or_else(String::new, |left| {
        let whole = Duration::from_secs(left.as_secs());
        format!(", about {} left", humantime::format_duration(whole))
    });
    format!(
        "[{}{}] {done}/{total} runs{left}; {now}",
        "#".repeat(filled),
        " ".repeat(WIDTH - filled)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_best_is_used() {
        let mut left = Eta::default();
        assert_eq!(left.estimate([("a", "x", 1.0)].into_iter(), 2.0), None);
        left.took("a", "x", 10.0, 2.0);
        left.took("a", "y", 30.0, 2.0);
        let of = |case, variant| {
            left.estimate([(case, variant, 2.0)].into_iter(), 2.0).unwrap().as_secs()
        };
        assert_eq!((of("a", "x"), of("a", "z"), of("b", "x")), (10, 20, 20));
        assert_eq!(left.estimate([].into_iter(), 2.0), Some(Duration::ZERO));
    }
}
