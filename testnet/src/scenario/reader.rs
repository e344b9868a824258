//! Who carries a scenario out, and what of it they cannot.

use std::collections::BTreeSet;
use std::fmt;

use toml::{Table, Value};

/// Who carries a scenario out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The simulator.
    Simulator,
    /// Real processes; on lines that can be changed, or on loopback.
    Processes {
        /// Whether the network is emulated.
        emulated: bool,
    },
    /// The emulated network alone, under processes that somebody else starts.
    Network,
}

impl fmt::Display for Reader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Simulator => "the simulator",
            Self::Processes { emulated: true } => "real processes",
            Self::Processes { emulated: false } => "real processes on loopback",
            Self::Network => "the link emulator",
        })
    }
}

/// Keys of what peers do, as written in [`Scenario`](super::Scenario); `script.KIND` is an entry of
/// the script.
const PEERS: [&str; 20] = [
    "faults_for",
    "settle",
    "faults.crashes",
    "faults.restart",
    "faults.downtime",
    "faults.leaves",
    "faults.returns",
    "faults.spare",
    "faults.pauses",
    "faults.pause_time",
    "script.join",
    "script.crash",
    "script.restart",
    "script.leave",
    "script.pause",
    "script.slow",
    "gossip.progress_gap",
    "gossip.snapshot_age",
    "gossip.information_age",
    "gossip.gate_timeout",
];
/// Keys of the lines between peers.
const LINES: [&str; 12] = [
    "link.delay",
    "link.jitter",
    "link.loss",
    "link.bandwidth",
    "link.spread",
    "link.uplink",
    "script.cut",
    "script.split",
    "script.heal",
    "script.line",
    "faults.cuts",
    "faults.cut_time",
];
/// Settings of processes for keys of a scenario, beside those of `[gossip]`, whose names agree.
const SETTINGS: [(&str, &str); 4] = [
    ("fragments", "gossip.fragments"),
    ("rule.schedule", "gossip.schedule"),
    ("rule.policy", "gossip.staleness"),
    ("rule.codecs", "gossip.codecs"),
];
/// Keys that only processes have a use for.
const PROCESSES_ONLY: [&str; 4] =
    ["script.nat", "script.restart.with", "faults.resume", "faults.rename"];
/// Those of them that are about checkpoints, and the rule with which simulated peers have some.
const RESUME: [&str; 2] = ["script.restart.with", "faults.resume"];
const DELTA_SET: &str = "delta-set";
/// What a kind of mixing is called in the simulator; what is exchanged has two rules among those of
/// processes, of which the usual one stays.
const EXCHANGE: &str = "exchange";

impl Reader {
    /// The keys of a scenario that this reader cannot carry out, in one line; `None` when it can
    /// carry out all.
    #[must_use]
    pub fn unheeded(self, scenario: &Table) -> Option<String> {
        let keys = keys(scenario);
        // Simulated peers of this rule have checkpoints.
        let resumes = self == Self::Simulator && kind(scenario) == Some(DELTA_SET);
        let heeds = |key: &str| self.heeds(key) || resumes && RESUME.contains(&key);
        let unheeded: Vec<&str> =
            keys.iter().map(String::as_str).filter(|key| !heeds(key)).collect();
        (!unheeded.is_empty()).then(|| format!("{self} cannot heed {}", unheeded.join(", ")))
    }

    fn heeds(self, key: &str) -> bool {
        let peers = PEERS.contains(&key) || SETTINGS.iter().any(|(name, _)| *name == key);
        let peers = peers || key == "rule.kind";
        let lines = LINES.contains(&key);
        key == "peers"
            || match self {
                Self::Simulator => !PROCESSES_ONLY.contains(&key),
                Self::Processes { emulated: true } => {
                    peers || lines || PROCESSES_ONLY.contains(&key)
                }
                Self::Processes { emulated: false } => {
                    peers || key != "script.nat" && PROCESSES_ONLY.contains(&key)
                }
                // Its faults are those of the script: rates are drawn by who has the peers.
                Self::Network => {
                    lines && !key.starts_with("faults.")
                        || ["script.nat", "faults_for", "settle"].contains(&key)
                }
            }
    }
}

