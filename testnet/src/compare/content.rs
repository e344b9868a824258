//! What the report of a comparison contains.

use std::fmt::Write;
use std::path::Path;

use super::against::Change;
use super::cell::Choice;
use super::curve::Goal;
use super::document::Block;
use super::fairness::{self, Unfair};
use super::plan::{Comparison, Way};
use super::plots;
use super::repeat;
use super::summary::{ArmSummary, CellSummary, RunSummary};
use super::verdict;
use crate::report::numbers::show_staleness;
use crate::report::plot::PlotError;
use crate::report::record::RunResult;
use crate::report::stats::MeanSd;
use crate::report::table::Table;
use crate::report::units::to_f64;

/// What stands where there is no number.
const NONE: &str = "–";

/// Everything that a report is made of.
#[derive(Debug)]
pub struct Findings<'a> {
    /// The comparison.
    pub plan: &'a Comparison,
    /// The experiment file.
    pub file: &'a Path,
    /// Folder of the data, if the experiment needs one.
    pub data: Option<&'a Path>,
    /// Names of the cells that were asked for; all where there is none.
    pub only: &'a [String],
    /// The cells that are compared.
    pub cells: Vec<CellSummary>,
    /// The cells of the trials.
    pub tuning: Vec<CellSummary>,
    /// The best trial of each arm.
    pub choices: &'a [Choice],
    /// What makes it unfair.
    pub unfair: Vec<Unfair>,
    /// What has changed since another comparison, where there is one.
    pub changes: Option<Vec<Change>>,
    /// Cores of the machine.
    pub cores: usize,
}

/// The report.
///
/// # Errors
/// [`PlotError`]: a plot could not be drawn.
pub fn blocks(findings: &Findings<'_>) -> Result<Vec<Block>, PlotError> {
    let plan = findings.plan;
    let mut title = plan.title.clone();
    if !findings.only.is_empty() {
        let _ = write!(title, ": {}", findings.only.join(", "));
    }
    let mut blocks = vec![Block::Heading(1, title)];
    blocks.extend(state(findings));
    blocks.extend(changes(findings));
    blocks.push(Block::Heading(2, "Verdicts".to_owned()));
    for cell in &findings.cells {
        blocks.push(Block::Text(format!("**{}** {}", cell.cell.name, cell.cell.condition.what)));
        let words = verdict::sentences(cell, plan);
        blocks.push(Block::List(words));
    }
    for cell in &findings.cells {
        blocks.extend(result(findings, cell));
        blocks.extend(plots::of(cell)?);
    }
    blocks.push(Block::Heading(2, "What the columns mean".to_owned()));
    blocks.push(Block::List(columns(plan)));
    blocks.extend(tuning(findings));
    blocks.extend(repeat::blocks(findings));
    Ok(blocks)
}

/// What is missing, and what is wrong.
fn state(findings: &Findings<'_>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let all = findings.cells.iter().chain(&findings.tuning);
    let mut lines = Vec::new();
    for cell in all {
        let wanted = cell.cell.experiment.arms.len() * cell.cell.experiment.seeds.len();
        let done = cell.state.record.runs.len();
        if let Some(why) = &cell.state.skipped {
            lines.push(format!("`{}` was skipped: {why}", cell.cell.name));
        } else if done + cell.state.arms_skipped.len() * cell.cell.experiment.seeds.len() < wanted {
            lines.push(format!("`{}`: {done} of {wanted} runs are there", cell.cell.name));
        }
        for (arm, why) in &cell.state.arms_skipped {
            lines.push(format!("`{}`: arm `{arm}` was skipped: {why}", cell.cell.name));
        }
        if let Some(failure) = &cell.state.record.failure {
            // The ends of logs are with the runs.
            let named = failure.lines().filter(|line| line.starts_with("arm "));
            lines.extend(named.map(|line| format!("`{}`: {line}", cell.cell.name)));
        }
    }
    if !lines.is_empty() {
        blocks.push(Block::Text("**Not complete:**".to_owned()));
        blocks.push(Block::List(lines));
    }
    if findings.unfair.is_empty() {
        blocks.push(Block::Text(fair(findings)));
    } else {
        blocks.push(Block::Text("**Not fair, so no result:**".to_owned()));
        blocks.push(Block::List(findings.unfair.iter().map(ToString::to_string).collect()));
    }
    blocks
}

/// That nothing was found, and what could not be looked at.
fn fair(findings: &Findings<'_>) -> String {
    let mut text = "Fair: samples, held-out data, clocks and the settings that must be equal were \
                    checked for every run."
        .to_owned();
    let cells = findings.cells.iter().chain(&findings.tuning);
    let runs: Vec<&RunResult> = cells.flat_map(|cell| &cell.results.runs).collect();
    let silent = runs.iter().filter(|run| !fairness::tells_weights(run)).count();
    if silent > 0 {
        let _ = write!(
            text,
            " In {silent} of the {} runs no peer tells the hash of the weights that it began with: those \
             were not compared.",
            runs.len()
        );
    }
    text
}

