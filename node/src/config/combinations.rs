//! Averaging rules, codecs and bounds that do not go together: why, and the nearest sound choice.

use dnode_gossip::{Policy, Schedule, Weighting};
use dnode_protocol::frame::Codec;

use super::keys::Gossip;
use super::relations::Broken;
use super::values::{Balance, Rule};

/// The combinations of `[gossip]` that are not sound. `changed` tells whether a key has another value
/// than its default.
pub(super) fn check(gossip: &Gossip, changed: impl Fn(&str) -> bool) -> [Option<Broken>; 12] {
    [
        outer_step(gossip, changed),
        world(gossip),
        error_feedback(gossip),
        codecs(gossip),
        moments(gossip),
        weight(gossip),
        schedule(gossip),
        balance(gossip),
        waiting(gossip),
        interval(gossip),
        clip(gossip),
        noise(gossip),
    ]
}

/// A broken relation to the rule.
fn with_rule(name: &'static str, remedy: &str) -> Option<Broken> {
    Some(Broken(name, "gossip.rule", remedy.to_owned()))
}

fn outer_step(gossip: &Gossip, changed: impl Fn(&str) -> bool) -> Option<Broken> {
    let name = ["gossip.outer_learning_rate", "gossip.outer_momentum"];
    let name = name.into_iter().find(|name| changed(name))?;
    match gossip.rule {
        Rule::Pairwise | Rule::None => {
            with_rule(name, "it takes no outer step: leave it out, or use gossip-outer")
        }
        Rule::AllReduce if gossip.local_steps == 1 => {
            let remedy = "an outer step is taken on the progress of several local steps (DiLoCo): \
                          leave it out, or use more local steps, for example 25";
            Some(Broken(name, "gossip.local_steps", remedy.to_owned()))
        }
        Rule::GossipOuter | Rule::DeltaSet | Rule::AllReduce => None,
    }
}

fn world(gossip: &Gossip) -> Option<Broken> {
    if gossip.rule == Rule::AllReduce && gossip.world == 0 {
        return with_rule("gossip.world", "give the number of peers that take part");
    }
    None
}

fn error_feedback(gossip: &Gossip) -> Option<Broken> {
    let remedy = match gossip.rule {
        _ if !gossip.error_feedback => return None,
        Rule::DeltaSet => return None,
        Rule::GossipOuter | Rule::Pairwise => {
            "the residual of a pairwise difference belongs to a pair that may never meet again; use \
             rule delta-set, or leave it out: the next difference still contains what was lost"
        }
        Rule::AllReduce => {
            "sums are passed on exactly, so there is no residual: leave it out, or use delta-set for \
             a lossy codec"
        }
        Rule::None => "nothing is sent: leave it out, or use delta-set",
    };
    with_rule("gossip.error_feedback", remedy)
}

fn codecs(gossip: &Gossip) -> Option<Broken> {
    let name = "gossip.codecs";
    let exact = gossip.codecs == [Codec::F32];
    let has = |codecs: &[Codec]| gossip.codecs.iter().any(|codec| codecs.contains(codec));
    if has(&[Codec::Bf16]) && has(&[Codec::F16]) {
        let remedy = "bf16 and f16 are equally long, and links choose by length: allow one of them";
        return with_rule(name, remedy);
    }
    match gossip.rule {
        Rule::AllReduce if !exact => with_rule(
            name,
            "partial sums are passed on from peer to peer and must stay exact: use f32, or \
             delta-set for a lossy codec",
        ),
        Rule::None if !exact => with_rule(name, "nothing is sent: leave it out"),
        Rule::DeltaSet
            if !gossip.error_feedback && has(&[Codec::Int2, Codec::Sign, Codec::TopK]) =>
        {
            let remedy = "most of a contribution would be lost for good: set error_feedback, or use \
                          int4 or finer";
            Some(Broken(name, "gossip.error_feedback", remedy.to_owned()))
        }
        Rule::GossipOuter | Rule::Pairwise | Rule::DeltaSet | Rule::AllReduce | Rule::None => None,
    }
}

fn moments(gossip: &Gossip) -> Option<Broken> {
    let remedy = match gossip.rule {
        _ if !gossip.moments => return None,
        Rule::Pairwise => return None,
        Rule::GossipOuter | Rule::DeltaSet => {
            "slow weights are exchanged, and the optimizer's moments belong to the live ones: leave it \
             out, or use pairwise"
        }
        Rule::AllReduce => {
            "peers whose gradients are averaged have equal moments already: leave it out, or use \
             pairwise"
        }
        Rule::None => "nothing is sent: leave it out, or use pairwise",
    };
    with_rule("gossip.moments", remedy)
}

