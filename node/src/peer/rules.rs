//! Translates the configured rule into settings of the gossip core and of the replica.

use std::time::Duration;

use dnode_gossip::{Bounds, Interval, Mixing, Pace};
use dnode_protocol::Fragments;
use dnode_protocol::frame::Codec;
use dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX;
use dnode_trainer::privacy::{CommitNoise, NoiseSeed};
use dnode_trainer::{Mixer, OuterStep, ReplicaConfig};
use rand::Rng as _;

use super::JoinError;
use crate::config::{Balance, Budget, Config, Gossip, Rule, Share};
use crate::driver::rack_name;

/// Largest number of bytes that open exchanges of one direction, proposed or answered, hold together.
/// Each holds the fragment that is sent and the one that comes.
const OPEN_BYTES_MAX: usize = 64 << 20;
/// Fewest open exchanges of one direction, however large the fragments; the core's default is the most.
const OPEN_MIN: usize = 2;

// Even the largest fragments stay within the budget.
const _: () = assert!(OPEN_MIN * 2 * size_of::<f32>() * FRAGMENT_ELEMENTS_MAX <= OPEN_BYTES_MAX);

/// Bytes of snapshots that a joiner asks for at a time, and that may wait for one joiner at one donor:
/// as many as 300 MB/s carry in a tenth of a second.
const PULLED_BYTES_MAX: usize = 32 << 20;
/// Bounds on snapshots asked for at a time: the fewest, however large the fragments, and the most,
/// which is half of what the network keeps for one peer.
const PULLS_MIN: usize = 4;
const PULLS_MAX: usize = dnode_network::limits::BULK_QUEUE_MAX / 2;

/// How the core mixes a model that is cut into `fragments`.
pub(crate) fn gossip_config(config: &Config, fragments: Fragments) -> dnode_gossip::Config {
    let gossip = &config.gossip;
    let fragment_bytes = size_of::<f32>() * fragments.elements().div_ceil(fragments.count());
    let default = dnode_gossip::Config::default();
    let open_max = (OPEN_BYTES_MAX / (2 * fragment_bytes)).clamp(OPEN_MIN, default.own_max);
    dnode_gossip::Config {
        mixing: match gossip.rule {
            Rule::GossipOuter | Rule::Pairwise | Rule::AllReduce | Rule::None => Mixing::Exchange,
            Rule::DeltaSet => Mixing::Set,
        },
        schedule: gossip.schedule,
        codecs: gossip.codecs.clone(),
        policy: gossip.staleness,
        weighting: gossip.weight,
        guard: gossip.guard,
        first_of_moments: fragments.first_of_moments(),
        pace: Pace {
            local_steps: gossip.local_steps,
            batch: u32::try_from(config.run.batch).unwrap_or(u32::MAX),
            balance: match gossip.balance {
                Balance::Steps if exchanges(gossip.rule) => dnode_gossip::Balance::Steps,
                Balance::Batch if exchanges(gossip.rule) => dnode_gossip::Balance::Batch,
                Balance::Steps | Balance::Batch | Balance::Off => dnode_gossip::Balance::Off,
            },
            global_batch: gossip.global_batch,
        },
        interval: interval(gossip, fragments),
        shown_from: replica_config(gossip, fragments).shown_from().unwrap_or(Duration::MAX),
        bounds: Bounds {
            progress_gap: gossip.progress_gap,
            snapshot_age: gossip.snapshot_age,
            information_age: (gossip.information_age > 0).then_some(gossip.information_age),
        },
        rack: rack_name(config),
        gate_timeout: gossip.gate_timeout,
        own_max: open_max,
        answered_max: open_max,
        pulls_open_max: (PULLED_BYTES_MAX / fragment_bytes).clamp(PULLS_MIN, PULLS_MAX),
        ..default
    }
}

/// What a person is told who trains with others by a rule, or in a rack, that has no bound against a bad
/// member; `None` where there is one.
pub(super) fn without_bound(config: &Config) -> Option<String> {
    let rule = match config.gossip.rule {
        Rule::DeltaSet => Some("gossip.rule = delta-set".to_owned()),
        Rule::AllReduce => Some("gossip.rule = all-reduce".to_owned()),
        Rule::GossipOuter | Rule::Pairwise | Rule::None => None,
    };
    let rack = &config.network.rack;
    let rack = (!rack.is_empty()).then(|| format!("network.rack = {rack:?}"));
    let what: Vec<_> = rule.into_iter().chain(rack).collect();
    (!what.is_empty()).then(|| {
        let what = what.join(" and ");
        format!("{what}: no bound holds against a bad member; train so with peers that you trust")
    })
}

/// How often rounds come.
fn interval(gossip: &Gossip, fragments: Fragments) -> Interval {
    if let Some(steps) = gossip.mix_every {
        return Interval::Fixed(steps);
    }
    let (link_share, bytes_per_step) = match gossip.budget {
        Budget::Link(Share(share)) => (share, None),
        Budget::BytesPerStep(bytes) => (1.0, Some(bytes)),
    };
    let (parameters, moments) = (fragments.parameters() as u64, gossip.moments);
    Interval::Follow(dnode_gossip::Budget { link_share, bytes_per_step, parameters, moments })
}

