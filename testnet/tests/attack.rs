//! Attacks on swarms of real models in the simulator: a small fast part of the table of docs/security.md.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use dnode_testnet::attack::{ATTACKS, Attack, AttackPlan, Blow, Row, Swarm, run, table};

/// Blatant attacks by which the honest peers are as good as without them.
const HELD: [&str; 6] =
    ["noise-9", "noise-0.3", "scaled-1000", "scaled-2.5", "sign-flip", "learning-rate-1000"];

fn named(name: &str) -> Attack {
    *ATTACKS.iter().find(|attack| attack.name == name).unwrap()
}

fn plan(names: &[&str], swarm: (u32, u32)) -> AttackPlan {
    let (attackers, peers) = swarm;
    AttackPlan {
        attacks: names.iter().map(|name| named(name)).collect(),
        swarms: vec![Swarm { peers, attackers }],
        rules: vec!["gossip-outer".to_owned(), "pairwise".to_owned()],
        skews: vec![None],
        seeds: vec![1, 2, 3],
        steps: 1600,
        guard: true,
    }
}

fn rows(names: &[&str], swarm: (u32, u32)) -> Vec<Row> {
    run(&plan(names, swarm), |_| {}).unwrap()
}

#[test]
fn blatant_attacks_by_one_of_four_do_next_to_no_harm_and_are_named() {
    let rows = rows(&HELD, (1, 4));
    for row in &rows {
        assert!(row.holds(), "{}", table(&rows));
        assert!(row.named > 0.9 && row.named_after_s.unwrap() < 60.0, "{}", table(&rows));
        assert_eq!(row.wronged, 0, "{}", table(&rows));
    }
    assert_eq!(rows.len(), 2 * HELD.len());
}

#[test]
fn with_eight_peers_blatant_attacks_are_bounded_and_nobody_else_is_accused() {
    for (swarm, most) in [((1, 8), 1.1), ((2, 8), 1.2)] {
        let rows = rows(&HELD, swarm);
        for row in &rows {
            // Noise of two that make all replicas differ is usual to a rule of rare mixes, and does no harm.
            let harmless = swarm == (2, 8) && row.loss_times < 1.1;
            assert!(row.loss_times < most, "{}", table(&rows));
            assert!(row.named > 0.5 || harmless, "{}", table(&rows));
            assert_eq!(row.wronged, 0, "{}", table(&rows));
        }
    }
}

/// One that disconnects in one of four commits was always new before ADR 0063: nobody of eight named it.
#[test]
fn who_comes_back_again_and_again_is_named_and_does_no_more_harm_than_one_that_stays() {
    let mut plan = plan(&["drift-0.3", "drift-0.3-and-returns"], (1, 8));
    plan.rules = vec!["pairwise".to_owned()];
    let rows = run(&plan, |_| {}).unwrap();
    let [stays, returns] = &rows[..] else { panic!("{}", table(&rows)) };
    assert!(returns.named > 0.5 && returns.wronged == 0, "{}", table(&rows));
    assert!(returns.loss_times < 1.05 * stays.loss_times, "{}", table(&rows));
}

/// Blatant ones and those that hide behind what they say of themselves, against the rule that runs have by
/// default.
#[test]
fn the_default_rule_names_one_of_four_whatever_it_says_of_itself() {
    let names = [
        "noise-0.3",
        "noise-0.3-and-heavy",
        "scaled-2.5",
        "sign-flip",
        "frozen",
        "frozen-and-fast",
    ];
    let plan = AttackPlan { rules: vec!["pairwise-auto".to_owned()], ..plan(&names, (1, 4)) };
    let rows = run(&plan, |_| {}).unwrap();
    for row in &rows {
        // Until it is named, who says to be fast has the others do less in each commit. Before speeds were bounded
        // it ruined everybody: 22 times the loss, named by nobody. Differences of `scaled-2.5` are mixed, shortened, in
        // one of the three runs for 11 s (docs/security.md has nine).
        let bounded =
            matches!(row.attack, "frozen-and-fast" | "scaled-2.5") && row.loss_times < 2.5;
        assert!(row.named > 0.8 && (row.holds() || bounded), "{}", table(&rows));
    }
    assert_eq!(rows.len(), names.len());
}

#[test]
fn who_lies_about_its_clock_is_followed_by_nobody_nor_are_two_of_eight() {
    let names = ["clock-8", "clock-1000"];
    for swarm in [(1, 4), (1, 8), (2, 8)] {
        let rows = rows(&names, swarm);
        for row in &rows {
            assert!(row.loss_times < 1.1 && row.wronged == 0, "{}", table(&rows));
        }
        assert_eq!(rows.len(), 2 * names.len());
    }
}

