//! What one run of a variant was.

use serde::{Deserialize, Serialize};

use crate::report::MadeBy;

/// What came of a variant for one seed; the numbers are in the metrics files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantRun {
    /// Name of the variant.
    pub variant: String,
    /// Seed.
    pub seed: u64,
    /// Seconds from the start of the first process to the end of the last one.
    pub wall_s: f64,
    /// By peer: the step at which it was killed and did not come back, if it was.
    pub killed_at: Vec<Option<u64>>,
    /// How it failed where that is a result: the disturbance was more than the variant survives.
    #[serde(default)]
    pub failure: Option<String>,
    /// What made it; nothing where the record of the whole says it.
    #[serde(default)]
    pub made_by: Option<MadeBy>,
    /// Wall-clock time of the start of its first process, in seconds since 1970; unknown in records of
    /// before it was kept.
    #[serde(default)]
    pub began_unix_s: Option<f64>,
}

impl VariantRun {
    /// A run that took no time, of no peers.
    #[must_use]
    pub fn new(variant: &str, seed: u64) -> Self {
        let variant = variant.to_owned();
        let (killed_at, failure, made_by) = (Vec::new(), None, None);
        Self { variant, seed, wall_s: 0.0, killed_at, failure, made_by, began_unix_s: None }
    }
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "peers tell the time of their start by this clock")]
pub(crate) fn unix_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// The first line of what went wrong, and the last thing that the process itself called an error.
pub(crate) fn in_short(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let said = text.lines().skip(1).filter_map(|line| line.split_once("error: "));
    said.last().map_or_else(|| first.to_owned(), |(_, said)| format!("{first}: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_the_last_error_of_the_process() {
        let text =
            "peer 1 failed (exit status: 1)\nINFO up\nerror: a peer is gone\nerror: start again";
        assert_eq!(in_short(text), "peer 1 failed (exit status: 1): start again");
        assert_eq!(in_short("not finished within 9 s"), "not finished within 9 s");
    }
}
