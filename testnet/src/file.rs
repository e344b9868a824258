//! What files of experiments and scenarios have in common: how they are read, and what is wrong in one.

use std::path::{Path, PathBuf};

/// A file that cannot be used; the person who wrote it is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("read the file: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A value out of range.
    #[error("read the file: {key} must be {legal}")]
    Range {
        /// The key.
        key: &'static str,
        /// What is legal.
        legal: &'static str,
    },
    /// A setting needs the folder of the data.
    #[error("`{0}`: name the folder of the data with --data")]
    Data(String),
    /// A setting that cannot be used.
    #[error("read the settings: {0}")]
    Setting(String),
    /// A gossip setting out of range.
    #[error("read the file: {0}")]
    Gossip(#[from] dnode_gossip::ConfigError),
    /// A setting of the model or the optimizer out of range.
    #[error("read the file: {0}")]
    Model(#[from] dnode_trainer::ConfigError),
}

/// The text of a file.
///
/// # Errors
/// [`ReadError::File`].
pub fn text(path: &Path) -> Result<String, ReadError> {
    std::fs::read_to_string(path)
        .map_err(|source| ReadError::File { path: path.to_owned(), source })
}

/// Writes a file that is whole whenever it is there, beside an older one until then.
///
/// # Errors
/// Whatever the system says.
pub fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let part = path.with_extension("part");
    std::fs::write(&part, text)?;
    std::fs::rename(&part, path)
}

/// Whether a value is legal, its key, and what it must be.
pub(crate) type Rule = (bool, &'static str, &'static str);

/// Names the first key that breaks its rule.
///
/// # Errors
/// [`ReadError::Range`].
pub(crate) fn check(rules: impl IntoIterator<Item = Rule>) -> Result<(), ReadError> {
    match rules.into_iter().find(|(legal, _, _)| !legal) {
        Some((_, key, legal)) => Err(ReadError::Range { key, legal }),
        None => Ok(()),
    }
}

/// For `#[serde(with = "duration")]`.
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, de::Error};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text)
            .map_err(|error| D::Error::custom(format!("\"{text}\" is no duration: {error}")))
    }
}

/// For `#[serde(with = "codecs")]`.
pub(crate) mod codecs {
    use dnode_protocol::frame::Codec;
    use serde::{Deserialize, Deserializer, de::Error};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Codec>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
    }
}