fn weight(gossip: &Gossip) -> Option<Broken> {
    let fixed = match gossip.rule {
        Rule::DeltaSet | Rule::AllReduce => true,
        Rule::GossipOuter | Rule::Pairwise | Rule::None => false,
    };
    if gossip.weight == Weighting::Samples && fixed {
        let remedy = "weights are fixed by this rule: leave it out (progress grows with the samples \
                      behind it), or use gossip-outer";
        return with_rule("gossip.weight", remedy);
    }
    None
}

fn schedule(gossip: &Gossip) -> Option<Broken> {
    let few = match gossip.schedule {
        Schedule::Ring | Schedule::Exponential => true,
        Schedule::Random | Schedule::Nearest => false,
    };
    if few && gossip.rule == Rule::DeltaSet {
        return with_rule("gossip.schedule", "contributions go to all: use random or nearest");
    }
    None
}

fn balance(gossip: &Gossip) -> Option<Broken> {
    if gossip.balance == Balance::Batch && gossip.weight != Weighting::Samples {
        return Some(unweighed_batches(gossip.rule));
    }
    if gossip.global_batch == 0 {
        return None;
    }
    let name = "gossip.global_batch";
    match gossip.rule {
        Rule::AllReduce | Rule::None => {
            with_rule(name, "every peer does local_steps × batch samples per commit: leave it out")
        }
        Rule::GossipOuter | Rule::Pairwise | Rule::DeltaSet => (gossip.balance == Balance::Off)
            .then(|| {
                let remedy = "only balancing adapts the work to it: use balance steps, or set \
                          local_steps and batch";
                Broken(name, "gossip.balance", remedy.to_owned())
            }),
    }
}

/// Batches are balanced, and weights do not follow samples.
fn unweighed_batches(rule: Rule) -> Broken {
    let (other, remedy) = match rule {
        Rule::GossipOuter | Rule::Pairwise => (
            "gossip.weight",
            "a step of few samples is as long as one of many, so a slow peer would count too much: \
             use weight samples, or balance steps",
        ),
        Rule::DeltaSet => (
            "gossip.rule",
            "weights are fixed by this rule, and a slow peer's steps of few samples would count too \
             much: use balance steps, or gossip-outer with weight samples",
        ),
        Rule::AllReduce | Rule::None => {
            ("gossip.rule", "every peer does the same work: leave it out")
        }
    };
    Broken("gossip.balance", other, remedy.to_owned())
}

fn waiting(gossip: &Gossip) -> Option<Broken> {
    (gossip.staleness == Policy::Block && gossip.gate_timeout.is_some()).then(|| {
        let remedy = "block waits for as long as the laggard lives: leave the time out, or use \
                      down-weight";
        Broken("gossip.gate_timeout", "gossip.staleness", remedy.to_owned())
    })
}

fn interval(gossip: &Gossip) -> Option<Broken> {
    (gossip.mix_every.is_none() && gossip.rule != Rule::Pairwise).then(|| {
        let remedy = "rounds between commits mix weights that lack the progress since the last one: \
                      use pairwise, or a number such as 25";
        Broken("gossip.mix_every", "gossip.rule", remedy.to_owned())
    })
}

fn clip(gossip: &Gossip) -> Option<Broken> {
    let remedy = match gossip.rule {
        _ if gossip.privacy_clip <= 0.0 => return None,
        Rule::GossipOuter | Rule::DeltaSet => return None,
        Rule::Pairwise => {
            "others get live weights between commits, before any clip or noise: use gossip-outer or \
             delta-set, or leave it out"
        }
        Rule::AllReduce => {
            "others get this peer's gradients or progress to sum them up, before any clip or noise: \
             use gossip-outer or delta-set, or leave it out"
        }
        Rule::None => "nothing is sent: leave it out",
    };
    with_rule("gossip.privacy_clip", remedy)
}

