//! What the peers of a run agree on: the specification they compare, and the line a joiner types.

use std::collections::BTreeMap;

use dnode_protocol::limits::{PROTOCOL_VERSION, RUN_FIELD_VALUE_BYTES_MAX};
use dnode_protocol::{ParameterLayout, RunField, RunSpec, SharedSettings, Tolerance};
use dnode_trainer::DataIdentity;
use toml::Value;

use super::key::{Agreement, Key};
use super::keys::{Config, DATA_DIGEST, KEYS};
use super::settings::default_of;

/// Hexadecimal digits of the digest of the data that are told.
const DIGEST_SHOWN: usize = 16;

/// Keys that say whom this peer trusts, lets in and tells what, and that others do not compare.
const TRUST: [&str; 10] = [
    "gossip.guard",
    "gossip.privacy_clip",
    "gossip.privacy_noise",
    "gossip.privacy_delta",
    "network.open",
    "network.allow_differences",
    "network.direct",
    "network.mdns",
    "network.relay",
    "network.peers_max",
];

/// Everything that must agree for `config` and a model of `layout`: the keys marked
/// [`Agreement::Must`] that matter under this configuration, how data become inputs and labels,
/// protocol version, parameter count and layout digest.
///
/// # Panics
/// When the table of keys makes more fields than a specification holds, which a test rules out.
#[must_use]
pub fn run_spec(config: &Config, layout: &ParameterLayout, data: &DataIdentity) -> RunSpec {
    let values = values_of(config);
    let mut fields: Vec<RunField> = KEYS
        .iter()
        .filter(|key| key.agreement == Agreement::Must && matters(key, &values))
        .filter_map(|key| Some(field(key.name, plain(values.get(key.name)?))))
        .collect();
    fields.extend(data.maps.iter().map(|(name, map)| field(name, map.clone())));
    // Sorted behind every `model.` key, so that a difference is named by the key that caused it.
    fields.push(field("parameters.count", layout.parameters().to_string()));
    fields.push(field("parameters.layout", hex(layout.digest())));
    fields.push(field("protocol.version", PROTOCOL_VERSION.to_string()));
    RunSpec::new(fields).expect("the table of keys fits a run specification")
}

/// What should agree, how far apart it may be, and what may differ all the same: the keys marked
/// [`Agreement::Should`] that matter under this configuration, and the digest of the data.
///
/// # Panics
/// As [`run_spec`].
#[must_use]
pub fn shared_settings(config: &Config, data: &DataIdentity) -> SharedSettings {
    shared_settings_of(config, data, |_| true)
}

/// The same of the keys that `applies` names.
pub(crate) fn shared_settings_of(
    config: &Config,
    data: &DataIdentity,
    applies: impl Fn(&Key) -> bool,
) -> SharedSettings {
    let values = values_of(config);
    let shared =
        KEYS.iter().filter(|key| matters(key, &values) && applies(key)).filter_map(|key| {
            let Agreement::Should(tolerance) = key.agreement else { return None };
            Some((field(key.name, plain(values.get(key.name)?)), tolerance))
        });
    let digest =
        data.digest.map(|digest| field(DATA_DIGEST, hex(digest)[..DIGEST_SHOWN].to_owned()));
    let all: Vec<_> = shared.chain(digest.map(|it| (it, Tolerance::Equal))).collect();
    let tolerances = all.iter().map(|(field, tolerance)| (field.name.clone(), *tolerance));
    let tolerances: Vec<_> = tolerances.collect();
    let values = RunSpec::new(all.into_iter().map(|(field, _)| field).collect());
    let values = values.expect("the table of keys fits the settings that are told");
    SharedSettings::new(values, tolerances, config.network.allow_differences.iter().cloned())
}

/// The line that the next machine types to join at `address`: every value that must or should
/// agree and is not the default, quoted for a POSIX shell.
#[must_use]
pub fn run_line(config: &Config, address: &str) -> String {
    let address = shell_quoted(address);
    format!("dnode join --bootstrap {address}{}", run_settings(config, |_| true))
}

