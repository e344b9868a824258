//! What `run` trains when it is not told what: the first thing that a newcomer sees.

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

/// Beside `gossip-outer`: commits of 10 steps bring outer steps twice as near to synchronous training as
/// those of 25; what other learning rates do to either is in docs/measurements.md.
const OUTER_STEPS: [&str; 3] =
    ["optimizer.learning_rate=0.005", "gossip.local_steps=10", "gossip.mix_every=10"];

/// What is trained, `gossip-outer` among the rules or not.
pub(super) fn settings(outer_steps: bool) -> impl Iterator<Item = &'static str> {
    let own = if outer_steps { &OUTER_STEPS[..] } else { &[] };
    SETTINGS.iter().chain(own).copied()
}

/// Whether one of the settings `section.key=value` names a model or data.
pub(super) fn says_what_to_train(settings: &[String]) -> bool {
    settings.iter().any(|setting| setting.starts_with("model.") || setting.starts_with("data."))
}
