//! What is compared: variants, seeds, and the command line of every peer.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::slot::join_arguments;

/// Rule of the synchronous baseline.
pub const ALL_REDUCE: &str = "all-reduce";
/// Rule of a peer that trains alone.
pub const NO_GOSSIP: &str = "none";

/// Variants that run one after the other, each once per seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalExperiment {
    /// What every variant trains.
    pub workload: Workload,
    /// What is compared; at least one.
    pub variants: Vec<Variant>,
    /// Seeds of the repetitions; at least one.
    pub seeds: Vec<u64>,
}

/// What all variants have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Configuration file handed to every peer.
    pub config: Option<PathBuf>,
    /// Settings `section.key=value` handed to every peer, weaker than those of a variant.
    pub settings: Vec<String>,
    /// Whether the peers are on machines of the link emulator, and not on loopback.
    #[serde(default)]
    pub emulated: bool,
    /// What is known of these machines beside that: their lines, and their shares of a core. Runs on others
    /// are no runs of the same experiment. Empty where nobody compares runs.
    #[serde(default)]
    pub machines: String,
    /// Peers of one machine of that emulator, one after the other; 0 is one, too.
    #[serde(default)]
    pub rack: usize,
}

impl Workload {
    /// The machine of a peer where there is an emulator.
    #[must_use]
    pub fn machine(&self, peer: usize) -> usize {
        peer / self.rack.max(1)
    }
}

/// One way to train.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Name in the report and name of the folder.
    pub name: String,
    /// Mixing rule, `gossip.rule`.
    pub rule: String,
    /// Number of processes.
    pub peers: usize,
    /// Settings `section.key=value` of this variant only.
    pub settings: Vec<String>,
    /// Peers to kill on the way.
    pub kills: Vec<Kill>,
    /// What its processes run.
    #[serde(default)]
    pub program: Program,
}

/// What the processes of a variant run, with the same arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// `dnode join`.
    #[default]
    Dnode,
    /// The baseline with a server of this crate; one process more than there are peers.
    ParameterServer,
    /// A program of others.
    Baseline(Baseline),
}

impl Program {
    /// Whether one more process is there, that all peers speak with.
    #[must_use]
    pub const fn has_server(&self) -> bool {
        matches!(self, Self::ParameterServer)
    }
}

impl Variant {
    /// An undisturbed variant named like its rule.
    pub fn new(rule: &str, peers: usize) -> Self {
        Self {
            name: rule.to_owned(),
            rule: rule.to_owned(),
            peers,
            settings: Vec::new(),
            kills: Vec::new(),
            program: Program::Dnode,
        }
    }

    /// The arguments of peer `index` for `seed`, which keeps everything in `directory`.
    pub fn arguments(
        &self,
        workload: &Workload,
        seed: u64,
        index: usize,
        directory: &Path,
    ) -> Vec<String> {
        let machine = dnode_netem::address(workload.machine(index));
        let address = if workload.emulated { machine } else { Ipv4Addr::LOCALHOST };
        let mut settings = vec![
            format!("network.require_peers={}", self.peers - 1),
            "node.threads=1".to_owned(),
            // Variants are compared at equal samples.
            "gossip.balance=off".to_owned(),
        ];
        settings.extend(workload.settings.iter().cloned());
        let in_step = self.rule == ALL_REDUCE;
        // The baseline averages every gradient, whatever the other variants do, unless its own
        // settings make it DiLoCo.
        settings.extend(in_step.then(|| "gossip.local_steps=1".to_owned()));
        settings.extend(self.settings.iter().cloned());
        settings.extend([format!("run.seed={seed}"), format!("gossip.rule={}", self.rule)]);
        settings.extend(in_step.then(|| format!("gossip.world={}", self.peers)));
        settings.extend([
            format!("data.shards={}", self.peers),
            format!("data.shard={index}"),
            // Names are new in every run; the order of the samples is not.
            "data.stream=0".to_owned(),
        ]);
        join_arguments(directory, address, workload.config.as_deref(), settings)
    }
}

/// `kill -9` of one peer at a moment of its own training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Index of the peer.
    pub peer: usize,
    /// When.
    pub at: KillAt,
    /// After how long it starts again under its old name, milliseconds; never if there is nothing.
    #[serde(default)]
    pub away_ms: Option<u64>,
}