/// Once both ends of an exchange have done their last step no clock keeps them apart, and no verdict is reached from
/// lengths: what is left is the bound on each exchange.
#[test]
fn who_attacks_after_its_last_step_does_no_harm_and_is_honest_until_then() {
    let names = [
        "noise-0.3-at-the-end",
        "scaled-2.5-at-the-end",
        "sign-flip-at-the-end",
        "drift-0.3-at-the-end",
        "frozen-at-the-end",
    ];
    let mut plan = plan(&names, (1, 4));
    plan.rules.push("pairwise-auto".to_owned());
    // Steps take 100 ms.
    let last_step = plan.steps as f64 * 0.1;
    let rows = run(&plan, |_| {}).unwrap();
    assert_eq!(rows.len(), 3 * names.len());
    for row in &rows {
        assert!(row.holds() && row.wronged == 0, "{}", table(&rows));
        assert!(row.named_after_s.is_none_or(|at| at >= last_step), "{}", table(&rows));
    }
    // What is measured is the end, where the attack is.
    plan.guard = false;
    let rows = run(&plan, |_| {}).unwrap();
    assert!(rows.iter().any(|row| row.loss_times > 1.5), "{}", table(&rows));
}

#[test]
fn a_newcomer_takes_no_snapshot_that_is_out_of_proportion() {
    for row in rows(&["snapshot-1000"], (1, 4)) {
        assert!(row.holds(), "{row:?}");
        assert!(row.named > 0.0 && row.wronged == 0, "{row:?}");
    }
}

#[test]
fn a_newcomer_that_was_given_what_is_none_of_the_runs_takes_over_from_others() {
    let mut plan = plan(&["snapshot-3", "snapshot-sign"], (1, 4));
    plan.rules.push("pairwise-auto".to_owned());
    let rows = run(&plan, |_| {}).unwrap();
    assert_eq!(rows.len(), 3 * 2);
    for row in &rows {
        // Without that 1.2 to 20 times. With a round in 25 steps the newcomer is long in coming back.
        assert!(row.accuracy_without - row.accuracy < 0.01, "{}", table(&rows));
        assert!(row.loss_times < 1.2, "{}", table(&rows));
    }
}

/// What honest peers must still see when a bound is removed: else the table shows nothing.
#[test]
fn without_the_guard_the_same_attacks_ruin_everybody() {
    let plan =
        AttackPlan { guard: false, seeds: vec![1], ..plan(&["noise-9", "sign-flip"], (1, 4)) };
    for row in run(&plan, |_| {}).unwrap() {
        assert!(row.loss_times > 2.0 && row.named < 1e-9, "{row:?}");
    }
}

/// What the table compares with must itself do what its papers say.
#[test]
fn references_bound_what_ruins_the_mean_and_meet_no_attack_by_the_protocol() {
    let names = ["noise-9", "sign-flip", "frozen", "busy", "snapshot-3"];
    let rules = ["mean", "median", "trimmed-mean", "krum", "centered-clip"];
    let rules = rules.map(str::to_owned).to_vec();
    let rows = run(&AttackPlan { rules, ..plan(&names, (1, 4)) }, |_| {}).unwrap();
    assert_eq!(rows.len(), 3 * 5, "{}", table(&rows));
    for row in &rows {
        let bounded = row.loss_times < 1.6;
        assert_eq!(bounded, row.rule != "mean", "{}", table(&rows));
    }
}

#[test]
fn a_strength_takes_the_place_of_that_in_the_name() {
    let attacks = vec![named("noise-0.3").at(0.01), named("noise-0.3").at(3.0)];
    let mut plan = plan(&[], (1, 4));
    (plan.attacks, plan.rules, plan.seeds) = (attacks, vec!["mean".to_owned()], vec![1]);
    let rows = run(&plan, |_| {}).unwrap();
    assert_eq!(rows[0].name(), "noise-0.3 at 0.01");
    assert!(rows[0].loss_times < 1.1 && rows[1].loss_times > 2.0, "{}", table(&rows));
}

#[test]
fn attacks_have_names_of_their_own_and_of_every_kind_there_are_some() {
    for (index, attack) in ATTACKS.iter().enumerate() {
        assert!(ATTACKS[..index].iter().all(|other| other.name != attack.name), "{}", attack.name);
    }
    for blow in [Blow::Blatant, Blow::Patient, Blow::Protocol] {
        assert!(ATTACKS.iter().filter(|attack| attack.blow == blow).count() >= 6);
    }
}