/// The line that the next machine types to join a closed run with `ticket`, as [`run_line`].
#[must_use]
pub fn ticket_line(config: &Config, ticket: &str) -> String {
    format!("dnode join {ticket}{}", run_settings(config, |_| true))
}

/// Every value that must or should agree, is not the default and belongs to a key that `applies`: as
/// ` --set key=value`, quoted for a POSIX shell.
pub(crate) fn run_settings(config: &Config, applies: impl Fn(&Key) -> bool) -> String {
    let values = values_of(config);
    let mut line = String::new();
    for key in KEYS.iter().filter(|key| applies(key)) {
        let Some(value) = values.get(key.name) else {
            continue;
        };
        let shared = key.agreement != Agreement::Own && matters(key, &values);
        if shared && default_of(key, &values).as_ref() != Some(value) {
            let setting = format!("{}={}", key.name, plain(value));
            line.push_str(" --set ");
            line.push_str(&shell_quoted(&setting));
        }
    }
    line
}

/// The values of the keys of this peer alone that matter for trust; unset ones are absent.
pub(crate) fn trust_settings(config: &Config) -> Vec<(&'static str, String)> {
    let values = values_of(config);
    TRUST.iter().filter_map(|name| Some((*name, plain(values.get(name)?)))).collect()
}

/// `config` as `section.key` → value; unset keys are absent.
pub(super) fn values_of(config: &Config) -> BTreeMap<&'static str, Value> {
    let table = toml::Table::try_from(config)
        .or_else(|_| toml::Table::try_from(with_text_paths(config)))
        .expect("every section is made of TOML values");
    let value = |key: &Key| table.get(key.section())?.get(key.short()).cloned();
    KEYS.iter().filter_map(|key| Some((key.name, value(key)?))).collect()
}

/// With paths that TOML can hold: what is not UTF-8 in them is shown by a mark. An embedding program may have
/// such paths, and others are not told any.
fn with_text_paths(config: &Config) -> Config {
    let mut config = config.clone();
    let Config { network, node, .. } = &mut config;
    let others = [&mut network.secret_file, &mut network.peers_file, &mut node.tensorboard];
    for path in others.into_iter().flatten().chain([&mut node.data_dir]) {
        *path = path.to_string_lossy().into_owned().into();
    }
    config
}

/// Whether `key` has an effect under `values`.
fn matters(key: &Key, values: &BTreeMap<&'static str, Value>) -> bool {
    let fits = key.only.is_none_or(|(other, wanted)| {
        let value = values.get(other).and_then(Value::as_str);
        value.is_some_and(|value| wanted.contains(&value))
    });
    let number = |name| values.get(name).and_then(Value::as_integer);
    fits && key.above_zero.is_none_or(|name| number(name).is_some_and(|number| number > 0))
}

/// The value as `--set` takes it: strings without their quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn field(name: &str, value: String) -> RunField {
    RunField { name: name.to_owned(), value: bounded(value) }
}

/// `text`, or a hash of it where it would not fit a field.
fn bounded(text: String) -> String {
    if text.len() <= RUN_FIELD_VALUE_BYTES_MAX && !text.chars().any(char::is_control) {
        text
    } else {
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

fn hex(digest: [u8; 32]) -> String {
    blake3::Hash::from_bytes(digest).to_hex().to_string()
}

/// `text` as one word of a POSIX shell.
fn shell_quoted(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(safe) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_for_trust_is_a_key_of_this_peer_alone() {
        for name in TRUST {
            let key = super::super::find(name).unwrap();
            // Others may have another value.
            assert!(matches!(key.agreement, Agreement::Own | Agreement::Printed), "{name}");
        }
        let mut config = Config::default();
        config.gossip.guard = false;
        let told = trust_settings(&config);
        assert!(told.contains(&("gossip.guard", "false".to_owned())), "{told:?}");
        assert!(told.contains(&("network.open", "false".to_owned())), "{told:?}");
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        for (text, want) in [
            ("gossip.rule=pairwise", "gossip.rule=pairwise"),
            ("model.hidden=[64, 32]", "'model.hidden=[64, 32]'"),
            ("data.path=it's", r"'data.path=it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_quoted(text), want);
        }
    }
}
