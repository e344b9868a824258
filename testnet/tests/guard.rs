//! The anomaly guard on real models in the simulator: one peer that misbehaves does little harm to the
//! others, and swarms of honest peers never see it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use dnode_testnet::learn::{Experiment, LearnVariant, Misbehaviour, Outcome, Wrong, run};

const DIGITS: &str = include_str!("../experiments/guard-digits.toml");
/// Seeds of every case.
const SEEDS: [u64; 3] = [1, 2, 3];

fn experiment(text: &str) -> Experiment {
    Experiment::parse(text, None).unwrap()
}

fn variant<'a>(experiment: &'a Experiment, name: &str) -> &'a LearnVariant {
    experiment.variant.iter().find(|variant| variant.name == name).unwrap()
}

/// One run for each seed, in which the last peer misbehaves so.
fn runs(steps: u64, name: &str, wrong: Wrong, guard: bool) -> Vec<Outcome> {
    let mut experiment = experiment(DIGITS);
    experiment.run.steps = steps;
    experiment.misbehaviour = Some(Misbehaviour { kind: wrong, factor: 1000.0, from_step: 0 });
    let variant = LearnVariant { guard, ..variant(&experiment, name).clone() };
    SEEDS.map(|seed| run(&experiment, &variant, seed).unwrap()).into()
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
    for name in ["gossip-outer", "pairwise"] {
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
const HONEST: [(&str, &str, &str); 8] = [
    ("", "", ""),
    ("kind = \"digits\"", "kind = \"digits\"\nskew = 0.1", ""),
    ("step_us = 100_000", "step_us = 100_000\nfactors = [1.0, 2.0, 4.0, 8.0]", ""),
    ("step_us = 100_000", "step_us = 100_000\nfactors = [100.0]", ""),
    ("peers = 4", "peers = 8", ""),
    ("warmup_steps = 20", "learning_rate = 0.01", ""),
    ("", "", "[split]\npeers = 2\nfrom_s = 5.0\nfor_s = 25.0\nrounds = 12"),
    ("", "", "[newcomer]\nfrom_s = 20.0\nrounds = [1, 4]"),
];

#[test]
fn honest_peers_are_never_judged() {
    let rules = "[[variant]]\nname = \"push-sum\"\nrule = \"push-sum\"\nouter_learning_rate = 1.0\n\
        outer_momentum = 0.0\n[[variant]]\nname = \"epidemic\"\nrule = \"epidemic\"\n\
        [[variant]]\nname = \"delta-set\"\nrule = \"delta-set\"\n";
    let mut count = 0;
    for (from, to, more) in HONEST {
        let text = if from.is_empty() { DIGITS.to_owned() } else { DIGITS.replace(from, to) };
        let experiment = experiment(&format!("{text}\n{rules}\n{more}"));
        for (variant, seed) in
            experiment.variant.iter().flat_map(|variant| [11, 12].map(|seed| (variant, seed)))
        {
            let outcome = run(&experiment, variant, seed).unwrap();
            assert!(
                outcome.guarded.is_empty(),
                "{to} {more} {}: {:?}",
                variant.name,
                outcome.guarded
            );
            assert!(outcome.left_out_by.is_empty());
            count += 1;
        }
    }
    assert_eq!(count, 8 * 7 * 2);
}
