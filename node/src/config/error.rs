//! What can be wrong with a configuration, each in one line.

use std::fmt;
use std::path::{Path, PathBuf};

use dnode_trainer::ModelError;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// A line of a file, counted from 1.
    File(PathBuf, usize),
    /// A flag of the command line, for example `--set`.
    Flag(&'static str),
    /// The file that describes a model.
    Model(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "by default"),
            Self::File(path, line) => write!(f, "in {} line {line}", path.display()),
            Self::Flag(flag) => write!(f, "in {flag}"),
            Self::Model(path) => write!(f, "in {}", path.display()),
        }
    }
}

/// Why a configuration cannot be used; the person who wrote it is at fault.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration file {}: {reason}; `dnode config init` writes one", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin} is not valid TOML: {reason}; `dnode config init` writes a file in the right form", origin = place(path, *line))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// No key or section has that name.
    #[error("unknown {what} `{name}` {origin}{}", suggestion.as_ref().map_or_else(
        || "; `dnode config` prints all keys".to_owned(), |near| format!(": did you mean `{near}`?")))]
    Unknown {
        /// `key` or `section`.
        what: &'static str,
        /// The name as written.
        name: String,
        /// Where.
        origin: Origin,
        /// The nearest valid name.
        suggestion: Option<String>,
    },
    /// A value has the wrong type or is out of range.
    #[error("{name} = {value} {origin} is not legal: must be {legal}")]
    Value {
        /// The key.
        name: String,
        /// The value as written.
        value: String,
        /// Where.
        origin: Origin,
        /// What is legal.
        legal: String,
    },
    /// A flag's text is not of the flag's form.
    #[error("{flag} {text} is not legal: {wanted}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// Its text.
        text: String,
        /// What was expected.
        wanted: &'static str,
    },
    /// The file that describes a model describes none that can be trained.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Two legal values do not go together.
    #[error("{name} = {value} {origin} does not go with {other}: {remedy}")]
    Conflict {
        /// The key.
        name: &'static str,
        /// Its value.
        value: String,
        /// Where.
        origin: Origin,
        /// The other key and its value.
        other: String,
        /// What to do.
        remedy: String,
    },
}

fn place(path: &Path, line: usize) -> String {
    format!("{} line {line}", path.display())
}
