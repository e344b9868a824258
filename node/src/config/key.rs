//! What a configuration key is: its name, its legal values, its default, and who must agree on it.

use dnode_protocol::Tolerance;

use super::kind::Kind;

/// Whether the peers of a run have to give a key the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// It names the run: a peer with another value is refused.
    Must,
    /// Another value is legal within a tolerance and told at both ends; a joiner is told to take this
    /// one (learning rate, batch).
    Should(Tolerance),
    /// Never compared by its text; a joiner is told to take this one (paths, steps).
    Printed,
    /// It concerns this process alone (addresses, folders, threads).
    Own,
}

/// Where a key's value comes from when nobody gives one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preset {
    /// It stays unset.
    Unset,
    /// This value, in TOML.
    Fixed(&'static str),
    /// It depends on another key: `(value of that key, this key's default in TOML)`.
    By(&'static str, &'static [(&'static str, &'static str)]),
}

/// One key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.key`.
    pub name: &'static str,
    /// Its legal values.
    pub kind: Kind,
    /// Its default.
    pub default: Preset,
    /// Where another key has a value, its default is a third: `(that key, its value, the default in TOML)`.
    pub but: Option<(&'static str, &'static str, &'static str)>,
    /// Unit of the value; empty when it has none.
    pub unit: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// Who must agree on it.
    pub agreement: Agreement,
    /// The key only matters where another key has one of these values.
    pub only: Option<(&'static str, &'static [&'static str])>,
    /// The key only matters where this number is above 0.
    pub above_zero: Option<&'static str>,
}

/// What a key of this process alone is that stays unset and always matters; its section names it.
pub(super) const fn key(kind: Kind) -> Key {
    let (name, unit, meaning) = ("", "", "");
    let (default, agreement) = (Preset::Unset, Agreement::Own);
    let (only, above_zero) = (None, None);
    Key { name, kind, default, but: None, unit, meaning, agreement, only, above_zero }
}

impl Key {
    /// The same key with this default, in TOML.
    pub(super) const fn default(mut self, text: &'static str) -> Self {
        self.default = Preset::Fixed(text);
        self
    }

    /// The same key, whose value has this unit.
    pub(super) const fn unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    /// The same key with a default that depends on the value of `other`.
    pub(super) const fn by(
        mut self,
        other: &'static str,
        defaults: &'static [(&'static str, &'static str)],
    ) -> Self {
        self.default = Preset::By(other, defaults);
        self
    }

    /// The same key with this default where `other` has the value `word`, whatever else it depends on.
    pub(super) const fn but(
        mut self,
        other: &'static str,
        word: &'static str,
        text: &'static str,
    ) -> Self {
        self.but = Some((other, word, text));
        self
    }

    /// The same key, which all peers of a run must give the same value.
    pub(super) const fn must(mut self) -> Self {
        self.agreement = Agreement::Must;
        self
    }

    /// The same key, which the peers of a run should give the same value.
    pub(super) const fn should(mut self) -> Self {
        self.agreement = Agreement::Should(Tolerance::Any);
        self
    }

    /// The same key, of which the peers of a run should have the same value, and may differ so far.
    pub(super) const fn within(mut self, tolerance: Tolerance) -> Self {
        self.agreement = Agreement::Should(tolerance);
        self
    }

    /// The same key, whose value stands in the line that a joiner types.
    pub(super) const fn printed(mut self) -> Self {
        self.agreement = Agreement::Printed;
        self
    }

    /// The same key, which only matters where `key` has one of `values`.
    pub(super) const fn only(mut self, key: &'static str, values: &'static [&'static str]) -> Self {
        self.only = Some((key, values));
        self
    }

    /// The same key, which only matters where the number `key` is above 0.
    pub(super) const fn above_zero(mut self, key: &'static str) -> Self {
        self.above_zero = Some(key);
        self
    }

    /// The section, for example `gossip`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(section, _)| section)
    }

    /// The key within its section, for example `local_steps`.
    #[must_use]
    pub fn short(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, key)| key)
    }

    /// The legal values as a phrase that follows "must be", for example `1 to 100 steps`.
    #[must_use]
    pub fn legal(&self) -> String {
        let legal = self.kind.legal();
        if self.unit.is_empty() { legal } else { format!("{legal} {}", self.unit) }
    }
}

/// A section of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// As it is written in the file, for example `gossip`.
    pub name: &'static str,
    /// What it is about, in one line.
    pub purpose: &'static str,
    /// Its keys, in the order of the reference.
    pub keys: &'static [Key],
}

/// The keys of all sections, one section after the other.
pub(super) const fn joined<const N: usize>(sections: &[Section]) -> [Key; N] {
    let mut keys = [key(Kind::Flag); N];
    let (mut section, mut at) = (0, 0);
    while section < sections.len() {
        let (from, mut index) = (sections[section].keys, 0);
        while index < from.len() {
            keys[at] = from[index];
            (index, at) = (index + 1, at + 1);
        }
        section += 1;
    }
    keys
}

impl Section {
    /// How many keys the sections have together.
    pub(super) const fn keys_of(sections: &[Self]) -> usize {
        let (mut count, mut section) = (0, 0);
        while section < sections.len() {
            count += sections[section].keys.len();
            section += 1;
        }
        count
    }
}

/// Declares a section once: of every key its meaning, name, type and what [`key`] makes of it.
///
/// With `pub struct` that is also the typed section, whose documentation is the meanings. With
/// `fields of` the typed section is a struct of the trainer, which knows nothing of files: the
/// compiler refuses a list that lacks one of its fields or has another.
macro_rules! section {
    (
        $(#[$attribute:meta])*
        $SECTION:ident = $name:literal, $purpose:literal;
        $visibility:vis struct $Type:ident {
            $(
                $(#[doc = $meaning:literal])+
                $(#[serde($($serde:tt)+)])?
                $field:ident: $Value:ty = $key:expr,
            )+
        }
    ) => {
        #[doc = concat!("`[", $name, "]`: ", $purpose, ".")]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        $(#[$attribute])*
        #[serde(deny_unknown_fields)]
        $visibility struct $Type {
            $($(#[doc = $meaning])+ $(#[serde($($serde)+)])? pub $field: $Value,)+
        }
        section! { $SECTION = $name, $purpose; $($($meaning)+ $field = $key,)+ }
    };
    (
        $SECTION:ident = $name:literal, $purpose:literal;
        fields of $Type:ident { $($(#[doc = $meaning:literal])+ $field:ident = $key:expr,)+ }
    ) => {
        const _: fn(&$Type) = |$Type { $($field: _),+ }| {};
        section! { $SECTION = $name, $purpose; $($($meaning)+ $field = $key,)+ }
    };
    (
        $SECTION:ident = $name:literal, $purpose:literal;
        $($($meaning:literal)+ $field:ident = $key:expr,)+
    ) => {
        pub(super) const $SECTION: Section = Section {
            name: $name,
            purpose: $purpose,
            keys: &[$(Key {
                name: concat!($name, ".", stringify!($field)),
                meaning: concat!($($meaning),+).trim_ascii_start(),
                ..$key
            }),+],
        };
    };
}

pub(super) use section;
