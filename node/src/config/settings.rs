//! Layers of settings: defaults, then the file, then flags, every value with its origin.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use dnode_trainer::Tokenizer;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::error::{ConfigError, Origin};
use super::key::{Key, Preset};
use super::keys::{Config, KEYS, SECTIONS, TEXTS, find};
use super::model_file::{self, Described};
use super::relations;
use super::suggest::nearest;

/// Values given so far, later ones over earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    given: BTreeMap<&'static str, (Value, Origin)>,
    /// Keys that were given a value that is not legal.
    refused: BTreeSet<&'static str>,
}

impl Settings {
    /// No value given.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the settings of a TOML file.
    ///
    /// # Errors
    /// [`ConfigError`] names the first faulty line.
    pub fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        self.file_faults(path).into_iter().next().map_or(Ok(()), Err)
    }

    /// Adds the settings of a TOML file that are legal, and tells what is wrong with the others; a file
    /// that is no TOML adds nothing.
    pub fn file_faults(&mut self, path: &Path) -> Vec<ConfigError> {
        let text = match read_bounded(path) {
            Ok(text) => text,
            Err(reason) => return vec![ConfigError::Read { path: path.to_owned(), reason }],
        };
        let syntax = |error: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            line: line_of(&text, error.span().map_or(0, |span| span.start)),
            reason: error.message().replace('\n', ", "),
        };
        let (table, errors) = DeTable::parse_recoverable(&text);
        if !errors.is_empty() {
            return errors.into_iter().map(syntax).collect();
        }
        let mut faults = Vec::new();
        let origin = |start: usize| Origin::File(path.to_owned(), line_of(&text, start));
        let mut sections: Vec<_> = table.get_ref().iter().collect();
        sections.sort_by_key(|(name, _)| name.span().start);
        for (name, section) in sections {
            let here = origin(name.span().start);
            let name = name.get_ref().as_ref();
            let DeValue::Table(entries) = section.get_ref() else {
                faults.push(outside_section(name, here));
                continue;
            };
            if !SECTIONS.iter().any(|known| known.name == name) {
                faults.push(unknown_section(name, here));
                continue;
            }
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| key.span().start);
            for (short, value) in entries {
                let origin = origin(short.span().start);
                let taken = self.entry(&format!("{name}.{}", short.get_ref()), value, origin);
                faults.extend(taken.err());
            }
        }
        faults
    }

    /// One entry of a file.
    fn entry(
        &mut self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        let key = known(name, &origin)?;
        match own(value.get_ref()) {
            Ok(value) => self.insert(key, &value, origin),
            Err(text) => Err(self.refuse(key, text, origin)),
        }
    }

    /// Adds one `section.key=value` of `--set`.
    ///
    /// # Errors
    /// [`ConfigError`] names the key, or says what form was expected.
    pub fn set(&mut self, text: &str) -> Result<(), ConfigError> {
        let Some((name, value)) = text.split_once('=') else {
            return Err(ConfigError::Flag {
                flag: "--set",
                text: text.to_owned(),
                wanted: "must be section.key=value, for example gossip.local_steps=50",
            });
        };
        let origin = Origin::Flag("--set");
        let key = known(name.trim(), &origin)?;
        self.insert(key, &key.kind.read(value.trim()), origin)
    }

    /// Adds the value of a flag that stands for one key.
    ///
    /// # Errors
    /// [`ConfigError::Value`] when it is not legal, [`ConfigError::Unknown`] when there is no such key.
    pub fn flag(&mut self, name: &str, text: &str, flag: &'static str) -> Result<(), ConfigError> {
        let origin = Origin::Flag(flag);
        let key = known(name, &origin)?;
        self.insert(key, &key.kind.read(text), origin)
    }

    /// Takes `--model`: a kind of model, or the folder or `config.json` of one of Hugging Face's form, whose
    /// values stand behind those of `--set`.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the key, what was found and what is expected.
    pub fn model(&mut self, text: &str) -> Result<(), ConfigError> {
        let kind = known("model.kind", &Origin::Flag("--model"))?;
        let path = Path::new(text);
        let is_kind = kind.kind.check(&kind.kind.read(text)).is_some();
        if is_kind || !(text.contains(['/', '\\', '.']) || path.exists()) {
            return self.flag(kind.name, text, "--model");
        }
        let by_set = |given: &&(Value, Origin)| given.1 == Origin::Flag("--set");
        let context = self.given.get("model.context").filter(by_set);
        let context = context.and_then(|(value, _)| value.as_integer());
        let Described { file, values } = model_file::read(path, context)?;
        for (name, value) in values {
            if name == kind.name || self.given.get(name).filter(by_set).is_none() {
                let origin = Origin::Model(file.clone());
                self.insert(known(name, &origin)?, &value, origin)?;
            }
        }
        Ok(())
    }

    /// Has the model follow the folder of `model.init`, in all keys of which nothing is said otherwise.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the key, what was found and what is expected.
    pub fn follow_init(&mut self) -> Result<(), ConfigError> {
        let folder = self.given.get("model.init").and_then(|(value, _)| value.as_str());
        let Some(folder) = folder.map(PathBuf::from) else { return Ok(()) };
        let context = self.given.get("model.context").and_then(|(value, _)| value.as_integer());
        let Described { file, values } = model_file::read_init(&folder, context)?;
        for (name, value) in values {
            if !self.given.contains_key(name) {
                let origin = Origin::Model(file.clone());
                self.insert(known(name, &origin)?, &value, origin)?;
            }
        }
        self.follow_tokenizer(&folder)
    }

    /// Makes tokens of a text as the folder of `model.init` does, where nothing else is said of them.
    fn follow_tokenizer(&mut self, folder: &Path) -> Result<(), ConfigError> {
        let kind = self.given.get("data.kind").and_then(|(value, _)| value.as_str());
        let is_text = kind.is_none_or(|kind| TEXTS.contains(&kind));
        let said =
            ["data.tokenizer", "data.vocabulary"].iter().any(|it| self.given.contains_key(it));
        let file = Tokenizer::file_at(folder);
        if !is_text || said || !file.is_file() {
            return Ok(());
        }
        let origin = Origin::Model(file.clone());
        let value = Value::String(file.display().to_string());
        self.insert(known("data.tokenizer", &origin)?, &value, origin)
    }

    /// Adds the values of a repeated flag that stands for one key holding a list.
    ///
    /// # Errors
    /// Like [`Settings::flag`].
    pub fn flags(
        &mut self,
        name: &str,
        texts: &[String],
        flag: &'static str,
    ) -> Result<(), ConfigError> {
        let origin = Origin::Flag(flag);
        let key = known(name, &origin)?;
        for text in texts {
            let one = Value::Array(vec![Value::String(text.clone())]);
            if key.kind.check(&one).is_none() {
                return Err(self.refuse(key, format!("\"{text}\""), origin));
            }
        }
        let all = texts.iter().cloned().map(Value::String).collect();
        self.insert(key, &Value::Array(all), origin)
    }

    /// Where the value of `name` was given.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        self.given.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// The value of every key that has one, defaults included.
    #[must_use]
    pub fn values(&self) -> BTreeMap<&'static str, Value> {
        let mut values = BTreeMap::new();
        for key in KEYS {
            let given = self.given.get(key.name).map(|(value, _)| value.clone());
            // A dependency stands before its dependents in the table (a test checks it).
            if let Some(value) = given.or_else(|| default_of(key, &values)) {
                values.insert(key.name, value);
            }
        }
        values
    }

    /// Whether the key `name` has another value than its default.
    pub(super) fn changed(&self, name: &str) -> bool {
        let values = self.values();
        find(name).is_some_and(|key| default_of(key, &values).as_ref() != values.get(name))
    }

    /// The configuration that all layers make together.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] when legal values do not go together.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let config = typed(self.values());
        relations::broken(&config, self).into_iter().next().map_or(Ok(config), Err)
    }

    /// All that keeps the layers from making a configuration together; not what follows from a value
    /// that was refused.
    #[must_use]
    pub fn conflicts(&self) -> Vec<ConfigError> {
        let config = typed(self.values());
        let follows = |name: &str| self.refused.contains(name);
        let mut broken = relations::broken(&config, self);
        broken.retain(|error| match error {
            ConfigError::Conflict { name, other, .. } => {
                let other = other.split_once(" = ").map_or(other.as_str(), |(name, _)| name);
                !follows(name) && !follows(other)
            }
            ConfigError::Read { .. }
            | ConfigError::Syntax { .. }
            | ConfigError::Unknown { .. }
            | ConfigError::Value { .. }
            | ConfigError::Model(_)
            | ConfigError::Flag { .. } => true,
        });
        broken
    }

    fn insert(
        &mut self,
        key: &'static Key,
        value: &Value,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        let Some(checked) = key.kind.check(value) else {
            return Err(self.refuse(key, value.to_string(), origin));
        };
        self.given.insert(key.name, (checked, origin));
        Ok(())
    }

    fn refuse(&mut self, key: &'static Key, value: String, origin: Origin) -> ConfigError {
        self.refused.insert(key.name);
        ConfigError::Value { name: key.name.to_owned(), value, origin, legal: key.legal() }
    }
}

