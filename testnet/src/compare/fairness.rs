//! What makes a comparison unfair: each finding names a run, and fails the comparison.

use std::collections::BTreeMap;

use serde_json::Value;

use super::case::Case;
use super::judge::{has_own_loop, settings};
use super::summary::CaseSummary;
use crate::metrics::Log;
use crate::report::record::{PeerResult, RunResult};

/// Most relative difference between the loss that a peer says and the one that its parameters have:
/// sums in another order.
const LOSS_TOLERANCE: f64 = 1e-3;
/// Seconds by which the clock of the harness and those of processes may differ.
const CLOCK_TOLERANCE_S: f64 = 1.0;
/// Longest time from the last word of the last peer until its run counts as ended, seconds: what a
/// process takes to hang up, and ample.
const UNNOTICED_S: f64 = 5.0;
/// A peer that does less than this part of its steps stands still.
const FROZEN_PART: f64 = 0.5;
/// What all variants of a case must have in common, as `section.key`.
const COMMON: [(&str, &str); 23] = [
    ("run", "seed"),
    ("model", "kind"),
    ("model", "hidden"),
    ("model", "layers"),
    ("model", "heads"),
    ("model", "width"),
    ("model", "context"),
    ("model", "dropout"),
    ("data", "kind"),
    ("data", "path"),
    ("data", "skew"),
    ("run", "batch"),
    ("optimizer", "kind"),
    ("optimizer", "momentum"),
    ("optimizer", "beta1"),
    ("optimizer", "beta2"),
    ("optimizer", "weight_decay"),
    ("optimizer", "decayed"),
    ("optimizer", "warmup_steps"),
    ("optimizer", "schedule"),
    ("optimizer", "final_fraction"),
    ("optimizer", "clip_norm"),
    ("optimizer", "accumulate"),
];
/// The same, of those that say it: programs of others know no such settings, and what is not set is not said.
const COMMON_WHERE_SAID: [(&str, &str); 24] = [
    ("model", "key_value_heads"),
    ("model", "inner"),
    ("model", "vocabulary"),
    ("model", "tied"),
    ("model", "norm_epsilon"),
    ("model", "rotary_base"),
    ("model", "rotary_factor"),
    ("model", "init"),
    ("model", "weights"),
    ("model", "lora_rank"),
    ("model", "lora_alpha"),
    ("model", "lora_targets"),
    ("data", "tokenizer"),
    ("data", "vocabulary"),
    ("data", "pixel_mean"),
    ("data", "pixel_deviation"),
    ("optimizer", "nesterov"),
    ("optimizer", "epsilon"),
    ("optimizer", "decay_fraction"),
    ("optimizer", "label_smoothing"),
    ("optimizer", "z_loss"),
    ("optimizer", "moments"),
    ("run", "stop_on_divergence"),
    ("node", "precision"),
];

/// Something that makes a comparison unfair.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unfair {
    /// Case, variant and seed.
    pub run: String,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Unfair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.run, self.what)
    }
}

