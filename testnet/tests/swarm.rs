//! Random schedules break no invariant, and every planted defect is found by the one that names it.

use dnode_testnet::scenario::fault::Fault;
use dnode_testnet::scenario::{MixingRule, RuleSettings, Scenario};
use dnode_testnet::sim::scale;
use dnode_testnet::sim::{Defect, SimulationError, Trace, run};

/// Random schedules: any number of peers, any mix of faults.
const SCHEDULES: u64 = 2_000;
/// A planted defect must show within this many of them.
const DEFECT_SCHEDULES: u64 = 40;

fn replay(seed: u64) -> String {
    format!("cargo run --release -p dnode-testnet --bin sim -- --seed {seed} --trace trace.txt")
}

fn schedules(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(error) = run(&Scenario::random(seed), seed, Trace::off(), None) {
            panic!("seed {seed}: {error}\nreplay: {}", replay(seed));
        }
    }
}

#[test]
fn random_schedules_break_no_invariant() {
    schedules(0..SCHEDULES / 2);
}

#[test]
fn more_random_schedules_break_no_invariant() {
    schedules(SCHEDULES / 2..SCHEDULES);
}

/// Schedules of peers that return with checkpoints, or die all at once.
const DELTA_SET_SCHEDULES: u64 = 100;

#[test]
fn peers_of_delta_set_that_return_with_checkpoints_break_no_invariant() {
    let (mut resuming, mut all_die) = (0, 0);
    for seed in 0..DELTA_SET_SCHEDULES {
        let scenario = Scenario::random_delta_set(seed);
        resuming += u64::from(scenario.faults.resume > 0.0);
        let crashes = scenario.script.iter();
        let crashes = crashes.filter(|scripted| matches!(scripted.fault, Fault::Crash { .. }));
        all_die += u64::from(crashes.count() == scenario.peers as usize);
        if let Err(error) = run(&scenario, seed, Trace::off(), None) {
            let replay = replay(seed).replace("--seed", "--delta-set --seed");
            panic!("seed {seed}: {error}\nreplay: {replay}");
        }
    }
    let few = DELTA_SET_SCHEDULES / 8;
    assert!(resuming > few && all_die > few, "{resuming} {all_die} of {DELTA_SET_SCHEDULES}");
}

/// Schedules of peers that work by their speed, with gates that follow the measured step time.
const PACED_SCHEDULES: u64 = 500;

#[test]
fn peers_that_work_by_their_speed_break_no_invariant() {
    for seed in 0..PACED_SCHEDULES {
        if let Err(error) = run(&Scenario::random_paced(seed), seed, Trace::off(), None) {
            let replay = replay(seed).replace("--seed", "--paced --seed");
            panic!("seed {seed}: {error}\nreplay: {replay}");
        }
    }
}

/// Schedules that broke an invariant once, or took minutes, beyond those above (docs/measurements.md, random schedules).
const BROKEN_ONCE: [u64; 9] =
    [36_170, 55_249, 61_510, 81_300, 83_298, 94_041, 99_003, 99_704, 221_794];

#[test]
fn schedules_that_broke_an_invariant_once_do_so_no_more() {
    BROKEN_ONCE.into_iter().for_each(|seed| schedules(seed..seed + 1));
}

/// A scenario of more peers is tried with this many; its own size is a measurement.
const LARGE: u32 = 200;

fn smaller(scenario: Scenario) -> Scenario {
    let share = f64::from(LARGE) / f64::from(scenario.peers);
    let mut faults = scenario.faults.clone();
    for rate in [&mut faults.crashes, &mut faults.leaves, &mut faults.pauses] {
        *rate *= share;
    }
    Scenario { peers: LARGE, rounds: 40, faults, ..scenario }
}

#[test]
fn every_scenario_file_breaks_no_invariant() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        let scenario = Scenario::parse(&std::fs::read_to_string(&file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (scenario, seeds) =
            if scenario.peers > LARGE { (smaller(scenario), 1) } else { (scenario, 3) };
        for seed in 0..seeds {
            if let Err(error) = run(&scenario, seed, Trace::off(), None) {
                panic!("{} with seed {seed}: {error}", file.display());
            }
        }
    }
}

#[test]
fn ten_thousand_exchanges_under_every_fault_keep_the_mean() {
    let scenario = Scenario::parse(include_str!("../scenarios/all-faults.toml")).unwrap();
    let kept = run(&scenario, 1, Trace::off(), None).unwrap().kept.unwrap();
    assert!(kept.what == "mean" && kept.exchanges > 10_000, "{kept}");
    // Replicas are f64 here; what f32 leaves is measured by the bench `mean`.
    assert!(kept.worst > 0.0 && kept.worst < 1e-12, "{kept}");
}

#[test]
fn control_traffic_of_a_peer_does_not_grow_with_the_swarm() {
    let bytes = |peers| scale::measure((peers, 4), 10, 1).unwrap().control_bytes;
    let (ten, hundred, thousand) = (bytes(10), bytes(100), bytes(1000));
    assert!(hundred < 1.1 * ten && thousand < 1.1 * hundred, "{ten} {hundred} {thousand}");
}

/// Whether `property` is the invariant that finds `defect` in one of the first schedules.
fn is_found_by(defect: Defect, property: &str) -> bool {
    (0..DEFECT_SCHEDULES).any(|seed| {
        let outcome = run(&Scenario::random(seed), seed, Trace::off(), Some(defect));
        matches!(outcome, Err(SimulationError::Violated(violation)) if violation.property == property)
    })
}

#[test]
fn a_contribution_added_wrongly_is_found_by_the_invariant_of_delta_set() {
    let rule = RuleSettings { kind: MixingRule::DeltaSet, ..RuleSettings::default() };
    let scenario = Scenario { rule, ..Scenario::default() };
    let outcome = run(&scenario, 1, Trace::off(), Some(Defect::Overshoots));
    let Err(SimulationError::Violated(violation)) = outcome else {
        panic!("the defect is not found")
    };
    assert_eq!(violation.property, "same set");
}

#[test]
fn every_planted_defect_is_found_by_the_invariant_that_names_it() {
    for (defect, property) in [
        (Defect::ForgetsUndo, "mean"),
        (Defect::AppliesTwice, "mean"),
        (Defect::UnequalWeights, "mean"),
        (Defect::DoubleWeight, "weight"),
        (Defect::IgnoresCommitLimit, "progress gap"),
        (Defect::IgnoresCommitLimit, "information age"),
        (Defect::IgnoresSnapshotAge, "snapshot age"),
        (Defect::FreshensOffers, "snapshot age"),
        (Defect::HidesLag, "lag"),
        (Defect::HidesLag, "progress gap"),
        (Defect::DeafToDeadlines, "gate"),
        (Defect::DeafToDeadlines, "liveness"),
        (Defect::RepeatsWork, "atomic"),
        (Defect::Chatters, "traffic"),
        (Defect::InflatesClocks, "information"),
        (Defect::MixesNothing, "consensus"),
        (Defect::LosesLastWork, "lease"),
        (Defect::Hoards, "limits"),
    ] {
        assert!(is_found_by(defect, property), "{defect:?} is never found by \"{property}\"");
    }
}