/// The typed form of checked values.
fn typed(values: BTreeMap<&'static str, Value>) -> Config {
    let mut table = toml::Table::new();
    for (name, value) in values {
        let (section, key) = name.split_once('.').unwrap_or((name, ""));
        let section = table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()));
        if let Value::Table(section) = section {
            section.insert(key.to_owned(), value);
        }
    }
    table.try_into().expect("the keys and the types of the sections are one declaration")
}

/// The default of `key` given the `values` of the keys before it.
pub(super) fn default_of(key: &Key, values: &BTreeMap<&'static str, Value>) -> Option<Value> {
    let chosen = |other: &str| values.get(other).and_then(Value::as_str);
    let but = key.but.filter(|(other, word, _)| chosen(other) == Some(word));
    let text = match (but, key.default) {
        (Some((_, _, text)), _) | (None, Preset::Fixed(text)) => text,
        (None, Preset::Unset) => return None,
        (None, Preset::By(other, defaults)) => {
            let chosen = chosen(other)?;
            defaults.iter().find(|(value, _)| *value == chosen)?.1
        }
    };
    key.kind.check(&key.kind.read(text))
}

fn known(name: &str, origin: &Origin) -> Result<&'static Key, ConfigError> {
    if let Some(key) = find(name) {
        return Ok(key);
    }
    let unknown = |suggestion: Option<&str>| ConfigError::Unknown {
        what: "key",
        name: name.to_owned(),
        origin: origin.clone(),
        suggestion: suggestion.map(str::to_owned),
    };
    // Within a known section only the key is wrong; elsewhere the whole name may be.
    let Some((section, short)) = name.split_once('.') else {
        let same = KEYS.iter().find(|key| key.short() == name);
        let near = || nearest(name, KEYS.iter().map(|key| key.name));
        return Err(unknown(same.map(|key| key.name).or_else(near)));
    };
    if !SECTIONS.iter().any(|known| known.name == section) {
        return Err(unknown(nearest(name, KEYS.iter().map(|key| key.name))));
    }
    if let Some(elsewhere) = KEYS.iter().find(|key| key.short() == short) {
        return Err(unknown(Some(elsewhere.name)));
    }
    let of_section = || KEYS.iter().filter(|key| key.section() == section);
    let near = nearest(short, of_section().map(Key::short));
    let whole = near.and_then(|near| of_section().find(|key| key.short() == near));
    Err(unknown(whole.map(|key| key.name)))
}

