//! `report.md`: the result first, then pictures, every peer, and how to repeat it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::document::Block;
use super::numbers::{LossGap, Numbers, PeerNumbers, VariantNumbers, show_staleness};
use super::record::{Record, Results};
use super::stats::{MeanSd, MinMedianMax};
use super::table::Table;
use super::units::{self, to_f64};

/// What stands where there is no number.
const NONE: &str = "–";
/// Configuration keys that differ between peers or variants by construction.
const OWN_KEYS: [&str; 6] = [
    "data.shard",
    "network.bootstrap",
    "network.listen",
    "network.require_peers",
    "node.data_dir",
    "run.seed",
];

/// The whole report; `plots` are titles, file names and drawings.
pub fn blocks(results: &Results, numbers: &Numbers, plots: Vec<Block>) -> Vec<Block> {
    let record = &results.record;
    let mut blocks = vec![heading(1, "Local testnet")];
    if let Some(failure) = &record.failure {
        let failure = failure.replace('\n', "\n\n    ");
        blocks.push(Block::Text(format!("**Not completed:** {failure}")));
    }
    blocks.extend(result(record, numbers));
    if !plots.is_empty() {
        blocks.push(heading(2, "Plots"));
        let what = "Bold: mean over peers and seeds. Faint: single peers.";
        blocks.push(Block::Text(what.to_owned()));
        blocks.extend(plots);
    }
    blocks.extend([heading(2, "Every peer"), Block::Table(peers(numbers))]);
    blocks.extend(repeat(record));
    blocks.extend(configuration(results));
    blocks
}

fn heading(level: u8, title: &str) -> Block {
    Block::Heading(level, title.to_owned())
}

fn result(record: &Record, numbers: &Numbers) -> Vec<Block> {
    let seeds = &record.experiment.seeds;
    let mut blocks = vec![heading(2, "Result")];
    let words = super::words::comparison(numbers);
    blocks.extend(words.lines().map(|line| Block::Text(line.to_owned())));
    blocks.push(Block::Table(full_table(numbers)));
    blocks.push(Block::Text(format!(
        "Accuracy and loss are those of every peer's own final model on held-out data, as \
         worst / median / best peer{}. \
         Staleness is the clock lag of the exchanged fragments in commits, as p50 / p95 / max. \
         Consensus distance is the root mean square distance of the final models to their mean; \
         in brackets divided by the norm of the mean.",
        if seeds.len() > 1 {
            format!(", mean ± standard deviation over the seeds {seeds:?}")
        } else {
            String::new()
        }
    )));
    let gaps = gap_table(numbers);
    if !gaps.is_empty() {
        let what = "Worst peer against the median peer of the reference variant, seed by seed. \
                    Positive is worse than the reference.";
        blocks.extend([heading(3, "Gaps"), Block::Table(gaps), Block::Text(what.to_owned())]);
    }
    blocks
}

fn show(number: Option<MeanSd>, show: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.show(show))
}

fn spread_over_seeds(
    variant: &VariantNumbers,
    spread: impl Fn(&super::numbers::RunNumbers) -> Option<MinMedianMax>,
    parts: [fn(MinMedianMax) -> f64; 3],
    format: impl Fn(f64) -> String,
) -> String {
    parts.map(|part| show(variant.over_seeds(|run| spread(run).map(part)), &format)).join(" / ")
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn decimals(value: f64) -> String {
    format!("{value:.4}")
}

fn percent_number(share: f64) -> String {
    format!("{:.2}", 100.0 * share)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.2}", bytes / 1e6)
}

