//! The reference of all keys as text: an annotated TOML file and a Markdown page.

use std::fmt::Write as _;

use toml::Value;

use dnode_protocol::Tolerance;

use super::key::{Agreement, Key, Preset, Section};
use super::keys::{Config, KEYS, SECTIONS};
use super::run::values_of;
use super::settings::Settings;

/// Every key with meaning, legal values and default, as a TOML file in which all is commented out.
#[must_use]
pub fn reference_text() -> String {
    annotated(|key| {
        let line = |value: &str| format!("# {} = {value}", key.short());
        let mut lines = match key.default {
            Preset::Unset => vec![format!("# {} =", key.short())],
            Preset::Fixed(value) => vec![line(value)],
            Preset::By(other, defaults) => {
                let each = |(when, value): &(&str, &str)| {
                    format!("{}   # where {other} = \"{when}\"", line(value))
                };
                defaults.iter().map(each).collect()
            }
        };
        let but = |(other, word, value): (&str, &str, &str)| {
            format!("{}   # but where {other} = \"{word}\"", line(value))
        };
        lines.extend(key.but.map(but));
        lines.join("\n")
    })
}

/// `config` as an annotated TOML file that, given to `--config`, makes the same configuration.
#[must_use]
pub fn file_text(config: &Config) -> String {
    let values = values_of(config);
    annotated(|key| {
        let value = values.get(key.name).map(Value::to_string);
        value.map_or_else(
            || format!("# {} =", key.short()),
            |value| format!("{} = {value}", key.short()),
        )
    })
}

/// Every key that has a value, with the value in force and where it comes from, as a TOML file.
#[must_use]
pub fn origin_text(settings: &Settings) -> String {
    let values = settings.values();
    let width = |key: &&Key| values.get(key.name).map_or(0, |it| line_of(key, it).chars().count());
    // What is longer than this does not push the others away.
    let column = KEYS.iter().map(|key| width(&key)).filter(|width| *width <= 44).max().unwrap_or(0);
    by_section(|text, key| {
        if let Some(value) = values.get(key.name) {
            let line = line_of(key, value);
            let _ = writeln!(text, "{line:column$}  # {}", settings.origin(key.name));
        }
    })
}

fn line_of(key: &Key, value: &Value) -> String {
    format!("{} = {value}", key.short())
}

/// The Markdown page `docs/configuration.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = "# Configuration\n\n\
        Every key can stand in a TOML file given with `--config`, or be set by `--set section.key=value`.\n\
        Flags win over the file, the file over the default.\n\
        Of the environment `RUST_LOG` is read (log filter), `DNODE_SECRET` (a ticket or secret) and, with traces, `OTEL_EXPORTER_OTLP_HEADERS`.\n\
        `dnode config` prints this reference as a TOML file, `dnode config init` writes it to one.\n\
        `dnode config show` takes the flags of `dnode join` and prints the configuration in force, with the origin of each value; `dnode config check` only says whether it is sound; `dnode join --save-config FILE` writes it.\n\n\
        **Agree** says who must give a key the same value: `must`: a peer with another value is of another run and is refused by name; \
        `should`: both ends tell a difference, the printed join line carries the value; \
        `should, within a factor` (of 4) and `should, or is refused`: a peer with a value further apart is refused by name, unless `network.allow_differences` names the key; \
        `printed`: the join line carries it, nothing is compared; otherwise each process is free.\n\n\
        `run.steps` are steps of the run, which the learning-rate schedule follows: each local step of a peer that does `H_i` instead of `gossip.local_steps` of them per commit counts as `local_steps / H_i`, and a joiner begins where its donor stands (docs/math.md).\n"
        .to_owned();
    for Section { name, purpose, keys } in SECTIONS {
        let _ = write!(
            page,
            "\n## [{name}]: {purpose}\n\n\
             | key | meaning | type | legal | default | agree |\n|---|---|---|---|---|---|\n"
        );
        for key in *keys {
            let agree = match key.agreement {
                Agreement::Must => "must",
                Agreement::Should(Tolerance::Any) => "should",
                Agreement::Should(Tolerance::Equal) => "should, or is refused",
                Agreement::Should(Tolerance::Factor(_) | Tolerance::FactorBelowOne(_)) => {
                    "should, within a factor"
                }
                Agreement::Printed => "printed",
                Agreement::Own => "",
            };
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} | {agree} |",
                key.short(),
                meaning(key),
                key.kind.type_name(),
                key.legal(),
                default_cell(key),
            );
        }
    }
    page + COMBINATIONS
}

