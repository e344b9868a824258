//! Named values that the peers of one run compare, and how a difference is named.

use wincode::{SchemaRead, SchemaWrite};

use crate::RunId;
use crate::limits::{RUN_FIELD_NAME_BYTES_MAX, RUN_FIELD_VALUE_BYTES_MAX, RUN_FIELDS_MAX};

/// One thing the peers of a run agree on, for example `rule` = `gossip-outer`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, SchemaRead, SchemaWrite)]
pub struct RunField {
    /// What it is; the configuration key where there is one.
    pub name: String,
    /// Its value in text form.
    pub value: String,
}

/// Everything the peers of one run must agree on, or should; sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct RunSpec {
    fields: Vec<RunField>,
}

/// The first field in which two peers' runs differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is \"{ours}\" here and \"{theirs}\" there")]
pub struct RunDifference {
    /// Name of the field.
    pub field: String,
    /// This peer's value, or `absent`.
    pub ours: String,
    /// The other peer's value, or `absent`.
    pub theirs: String,
}

/// Why fields do not make a run specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunSpecError {
    /// More than [`RUN_FIELDS_MAX`] fields.
    #[error("describe a run by {0} fields: at most {RUN_FIELDS_MAX}")]
    TooMany(usize),
    /// A name or a value is too long.
    #[error(
        "describe a run: field \"{0}\" exceeds {RUN_FIELD_NAME_BYTES_MAX} bytes of name or {RUN_FIELD_VALUE_BYTES_MAX} of value"
    )]
    TooLong(String),
    /// A name or a value would break the line that tells it.
    #[error("describe a run: field \"{}\" has a control character", .0.escape_debug())]
    Control(String),
    /// Names are not sorted or not unique.
    #[error("describe a run: field \"{0}\" is double or out of order")]
    Order(String),
}

impl RunSpec {
    /// A specification from its fields, in any order.
    ///
    /// # Errors
    /// [`RunSpecError`] when a limit is exceeded or a name is double.
    pub fn new(mut fields: Vec<RunField>) -> Result<Self, RunSpecError> {
        fields.sort();
        let spec = Self { fields };
        spec.check()?;
        Ok(spec)
    }

    /// Checks what decoding cannot: limits, order, uniqueness. Decoders call this.
    ///
    /// # Errors
    /// [`RunSpecError`] names the offending field.
    pub fn check(&self) -> Result<(), RunSpecError> {
        if self.fields.len() > RUN_FIELDS_MAX {
            return Err(RunSpecError::TooMany(self.fields.len()));
        }
        for field in &self.fields {
            if field.name.len() > RUN_FIELD_NAME_BYTES_MAX
                || field.value.len() > RUN_FIELD_VALUE_BYTES_MAX
            {
                return Err(RunSpecError::TooLong(field.name.chars().take(64).collect()));
            }
            if !is_plain(&field.name) || !is_plain(&field.value) {
                return Err(RunSpecError::Control(field.name.clone()));
            }
        }
        for pair in self.fields.windows(2) {
            if pair[0].name >= pair[1].name {
                return Err(RunSpecError::Order(pair[1].name.clone()));
            }
        }
        Ok(())
    }

    /// The fields, sorted by name.
    #[must_use]
    pub fn fields(&self) -> &[RunField] {
        &self.fields
    }