fn full_table(numbers: &Numbers) -> Table {
    let mut table = Table::new([
        "variant",
        "peers",
        "accuracy %",
        "loss, nats",
        "training time, s",
        "wall time, s",
        "samples",
        "sent per peer, MB",
        "staleness",
        "consensus distance",
    ]);
    for variant in &numbers.0 {
        let worst_first: [fn(MinMedianMax) -> f64; 3] = [|s| s.min, |s| s.median, |s| s.max];
        let best_last: [fn(MinMedianMax) -> f64; 3] = [|s| s.max, |s| s.median, |s| s.min];
        table.row(vec![
            variant.variant.name.clone(),
            variant.variant.peers.to_string(),
            spread_over_seeds(variant, |run| run.accuracy, worst_first, percent_number),
            spread_over_seeds(variant, |run| run.loss, best_last, decimals),
            show(variant.over_seeds(super::numbers::RunNumbers::train_s), |value| {
                format!("{value:.1}")
            }),
            show(variant.over_seeds(|run| Some(run.wall_s)), |value| format!("{value:.1}")),
            show(variant.over_seeds(|run| Some(to_f64(run.samples()))), whole),
            sent(variant),
            variant.staleness().unwrap_or_else(|| NONE.to_owned()),
            consensus(variant),
        ]);
    }
    table
}

fn sent(variant: &VariantNumbers) -> String {
    let bytes = variant.over_seeds(|run| run.bytes_out_per_peer().map(|bytes| bytes.mean));
    show(bytes, megabytes)
}

fn consensus(variant: &VariantNumbers) -> String {
    let distance = variant.over_seeds(|run| run.consensus.map(|exact| exact.distance));
    let relative = variant.over_seeds(|run| run.consensus.map(super::consensus::Exact::relative));
    let Some(relative) = relative else {
        return NONE.to_owned();
    };
    let relative = format!("{:.2} %", 100.0 * relative.mean);
    format!("{} ({relative})", show(distance, |value| format!("{value:.3}")))
}

fn gap_cells(gap: &LossGap) -> [String; 2] {
    [
        show(gap.accuracy_points, |value| format!("{value:.2}")),
        show(gap.loss_percent, |value| format!("{value:.2}")),
    ]
}

fn gap_table(numbers: &Numbers) -> Table {
    let mut table = Table::new(["variant", "reference", "accuracy gap, points", "loss gap, %"]);
    for variant in &numbers.0 {
        for gap in &variant.gaps {
            let [accuracy, loss] = gap_cells(gap);
            let name = variant.variant.name.clone();
            table.row(vec![name, gap.reference.clone(), accuracy, loss]);
        }
    }
    table
}

/// What the gap columns of [`short_table`] mean.
pub const GAP_NOTE: &str = "Gap: worst peer against the median peer of the synchronous variant, or of \
                            the undisturbed twin of a variant with kills.";

/// The main numbers in about 110 columns for a single seed, for a terminal.
pub fn short_table(numbers: &Numbers) -> Table {
    let mut table = Table::new([
        "variant",
        "worst acc. %",
        "median acc. %",
        "worst loss",
        "gap, points",
        "loss gap, %",
        "time, s",
        "sent/peer, MB",
    ]);
    for variant in &numbers.0 {
        let part = |part: fn(MinMedianMax) -> f64| {
            let share = variant.over_seeds(|run| run.accuracy.map(part));
            show(share, percent_number)
        };
        let none = || [NONE.to_owned(), NONE.to_owned()];
        let [accuracy_gap, loss_gap] = variant.gaps.first().map_or_else(none, gap_cells);
        table.row(vec![
            variant.variant.name.clone(),
            part(|spread| spread.min),
            part(|spread| spread.median),
            show(variant.over_seeds(|run| run.loss.map(|loss| loss.max)), decimals),
            accuracy_gap,
            loss_gap,
            show(variant.over_seeds(|run| Some(run.wall_s)), |value| format!("{value:.1}")),
            sent(variant),
        ]);
    }
    table
}