/// The settings `section.key=value` of processes that a scenario asks for.
#[must_use]
pub fn settings(scenario: &Table) -> Vec<String> {
    let gossip = PEERS.iter().filter(|key| key.starts_with("gossip."));
    let named = gossip.map(|key| (*key, *key)).chain(SETTINGS);
    let found = named.filter_map(|(key, setting)| {
        let value = match key.split_once('.') {
            Some((section, key)) => scenario.get(section)?.get(key)?,
            None => scenario.get(key)?,
        };
        Some(format!("{setting}={}", written(value)))
    });
    let rule =
        kind(scenario).filter(|kind| *kind != EXCHANGE).map(|kind| format!("gossip.rule={kind}"));
    found.chain(rule).collect()
}

/// The kind of mixing that a scenario names.
fn kind(scenario: &Table) -> Option<&str> {
    scenario.get("rule")?.get("kind")?.as_str()
}

/// A value as `--set` takes it: words without quotes.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The keys that a scenario names: `key`, `section.key`, and `script.KIND` or
/// `script.KIND.with` of entries of the script.
fn keys(scenario: &Table) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for (key, value) in scenario {
        let section = value.as_table().filter(|_| key != "speed");
        let script = value.as_array().filter(|_| key == "script");
        if let Some(section) = section {
            keys.extend(section.keys().map(|inner| format!("{key}.{inner}")));
        } else if let Some(script) = script {
            for entry in script.iter().filter_map(Value::as_table) {
                let kind = entry.get("kind").and_then(Value::as_str).unwrap_or_default();
                keys.insert(format!("script.{kind}"));
                keys.extend(entry.get("with").map(|_| format!("script.{kind}.with")));
            }
        } else {
            keys.insert(key.clone());
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        peers = 4
        width = 3
        fragments = 5
        [link]
        delay = "3ms"
        duplicate = 0.1
        [gossip]
        gate_timeout = "3s"
        [rule]
        codecs = ["int8", "int4"]
        kind = "exchange"
        schedule = "ring"
        [[script]]
        at = "1s"
        kind = "nat"
        peer = 0
        nat = "cone"
        [[script]]
        at = "1s"
        kind = "restart"
        with = "nothing"
        peer = 0
    "#;

    #[test]
    fn what_a_reader_cannot_do_is_named_in_one_line() {
        let table: Table = TEXT.parse().unwrap();
        let line = |reader: Reader| reader.unheeded(&table).unwrap();
        let simulator = line(Reader::Simulator);
        assert_eq!(simulator, "the simulator cannot heed script.nat, script.restart.with");
        let sum: Table = TEXT.replace("\"exchange\"", "\"delta-set\"").parse().unwrap();
        let simulator = Reader::Simulator.unheeded(&sum);
        assert_eq!(simulator.unwrap(), "the simulator cannot heed script.nat");
        let real = line(Reader::Processes { emulated: true });
        assert_eq!(real, "real processes cannot heed link.duplicate, width");
        let loopback = line(Reader::Processes { emulated: false });
        assert_eq!(
            loopback,
            "real processes on loopback cannot heed link.delay, link.duplicate, script.nat, width"
        );
        let network = line(Reader::Network);
        assert!(network.contains("script.restart") && !network.contains("link.delay"), "{network}");
        assert_eq!(Reader::Simulator.unheeded(&Table::new()), None);
    }

    #[test]
    fn settings_of_processes_are_those_that_are_named() {
        let table: Table = TEXT.parse().unwrap();
        assert_eq!(
            settings(&table),
            [
                "gossip.gate_timeout=3s",
                "gossip.fragments=5",
                "gossip.schedule=ring",
                "gossip.codecs=[\"int8\", \"int4\"]"
            ]
        );
    }
}
