//! Settings `section.key=value`, as `--set` of every program takes them and as files list them.

use std::path::Path;

use dnode_trainer::{OptimizerConfig, OptimizerKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::file::{self, ReadError};

/// A configuration, section by section.
pub(crate) type Sections = Map<String, Value>;

/// The settings, section by section; later ones win.
pub(crate) fn sections<'a>(
    config: Option<&Path>,
    settings: impl IntoIterator<Item = &'a String>,
) -> Result<Sections, ReadError> {
    let mut sections = match config {
        Some(path) => toml::from_str(&file::text(path)?)?,
        None => Map::new(),
    };
    for setting in settings {
        let parts = setting.split_once('=').and_then(|(key, value)| {
            let (section, key) = key.split_once('.')?;
            Some((section, key, value))
        });
        let (section, key, value) =
            parts.ok_or_else(|| ReadError::Setting(format!("`{setting}` is no setting")))?;
        let section = sections.entry(section).or_insert_with(|| Map::new().into());
        if let Value::Object(section) = section {
            section.insert(key.to_owned(), parse(value));
        }
    }
    Ok(sections)
}

/// What a section says, defaults for what it does not.
pub(crate) fn section<T: DeserializeOwned>(
    sections: &Sections,
    name: &str,
) -> Result<T, ReadError> {
    let value = sections.get(name).cloned().unwrap_or_else(|| Map::new().into());
    read(name, value)
}

/// The optimizer: the product's defaults of its kind with what the section changes.
pub(crate) fn optimizer(sections: &Sections) -> Result<OptimizerConfig, ReadError> {
    let changes: Sections = section(sections, "optimizer")?;
    let kind = changes.get("kind").cloned();
    let kind = kind.map_or(Ok(OptimizerKind::Adamw), |kind| read("optimizer.kind", kind))?;
    let mut optimizer = object(OptimizerConfig::default_of(kind))?;
    optimizer.extend(changes);
    read("optimizer", Value::Object(optimizer))
}

/// A value as the product reads it: TOML, or else a word.
fn parse(text: &str) -> Value {
    let table: Result<Sections, _> = toml::from_str(&format!("value = {text}"));
    let value = table.ok().and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ReadError> {
    serde_json::from_value(value).map_err(|error| ReadError::Setting(format!("{name}: {error}")))
}

/// A section with every value that is in force.
pub(crate) fn object(value: impl Serialize) -> Result<Sections, ReadError> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Ok(Map::new()),
        Err(error) => Err(ReadError::Setting(error.to_string())),
    }
}