/// Refuses a budget of bytes that no interval can keep to.
pub(super) fn check_budget(gossip: &dnode_gossip::Config) -> Result<(), JoinError> {
    let Interval::Follow(budget) = gossip.interval else { return Ok(()) };
    let (codec, local_steps) = (gossip.codecs.last(), gossip.pace.local_steps);
    let round = codec.map_or(0.0, |codec| budget.round_bytes(*codec));
    let least = (round / local_steps as f64).ceil() as u64;
    match budget.bytes_per_step {
        Some(budget) if budget < least => Err(JoinError::Budget { budget, least, local_steps }),
        Some(_) | None => Ok(()),
    }
}

/// How the replica mixes.
pub(crate) fn replica_config(gossip: &Gossip, fragments: Fragments) -> ReplicaConfig {
    ReplicaConfig {
        mixer: mixer(gossip),
        outer: outer(gossip),
        fragments,
        clip: (gossip.clip > 0.0).then_some(gossip.clip as f32),
    }
}

/// Whether slow weights lie in a file; not where there are none.
pub(crate) fn slow_in_file(gossip: &Gossip) -> bool {
    gossip.slow_in_file && outer(gossip).is_some()
}

/// What is done to the progress of commits, if anything, with randomness of the operating system.
pub(super) fn commit_noise(gossip: &Gossip) -> Option<CommitNoise> {
    let mut seed = [0; 32];
    rand::rng().fill_bytes(&mut seed);
    let (clip, multiplier) = (gossip.privacy_clip, gossip.privacy_noise);
    (clip > 0.0).then(|| CommitNoise::new(clip, multiplier, NoiseSeed(seed)))
}

/// Whether peers under the rule exchange fragments in rounds of their own.
pub(crate) const fn exchanges(rule: Rule) -> bool {
    match rule {
        Rule::GossipOuter | Rule::Pairwise | Rule::DeltaSet => true,
        Rule::AllReduce | Rule::None => false,
    }
}

fn mixer(gossip: &Gossip) -> Mixer {
    match gossip.rule {
        Rule::GossipOuter | Rule::Pairwise => Mixer::Exchange,
        Rule::DeltaSet => {
            // A contribution is coded once for all peers, by the coarsest of the allowed codecs.
            let codec = gossip.codecs.last().copied().unwrap_or(Codec::F32);
            Mixer::DeltaSet { codec, feedback: gossip.error_feedback }
        }
        Rule::AllReduce | Rule::None => Mixer::None,
    }
}

/// The outer step; `None` where it would only copy the live weights.
fn outer(gossip: &Gossip) -> Option<OuterStep> {
    let step = OuterStep {
        learning_rate: gossip.outer_learning_rate as f32,
        momentum: gossip.outer_momentum as f32,
    };
    match gossip.rule {
        Rule::GossipOuter | Rule::DeltaSet => Some(step),
        Rule::AllReduce => (gossip.local_steps > 1).then_some(step),
        Rule::Pairwise | Rule::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_budget_that_no_interval_meets_is_refused_with_the_least_that_one_does() {
        let check = |budget: u64| {
            let mut settings = Settings::new();
            settings.set(&format!("gossip.budget={budget}")).unwrap();
            let fragments = Fragments::new(100_000, 4).unwrap();
            check_budget(&gossip_config(&settings.resolve().unwrap(), fragments))
        };
        let Err(JoinError::Budget { budget: 10, least, local_steps: 25 }) = check(10) else {
            panic!("ten bytes are enough: {:?}", check(10));
        };
        assert!(least > 1_000, "a round of 25 steps sends a hundred thousand numbers: {least}");
        assert!(check(least).is_ok() && check(least - 1).is_err());
        let text = check(10).unwrap_err().to_string();
        assert!(text.contains(&format!("sends {least}; raise gossip.budget to that")), "{text}");
    }
    #[test]
    fn what_has_no_bound_is_told_and_nothing_else() {
        let told = |settings: &[&str]| {
            let mut all = Settings::new();
            settings.iter().for_each(|setting| all.set(setting).unwrap());
            without_bound(&all.resolve().unwrap())
        };
        let words = ": no bound holds against a bad member; train so with peers that you trust";
        for rule in ["gossip-outer", "pairwise", "none"] {
            assert_eq!(told(&[&format!("gossip.rule={rule}")]), None, "{rule}");
        }
        let set = told(&["gossip.rule=delta-set"]).unwrap();
        assert_eq!(set, format!("gossip.rule = delta-set{words}"));
        let all = told(&["gossip.rule=all-reduce", "gossip.world=2"]).unwrap();
        assert_eq!(all, format!("gossip.rule = all-reduce{words}"));
        let rack = told(&["gossip.rule=gossip-outer", "network.rack=lab"]).unwrap();
        assert_eq!(rack, format!("network.rack = \"lab\"{words}"));
    }
}