/// When a kill strikes, on the victim's own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KillAt {
    /// At this share of `run.steps`, in percent, below 100.
    Percent(u8),
    /// At this step.
    Step(u64),
}

impl KillAt {
    /// The step at which it strikes in a run of `steps` steps.
    pub fn step(self, steps: u64) -> u64 {
        match self {
            Self::Percent(percent) => steps * u64::from(percent) / 100,
            Self::Step(step) => step,
        }
    }
}

impl fmt::Display for Kill {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            KillAt::Percent(percent) => write!(formatter, "{}@{percent}%", self.peer)?,
            KillAt::Step(step) => write!(formatter, "{}@{step}", self.peer)?,
        }
        self.away_ms.map_or(Ok(()), |away| write!(formatter, ", back after {away} ms"))
    }
}

/// A kill that is not written as `PEER@PERCENT%` or `PEER@STEP`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a kill: write PEER@PERCENT% or PEER@STEP, for example 0@30% \
     (peers count from 0, percent is 0 to 99)"
)]
pub struct ParseKillError(String);

impl FromStr for Kill {
    type Err = ParseKillError;

    fn from_str(text: &str) -> Result<Self, ParseKillError> {
        let bad = || ParseKillError(text.to_owned());
        let (peer, at) = text.split_once('@').ok_or_else(bad)?;
        let peer = peer.parse().map_err(|_| bad())?;
        let at = if let Some(percent) = at.strip_suffix('%') {
            KillAt::Percent(percent.parse().map_err(|_| bad())?)
        } else {
            KillAt::Step(at.parse().map_err(|_| bad())?)
        };
        if matches!(at, KillAt::Percent(100..)) {
            return Err(bad());
        }
        Ok(Self { peer, at, away_ms: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_read_as_percent_or_step() {
        let kill: Kill = "0@30%".parse().unwrap();
        assert_eq!((kill.peer, kill.at.step(2000)), (0, 600));
        let kill: Kill = "5@120".parse().unwrap();
        assert_eq!((kill.peer, kill.at.step(2000)), (5, 120));
        assert_eq!(kill.to_string(), "5@120");
        for bad in ["", "0", "@30%", "0@100%", "0@-1%", "x@3", "0@3x"] {
            let error = bad.parse::<Kill>().unwrap_err().to_string();
            assert!(error.contains("0@30%"), "{error}");
        }
    }

    #[test]
    fn an_variant_overrules_the_workload_and_knows_its_world() {
        let workload = Workload {
            config: Some(PathBuf::from("run.toml")),
            settings: vec!["run.steps=10".to_owned()],
            emulated: false,
            machines: String::new(),
            rack: 0,
        };
        let mut variant = Variant::new(ALL_REDUCE, 4);
        variant.settings.push("run.steps=20".to_owned());
        let line = variant.arguments(&workload, 7, 2, Path::new("/tmp/x")).join(" ");
        assert!(line.starts_with("join --exit-with-stdin --no-mdns --data-dir /tmp/x"), "{line}");
        assert!(line.contains("--config run.toml --set network.require_peers=3"), "{line}");
        assert!(
            line.contains(
                "--set gossip.balance=off --set run.steps=10 --set gossip.local_steps=1 \
                 --set run.steps=20 --set run.seed=7"
            ),
            "{line}"
        );
        assert!(
            line.ends_with(
                "--set gossip.rule=all-reduce --set gossip.world=4 \
                 --set data.shards=4 --set data.shard=2 --set data.stream=0"
            ),
            "{line}"
        );
        let gossip = Variant::new("pairwise", 4).arguments(&workload, 7, 2, Path::new("x"));
        assert!(!gossip.iter().any(|word| word.starts_with("gossip.world")));
        assert!(gossip.contains(&"/ip4/127.0.0.1/udp/0/quic-v1".to_owned()));
        let wan = Workload { emulated: true, ..workload };
        let far = Variant::new("pairwise", 4).arguments(&wan, 7, 2, Path::new("x"));
        assert!(far.contains(&"/ip4/10.77.0.3/udp/0/quic-v1".to_owned()), "{far:?}");
    }
}
