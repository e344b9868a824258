//! The rules of a scenario: how numbers travel, partners, staleness policy, codes and weights.

use dnode_gossip::testing::ToyRule;
use dnode_gossip::{Config, Mixing, Policy, Schedule, Weighting};
use dnode_protocol::frame::Codec;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

/// Most samples per step of a simulated peer when samples weigh.
const BATCH_MAX: u32 = 8;

/// How numbers travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// By differences that both ends apply.
    #[default]
    Exchange,
    /// By averaging what is pushed.
    Epidemic,
    /// By shares of mass.
    PushSum,
    /// By summing contributions.
    DeltaSet,
}

/// How partners are chosen; see [`Schedule`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partners {
    /// [`Schedule::Random`].
    #[default]
    Random,
    /// [`Schedule::Exponential`].
    Exponential,
    /// [`Schedule::Ring`].
    Ring,
    /// [`Schedule::Nearest`].
    Nearest,
}

/// What is done about staleness; see [`Policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lateness {
    /// [`Policy::DownWeight`].
    #[default]
    DownWeight,
    /// [`Policy::Block`].
    Block,
    /// [`Policy::Drop`].
    Drop,
}

/// What two ends weigh; see [`Weighting`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// [`Weighting::Equal`].
    #[default]
    Equal,
    /// [`Weighting::Samples`]; peers draw how many samples a step of theirs has.
    Samples,
}

/// A code of differences; the toy replica sends all its digits whatever the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// [`Codec::F32`].
    F32,
    /// [`Codec::Bf16`].
    Bf16,
    /// [`Codec::Int8`].
    Int8,
    /// [`Codec::Int4`].
    Int4,
}

impl Code {
    const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Int8, Self::Int4];

    const fn codec(self) -> Codec {
        match self {
            Self::F32 => Codec::F32,
            Self::Bf16 => Codec::Bf16,
            Self::Int8 => Codec::Int8,
            Self::Int4 => Codec::Int4,
        }
    }
}

/// The `[rule]` section of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    /// How numbers travel.
    pub kind: Rule,
    /// Peers that each fragment is pushed to in a round, 1 to 64; rules epidemic and push-sum.
    pub fanout: usize,
    /// How partners are chosen.
    pub schedule: Partners,
    /// What is done about staleness.
    pub policy: Lateness,
    /// Codes that the run allows, finest first.
    pub codecs: Vec<Code>,
    /// What two ends weigh.
    pub weighting: Weights,
}

impl Default for RuleSettings {
    fn default() -> Self {
        Self {
            kind: Rule::default(),
            fanout: 1,
            schedule: Partners::default(),
            policy: Lateness::default(),
            codecs: vec![Code::F32],
            weighting: Weights::default(),
        }
    }
}

impl RuleSettings {
    /// Any rule but two that are known not to settle under faults: delta-set, whose peers can lack
    /// contributions that nobody keeps, each another one, and take over each other's replicas without
    /// end; and pushes under the policy that waits, whose peers can wait for each other in a circle.
    pub(super) fn random(rng: &mut ChaCha8Rng) -> Self {
        let kinds = [Rule::Exchange, Rule::Epidemic, Rule::PushSum];
        let kind = kinds[rng.random_range(0..6_usize).saturating_sub(3)];
        let fanout = rng.random_range(1..4);
        let schedules =
            [Partners::Random, Partners::Exponential, Partners::Ring, Partners::Nearest];
        let schedule = schedules[rng.random_range(0..4)];
        let policies =
            [Lateness::DownWeight, Lateness::Drop, Lateness::DownWeight, Lateness::Block];
        let most = if kind == Rule::Exchange { 4 } else { 2 };
        let policy = policies[rng.random_range(0..4) % most];
        let codecs = Code::ALL[rng.random_range(0..4)..].to_vec();
        let codecs = if rng.random_bool(0.5) { vec![codecs[0]] } else { codecs };
        let weighting = if rng.random_bool(0.3) { Weights::Samples } else { Weights::Equal };
        Self { kind, fanout, schedule, policy, codecs, weighting }
    }

    /// `config` with these rules.
    pub(super) fn apply(&self, config: Config) -> Config {
        let fanout = self.fanout;
        Config {
            mixing: match self.kind {
                Rule::Exchange => Mixing::Exchange,
                Rule::Epidemic | Rule::PushSum => Mixing::Push { fanout },
                Rule::DeltaSet => Mixing::Set,
            },
            schedule: match self.schedule {
                Partners::Random => Schedule::Random,
                Partners::Exponential => Schedule::Exponential,
                Partners::Ring => Schedule::Ring,
                Partners::Nearest => Schedule::Nearest,
            },
            policy: match self.policy {
                Lateness::DownWeight => Policy::DownWeight,
                Lateness::Block => Policy::Block,
                Lateness::Drop => Policy::Drop,
            },
            codecs: self.codecs.iter().map(|code| code.codec()).collect(),
            weighting: match self.weighting {
                Weights::Equal => Weighting::Equal,
                Weights::Samples => Weighting::Samples,
            },
            ..config
        }
    }

    /// The rule of the toy replicas.
    pub(super) const fn toy(&self) -> ToyRule {
        match self.kind {
            Rule::Exchange => ToyRule::Exchange,
            Rule::Epidemic => ToyRule::Epidemic,
            Rule::PushSum => ToyRule::PushSum,
            Rule::DeltaSet => ToyRule::Set,
        }
    }

    /// Samples in a step of the next peer.
    pub(super) fn draw_batch(&self, rng: &mut ChaCha8Rng) -> u32 {
        match self.weighting {
            Weights::Equal => 1,
            Weights::Samples => rng.random_range(1..=BATCH_MAX),
        }
    }
}
