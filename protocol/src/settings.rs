//! What the peers of a run should agree on without having to: how far apart it may be.

use std::collections::{BTreeMap, BTreeSet};

use crate::{RunDifference, RunSpec};

/// How far two peers' values of a setting may be apart before one refuses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Any difference is only told.
    Any,
    /// Only equal values go together.
    Equal,
    /// Numbers whose quotient is at most this; 0 goes with 0 only.
    Factor(u32),
    /// Numbers below 1 whose distances to 1 have a quotient of at most this.
    FactorBelowOne(u32),
}

/// What this peer tells of its settings, and how it judges those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedSettings {
    values: RunSpec,
    tolerances: BTreeMap<String, Tolerance>,
    allowed: BTreeSet<String>,
}

impl Tolerance {
    /// Whether a peer with the one value may take part in a run with one that has the other.
    #[must_use]
    pub fn allows(self, ours: &str, theirs: &str) -> bool {
        if ours == theirs {
            return true;
        }
        let numbers = || Some((ours.parse::<f64>().ok()?, theirs.parse::<f64>().ok()?));
        let near = |(a, b): (f64, f64), factor: u32| {
            // The slack is for rounding: 0.004 is four times 0.001.
            let most = f64::from(factor) * (1.0 + 1e-9);
            let sound = a >= 0.0 && b >= 0.0 && a.is_finite() && b.is_finite();
            sound && (a.max(b) <= 0.0 || a.min(b) > 0.0 && a.max(b) / a.min(b) <= most)
        };
        match self {
            Self::Any => true,
            Self::Equal => false,
            Self::Factor(factor) => numbers().is_some_and(|pair| near(pair, factor)),
            Self::FactorBelowOne(factor) => {
                numbers().is_some_and(|(a, b)| near((1.0 - a, 1.0 - b), factor))
            }
        }
    }
}

impl SharedSettings {
    /// Settings with the tolerance of each, and the names of those that may differ by any amount.
    ///
    /// A setting without a tolerance is [`Tolerance::Any`].
    #[must_use]
    pub fn new(
        values: RunSpec,
        tolerances: impl IntoIterator<Item = (String, Tolerance)>,
        allowed: impl IntoIterator<Item = String>,
    ) -> Self {
        let (tolerances, allowed) =
            (tolerances.into_iter().collect(), allowed.into_iter().collect());
        Self { values, tolerances, allowed }
    }

    /// This peer's values.
    #[must_use]
    pub const fn values(&self) -> &RunSpec {
        &self.values
    }

    /// What differs between this peer and one with the settings `theirs`, by name.
    ///
    /// A setting that one side lacks is left out: it depends on another one, such as the momentum of
    /// an optimizer that has none.
    ///
    /// # Errors
    /// The first difference beyond its tolerance that is not allowed by name: the peer is refused.
    pub fn compare(&self, theirs: &RunSpec) -> Result<Vec<RunDifference>, RunDifference> {
        let differences: Vec<RunDifference> = self.values.differences(theirs).collect();
        let of =
            |it: &RunDifference| self.tolerances.get(&it.field).copied().unwrap_or(Tolerance::Any);
        let beyond = differences
            .iter()
            .filter(|it| !self.allowed.contains(&it.field) && !of(it).allows(&it.ours, &it.theirs));
        // What must be equal comes first: the defaults of numbers may follow from it.
        let first = beyond.min_by_key(|it| (of(it) != Tolerance::Equal, it.field.as_str()));
        first.cloned().map_or(Ok(differences), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunField;

    fn values(fields: &[(&str, &str)]) -> RunSpec {
        let field = |&(name, value): &(&str, &str)| RunField {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        RunSpec::new(fields.iter().map(field).collect()).unwrap()
    }

    fn shared(allowed: &[&str]) -> SharedSettings {
        let tolerances = [
            ("optimizer.kind", Tolerance::Equal),
            ("optimizer.learning_rate", Tolerance::Factor(4)),
            ("run.batch", Tolerance::Any),
        ];
        SharedSettings::new(
            values(&[
                ("optimizer.kind", "adamw"),
                ("optimizer.learning_rate", "0.001"),
                ("run.batch", "8"),
            ]),
            tolerances.map(|(name, tolerance)| (name.to_owned(), tolerance)),
            allowed.iter().map(|&name| name.to_owned()),
        )
    }

    #[test]
    fn small_differences_are_told_and_large_ones_refused_by_both_ends() {
        let near = values(&[("optimizer.learning_rate", "0.004"), ("run.batch", "64")]);
        let told = shared(&[]).compare(&near).unwrap();
        let names: Vec<&str> = told.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(names, ["optimizer.learning_rate", "run.batch"]);
        let far = values(&[("optimizer.learning_rate", "0.1"), ("run.batch", "64")]);
        let refused = shared(&[]).compare(&far).unwrap_err();
        assert_eq!((refused.ours.as_str(), refused.theirs.as_str()), ("0.001", "0.1"), "{refused}");
        let other = values(&[("optimizer.kind", "sgd"), ("optimizer.momentum", "0.9")]);
        assert_eq!(shared(&[]).compare(&other).unwrap_err().field, "optimizer.kind");
    }

    #[test]
    fn what_is_allowed_by_name_is_told_and_not_refused() {
        let far = values(&[("optimizer.kind", "sgd"), ("optimizer.learning_rate", "0.1")]);
        let allows = shared(&["optimizer.kind", "optimizer.learning_rate"]);
        assert_eq!(allows.compare(&far).unwrap().len(), 2);
        let one = shared(&["optimizer.learning_rate"]).compare(&far);
        assert_eq!(one.unwrap_err().field, "optimizer.kind");
    }

    #[test]
    fn tolerances_hold_both_ways_and_for_what_is_no_number() {
        for (tolerance, one, other, allowed) in [
            (Tolerance::Factor(4), "0.001", "0.004", true),
            (Tolerance::Factor(4), "0.001", "0.0041", false),
            (Tolerance::Factor(4), "0", "0.0", true),
            (Tolerance::Factor(4), "0", "1.0", false),
            (Tolerance::Factor(4), "1.0", "NaN", false),
            (Tolerance::Factor(4), "1.0", "-1.0", false),
            (Tolerance::Factor(4), "inf", "1", false),
            (Tolerance::Factor(4), "1.0", "many", false),
            (Tolerance::FactorBelowOne(4), "0.9", "0.95", true),
            (Tolerance::FactorBelowOne(4), "0.9", "0.0", false),
            (Tolerance::FactorBelowOne(4), "0.9", "1.5", false),
            (Tolerance::Equal, "adamw", "sgd", false),
            (Tolerance::Any, "adamw", "7", true),
        ] {
            assert_eq!(tolerance.allows(one, other), allowed, "{tolerance:?} {one} {other}");
            assert_eq!(tolerance.allows(other, one), allowed, "{tolerance:?} {other} {one}");
        }
    }
}