    /// The value of the field `name`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        let index = self.fields.binary_search_by(|field| field.name.as_str().cmp(name)).ok()?;
        Some(&self.fields[index].value)
    }

    /// The fields that both have and in which they differ, by name.
    pub fn differences<'a>(&'a self, theirs: &'a Self) -> impl Iterator<Item = RunDifference> + 'a {
        self.fields.iter().filter_map(|field| {
            let other = theirs.value(&field.name).filter(|other| *other != field.value)?;
            Some(RunDifference {
                field: field.name.clone(),
                ours: field.value.clone(),
                theirs: other.to_owned(),
            })
        })
    }

    /// Hash of all fields: the name of the run.
    #[must_use]
    pub fn id(&self) -> RunId {
        let mut hasher = blake3::Hasher::new_derive_key("dnode run v1");
        for field in &self.fields {
            for text in [&field.name, &field.value] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        RunId(*hasher.finalize().as_bytes())
    }

    /// The first field, by name, in which `self` and `theirs` differ; `None` when they agree.
    ///
    /// Fields that both sides have come first: one that a side lacks is a consequence of another
    /// (`model.hidden` of `model.kind`). Of those, a rule or a kind comes first: it decides the defaults
    /// of others.
    #[must_use]
    pub fn difference(&self, theirs: &Self) -> Option<RunDifference> {
        let value = |spec: &Self, name: &str| spec.value(name).map(str::to_owned);
        let names = self.fields.iter().chain(&theirs.fields).map(|field| field.name.as_str());
        let lacks = |name: &str| value(self, name).is_none() || value(theirs, name).is_none();
        let decides = |name: &str| name.ends_with(".rule") || name.ends_with(".kind");
        let field = names
            .filter(|name| value(self, name) != value(theirs, name))
            .min_by_key(|name| (lacks(name), !decides(name), *name))?;
        Some(RunDifference {
            field: field.to_owned(),
            ours: value(self, field).unwrap_or_else(|| "absent".to_owned()),
            theirs: value(theirs, field).unwrap_or_else(|| "absent".to_owned()),
        })
    }
}

/// Whether a text can stand in one line of a log.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(fields: &[(&str, &str)]) -> RunSpec {
        let field = |&(name, value): &(&str, &str)| RunField {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        RunSpec::new(fields.iter().map(field).collect()).unwrap()
    }

    #[test]
    fn the_differing_field_is_named_with_both_values() {
        let ours = spec(&[("seed", "1"), ("rule", "pairwise")]);
        let theirs = spec(&[("rule", "pairwise"), ("seed", "2")]);
        assert_eq!(
            ours.difference(&theirs).unwrap().to_string(),
            "seed is \"1\" here and \"2\" there"
        );
        assert_eq!(ours.difference(&spec(&[("seed", "1"), ("rule", "pairwise")])), None);
    }

    #[test]
    fn a_field_that_one_side_lacks_is_named() {
        let difference = spec(&[("a", "1")]).difference(&spec(&[])).unwrap();
        assert_eq!((difference.field.as_str(), difference.theirs.as_str()), ("a", "absent"));
    }

    #[test]
    fn a_field_of_both_sides_is_named_before_one_that_a_side_lacks() {
        let ours = spec(&[("model.hidden", "[128]"), ("model.kind", "mlp")]);
        let difference = ours.difference(&spec(&[("model.kind", "cnn")])).unwrap();
        assert_eq!(difference.field, "model.kind");
    }

    #[test]
    fn a_rule_is_named_before_what_follows_from_it() {
        let ours = spec(&[("gossip.mix_every", "auto"), ("gossip.rule", "pairwise")]);
        let theirs = spec(&[("gossip.mix_every", "25"), ("gossip.rule", "gossip-outer")]);
        assert_eq!(ours.difference(&theirs).unwrap().field, "gossip.rule");
    }

    #[test]
    fn the_id_does_not_depend_on_the_order_given() {
        assert_eq!(spec(&[("a", "1"), ("b", "2")]).id(), spec(&[("b", "2"), ("a", "1")]).id());
        assert_ne!(spec(&[("a", "1")]).id(), spec(&[("a", "2")]).id());
    }

    #[test]
    fn double_names_and_long_values_are_refused() {
        let field =
            |name: &str, value: &str| RunField { name: name.to_owned(), value: value.to_owned() };
        assert!(RunSpec::new(vec![field("a", "1"), field("a", "2")]).is_err());
        assert!(RunSpec::new(vec![field("a", &"x".repeat(257))]).is_err());
        assert!(RunSpec::new(vec![field("a", "x\nWARN forged")]).is_err());
    }
}
