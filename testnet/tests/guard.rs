//! The anomaly guard on real models in the simulator: one peer that misbehaves does little harm to the
//! others, and swarms of honest peers never see it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;

use dnode_testnet::experiment::Experiment;
use dnode_testnet::learn::{Misbehaviour, Outcome, SimulatedCase, SimulatedVariant, Wrong, run};

const DIGITS: &str = include_str!("../experiments/guard-digits.toml");
/// Seeds of every case.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Behind the name of a variant: with its optimizer's moments.
const MOMENTS: &str = " with moments";

fn case(text: &str) -> SimulatedCase {
    SimulatedCase::all(&Experiment::parse(text).unwrap(), None).unwrap().remove(0)
}

fn variant<'a>(case: &'a SimulatedCase, name: &str) -> &'a SimulatedVariant {
    case.variants.iter().find(|variant| variant.name == name).unwrap()
}

/// One run for each seed, in which the last peer misbehaves so; of a variant, or of one with moments.
fn runs(steps: u64, name: &str, wrong: Wrong, guard: bool) -> Vec<Outcome> {
    let mut case = case(DIGITS);
    case.steps = steps;
    case.condition.misbehaviour = Some(Misbehaviour::new(wrong, 1000.0));
    let plain = name.strip_suffix(MOMENTS);
    let (name, moments) = (plain.unwrap_or(name), plain.is_some());
    let variant = SimulatedVariant { guard, moments, ..variant(&case, name).clone() };
    SEEDS.map(|seed| run(&case, &variant, seed).unwrap()).into()
}

/// The mean held-out loss of the three honest peers.
fn loss(outcomes: &[Outcome]) -> f64 {
    outcomes.iter().map(|outcome| outcome.last.mean_of(3)).sum::<f64>() / outcomes.len() as f64
}

/// Whether the honest peers of every run have judged the last one, and nobody else.
fn judged(outcomes: &[Outcome], trust: &str) -> bool {
    let honest = |outcome: &Outcome| {
        let said = outcome.guarded.iter().filter(|guarded| guarded.by != 3);
        let said: Vec<_> = said.cloned().collect();
        assert!(said.iter().all(|guarded| guarded.about == 3), "{said:?}");
        (0..3).all(|by| said.iter().any(|guarded| guarded.by == by && guarded.trust == trust))
    };
    outcomes.iter().all(honest)
}

#[test]
fn a_peer_whose_weights_are_far_away_harms_nobody() {
    for name in ["gossip-outer", "pairwise", "pairwise with moments"] {
        let without = loss(&runs(400, name, Wrong::Absent, true));
        for wrong in [Wrong::LearningRate, Wrong::Negative, Wrong::Scaled] {
            let guarded = runs(400, name, wrong, true);
            let ratio = loss(&guarded) / without;
            assert!(ratio < 1.02, "{name} {wrong:?}: {ratio}, {without}");
            // What is a thousand times as large was an offence before.
            if wrong == Wrong::Negative {
                assert!(judged(&guarded, "LeftOut"), "{guarded:?}");
                let told = guarded.iter().flat_map(|outcome| &outcome.left_out_by);
                assert!(told.clone().count() > 0 && told.into_iter().all(|(peer, _)| *peer == 3));
            }
        }
        if name.ends_with(MOMENTS) {
            continue;
        }
        let open = loss(&runs(400, name, Wrong::LearningRate, false)) / without;
        assert!(open > 5.0, "{name}: without the guard everybody is ruined: {open}");
    }
}

#[test]
fn nobody_takes_over_the_replica_of_a_peer_that_it_has_weighed_down() {
    for name in ["gossip-outer", "pairwise"] {
        let without = loss(&runs(1600, name, Wrong::Absent, true));
        let guarded = runs(1600, name, Wrong::LearningRate, true);
        assert!(judged(&guarded, "WeighedDown"), "{guarded:?}");
        let ratio = loss(&guarded) / without;
        assert!(ratio < 1.1, "{name}: {ratio}, {without}");
    }
}

#[test]
fn a_peer_that_pulls_another_way_is_left_out() {
    for name in ["gossip-outer", "pairwise"] {
        for wrong in [Wrong::Frozen, Wrong::Uphill, Wrong::Shuffled] {
            let (guarded, open) = (runs(1600, name, wrong, true), runs(1600, name, wrong, false));
            assert!(judged(&guarded, "LeftOut"), "{name} {wrong:?}: {guarded:?}");
            let (guarded, open) = (loss(&guarded), loss(&open));
            assert!(guarded < open, "{name} {wrong:?}: {guarded} {open}");
        }
    }
}