fn noise(gossip: &Gossip) -> Option<Broken> {
    (gossip.privacy_noise > 0.0 && gossip.privacy_clip <= 0.0).then(|| {
        let remedy = "noise is measured by the longest progress of a commit: set privacy_clip, for \
                      example 0.5";
        Broken("gossip.privacy_noise", "gossip.privacy_clip", remedy.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigError, Settings};

    fn resolve(settings: &[&str]) -> Result<Config, ConfigError> {
        let mut all = Settings::new();
        for setting in settings {
            all.set(setting)?;
        }
        all.resolve()
    }

    fn refused(settings: &[&str], wants: [&str; 2]) {
        let error = resolve(settings).unwrap_err().to_string();
        for want in wants {
            assert!(error.contains(want), "{settings:?}: {error}");
        }
    }

    #[test]
    fn every_rule_is_sound_with_its_defaults() {
        for rule in ["gossip-outer", "pairwise", "none"] {
            let config = resolve(&[&format!("gossip.rule={rule}")]).unwrap();
            assert_eq!(config.gossip.local_steps, 25, "{rule}");
        }
        assert_eq!(resolve(&["gossip.rule=delta-set"]).unwrap().gossip.local_steps, 4);
        let sync = resolve(&["gossip.rule=all-reduce", "gossip.world=2"]).unwrap();
        assert_eq!(sync.gossip.local_steps, 1);
    }

    #[test]
    fn only_rules_with_an_outer_step_take_its_numbers() {
        for rule in ["gossip-outer", "delta-set"] {
            let rule = format!("gossip.rule={rule}");
            resolve(&[&rule, "gossip.outer_momentum=0.5", "gossip.outer_learning_rate=0.9"])
                .unwrap();
        }
        for rule in ["pairwise", "none"] {
            let rule = format!("gossip.rule={rule}");
            refused(&[&rule, "gossip.outer_momentum=0.5"], ["outer_momentum", "use gossip-outer"]);
        }
    }

    #[test]
    fn an_all_reduce_takes_an_outer_step_after_several_local_steps_alone() {
        let sync = ["gossip.rule=all-reduce", "gossip.world=2", "gossip.outer_momentum=0.9"];
        refused(&sync, ["does not go with gossip.local_steps = 1", "for example 25"]);
        resolve(&[&sync[..], &["gossip.local_steps=50"]].concat()).unwrap();
        refused(&sync[..1], ["gossip.world = 0", "give the number of peers"]);
    }

    #[test]
    fn error_feedback_is_of_contributions_alone() {
        resolve(&["gossip.rule=delta-set", "gossip.error_feedback=true"]).unwrap();
        let pair = ["a pair that may never meet again", "use rule delta-set, or leave it out"];
        let passed = ["sums are passed on exactly", "or use delta-set for a lossy codec"];
        for (rule, wants) in [
            ("gossip-outer", pair),
            ("pairwise", pair),
            ("all-reduce", passed),
            ("none", ["nothing is sent", "leave it out"]),
        ] {
            let rule = format!("gossip.rule={rule}");
            refused(&[&rule, "gossip.world=2", "gossip.error_feedback=true"], wants);
        }
    }

    #[test]
    fn differences_keep_the_mean_under_every_code() {
        for rule in ["gossip-outer", "pairwise"] {
            let rule = format!("gossip.rule={rule}");
            resolve(&[&rule, "gossip.codecs=int2"]).unwrap();
            resolve(&[&rule, "gossip.codecs=top-k"]).unwrap();
        }
    }

    #[test]
    fn synchronous_sums_are_sent_exactly() {
        let sync = ["gossip.rule=all-reduce", "gossip.world=2", "gossip.codecs=int8"];
        refused(&sync, ["must stay exact", "use f32"]);
        refused(&["gossip.rule=none", "gossip.codecs=bf16"], ["nothing is sent", "leave it out"]);
    }

    #[test]
    fn of_two_codecs_of_one_length_one_is_allowed() {
        resolve(&["gossip.codecs=bf16,int4"]).unwrap();
        refused(&["gossip.codecs=bf16,f16"], ["equally long", "allow one of them"]);
    }

    #[test]
    fn coarse_contributions_need_error_feedback() {
        for codec in ["int2", "sign", "top-k"] {
            let codecs = format!("gossip.codecs=int8,{codec}");
            let set = ["gossip.rule=delta-set", &codecs];
            resolve(&set).unwrap();
            let without = [set[0], set[1], "gossip.error_feedback=false"];
            refused(&without, ["lost for good", "set error_feedback, or use int4"]);
        }
        let fine = ["gossip.rule=delta-set", "gossip.codecs=int4", "gossip.error_feedback=false"];
        resolve(&fine).unwrap();
    }

    #[test]
    fn moments_are_averaged_by_pairwise_exchanges_of_live_weights_alone() {
        resolve(&["gossip.rule=pairwise", "gossip.moments=true"]).unwrap();
        for (rule, want) in [
            ("gossip-outer", "slow weights are exchanged"),
            ("delta-set", "slow weights are exchanged"),
            ("all-reduce", "have equal moments already"),
            ("none", "nothing is sent"),
        ] {
            let rule = format!("gossip.rule={rule}");
            let wants = [want, "leave it out, or use pairwise"];
            refused(&[&rule, "gossip.world=2", "gossip.moments=true"], wants);
        }
    }

    #[test]
    fn clip_and_noise_are_for_rules_that_show_commits_alone() {
        let noise = ["gossip.privacy_clip=0.5", "gossip.privacy_noise=1.0"];
        for rule in ["gossip-outer", "delta-set"] {
            let rule = format!("gossip.rule={rule}");
            resolve(&[&rule, noise[0], noise[1]]).unwrap();
            let wants = ["does not go with gossip.privacy_clip = 0.0", "set privacy_clip, for"];
            refused(&[&rule, noise[1]], wants);
        }
        let none = ["nothing is sent", "leave it out"];
        let others = "before any clip or noise: use gossip-outer or delta-set, or leave it out";
        for (rule, wants) in [
            ("pairwise", ["others get live weights between commits", others]),
            ("all-reduce", ["others get this peer's gradients or progress", others]),
            ("none", none),
        ] {
            let rule = format!("gossip.rule={rule}");
            refused(&[&rule, "gossip.world=2", noise[0], noise[1]], wants);
        }
    }

    #[test]
    fn a_rack_keeps_no_gradients_from_its_ranks() {
        let rack = ["gossip.rule=gossip-outer", "network.rack=a", "gossip.privacy_clip=0.5"];
        let wants = ["network.rack = \"a\"", "get each other's gradients"];
        refused(&rack, wants);
    }

    #[test]
    fn the_ranks_of_a_rack_take_equal_batches() {
        let rack = ["gossip.rule=gossip-outer", "network.rack=a", "gossip.weight=samples"];
        resolve(&rack).unwrap();
        let wants = ["does not go with gossip.balance = \"batch\"", "use balance steps"];
        refused(&[&rack[..], &["gossip.balance=batch"]].concat(), wants);
    }

    #[test]
    fn samples_weigh_in_exchanges_alone() {
        for rule in ["gossip-outer", "pairwise"] {
            resolve(&[&format!("gossip.rule={rule}"), "gossip.weight=samples"]).unwrap();
        }
        let wants = ["weights are fixed by this rule", "or use gossip-outer"];
        refused(&["gossip.rule=delta-set", "gossip.weight=samples"], wants);
        let sync = ["gossip.rule=all-reduce", "gossip.world=2", "gossip.weight=samples"];
        refused(&sync, ["weights are fixed by this rule", "leave it out"]);
    }

    #[test]
    fn contributions_go_to_all() {
        for schedule in ["ring", "exponential"] {
            let schedule = format!("gossip.schedule={schedule}");
            let wants = ["contributions go to all", "use random or nearest"];
            refused(&["gossip.rule=delta-set", &schedule], wants);
            resolve(&[&schedule]).unwrap();
        }
        resolve(&["gossip.rule=delta-set", "gossip.schedule=nearest"]).unwrap();
    }

    #[test]
    fn a_global_batch_needs_balancing() {
        resolve(&["gossip.global_batch=4096"]).unwrap();
        let off = ["gossip.global_batch=4096", "gossip.balance=off"];
        refused(&off, ["does not go with gossip.balance = \"off\"", "use balance steps"]);
        let none = ["gossip.rule=none", "gossip.global_batch=4096"];
        refused(&none, ["does not go with gossip.rule = \"none\"", "leave it out"]);
    }

    #[test]
    fn balanced_batches_weigh_as_many_samples_as_they_have() {
        for rule in ["gossip-outer", "pairwise"] {
            let rule = format!("gossip.rule={rule}");
            resolve(&[&rule, "gossip.balance=batch", "gossip.weight=samples"]).unwrap();
            let wants =
                ["does not go with gossip.weight = \"equal\"", "use weight samples, or balance"];
            refused(&[&rule, "gossip.balance=batch"], wants);
        }
        let wants = ["weights are fixed by this rule", "use balance steps, or gossip-outer"];
        refused(&["gossip.rule=delta-set", "gossip.balance=batch"], wants);
        let none = ["gossip.rule=none", "gossip.balance=batch"];
        refused(&none, ["does not go with gossip.rule = \"none\"", "leave it out"]);
    }

    #[test]
    fn the_interval_follows_the_link_where_live_weights_are_mixed() {
        assert_eq!(resolve(&["gossip.rule=pairwise"]).unwrap().gossip.mix_every, None);
        resolve(&["gossip.rule=pairwise", "gossip.mix_every=4", "gossip.budget=2000"]).unwrap();
        for rule in ["gossip-outer", "delta-set"] {
            let rule = format!("gossip.rule={rule}");
            let wants = ["lack the progress since", "use pairwise, or a number"];
            refused(&[&rule, "gossip.mix_every=auto"], wants);
        }
        refused(&["gossip.rule=pairwise", "gossip.budget=0%"], ["gossip.budget", "a share"]);
    }

    #[test]
    fn waiting_for_as_long_as_a_peer_lives_has_no_time() {
        resolve(&["gossip.staleness=block"]).unwrap();
        resolve(&["gossip.staleness=drop", "gossip.gate_timeout=3s"]).unwrap();
        let both = ["gossip.staleness=block", "gossip.gate_timeout=3s"];
        refused(&both, ["gossip.gate_timeout = \"3s\"", "or use down-weight"]);
    }
}
