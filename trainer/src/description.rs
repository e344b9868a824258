//! What a trainer tells about its model and its data, for whoever uses a checkpoint elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::seam::TrainError;

/// Most entries of a description.
pub const DESCRIPTION_ENTRIES_MAX: usize = 64;
/// Longest name of an entry, bytes.
pub const DESCRIPTION_NAME_BYTES_MAX: usize = 64;
/// Most bytes of all names and values together.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// The name by which other programs tell whose file it is, and how dnode's own names begin.
const RESERVED: [&str; 2] = ["format", "dnode."];
/// Characters of a value that a difference shows.
const SHOWN_MAX: usize = 60;

/// Names and values, sorted by name: the metadata that a checkpoint carries beside its numbers.
///
/// A value is any text; JSON where it has parts. What [`Description::set`] adds belongs to the model: a
/// checkpoint in which it differs is refused. What [`Description::note`] adds is only told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    entries: BTreeMap<String, Entry>,
    /// The `tokenizer.json` by which the model's tokens are made.
    tokenizer: Option<Arc<[u8]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: String,
    /// Whether a checkpoint must agree.
    agreed: bool,
}

/// Why an entry cannot be part of a description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// The name is empty, too long, or one of dnode's own.
    #[error(
        "describe the model: the name \"{0}\" is not free: use 1 to {DESCRIPTION_NAME_BYTES_MAX} bytes, not \"format\" and not \"dnode.\" at the beginning"
    )]
    Name(String),
    /// There is too much.
    #[error(
        "describe the model: \"{0}\" is too much: at most {DESCRIPTION_ENTRIES_MAX} entries of together {DESCRIPTION_BYTES_MAX} bytes fit"
    )]
    TooMuch(String),
}

impl From<DescriptionError> for TrainError {
    fn from(error: DescriptionError) -> Self {
        Self::Other(error.to_string())
    }
}

impl Description {
    /// Says what belongs to the model; replaces what had this name.
    ///
    /// # Errors
    /// [`DescriptionError`]; the description is unchanged then.
    pub fn set(&mut self, name: &str, value: impl Into<String>) -> Result<(), DescriptionError> {
        self.insert(name, Entry { value: value.into(), agreed: true })
    }

    /// Says what a checkpoint need not agree with; replaces what had this name.
    ///
    /// # Errors
    /// [`DescriptionError`]; the description is unchanged then.
    pub fn note(&mut self, name: &str, value: impl Into<String>) -> Result<(), DescriptionError> {
        self.insert(name, Entry { value: value.into(), agreed: false })
    }

    /// Stores this `tokenizer.json` with every checkpoint. Its digest belongs into an entry, so that two
    /// are told apart.
    pub(crate) fn set_tokenizer(&mut self, file: Arc<[u8]>) {
        self.tokenizer = Some(file);
    }

    /// The `tokenizer.json` of the model, if it has one.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&[u8]> {
        self.tokenizer.as_deref()
    }

    /// The value of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|entry| entry.value.as_str())
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry.value.as_str()))
    }

    /// The first thing that belongs to the model and is said otherwise in `written`, in words; what
    /// either does not say differs in nothing.
    pub(crate) fn difference(&self, written: &BTreeMap<String, String>) -> Option<String> {
        let agreed = self.entries.iter().filter(|(_, entry)| entry.agreed);
        let mut both =
            agreed.filter_map(|(name, own)| Some((name, &own.value, written.get(name)?)));
        let (name, here, there) = both.find(|(_, here, there)| here != there)?;
        Some(difference(name, here, there))
    }

    fn insert(&mut self, name: &str, entry: Entry) -> Result<(), DescriptionError> {
        let reserved = name == RESERVED[0] || name.starts_with(RESERVED[1]);
        if name.is_empty() || name.len() > DESCRIPTION_NAME_BYTES_MAX || reserved {
            return Err(DescriptionError::Name(name.to_owned()));
        }
        let others = self.entries.iter().filter(|(other, _)| *other != name);
        let sizes: Vec<usize> = others.map(|(name, own)| name.len() + own.value.len()).collect();
        let bytes = sizes.iter().sum::<usize>() + name.len() + entry.value.len();
        if sizes.len() >= DESCRIPTION_ENTRIES_MAX || bytes > DESCRIPTION_BYTES_MAX {
            return Err(DescriptionError::TooMuch(name.to_owned()));
        }
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }
}

/// Where two values of one name differ: the first part that does, where both are JSON objects.
fn difference(name: &str, here: &str, there: &str) -> String {
    let parse = |text| serde_json::from_str(text);
    if let (Ok(Value::Object(ours)), Ok(Value::Object(theirs))) = (parse(here), parse(there)) {
        let shown =
            |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
        for part in ours.keys().chain(theirs.keys()) {
            let (here, there) = (shown(ours.get(part)), shown(theirs.get(part)));
            if here != there {
                return format!("{name}.{part} is {} here and {} there", cut(&here), cut(&there));
            }
        }
    }
    format!("{name} is {} here and {} there", cut(here), cut(there))
}

/// One line of `text`, not too long.
fn cut(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == SHOWN_MAX {
            shown.push('…');
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(entries: &[(&str, &str)]) -> Description {
        let mut description = Description::default();
        for (name, value) in entries {
            description.set(name, *value).unwrap();
        }
        description
    }

    fn written(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_first_part_that_differs_is_named_in_one_line() {
        let own = description(&[("a", "1"), ("model", r#"{"heads":4,"width":64}"#)]);
        assert_eq!(
            own.difference(&written(&[("a", "1")])),
            None,
            "what is not said is not compared"
        );
        assert_eq!(own.difference(&written(&[])), None);
        let check = |entries: &[(&str, &str)], want: &str| {
            assert_eq!(own.difference(&written(entries)).unwrap(), want);
        };
        check(&[("model", r#"{"heads":8,"width":64}"#)], "model.heads is 4 here and 8 there");
        check(&[("model", r#"{"heads":4}"#)], "model.width is 64 here and absent there");
        check(
            &[("model", "two\nlines")],
            r#"model is {"heads":4,"width":64} here and two\nlines there"#,
        );
        let long = own.difference(&written(&[("a", &"x".repeat(5000))])).unwrap();
        assert!(long.chars().count() < 200 && long.ends_with("… there"), "{long}");
    }

    #[test]
    fn what_is_only_told_need_not_agree() {
        let mut own = description(&[]);
        own.note("data", "one").unwrap();
        assert_eq!(own.difference(&written(&[("data", "another")])), None);
        assert_eq!(own.get("data"), Some("one"));
    }

    #[test]
    fn names_and_sizes_are_bounded() {
        let mut own = description(&[("kept", "1")]);
        let before = own.clone();
        let long = "n".repeat(DESCRIPTION_NAME_BYTES_MAX + 1);
        for name in ["", "format", "dnode.step", &long] {
            let error = own.set(name, "1").unwrap_err().to_string();
            assert!(error.contains("is not free") && !error.contains('\n'), "{error}");
        }
        assert!(own.set("big", "x".repeat(DESCRIPTION_BYTES_MAX)).is_err());
        assert_eq!(own, before);
        own.set("kept", "x".repeat(DESCRIPTION_BYTES_MAX - "kept".len())).unwrap();
        let mut many = Description::default();
        for index in 0..DESCRIPTION_ENTRIES_MAX {
            many.note(&index.to_string(), "").unwrap();
        }
        assert!(many.note("more", "").is_err());
        many.note("7", "again").unwrap();
        assert_eq!(many.iter().count(), DESCRIPTION_ENTRIES_MAX);
    }
}