/// What has changed since another comparison.
fn changes(findings: &Findings<'_>) -> Vec<Block> {
    let Some(changes) = &findings.changes else { return Vec::new() };
    let mut blocks = vec![Block::Heading(2, "Changes".to_owned())];
    if changes.is_empty() {
        blocks.push(Block::Text("Nothing has changed by more than noise.".to_owned()));
        return blocks;
    }
    let text = "Change of the mean over seeds, and its 95 % interval by the bootstrap.";
    blocks.push(Block::Text(text.to_owned()));
    blocks.push(Block::List(changes.iter().map(ToString::to_string).collect()));
    blocks
}

fn result(findings: &Findings<'_>, cell: &CellSummary) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(2, cell.cell.name.clone())];
    let mut text = format!(
        "{} {} samples in every run; each peer has {:.2} cores{}.",
        cell.cell.condition.what,
        cell.cell.budget(),
        cell.cell.share,
        cell.cell.condition.slow.map_or_else(String::new, |slow| format!(
            ", the last one {:.3}",
            cell.cell.share / slow.times
        )),
    );
    if let Some(target) = cell.target {
        let _ = match target {
            Goal::Loss(loss) => write!(text, " Target: a held-out loss of {loss:.4} nats."),
            Goal::Accuracy(share) => {
                write!(text, " Target: a held-out accuracy of {} %.", verdict::percent(share))
            }
        };
    }
    let there = |way: &&Way| cell.arm(&way.name).is_some();
    let absent = findings.plan.arm.iter().filter(|way| !there(way));
    let absent: Vec<&str> = absent.map(|way| way.name.as_str()).collect();
    if !absent.is_empty() {
        let _ = write!(text, " Not run here: {}.", absent.join(", "));
    }
    let within = cell.cell.condition.samples_within_percent;
    if within > 0.0 {
        let _ =
            write!(text, " **Samples may differ from that by {within} % here: see their column.**");
    }
    #[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
    let (wanted, there) = (cell.cell.share * cell.cell.peers as f64, findings.cores as f64);
    if wanted > there + 1e-6 {
        let _ = write!(
            text,
            " **{} peers shared {there} cores, so times are not those of machines of their own.**",
            cell.cell.peers
        );
    }
    blocks.push(Block::Text(text));
    let (quality, cost) = tables(cell, &findings.plan.reference);
    blocks.push(Block::Table(quality));
    blocks.push(Block::Table(cost));
    blocks
}

fn show(number: Option<MeanSd>, format: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.show(format))
}

/// How good the models are, and what they cost.
fn tables(cell: &CellSummary, reference: &str) -> (Table, Table) {
    let mut quality = Table::new([
        "arm",
        "seeds",
        "loss, median peer",
        "best peer",
        "worst peer",
        "averaged model",
        "gap, %",
        "accuracy, %",
        "averaged model, %",
        "consensus distance, %",
    ]);
    let mut cost = Table::new([
        "arm",
        "time to target, s",
        "wall time, s",
        "start-up, s",
        "sent per peer, MB",
        "sent to target, MB",
        "samples",
        "samples/s",
        "utilisation, %",
        "staleness",
    ]);
    let base = cell.arm(reference);
    for arm in &cell.arms {
        quality.row(quality_row(arm, base.filter(|base| base.arm.name != arm.arm.name)));
        cost.row(cost_row(arm));
    }
    (quality, cost)
}

fn quality_row(arm: &ArmSummary, base: Option<&ArmSummary>) -> Vec<String> {
    let of = |number: fn(&RunSummary) -> f64, digits: usize| {
        show(arm.over_seeds(|run| Some(number(run))), |value| format!("{value:.digits$}"))
    };
    let mut seeds = arm.runs.len().to_string();
    if !arm.failures.is_empty() {
        let _ = write!(seeds, " ({} failed)", arm.failures.len());
    }
    let gap = base.and_then(|base| verdict::gap(arm, base));
    let consensus = arm.over_seeds(|run| Some(100.0 * run.consensus?.relative()));
    vec![
        arm.arm.name.clone(),
        seeds,
        of(|run| run.loss.median, 4),
        of(|run| run.loss.min, 4),
        of(|run| run.loss.max, 4),
        of(|run| run.mean_loss, 4),
        show(gap, |value| format!("{value:.2}")),
        of(|run| 100.0 * run.accuracy.median, 2),
        of(|run| 100.0 * run.mean_accuracy, 2),
        show(consensus, |value| format!("{value:.2}")),
    ]
}

