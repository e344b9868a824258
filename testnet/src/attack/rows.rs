//! What each attack did: the honest peers beside the same run in which the attackers are absent.

use std::collections::BTreeMap;

use super::catalog::{Attack, Blow};
use crate::experiment::Experiment;
use crate::file::ReadError;
use crate::learn::reference::{Aggregator, mean, run as aggregate};
use crate::learn::{LearnError, Misbehaviour, Outcome, Quality, SimulatedCase, run as train};
use crate::report::table::Table;

/// What is attacked, a small classifier on digits: `testnet/experiments/guard-digits.toml`.
const DIGITS: &str = include_str!("../../experiments/guard-digits.toml");
/// What takes the place of its variants.
const VARIANTS: &str = r#"
[[variant]]
name = "gossip-outer"
kind = "gossip-outer"

[[variant]]
name = "pairwise"
kind = "pairwise"

[[variant]]
name = "pairwise-auto"
kind = "pairwise"
set = ["gossip.mix_every=auto", 'gossip.codecs=["int4"]']

[[variant]]
name = "delta-set"
kind = "delta-set"
"#;
/// Their names.
const VARIANT_NAMES: [&str; 4] = ["gossip-outer", "pairwise", "pairwise-auto", "delta-set"];
/// The setting behind which the skew of the data is written.
const SKEWED: &str = "\"data.kind=digits\"";

/// Peers of a swarm, and how many of them attack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Swarm {
    /// All peers.
    pub peers: u32,
    /// Those that attack.
    pub attackers: u32,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct AttackPlan {
    /// The attacks.
    pub attacks: Vec<Attack>,
    /// The swarms.
    pub swarms: Vec<Swarm>,
    /// Names of rules, and of aggregators to compare with, which only attacks by weights can meet.
    pub rules: Vec<String>,
    /// Concentrations of labels (`data.skew`); none where all peers have equal data.
    pub skews: Vec<Option<f64>>,
    /// One run for each.
    pub seeds: Vec<u64>,
    /// Local steps of a peer.
    pub steps: u64,
    /// Whether honest peers guard themselves.
    pub guard: bool,
}

/// One attack on one swarm: means over the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the attack.
    pub attack: &'static str,
    /// How strongly, where it is not as the name says.
    pub strength: Option<f32>,
    /// How it goes to work.
    pub blow: Blow,
    /// Who attacks whom.
    pub swarm: Swarm,
    /// The rule.
    pub rule: String,
    /// As in [`AttackPlan`].
    pub skew: Option<f64>,
    /// Mean accuracy of the honest peers without the attackers, in `[0, 1]`.
    pub accuracy_without: f64,
    /// The same beside them.
    pub accuracy: f64,
    /// The worst honest peer's.
    pub worst: f64,
    /// How many times as large the honest peers' mean held-out loss is.
    pub loss_times: f64,
    /// Share of the pairs of honest peer and attacker in which the former left the latter out.
    pub named: f64,
    /// When half of those had, virtual seconds; the median of the runs in which there were some.
    pub named_after_s: Option<f64>,
    /// Honest peers that honest peers left out or weighed down.
    pub wronged: usize,
    /// How many times as long the run took, in virtual time.
    pub time_times: f64,
}

impl Row {
    /// The attack, and how strong it is where its name does not say it.
    #[must_use]
    pub fn name(&self) -> String {
        let at = |strength: f32| format!("{} at {strength}", self.attack);
        self.strength.map_or_else(|| self.attack.to_owned(), at)
    }

    /// Whether the honest peers are as good as without the attackers: within a point of accuracy and
    /// 5 % of loss.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.accuracy_without - self.accuracy <= 0.01 && self.loss_times <= 1.05
    }
}

/// One case of the small workload.
fn case(plan: &AttackPlan, peers: u32, skew: Option<f64>) -> Result<SimulatedCase, LearnError> {
    let head = DIGITS.split("[[variant]]").next().unwrap_or_default();
    let skewed = skew.map(|skew| format!("{SKEWED}, \"data.skew={skew}\""));
    let head = head.replace("peers = [4]", &format!("peers = [{peers}]"));
    let head = skewed.map_or_else(|| head.clone(), |skewed| head.replace(SKEWED, &skewed));
    let experiment = Experiment::parse(&format!("{head}{VARIANTS}"))?;
    let mut case = SimulatedCase::all(&experiment, None)?.remove(0);
    (case.steps, case.evaluate_every) = (plan.steps, plan.steps);
    for variant in &mut case.variants {
        variant.guard = plan.guard;
    }
    Ok(case)
}

/// What [`AttackPlan::rules`] may name.
pub fn rules() -> impl Iterator<Item = &'static str> {
    VARIANT_NAMES.into_iter().chain(Aggregator::ALL.into_iter().map(Aggregator::name))
}

/// One run of each seed.
fn runs(
    plan: &AttackPlan,
    case: &SimulatedCase,
    rule: &str,
    wrong: Misbehaviour,
) -> Result<Vec<Outcome>, LearnError> {
    let mut case = case.clone();
    case.condition.misbehaviour = Some(wrong);
    if let Some(aggregator) = Aggregator::named(rule) {
        return plan.seeds.iter().map(|seed| aggregate(&case, aggregator, *seed)).collect();
    }
    let variant = case.variants.iter().find(|variant| variant.name == rule);
    let legal = "gossip-outer, pairwise, pairwise-auto, delta-set, mean, median, trimmed-mean, \
                 krum or centered-clip";
    let variant = variant.ok_or(ReadError::Range { key: "--rule", legal })?;
    plan.seeds.iter().map(|seed| train(&case, variant, *seed)).collect()
}

