//! The data plane end to end: peers in processes of their own, the real network on loopback, the
//! real replica, and a trainer that computes nothing.
//!
//! `cargo bench -p dnode --bench exchange -- [averaging] [cost] [overlapping] [training] [join]
//! [join-bounded] [join-beside] [large]`; without a name all parts run. The last needs 9 GB of memory
//! and those of joining 10, `training` and `join-beside` need `taskset`.
//! With `DNODE_BENCH_PYTHON` naming a Python that has torch (and hivemind), gloo's all-reduce and
//! hivemind's averager are measured in the same run. `docs/measurements.md` has the tables.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

mod averaging;
mod cost;
mod join;
mod large;
mod overlapping;
mod peer;
mod reference;
mod swarm;
mod trainer;
mod training;

/// The parts of this benchmark, by name.
const PARTS: [(&str, fn()); 8] = [
    ("averaging", averaging::run),
    ("cost", cost::run),
    ("overlapping", overlapping::run),
    ("training", training::run),
    ("join", join::run),
    ("join-bounded", join::run_bounded),
    ("join-beside", join::run_beside),
    ("large", large::run),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((peer::COMMAND, rest)) = arguments.split_first().map(|(a, b)| (a.as_str(), b)) {
        return peer::run(rest);
    }
    let named = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !PARTS.iter().any(|(name, _)| named(name));
    for (name, part) in PARTS {
        if all || named(name) {
            part();
        }
    }
}

/// The middle of `values`, and how far the tenth and the ninth tenth are from it.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
    (at(0.5), at(0.1), at(0.9))
}