fn cost_row(arm: &ArmSummary) -> Vec<String> {
    let seconds = |value: f64| format!("{value:.1}");
    let megabytes = |bytes: f64| format!("{:.2}", bytes / 1e6);
    let reached = arm.runs.iter().filter(|run| run.target.is_some()).count();
    let mut target = show(arm.over_seeds(|run| run.target.map(|point| point.seconds)), seconds);
    if reached > 0 && reached < arm.runs.len() {
        let _ = write!(target, " ({reached} of {})", arm.runs.len());
    }
    vec![
        arm.arm.name.clone(),
        target,
        show(arm.over_seeds(|run| Some(run.wall_s)), seconds),
        show(arm.over_seeds(|run| Some(run.curve.startup_s)), seconds),
        show(arm.over_seeds(|run| Some(run.bytes)), megabytes),
        show(arm.over_seeds(|run| run.target.map(|point| point.bytes)), megabytes),
        show(arm.over_seeds(|run| Some(to_f64(run.samples))), |value| format!("{value:.0}")),
        show(arm.over_seeds(|run| Some(run.samples_per_s)), |value| format!("{value:.0}")),
        show(arm.over_seeds(|run| run.utilisation), |value| format!("{:.0}", 100.0 * value)),
        show_staleness(&arm.staleness()).unwrap_or_else(|| NONE.to_owned()),
    ]
}

fn columns(plan: &Comparison) -> Vec<String> {
    let reference = &plan.reference;
    vec![
        "Numbers are means ± standard deviations over seeds.".to_owned(),
        "Loss (nats) and accuracy are of the final models on all held-out data, measured by one \
         program for all arms: every peer's own model, and the model of their averaged parameters."
            .to_owned(),
        format!(
            "Gap: by how much the loss of the median peer exceeds that of `{reference}` with the \
             same seed; negative is better."
        ),
        format!(
            "Target: the accuracy that the text names, else the last loss of `{reference}` with the \
             same seed and {} % more; reached when the mean of the \
             peers is there, by a straight line between two of their checkpoints. Time to it \
             counts from the first step of any peer and leaves out the start-up only, which is \
             the column beside; writing checkpoints counts.",
            plan.target_percent
        ),
        "Wall time: from the start of the first process to the end of the last, everything \
         included."
            .to_owned(),
        "Utilisation: the time that a peer alone takes for the samples, over the time that these \
         peers took from the first step to the end of the last process, checkpoints, the last \
         exchanges and the last evaluation included."
            .to_owned(),
        "Staleness: clock lag of exchanges in commits, as p50 / p95 / max; of a parameter server, \
         the optimizer steps between the parameters of a gradient and its use."
            .to_owned(),
        "Sent: bytes sent by a peer; of a parameter server, those that it sends to a peer, too."
            .to_owned(),
        "Consensus distance: root mean square distance of the final models to their mean, over \
         the norm of the mean."
            .to_owned(),
    ]
}

fn tuning(findings: &Findings<'_>) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(2, "Tuning".to_owned())];
    let Some(tuning) = &findings.plan.tuning else {
        let text = "No trials: every arm runs with the settings of the experiment file and the \
                    product's defaults.";
        blocks.push(Block::Text(text.to_owned()));
        return blocks;
    };
    let trials = findings.plan.arm.first().map_or(0, |arm| arm.trials.len());
    blocks.push(Block::Text(format!(
        "{} {trials} trials for every arm, undisturbed, with seed {}.",
        tuning.rule, tuning.seed
    )));
    let mut table = Table::new(["trial", "cell", "settings", "loss, median peer", "chosen"]);
    for cell in &findings.tuning {
        for arm in &cell.arms {
            let (way, trial) = arm.arm.name.rsplit_once('.').unwrap_or((&arm.arm.name, "0"));
            let chosen = findings.choices.iter().any(|choice| {
                choice.cell == cell.cell.name
                    && choice.arm == way
                    && choice.trial.to_string() == trial
            });
            let settings = findings.plan.arm.iter().find(|plan| plan.name == way);
            let settings =
                settings.and_then(|way| way.trials.get(trial.parse::<usize>().ok()?)).cloned();
            table.row(vec![
                arm.arm.name.clone(),
                cell.cell.name.clone(),
                settings.unwrap_or_default().join(" "),
                show(arm.over_seeds(|run| Some(run.loss.median)), |loss| format!("{loss:.4}")),
                if chosen { "yes" } else { "" }.to_owned(),
            ]);
        }
    }
    blocks.push(Block::Table(table));
    blocks
}