/// Ways in which peers of one run may honestly differ.
const HONEST: [(&str, &str); 8] = [
    ("", ""),
    ("data.kind=digits", "data.kind=digits\", \"data.skew=0.1"),
    (
        "name = \"undisturbed\"",
        "name = \"speeds\"\nspeed = { kind = \"classes\", classes = [{ share = 0.25, factor = 1.0 }, \
         { share = 0.25, factor = 2.0 }, { share = 0.25, factor = 4.0 }, { share = 0.25, factor = 8.0 }] }",
    ),
    (
        "name = \"undisturbed\"",
        "name = \"slow\"\nspeed = { kind = \"classes\", classes = [{ share = 0.25, factor = 100.0 }] }",
    ),
    ("peers = [4]", "peers = [8]"),
    ("optimizer.warmup_steps=20", "optimizer.learning_rate=0.01"),
    (
        "name = \"undisturbed\"",
        "name = \"cut\"\nsplit = { peers = 2, at = \"5s\", time = \"25s\", rounds = 12 }",
    ),
    ("name = \"undisturbed\"", "name = \"late\"\nnewcomer = { at = \"20s\", rounds = [1, 4] }"),
];

#[test]
fn honest_peers_are_never_judged() {
    let rules = "[[variant]]\nname = \"delta-set\"\nkind = \"delta-set\"\n\
        [[variant]]\nname = \"each-step\"\nkind = \"pairwise\"\n\
        set = [\"gossip.local_steps=1\", \"gossip.mix_every=1\"]\n\
        [[variant]]\nname = \"coarse\"\nkind = \"pairwise\"\n\
        set = [\"gossip.local_steps=2\", \"gossip.mix_every=2\", 'gossip.codecs=[\"int2\"]']\n\
        [[variant]]\nname = \"interval\"\nkind = \"pairwise\"\n\
        set = [\"gossip.mix_every=auto\"]\n\
        [[variant]]\nname = \"moments\"\nkind = \"pairwise\"\nset = [\"gossip.moments=true\"]\n\
        [[variant]]\nname = \"moments-each-step\"\nkind = \"pairwise\"\n\
        set = [\"gossip.local_steps=1\", \"gossip.mix_every=1\", \"gossip.moments=true\"]\n";
    let mut count = 0;
    for (from, to) in HONEST {
        let text = if from.is_empty() { DIGITS.to_owned() } else { DIGITS.replace(from, to) };
        assert!(from.is_empty() || text != DIGITS, "{from}");
        let case = case(&format!("{text}\n{rules}"));
        for (variant, seed) in
            case.variants.iter().flat_map(|variant| [11, 12].map(|seed| (variant, seed)))
        {
            let outcome = run(&case, variant, seed).unwrap();
            assert!(outcome.guarded.is_empty(), "{to} {}: {:?}", variant.name, outcome.guarded);
            assert!(outcome.left_out_by.is_empty());
            count += 1;
        }
    }
    assert_eq!(count, 8 * 10 * 2);
}

/// Weights that begin near zero, a high learning rate, exchanges of two steps and more: the others are several
/// times its own length away from a slow peer before it has mixed with them often.
const SLOW: &str = r#"
    title = "One of four is four times slower"
    seeds = [1]
    peers = [4]

    [simulation]
    step_time = "10ms"
    samples = 48

    [[workload]]
    name = "text-gpt"
    steps = 160
    batch = 12
    set = [
        "model.kind=gpt", "model.layers=2", "model.heads=4", "model.width=64", "model.context=32",
        "data.kind=shakespeare", "optimizer.kind=muon", "optimizer.momentum=0.9", "optimizer.learning_rate=0.048",
    ]

    [[condition]]
    name = "slow"
    slow = { factor = 4.0 }
    link = { delay = "10ms" }

    [[variant]]
    name = "pairwise"
    kind = "pairwise"
    set = ['gossip.codecs=["int4"]', "gossip.mix_every=auto"]
"#;

#[test]
fn a_slow_peer_at_a_high_rate_stays_with_the_others_and_leaves_nobody_out() {
    let case = case(SLOW);
    for seed in [1, 3] {
        let outcome = run(&case, variant(&case, "pairwise"), seed).unwrap();
        let by_slow = outcome.guarded.iter().filter(|guarded| guarded.by == 3);
        let last: BTreeMap<u32, &str> =
            by_slow.map(|guarded| (guarded.about, guarded.trust.as_str())).collect();
        assert!(last.values().all(|trust| *trust == "Trusted"), "{last:?}");
        // With radii of its own weights' length alone it ends at 0.6 to 0.8.
        assert!(outcome.last.distance < 0.35, "{}", outcome.last.distance);
    }
}