/// All findings about the runs of a case.
#[must_use]
pub fn check(summary: &CaseSummary) -> Vec<Unfair> {
    let mut found = Vec::new();
    let case = &summary.case;
    let mut common: BTreeMap<u64, (String, Vec<Value>)> = BTreeMap::new();
    let (mut weights, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for result in &summary.results.runs {
        let run = format!("{} {} seed {}", case.name, result.variant.name, result.run.seed);
        let mut say = |what: String| found.push(Unfair { run: run.clone(), what });
        samples(case, result, &mut say);
        moves(case, result, &mut say);
        measures(result, &mut say);
        times(result, &mut say);
        begins(result, &mut weights, &mut say);
        held_out(result, &mut counts, &mut say);
        for own in result.peers.iter().filter_map(common_keys) {
            let first = || (result.variant.name.clone(), own.clone());
            let (first, wanted) = common.entry(result.run.seed).or_insert_with(first);
            let keys = COMMON.iter().map(|key| (key, true));
            let keys = keys.chain(COMMON_WHERE_SAID.iter().map(|key| (key, false)));
            let both = own.iter().zip(wanted.iter_mut());
            for (((section, key), always), (own, wanted)) in keys.zip(both) {
                if !always && wanted.is_null() {
                    // The first one did not say it.
                    wanted.clone_from(own);
                }
                if (always || !own.is_null()) && !same(own, wanted) {
                    say(format!("{section}.{key} is {own}, but {wanted} in variant {first}"));
                }
            }
        }
    }
    found.sort();
    found
}

/// Measured on as many held-out samples, or tokens, as every other variant with its seed.
fn held_out(
    result: &RunResult,
    counts: &mut BTreeMap<u64, (String, u64)>,
    say: &mut impl FnMut(String),
) {
    let Some(count) = result.judged.as_ref().and_then(|judged| Some(judged.mean?.count)) else {
        return;
    };
    let first = || (result.variant.name.clone(), count);
    let (first, wanted) = counts.entry(result.run.seed).or_insert_with(first);
    if count != *wanted {
        say(format!("was measured on {count} samples, but on {wanted} in variant {first}"));
    }
}

/// The same samples as every other variant.
fn samples(case: &Case, result: &RunResult, say: &mut impl FnMut(String)) {
    let total: u64 = result.peers.iter().map(|peer| peer.log.samples()).sum();
    let budget = case.budget();
    #[expect(clippy::cast_precision_loss, reason = "samples stay far below 2^53")]
    let (off, budget_f64) = (total.abs_diff(budget) as f64, budget as f64);
    let allowed = budget_f64 * case.condition.samples_within_percent / 100.0;
    if total.abs_diff(budget) > case.global_batch() && off > allowed {
        say(format!("trained on {total} samples, but the budget is {budget}"));
    }
}

/// Every peer takes part.
fn moves(case: &Case, result: &RunResult, say: &mut impl FnMut(String)) {
    let whole = case.budget() / result.peers.len().max(1) as u64;
    for (index, peer) in result.peers.iter().enumerate() {
        let log = &peer.log;
        let killed = result.run.killed_at.get(index).copied().flatten().is_some();
        if log.end.is_none() && !killed {
            say(format!("peer {index} did not report how it ended"));
        }
        // A peer that was away may do as much less as the condition allows.
        let lenient = 1.0 - case.condition.samples_within_percent.min(100.0) / 100.0;
        let slow = case.condition.slow.filter(|_| index + 1 == result.peers.len());
        let least = lenient * FROZEN_PART / slow.map_or(1.0, |slow| slow.factor);
        #[expect(clippy::cast_precision_loss, reason = "samples stay far below 2^53")]
        let part = log.samples() as f64 / whole as f64;
        // Peers of a server take what there is, and may be much slower than others.
        let shares_work = result.variant.program.has_server();
        if part <= 0.0 || (!shares_work && part < least) {
            say(format!("peer {index} stood still: it trained on {} samples", log.samples()));
        }
        if is_frozen(log) {
            say(format!("peer {index} stood still: all its evaluations are equal"));
        }
    }
}

/// Whether a model never changed: several evaluations, all of one loss.
fn is_frozen(log: &Log) -> bool {
    let mut losses = log.evaluate.iter().map(|(_, evaluate)| evaluate.loss);
    let Some(first) = losses.next() else { return false };
    log.evaluate.len() > 2 && losses.all(|loss| loss.total_cmp(&first).is_eq())
}

/// Every peer was measured, by itself and by the harness, on the same data.
fn measures(result: &RunResult, say: &mut impl FnMut(String)) {
    let Some(judged) = &result.judged else {
        return say("its parameters were not measured".to_owned());
    };
    let Some(wanted) = judged.mean.map(|mean| mean.count) else {
        return say("it left no parameters".to_owned());
    };
    for (index, peer) in result.peers.iter().enumerate() {
        let other = peer.log.evaluate.iter().find(|(_, evaluate)| evaluate.count != wanted);
        if let Some((_, other)) = other {
            let count = other.count;
            say(format!(
                "peer {index} was measured on {count} samples, not on all {wanted} held out"
            ));
        }
        let Some((_, end)) = &peer.log.end else { continue };
        let Some(measured) = judged.peers.get(index).copied().flatten() else {
            say(format!("peer {index} left no parameters"));
            continue;
        };
        if end.loss.is_nan() && has_own_loop(peer) {
            // Its node cannot measure what it does not know, and claims nothing.
            continue;
        }
        let off = (end.loss - measured.loss).abs() / measured.loss.abs().max(1e-3);
        if off.is_nan() || off > LOSS_TOLERANCE {
            let (says, has) = (end.loss, measured.loss);
            say(format!(
                "peer {index} says that its held-out loss is {says:.5}, but its parameters have \
                 {has:.5}: it was measured on other data"
            ));
        }
    }
}

/// The time of the run covers all that its processes did.
fn times(result: &RunResult, say: &mut impl FnMut(String)) {
    let started = |log: &Log| log.start.as_ref().map(|start| start.unix_s);
    let starts = result.peers.iter().filter_map(|peer| started(&peer.log));
    let began = result.run.began_unix_s;
    let first = began.unwrap_or_else(|| starts.fold(f64::INFINITY, f64::min));
    let ends = result
        .peers
        .iter()
        .filter_map(|peer| Some(started(&peer.log)? - first + peer.log.end.as_ref()?.0.time_s));
    let last = ends.fold(0.0, f64::max);
    if last > result.run.wall_s + CLOCK_TOLERANCE_S {
        let wall_s = result.run.wall_s;
        say(format!("took {wall_s:.1} s, but its last peer ended after {last:.1} s"));
    }
    if began.is_some() && last > 0.0 && result.run.wall_s > last + UNNOTICED_S {
        let wall_s = result.run.wall_s;
        say(format!("ended after {last:.1} s, but that was noticed after {wall_s:.1} s"));
    }
}

/// Equal seeds begin with equal weights; `known` has those of the runs before, and whose they were.
fn begins(
    result: &RunResult,
    known: &mut BTreeMap<u64, (String, String)>,
    say: &mut impl FnMut(String),
) {
    for (index, peer) in result.peers.iter().enumerate() {
        let own = peer.log.start.as_ref().and_then(|start| start.weights.as_ref());
        // A loop of its own has its tensors in an order of its own.
        let Some(own) = own.filter(|_| !has_own_loop(peer)) else { continue };
        let first = || (own.clone(), result.variant.name.clone());
        let (wanted, whose) = known.entry(result.run.seed).or_insert_with(first);
        if own != wanted {
            say(format!(
                "peer {index} began with the weights {own}, but others with {wanted} ({whose})"
            ));
        }
    }
}

/// Whether a peer of the run tells the hash of the weights that it began with.
pub(super) fn tells_weights(result: &RunResult) -> bool {
    let starts = result.peers.iter().filter_map(|peer| peer.log.start.as_ref());
    starts.into_iter().any(|start| start.weights.is_some())
}

/// Whether two values are equal; numbers with a fraction as f32, which they are where they are used.
fn same(own: &Value, wanted: &Value) -> bool {
    if !own.is_f64() && !wanted.is_f64() {
        return own == wanted;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the precision of the settings")]
    let single = |value: &Value| value.as_f64().map(|number| number as f32);
    match (single(own), single(wanted)) {
        (Some(own), Some(wanted)) => own.total_cmp(&wanted).is_eq(),
        _ => own == wanted,
    }
}

/// What must be equal, as a peer says.
fn common_keys(peer: &PeerResult) -> Option<Vec<Value>> {
    let config = settings(peer)?;
    let value = |(section, key): &(&str, &str)| config.get(section)?.get(key).cloned();
    let keys = COMMON.iter().chain(&COMMON_WHERE_SAID);
    Some(keys.map(|place| value(place).unwrap_or(Value::Null)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Variant;
    use crate::local::variant_run::VariantRun;

    /// A run of `wall_s` of peers that wrote these lines.
    fn run(wall_s: f64, logs: &[&[&str]]) -> RunResult {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let peers = logs.iter().enumerate().map(|(index, lines)| {
            let directory = folder.path().join(index.to_string());
            std::fs::create_dir(&directory).expect("a folder");
            let path = directory.join(crate::metrics::METRICS_FILE);
            std::fs::write(path, lines.join("\n") + "\n").expect("a file");
            PeerResult { log: Log::read(&directory).expect("metrics"), directory }
        });
        let variant = Variant::new("gossip-outer", logs.len());
        let (name, killed_at) = (variant.name.clone(), vec![None; logs.len()]);
        let run = VariantRun { wall_s, killed_at, ..VariantRun::new(&name, 1) };
        RunResult { variant, run, peers: peers.collect(), judged: None }
    }

    fn start(unix_s: f64, warmup: u64) -> String {
        format!(
            r#"{{"kind":"start","time_s":0,"step":0,"samples":0,"clock":0,"unix_s":{unix_s},"peer":"p","run":"r","incarnation":1,"parameters":1,"config":{{"run":{{"seed":1}},"optimizer":{{"warmup_steps":{warmup}}}}}}}"#
        )
    }

    const END: &str = r#"{"kind":"final","time_s":9,"step":50,"samples":1600,"clock":2,"reason":"steps done","loss":0.2,"accuracy":0.97,"bytes_out":5,"bytes_in":6,"wait_s":0.5,"train_s":8.5,"exchanges":{"completed":7,"busy":1},"staleness_histogram":[5,2,0],"parameters_path":"parameters.safetensors"}"#;

    #[test]
    fn time_that_a_run_leaves_out_is_found() {
        let (early, late) = (start(100.0, 1), start(104.0, 1));
        let found = |wall_s: f64| {
            let mut said = Vec::new();
            let peers: [&[&str]; 2] = [&[&early, END], &[&late, END]];
            times(&run(wall_s, &peers), &mut |what| said.push(what));
            said
        };
        assert_eq!(found(13.2), Vec::<String>::new());
        assert_eq!(found(9.0), ["took 9.0 s, but its last peer ended after 13.0 s"]);
        let late = |began: Option<f64>, wall_s: f64| {
            let mut said = Vec::new();
            let mut result = run(wall_s, &[&[&early, END]]);
            result.run.began_unix_s = began;
            times(&result, &mut |what| said.push(what));
            said
        };
        assert_eq!(late(None, 99.0), Vec::<String>::new());
        assert_eq!(late(Some(98.0), 12.0), Vec::<String>::new());
        assert_eq!(
            late(Some(98.0), 17.0),
            ["ended after 11.0 s, but that was noticed after 17.0 s"]
        );
    }

    #[test]
    fn a_loop_of_its_own_has_its_own_order_and_says_its_own_settings() {
        let begun = |weights: &str| {
            start(1.0, 100)
                .replace(r#""peer":"p""#, &format!(r#""peer":"p","weights":"{weights}""#))
        };
        let (one, other) = (begun("a"), begun("b"));
        let mut known = BTreeMap::new();
        let mut found = |result: &RunResult| {
            let mut said = Vec::new();
            begins(result, &mut known, &mut |what| said.push(what));
            said.len()
        };
        assert_eq!(found(&run(9.0, &[&[&one, END]])), 0);
        let result = run(9.0, &[&[&other, END]]);
        assert_eq!(found(&result), 1);
        let folder = tempfile::tempdir().unwrap();
        let settings = r#"{"run":{"seed":1},"optimizer":{"warmup_steps":7}}"#;
        std::fs::write(folder.path().join("settings.json"), settings).unwrap();
        let mut own = result;
        own.peers[0].directory = folder.path().to_owned();
        assert_eq!(found(&own), 0);
        let place = COMMON.iter().position(|key| *key == ("optimizer", "warmup_steps"));
        assert_eq!(common_keys(&own.peers[0]).unwrap()[place.unwrap()], Value::from(7));
    }

    #[test]
    fn what_must_be_equal_is_read_of_every_peer() {
        let (one, other) = (start(1.0, 100), start(1.0, 50));
        let result = run(9.0, &[&[&one, END], &[&other, END]]);
        let keys: Vec<Vec<Value>> = result.peers.iter().filter_map(common_keys).collect();
        let place = COMMON.iter().position(|key| *key == ("optimizer", "warmup_steps"));
        let at = place.expect("a common key");
        assert_eq!((&keys[0][at], &keys[1][at]), (&Value::from(100), &Value::from(50)));
        let differing =
            keys[0].iter().zip(&keys[1]).filter(|(own, other)| !same(own, other)).count();
        assert_eq!(differing, 1);
        // One program says 0.9, another the f32 nearest to it.
        assert!(same(&Value::from(0.9), &Value::from(f64::from(0.9_f32))));
        assert!(
            !same(&Value::from(0.9), &Value::from(0.91))
                && !same(&Value::from("cosine"), &Value::Null)
        );
    }
}