/// What the relations between keys of `[gossip]` say, for a reader.
const COMBINATIONS: &str = "\n## Averaging: what goes together\n\n\
    An unsound combination is refused at start with the reason and the nearest sound choice.\n\n\
    - An outer step (`outer_learning_rate`, `outer_momentum`) is taken by every rule but `pairwise` and `none`; by `all-reduce` only with several local steps per commit, which is DiLoCo.\n\
    - `error_feedback` is for `delta-set`, whose contributions are sent once; the residual of a pairwise difference belongs to a pair that may never meet again.\n\
    - `codecs`: differences (`gossip-outer`, `pairwise`) may be written in any way, contributions (`delta-set`) in any way with error feedback and down to `int4` without it, sums (`all-reduce`) only as `f32`; `bf16` and `f16` are equally long, so only one of them.\n\
    - `privacy_clip` and `privacy_noise` are for `gossip-outer` and `delta-set`, in which others get commits alone, and not for racks; `privacy_noise` needs a `privacy_clip` ([privacy](privacy.md)).\n\
    - `moments` is for `pairwise`, which exchanges the live weights; the trainer must share its optimizer's (`Trainer::share_moments`).\n\
    - `weight = \"samples\"` is for exchanges (`gossip-outer`, `pairwise`); the other rules fix their weights.\n\
    - `balance = \"batch\"` needs `weight = \"samples\"`, and a trainer that can take a part of its batch; it is not for racks, whose ranks take equal batches.\n\
    - `schedule`: the contributions of `delta-set` go to all, so it knows only `random` and `nearest`.\n\
    - `balance`, `global_batch` and `staleness` do nothing in `all-reduce`, which waits for every peer in every step or commit, and in `none`; a `global_batch` is refused there, and without balancing.\n\
    - The peers of `all-reduce` evaluate together, as often as the one with the least `node.evaluate_every` above 0 asks for.\n\
    - `staleness = \"block\"` waits for as long as the laggard lives and takes no `gate_timeout`.\n";

fn annotated(line: impl Fn(&Key) -> String) -> String {
    by_section(|text, key| {
        let _ = writeln!(text, "# {}: {}", meaning(key), key.legal());
        let _ = writeln!(text, "{}", line(key));
    })
}

/// A TOML file of all sections, with what `write` says of every key.
fn by_section(mut write: impl FnMut(&mut String, &Key)) -> String {
    let mut text = String::new();
    for (index, Section { name, purpose, keys }) in SECTIONS.iter().enumerate() {
        let gap = if index == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{name}]  # {purpose}");
        keys.iter().for_each(|key| write(&mut text, key));
    }
    text
}

fn meaning(key: &Key) -> String {
    let words = key.only.map(|(other, values)| format!("{other} is {}", values.join(" or ")));
    let number = key.above_zero.filter(|other| *other != key.name);
    let conditions: Vec<String> =
        words.into_iter().chain(number.map(|other| format!("{other} is above 0"))).collect();
    if conditions.is_empty() {
        return key.meaning.to_owned();
    }
    format!("{} (only where {})", key.meaning, conditions.join(" and "))
}

fn default_cell(key: &Key) -> String {
    let but = key.but.map(|(other, word, value)| format!("; `{value}` where {other} is {word}"));
    usual_default(key) + &but.unwrap_or_default()
}

/// The default of `key`, by the other key that it depends on.
fn usual_default(key: &Key) -> String {
    match key.default {
        Preset::Unset => "unset".to_owned(),
        Preset::Fixed(value) => format!("`{value}`"),
        Preset::By(_, defaults) => {
            // What most of the words share goes first and without them.
            let count = |value| defaults.iter().filter(|(_, other)| *other == value).count();
            let common = defaults.iter().map(|(_, value)| *value).max_by_key(|value| count(*value));
            let common = common.filter(|value| 2 * count(value) > defaults.len());
            let first = common.iter().map(|value| format!("`{value}`"));
            let others = defaults.iter().filter(|(_, value)| Some(*value) != common);
            let each = |(when, value): &(&str, &str)| format!("`{value}` ({when})");
            first.chain(others.map(each)).collect::<Vec<_>>().join(", ")
        }
    }
}
