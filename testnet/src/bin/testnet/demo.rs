//! What `run` trains when it is not told what: the first thing that a newcomer sees.

/// The rule that the demo shows where none is named.
pub(super) const RULE: &str = "pairwise";

/// A small gpt on the built-in Shakespeare: four peers and the synchronous variant take about a minute on
/// two cores.
const SETTINGS: [&str; 6] = [
    "data.kind=shakespeare",
    "model.kind=gpt",
    "model.layers=2",
    "model.width=64",
    "run.steps=1200",
    "run.batch=16",
];

/// Where all variants go with it: it takes text furthest (docs/measurements.md, "Defaults").
const MUON: [&str; 1] = ["optimizer.kind=muon"];

/// Commits of 10 steps bring outer steps twice as near to synchronous training as those of 25; what other
/// learning rates do to either is in docs/measurements.md.
const ADAMW: [&str; 3] =
    ["optimizer.learning_rate=0.005", "gossip.local_steps=10", "gossip.mix_every=10"];

/// What is trained with these rules.
pub(super) fn settings(rules: &[String]) -> impl Iterator<Item = &'static str> + use<> {
    let own = if rules.iter().all(|rule| rule == RULE) { &MUON[..] } else { &ADAMW };
    SETTINGS.iter().chain(own).copied()
}

/// Whether one of the settings `section.key=value` names a model or data.
pub(super) fn says_what_to_train(settings: &[String]) -> bool {
    settings.iter().any(|setting| setting.starts_with("model.") || setting.starts_with("data."))
}
