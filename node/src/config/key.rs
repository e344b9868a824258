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
    /// Unit of the value; empty when it has none.
    pub unit: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// Who must agree on it.
    pub agreement: Agreement,
    /// The key only matters where another key has one of these values.
    pub only: Option<(&'static str, &'static [&'static str])>,
}

impl Key {
    /// A key of this process alone that always matters.
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        default: Preset,
        unit: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self { name, kind, default, unit, meaning, agreement: Agreement::Own, only: None }
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