fn peers(numbers: &Numbers) -> Table {
    let mut table = Table::new([
        "variant",
        "seed",
        "peer",
        "accuracy %",
        "loss",
        "steps",
        "samples",
        "training s",
        "waited s",
        "sent",
        "received",
        "staleness",
        "end",
    ]);
    for variant in &numbers.0 {
        for run in &variant.runs {
            for (index, peer) in run.peers.iter().enumerate() {
                let place = [run.seed.to_string(), index.to_string()];
                let mut cells = vec![variant.variant.name.clone()];
                cells.extend(place.into_iter().chain(peer_cells(peer)));
                table.row(cells);
            }
        }
    }
    table
}

fn peer_cells(peer: &PeerNumbers) -> [String; 10] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    [
        or_none(peer.accuracy.map(percent_number)),
        or_none(peer.loss.map(decimals)),
        peer.steps.to_string(),
        peer.samples.to_string(),
        or_none(peer.train_s.map(|value| format!("{value:.1}"))),
        format!("{:.1}", peer.wait_s),
        units::bytes(peer.bytes_out),
        units::bytes(peer.bytes_in),
        or_none(show_staleness(&peer.staleness)),
        peer.killed_at.map_or_else(|| "done".to_owned(), |step| format!("killed at step {step}")),
    ]
}

fn repeat(record: &Record) -> Vec<Block> {
    let machine = &record.machine;
    let made = format!(
        "Begun {} at commit `{}`, on {} cores of {} with {} of memory, {}.",
        record.begun,
        machine.commit,
        machine.cores,
        machine.cpu,
        units::bytes(machine.memory_bytes),
        machine.system,
    );
    let command = Block::Code(record.command.clone());
    let mut blocks = vec![heading(2, "How to repeat it"), command, Block::Text(made)];
    for variant in &record.experiment.variants {
        let kills: Vec<String> = variant.kills.iter().map(ToString::to_string).collect();
        if !kills.is_empty() {
            let (name, kills) = (&variant.name, kills.join(", "));
            let text = format!("In variant `{name}` these peers were killed (SIGKILL): {kills}.");
            blocks.push(Block::Text(text));
        }
    }
    blocks
}

fn configuration(results: &Results) -> Vec<Block> {
    let starts = results.runs.iter().filter_map(|run| {
        let start = run.peers.first()?.log.start.as_ref()?;
        Some((run.variant.name.as_str(), &start.config))
    });
    let mut by_variant: Vec<(&str, BTreeMap<String, String>)> = Vec::new();
    for (variant, config) in starts {
        if by_variant.iter().all(|(name, _)| *name != variant) {
            let mut flat = BTreeMap::new();
            flatten(config, "", &mut flat);
            by_variant.push((variant, flat));
        }
    }
    if by_variant.is_empty() {
        return Vec::new();
    }
    let mut header = vec!["key".to_owned()];
    header.extend(by_variant.iter().map(|(name, _)| (*name).to_owned()));
    let mut table = Table::with_header(header);
    let keys: BTreeMap<&String, ()> =
        by_variant.iter().flat_map(|(_, flat)| flat.keys().map(|key| (key, ()))).collect();
    for key in keys.into_keys() {
        if OWN_KEYS.contains(&key.as_str()) {
            continue;
        }
        let value = |(_, flat): &(&str, BTreeMap<String, String>)| {
            flat.get(key).map_or_else(|| NONE.to_owned(), |value| format!("`{value}`"))
        };
        let mut cells = vec![format!("`{key}`")];
        cells.extend(by_variant.iter().map(value));
        table.row(cells);
    }
    let what = "As the first peer of each variant reports it; what differs by peer (shard, addresses, \
                folder) or by repetition (seed) is left out.";
    vec![heading(2, "Configuration"), Block::Text(what.to_owned()), Block::Table(table)]
}

/// `section.key` to value, for every leaf.
fn flatten(value: &Value, path: &str, flat: &mut BTreeMap<String, String>) {
    if let Value::Object(entries) = value {
        for (key, inner) in entries {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            flatten(inner, &path, flat);
        }
    } else {
        // A bar would end the cell.
        let text = value.to_string().replace('|', "\\|");
        flat.insert(path.to_owned(), text);
    }
}
