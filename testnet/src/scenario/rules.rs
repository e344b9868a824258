//! The rules of a scenario: how numbers travel, partners, staleness policy, codes and weights.

use dnode_gossip::testing::ToyRule;
use dnode_gossip::{Config, Mixing, Policy, Schedule, Weighting};
use dnode_protocol::frame::Codec;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use crate::file::codecs;

/// Most samples per step of a simulated peer when samples weigh.
const BATCH_MAX: u32 = 8;

/// How numbers travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixingRule {
    /// By differences that both ends apply.
    #[default]
    Exchange,
    /// By summing contributions.
    DeltaSet,
}

/// Codes that random schedules draw from, finest first; the toy replica sends all its digits
/// whatever the code.
const CODECS: [Codec; 4] = [Codec::F32, Codec::Bf16, Codec::Int8, Codec::Int4];

/// The `[rule]` section of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    /// How numbers travel.
    pub kind: MixingRule,
    /// How partners are chosen.
    pub schedule: Schedule,
    /// What is done about staleness.
    pub policy: Policy,
    /// Codes that the run allows, finest first.
    #[serde(with = "codecs")]
    pub codecs: Vec<Codec>,
    /// What two ends weigh.
    pub weighting: Weighting,
}

impl Default for RuleSettings {
    fn default() -> Self {
        Self {
            kind: MixingRule::default(),
            schedule: Schedule::default(),
            policy: Policy::default(),
            codecs: vec![Codec::F32],
            weighting: Weighting::default(),
        }
    }
}

impl RuleSettings {
    /// Any rules of exchanges; delta-set is drawn apart because rounds must be long enough for it.
    pub(crate) fn random(rng: &mut ChaCha8Rng) -> Self {
        // Two draws of rules that are gone, so that seeds that are written down keep their schedules.
        let _ = (rng.random_range(0..6_usize), rng.random_range(1..4_usize));
        let schedules =
            [Schedule::Random, Schedule::Exponential, Schedule::Ring, Schedule::Nearest];
        let schedule = schedules[rng.random_range(0..4)];
        let policies = [Policy::DownWeight, Policy::Drop, Policy::DownWeight, Policy::Block];
        let policy = policies[rng.random_range(0..4)];
        let codecs = CODECS[rng.random_range(0..4)..].to_vec();
        let codecs = if rng.random_bool(0.5) { vec![codecs[0]] } else { codecs };
        let weighting = if rng.random_bool(0.3) { Weighting::Samples } else { Weighting::Equal };
        Self { kind: MixingRule::Exchange, schedule, policy, codecs, weighting }
    }

    /// `config` with these rules.
    pub(crate) fn apply(&self, config: Config) -> Config {
        Config {
            mixing: match self.kind {
                MixingRule::Exchange => Mixing::Exchange,
                MixingRule::DeltaSet => Mixing::Set,
            },
            schedule: self.schedule,
            policy: self.policy,
            codecs: self.codecs.clone(),
            weighting: self.weighting,
            ..config
        }
    }

    /// The rule of the toy replicas.
    pub(crate) const fn toy(&self) -> ToyRule {
        match self.kind {
            MixingRule::Exchange => ToyRule::Exchange,
            MixingRule::DeltaSet => ToyRule::Set,
        }
    }

    /// Samples in a step of the next peer.
    pub(crate) fn draw_batch(&self, rng: &mut ChaCha8Rng) -> u32 {
        match self.weighting {
            Weighting::Equal => 1,
            Weighting::Samples => rng.random_range(1..=BATCH_MAX),
        }
    }
}