/// Runs all of it; `done` is told of each row.
///
/// # Errors
/// [`LearnError`].
pub fn run(plan: &AttackPlan, mut done: impl FnMut(&Row)) -> Result<Vec<Row>, LearnError> {
    let mut rows = Vec::new();
    for (swarm, skew) in plan.swarms.iter().flat_map(|s| plan.skews.iter().map(move |k| (s, k))) {
        let case = case(plan, swarm.peers, *skew)?;
        for rule in &plan.rules {
            let mut references = BTreeMap::new();
            let meets = |it: &&Attack| Aggregator::named(rule).is_none() || it.is_by_weights();
            for attack in plan.attacks.iter().filter(meets) {
                let by = attack.by(swarm.attackers, plan.steps);
                let without = attack.without(swarm.attackers, plan.steps);
                let known = references.entry((without.joins_at, without.from_step));
                let without = match known {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => {
                        new.insert(runs(plan, &case, rule, without)?)
                    }
                };
                let beside = runs(plan, &case, rule, by)?;
                let honest: Vec<u32> =
                    (0..swarm.peers).filter(|peer| !by.is_of(*peer, swarm.peers)).collect();
                let row = Row {
                    rule: rule.clone(),
                    skew: *skew,
                    ..measured((attack, *swarm), &honest, without, &beside)
                };
                done(&row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// The numbers of a row: of the honest peers without the attackers, and beside them.
fn measured(
    (attack, swarm): (&Attack, Swarm),
    honest: &[u32],
    without: &[Outcome],
    beside: &[Outcome],
) -> Row {
    let of = |values: &[f64]| -> Vec<f64> {
        // Who is absent has no replica.
        let all = values.len() == honest.len();
        let chosen = |peer: &u32| values.get(*peer as usize).copied();
        if all { values.to_vec() } else { honest.iter().filter_map(chosen).collect() }
    };
    let losses = |outcome: &Outcome| mean(&of(&end(attack, outcome).peers));
    let accuracies = |outcome: &Outcome| mean(&of(&end(attack, outcome).accuracy));
    let over = |outcomes: &[Outcome], f: &dyn Fn(&Outcome) -> f64| {
        mean(&outcomes.iter().map(f).collect::<Vec<_>>())
    };
    let worst = beside.iter().flat_map(|outcome| of(&end(attack, outcome).accuracy));
    let seconds = |outcome: &Outcome| outcome.seconds;
    let pairs = honest.len() * swarm.attackers as usize * beside.len();
    let named: Vec<Vec<f64>> = beside.iter().map(|outcome| named(honest, outcome)).collect();
    let half = |times: &Vec<f64>| times.get(times.len().saturating_sub(1) / 2).copied();
    let mut halves: Vec<f64> = named.iter().filter_map(half).collect();
    halves.sort_by(f64::total_cmp);
    let wronged = |outcome: &Outcome| {
        let both = |by: &u32, about: &u32| honest.contains(by) && honest.contains(about);
        outcome.guarded.iter().filter(|it| both(&it.by, &it.about) && it.trust != "Trusted").count()
    };
    Row {
        attack: attack.name,
        strength: attack.strength,
        blow: attack.blow,
        swarm,
        rule: String::new(),
        skew: None,
        accuracy_without: over(without, &accuracies),
        accuracy: over(beside, &accuracies),
        worst: worst.fold(f64::INFINITY, f64::min),
        loss_times: over(beside, &losses) / over(without, &losses),
        named: named.iter().map(Vec::len).sum::<usize>() as f64 / pairs.max(1) as f64,
        named_after_s: half(&halves),
        wronged: beside.iter().map(wronged).sum(),
        time_times: over(beside, &seconds) / over(without, &seconds),
    }
}

/// What peers are measured by: as they are after the last exchanges, where the attack is in these.
fn end<'a>(attack: &Attack, outcome: &'a Outcome) -> &'a Quality {
    let settled = outcome.settled.as_ref().filter(|_| attack.is_at_end());
    settled.unwrap_or(&outcome.last)
}

/// When each honest peer first left each of the others out, ascending.
fn named(honest: &[u32], outcome: &Outcome) -> Vec<f64> {
    let mut first = BTreeMap::new();
    for it in outcome.guarded.iter().filter(|it| it.trust == "LeftOut") {
        if honest.contains(&it.by) && !honest.contains(&it.about) {
            first.entry((it.by, it.about)).or_insert(it.at_s);
        }
    }
    let mut times: Vec<f64> = first.into_values().collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The rows as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new([
        "attack",
        "kind",
        "swarm",
        "rule",
        "data",
        "accuracy, % (without)",
        "worst, %",
        "loss, times",
        "left out by, %",
        "after, s",
        "time, times",
        "honest accused",
        "holds",
    ]);
    for row in rows {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        table.row(vec![
            row.name(),
            row.blow.name().to_owned(),
            format!("{} of {}", row.swarm.attackers, row.swarm.peers),
            row.rule.clone(),
            row.skew.map_or_else(|| "equal".to_owned(), |skew| format!("skew {skew}")),
            format!("{} ({})", percent(row.accuracy), percent(row.accuracy_without)),
            percent(row.worst),
            format!("{:.3}", row.loss_times),
            format!("{:.0}", 100.0 * row.named),
            row.named_after_s.map_or_else(|| "–".to_owned(), |at| format!("{at:.0}")),
            format!("{:.2}", row.time_times),
            row.wronged.to_string(),
            if row.holds() { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.render()
}