fn unknown_section(name: &str, origin: Origin) -> ConfigError {
    ConfigError::Unknown {
        what: "section",
        name: name.to_owned(),
        origin,
        suggestion: nearest(name, SECTIONS.iter().map(|known| known.name)).map(str::to_owned),
    }
}

/// A key that stands before the first section: tell the section it belongs to.
fn outside_section(name: &str, origin: Origin) -> ConfigError {
    if SECTIONS.iter().any(|known| known.name == name) {
        return ConfigError::Value {
            name: name.to_owned(),
            value: "…".to_owned(),
            origin,
            legal: format!("a section: write [{name}] on a line of its own"),
        };
    }
    match known(name, &origin) {
        Err(error) => error,
        Ok(_) => unknown_section(name, origin),
    }
}

/// Line of the byte offset, from 1.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}

/// The value without its spans, or its text when it has no such form (an integer beyond 64 bits).
fn own(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => Value::Integer(
            i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| number.to_string())?,
        ),
        DeValue::Float(number) => {
            Value::Float(number.as_str().parse().map_err(|_| number.to_string())?)
        }
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(time) => Value::Datetime(*time),
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|item| own(item.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Table(entries) => {
            let entries = entries.iter().map(|(name, value)| {
                own(value.get_ref()).map(|value| (name.get_ref().to_string(), value))
            });
            Value::Table(entries.collect::<Result<_, _>>()?)
        }
    })
}

/// Longest configuration file that is read: a hundred times as long as one with every key.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The text of a configuration file, or why there is none. A device or a pipe may have no end.
fn read_bounded(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err("it has more than 1 MiB".to_owned());
    }
    Ok(text)
}
