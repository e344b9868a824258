//! Training small real models in the simulator: repeatable, equal to DiLoCo where theory says so,
//! and every way to average learns.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use dnode_testnet::experiment::Experiment;
use dnode_testnet::file::ReadError;
use dnode_testnet::learn::{Outcome, SimulatedCase, frontier, gaps, run, table};
use dnode_testnet::scenario::Scenario;
use dnode_testnet::scenario::link::LinkModel;

const TINY: &str = include_str!("../experiments/tiny.toml");

/// The first case of an case.
fn read(text: &str) -> Result<SimulatedCase, ReadError> {
    Ok(SimulatedCase::all(&Experiment::parse(text)?, None)?.remove(0))
}

fn case(text: &str) -> SimulatedCase {
    read(text).unwrap()
}

fn outcome(case: &SimulatedCase, variant: &str, seed: u64) -> Outcome {
    let variant = case.variants.iter().find(|candidate| candidate.name == variant).unwrap();
    run(case, variant, seed).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_outcome_and_another_does_not() {
    let mut case = case(TINY);
    case.steps = 60;
    for variant in ["diloco", "gossip-outer-int4", "delta-set-int2", "pairwise-moments-int4"] {
        let first = outcome(&case, variant, 7);
        assert_eq!(first, outcome(&case, variant, 7), "{variant}");
        assert_ne!(first.last, outcome(&case, variant, 8).last, "{variant}");
    }
}

/// I4 of the design: in lock step and without a lossy code, a replica that sums everybody's outer
/// steps is DiLoCo's.
#[test]
fn in_lock_step_the_sum_of_contributions_is_diloco() {
    let mut case = case(TINY);
    case.steps = 60;
    case.evaluate_every = 20;
    (case.simulation.together, case.simulation.work) = (true, Duration::from_micros(100));
    case.condition.link =
        Some(LinkModel { delay: Duration::from_millis(1), ..LinkModel::default() });
    let set = outcome(&case, "delta-set-f32", 3);
    let sync = outcome(&case, "diloco", 3);
    assert_eq!(set.commits, sync.commits);
    assert!(set.last.distance < 1e-9, "replicas are equal: {}", set.last.distance);
    let ends = [(&set.last, &sync.last)];
    let points = set.points.iter().zip(&sync.points).skip(2);
    for (own, other) in points.map(|(a, b)| (&a.quality, &b.quality)).chain(ends) {
        let gap = (own.mean_model / other.mean_model - 1.0).abs();
        assert!(gap < 1e-4, "{} and {}", own.mean_model, other.mean_model);
    }
}

/// See docs/math.md, merging.
#[test]
fn sides_that_trained_apart_merge_and_are_no_worse_than_the_better_one() {
    let case = case(include_str!("../experiments/partition.toml"));
    for variant in &case.variants {
        let outcome = outcome(&case, &variant.name, 1);
        let healed = outcome.healed.unwrap();
        let better = healed.sides.iter().map(|side| side.mean_model).fold(f64::MAX, f64::min);
        assert!(
            healed.steps.iter().all(|steps| *steps > 100),
            "{}: {:?}",
            variant.name,
            healed.steps
        );
        assert!(healed.merged.worst() <= better, "{}: {better}, {:?}", variant.name, healed.merged);
    }
}

#[test]
fn every_way_to_average_learns_and_sends_what_its_code_takes() {
    let case = case(TINY);
    let outcomes: Vec<Outcome> =
        case.variants.iter().map(|variant| run(&case, variant, 1).unwrap()).collect();
    for outcome in &outcomes {
        let before = &outcome.points[0].quality;
        assert!(outcome.last.worst() < 0.8 * before.worst(), "{outcome:?}");
        // With shared moments AdamW begins slowly: its second moments have to be of many gradients.
        let least = if outcome.variant.contains("moments") { 0.4 } else { 0.7 };
        assert!(outcome.last.worst_accuracy() > least, "{outcome:?}");
        assert!(outcome.steps.iter().all(|steps| *steps == case.steps), "{outcome:?}");
        if let Some(end) = &outcome.settled {
            // After the last exchanges all peers have the mean model, but for a thousandth of the loss.
            assert!(end.worst() - end.mean_model <= 0.001 * end.mean_model, "{outcome:?}");
        }
    }
    let settled = outcomes.iter().filter(|outcome| outcome.settled.is_some()).count();
    assert_eq!(settled, outcomes.len() - 2, "all that gossip");
    let bytes = |name: &str| {
        let outcome = outcomes.iter().find(|outcome| outcome.variant == name).unwrap();
        outcome.tensor_bytes.iter().sum::<u64>()
    };
    assert!(bytes("gossip-outer-int4") < bytes("gossip-outer-f32") / 4);
    assert!(bytes("delta-set-int2") < bytes("delta-set-f32") / 8);
    let times = bytes("pairwise-moments-int4") as f64 / bytes("pairwise-int4") as f64;
    // Offer and difference have 8.1 bits each, where those of weights have 4.1.
    assert!(
        (2.4..3.1).contains(&times),
        "moments are as many numbers more, of eight bits: {times}"
    );
    assert!(outcomes.iter().all(|outcome| outcome.guarded.is_empty()), "all are honest");
    let parameters = outcomes.iter().map(|outcome| outcome.parameters);
    assert_eq!(parameters.clone().min(), parameters.max());
    let text = table(&case, &outcomes);
    assert_eq!(text.lines().count(), 2 + outcomes.len(), "{text}");
}

#[test]
fn a_slow_peer_does_fewer_local_steps_and_holds_up_nobody() {
    let mut case = case(TINY);
    case.factors = vec![4.0];
    case.simulation.together = true;
    let gossip = outcome(&case, "gossip-outer-int4", 1);
    let sync = outcome(&case, "diloco", 1);
    assert!(2 * gossip.steps[0] < gossip.steps[1], "{:?}", gossip.steps);
    assert!(2.0 * gossip.seconds < sync.seconds, "{} s, {} s", gossip.seconds, sync.seconds);
}

const HARD: &str = r#"
    neighbours = 4
    faults_for = "1h"
    speed = { kind = "log-normal", sigma = 0.3 }
    [link]
    delay = "20ms"
    bandwidth = 10e6
    spread = { kind = "uniform", ratio = 4.0 }
    [[script]]
    at = "4s"
    kind = "crash"
    peer = 2
    [[script]]
    at = "6s"
    kind = "restart"
    peer = 2
    [[script]]
    at = "7s"
    kind = "crash"
    peer = 5
    [[script]]
    at = "9s"
    kind = "split"
    percent = 50
    both = true
    [[script]]
    at = "12s"
    kind = "heal"
"#;

#[test]
fn models_are_trained_under_the_speeds_lines_and_faults_of_a_scenario() {
    let scenario = Scenario::parse(HARD).unwrap();
    let case = case(TINY).under(scenario).unwrap();
    for variant in ["gossip-outer-int4", "delta-set-int2", "pairwise-moments-int4"] {
        let outcome = outcome(&case, variant, 1);
        assert_eq!(outcome, self::outcome(&case, variant, 1), "{variant}: the same again");
        // One died for good; who came back has pulled the model and trained on.
        assert_eq!(outcome.last.peers.len(), 7, "{variant}: {outcome:?}");
        let before = &outcome.points[0].quality;
        assert!(outcome.last.worst() < 0.8 * before.worst(), "{variant}: {outcome:?}");
        assert!(outcome.steps[5] < outcome.steps[4], "{variant}: {:?}", outcome.steps);
        let unlike = outcome.steps.iter().max() > outcome.steps.iter().min();
        assert!(unlike, "{variant}: speeds differ: {:?}", outcome.steps);
    }
    let sync = case.variants.iter().find(|variant| variant.name == "diloco").unwrap();
    let error = run(&case, sync, 1).unwrap_err().to_string();
    assert!(error.contains("one that gossips"), "{error}");
    let absent = format!("peers = 16\n{}", HARD.replace("peer = 5", "peer = 8"));
    let error = self::case(TINY).under(Scenario::parse(&absent).unwrap()).unwrap_err();
    assert!(error.to_string().contains("script.peer must be less than"), "{error}");
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    for (from, to, want) in [
        ("peers = [8]", "peers = [1]", "peers must be 2 to 64"),
        ("[\"int4\"]", "[\"int3\"]", "one of f32, bf16"),
        ("kind=adamw", "lr=1.0", "lr"),
        ("kind = \"pairwise\"", "kind = \"pair-wise\"", "pair-wise"),
        ("kind = \"pairwise\"", "kind = \"hivemind\"", "one of sync to delta-set"),
        ("name = \"undisturbed\"", "name = \"racks\"\nracks = 2\nlink = {}", "condition.racks"),
    ] {
        let error = read(&TINY.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn every_experiment_file_is_legal() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let files = std::fs::read_dir(folder).unwrap();
    let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let variants: Vec<usize> = texts.map(|text| case(&text).variants.len()).collect();
    assert!(variants.len() >= 4, "{variants:?}");
}

/// Two seeds of the reference, and of `pairwise-int4` with a gap and half of the bytes.
fn apart(case: &SimulatedCase, gap: f64) -> Vec<Outcome> {
    let of = |seed: u64, name: &str, loss: f64, bytes: u64| {
        let mut outcome = Outcome { variant: name.to_owned(), seed, ..Outcome::default() };
        (outcome.parameters, outcome.last.mean_model) = (100, loss);
        outcome.tensor_bytes = vec![bytes; 4];
        outcome
    };
    let both = |seed: u64| {
        let loss = 2.0 + gap * seed as f64;
        [
            of(seed, &case.reference, 2.0, 1000),
            of(seed, "pairwise-int4", loss, 500),
            of(seed, "pairwise-moments-int4", loss, 700),
        ]
    };
    [1, 2].into_iter().flat_map(both).collect()
}

#[test]
fn gaps_are_shown_over_bytes_for_each_number_of_peers() {
    let mut few = case(TINY);
    few.variants.retain(|it| {
        ["all-reduce", "pairwise-int4", "pairwise-moments-int4"].contains(&it.name.as_str())
    });
    let mut many = few.clone();
    many.peers = 2 * few.peers;
    let all = [(few.clone(), apart(&few, 0.02)), (many.clone(), apart(&many, 0.01))];
    let plots = frontier(&all).unwrap();
    assert_eq!(plots.iter().map(|it| it.0).collect::<Vec<_>>(), [few.peers, many.peers]);
    for (peers, svg) in plots {
        assert!(svg.contains(&format!("over bytes, {peers} peers")), "{svg}");
        assert!(svg.contains(&format!("pairwise, {} steps", few.steps)), "{svg}");
        assert!(!svg.contains("all-reduce"), "the reference has no line");
    }
    assert_eq!(frontier(&[]).unwrap(), []);
    few.variants.pop();
    let one = frontier(&[(few.clone(), apart(&few, 0.02))]).unwrap_err().to_string();
    assert!(one.contains("no point"), "one point is no line: {one}");
    let none = frontier(&[(few, Vec::new())]).unwrap_err().to_string();
    assert!(none.contains("no point"), "{none}");
}

/// Two lengths, two seeds: the plot has a line for each rule but the reference's, and refuses what it cannot tell apart.
#[test]
fn gaps_are_shown_over_the_lengths_of_the_runs() {
    let mut short = case(TINY);
    short.variants.retain(|it| ["all-reduce", "pairwise-int4"].contains(&it.name.as_str()));
    let mut long = short.clone();
    long.steps *= 10;
    let all = [(short.clone(), apart(&short, 0.02)), (long.clone(), apart(&long, 0.01))];
    let own = &all[0].1;
    assert!((own[1].gap_to(&own[0]) - 1.0).abs() < 1e-9, "one per cent");
    let svg = gaps(&all).unwrap();
    assert!(svg.contains("over the length of the run") && svg.contains("pairwise"), "{svg}");
    assert!(!svg.contains("all-reduce"), "the reference has no line");
    let one_length = gaps(&all[..1]).unwrap();
    assert!(one_length.contains("over the size of the model"), "{one_length}");
    let two = case(TINY);
    let error = gaps(&[(two.clone(), apart(&two, 0.1))]).unwrap_err().to_string();
    assert!(error.contains("two variants of"), "{error}");
    let none = gaps(&[(short, Vec::new())]).unwrap_err().to_string();
    assert!(none.contains("no point"), "{none}");
}
