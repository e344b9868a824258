//! What the report of a comparison contains.

use std::fmt::Write;
use std::path::Path;

use super::case::Choice;
use super::curve::Goal;
use super::fairness::{self, Unfair};
use super::plots;
use super::regression::Change;
use super::repeat;
use super::summary::{CaseSummary, RunSummary, VariantSummary};
use super::verdict;
use crate::experiment::{Experiment, Way};
use crate::report::document::Block;
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
    pub plan: &'a Experiment,
    /// The experiment file.
    pub file: &'a Path,
    /// Folder of the data, if the experiment needs one.
    pub data: Option<&'a Path>,
    /// Names of the cases that were asked for; all where there is none.
    pub only: &'a [String],
    /// The cases that are compared.
    pub cases: Vec<CaseSummary>,
    /// The cases of the trials.
    pub tuning: Vec<CaseSummary>,
    /// The best trial of each variant.
    pub choices: &'a [Choice],
    /// What makes it unfair.
    pub unfair: Vec<Unfair>,
    /// What has changed since another comparison, where there is one.
    pub changes: Option<Vec<Change>>,
    /// Cores of the machine.
    pub cores: usize,
    /// Why nothing holds peers to their shares of these, if nothing does.
    pub unlimited: Option<&'a str>,
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
    for case in &findings.cases {
        blocks.push(Block::Text(format!("**{}** {}", case.case.name, case.case.condition.what)));
        let words = verdict::sentences(case, plan);
        blocks.push(Block::List(words));
    }
    for case in &findings.cases {
        blocks.extend(result(findings, case));
        blocks.extend(plots::of(case)?);
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
    let all = findings.cases.iter().chain(&findings.tuning);
    let mut lines = Vec::new();
    for case in all {
        let wanted = case.case.runs();
        let done = case.state.record.runs.len();
        if let Some(why) = &case.state.skipped {
            lines.push(format!("`{}` was skipped: {why}", case.case.name));
        } else if done + case.state.variants_skipped.len() * case.case.experiment.seeds.len()
            < wanted
        {
            lines.push(format!("`{}`: {done} of {wanted} runs are there", case.case.name));
        }
        for (variant, why) in &case.state.variants_skipped {
            lines.push(format!("`{}`: variant `{variant}` was skipped: {why}", case.case.name));
        }
        if let Some(failure) = &case.state.record.failure {
            // The ends of logs are with the runs.
            let named = failure.lines().filter(|line| line.starts_with("variant "));
            lines.extend(named.map(|line| format!("`{}`: {line}", case.case.name)));
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
    let cases = findings.cases.iter().chain(&findings.tuning);
    let runs: Vec<&RunResult> = cases.flat_map(|case| &case.results.runs).collect();
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

fn result(findings: &Findings<'_>, case: &CaseSummary) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(2, case.case.name.clone())];
    let mut text = format!(
        "{} {} samples in every run; each peer has {:.2} cores{}.",
        case.case.condition.what,
        case.case.budget(),
        case.case.share,
        case.case.condition.slow.map_or_else(String::new, |slow| format!(
            ", the last one {:.3}",
            case.case.share / slow.factor
        )),
    );
    if let Some(target) = case.target {
        let _ = match target {
            Goal::Loss(loss) => write!(text, " Target: a held-out loss of {loss:.4} nats."),
            Goal::Accuracy(share) => {
                write!(text, " Target: a held-out accuracy of {} %.", verdict::percent(share))
            }
        };
    }
    let there = |way: &&Way| case.variant(&way.name).is_some();
    let absent = findings.plan.variant.iter().filter(|way| !there(way));
    let absent: Vec<&str> = absent.map(|way| way.name.as_str()).collect();
    if !absent.is_empty() {
        let _ = write!(text, " Not run here: {}.", absent.join(", "));
    }
    let within = case.case.condition.samples_within_percent;
    if within > 0.0 {
        let _ =
            write!(text, " **Samples may differ from that by {within} % here: see their column.**");
    }
    #[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
    let (wanted, there) = (case.case.share * case.case.peers as f64, findings.cores as f64);
    if wanted > there + 1e-6 {
        let _ = write!(
            text,
            " **{} peers shared {there} cores, so times are not those of machines of their own.**",
            case.case.peers
        );
    }
    if let Some(why) = findings.unlimited {
        let _ = write!(text, " **Nothing held peers to these shares: {why}.**");
    }
    blocks.push(Block::Text(text));
    let (quality, cost) = tables(case, &findings.plan.reference);
    blocks.push(Block::Table(quality));
    blocks.push(Block::Table(cost));
    blocks
}

fn show(number: Option<MeanSd>, format: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.show(format))
}

/// How good the models are, and what they cost.
fn tables(case: &CaseSummary, reference: &str) -> (Table, Table) {
    let mut quality = Table::new([
        "variant",
        "seeds",
        "loss, median peer",
        "best peer",
        "worst peer",
        "mean model",
        "gap, %",
        "tail average",
        "its gap, %",
        "accuracy, %",
        "mean model, %",
        "consensus distance, %",
    ]);
    let mut cost = Table::new([
        "variant",
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
    let base = case.variant(reference);
    for variant in &case.variants {
        quality.row(quality_row(
            variant,
            base.filter(|base| base.variant.name != variant.variant.name),
        ));
        cost.row(cost_row(variant));
    }
    (quality, cost)
}

fn quality_row(variant: &VariantSummary, base: Option<&VariantSummary>) -> Vec<String> {
    let of = |number: fn(&RunSummary) -> f64, digits: usize| {
        show(variant.over_seeds(|run| Some(number(run))), |value| format!("{value:.digits$}"))
    };
    let mut seeds = variant.runs.len().to_string();
    if !variant.failures.is_empty() {
        let _ = write!(seeds, " ({} failed)", variant.failures.len());
    }
    let gap = base.and_then(|base| verdict::gap(variant, base));
    let consensus = variant.over_seeds(|run| Some(100.0 * run.consensus?.relative()));
    let percent = |value: f64| format!("{value:.2}");
    vec![
        variant.variant.name.clone(),
        seeds,
        of(|run| run.loss.median, 4),
        of(|run| run.loss.min, 4),
        of(|run| run.loss.max, 4),
        of(|run| run.mean_loss, 4),
        show(gap, percent),
        show(variant.over_seeds(averaged), |value| format!("{value:.4}")),
        show(base.and_then(|base| verdict::gap_of(variant, base, averaged)), percent),
        of(|run| 100.0 * run.accuracy.median, 2),
        of(|run| 100.0 * run.mean_accuracy, 2),
        show(consensus, |value| format!("{value:.2}")),
    ]
}

fn averaged(run: &RunSummary) -> Option<f64> {
    run.averaged_loss.map(|loss| loss.median)
}

fn cost_row(variant: &VariantSummary) -> Vec<String> {
    let seconds = |value: f64| format!("{value:.1}");
    let megabytes = |bytes: f64| format!("{:.2}", bytes / 1e6);
    let reached = variant.runs.iter().filter(|run| run.target.is_some()).count();
    let mut target = show(variant.over_seeds(|run| run.target.map(|point| point.seconds)), seconds);
    if reached > 0 && reached < variant.runs.len() {
        let _ = write!(target, " ({reached} of {})", variant.runs.len());
    }
    vec![
        variant.variant.name.clone(),
        target,
        show(variant.over_seeds(|run| Some(run.wall_s)), seconds),
        show(variant.over_seeds(|run| Some(run.curve.startup_s)), seconds),
        show(variant.over_seeds(|run| Some(run.bytes)), megabytes),
        show(variant.over_seeds(|run| run.target.map(|point| point.bytes)), megabytes),
        show(variant.over_seeds(|run| Some(to_f64(run.samples))), |value| format!("{value:.0}")),
        show(variant.over_seeds(|run| Some(run.samples_per_s)), |value| format!("{value:.0}")),
        show(variant.over_seeds(|run| run.utilisation), |value| format!("{:.0}", 100.0 * value)),
        show_staleness(&variant.staleness()).unwrap_or_else(|| NONE.to_owned()),
    ]
}

fn columns(plan: &Experiment) -> Vec<String> {
    let reference = &plan.reference;
    vec![
        "Numbers are means ± standard deviations over seeds.".to_owned(),
        "Loss (nats) and accuracy are of the final models on all held-out data, measured by one \
         program for all variants: every peer's own model, and the model of the mean of their \
         parameters."
            .to_owned(),
        format!(
            "Gap: by how much the loss of the median peer exceeds that of `{reference}` with the \
             same seed; negative is better."
        ),
        "Tail average: the loss of the median peer's parameters averaged over the last part of the run \
         (`node.tail_average`), and its gap to the same of the reference."
            .to_owned(),
        format!(
            "Target: the accuracy that the text names, else the last loss of `{reference}` with the \
             same seed and {} % more; reached when the mean of the \
             peers is there, by a straight line between two of their checkpoints. Time to it \
             counts from the first step of any peer and leaves out the start-up only, which is \
             the column beside; writing checkpoints counts.",
            plan.target_percent[0]
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
        let text = "No trials: every variant runs with the settings of the experiment file and the \
                    product's defaults.";
        blocks.push(Block::Text(text.to_owned()));
        return blocks;
    };
    let trials =
        findings.plan.workload.iter().map(|work| {
            format!("{} of {} for every variant", findings.plan.trials(work), work.name)
        });
    blocks.push(Block::Text(format!(
        "{} Trials: {}, undisturbed, with seed {}.",
        tuning.rule,
        trials.collect::<Vec<_>>().join(", "),
        tuning.seed
    )));
    let mut table = Table::new(["trial", "case", "settings", "loss, median peer", "chosen"]);
    for case in &findings.tuning {
        for variant in &case.variants {
            let (way, trial) =
                variant.variant.name.rsplit_once('.').unwrap_or((&variant.variant.name, "0"));
            let chosen = findings.choices.iter().any(|choice| {
                choice.case == case.case.name
                    && choice.variant == way
                    && choice.trial.to_string() == trial
            });
            let way = findings.plan.variant.iter().find(|plan| plan.name == way);
            let trials = way.map_or(&[][..], |way| case.case.work.trials_of(way));
            let index = trial.parse::<usize>().ok();
            let settings = index.and_then(|index| trials.get(index)).cloned();
            table.row(vec![
                variant.variant.name.clone(),
                case.case.name.clone(),
                settings.unwrap_or_default().join(" "),
                show(variant.over_seeds(|run| Some(run.loss.median)), |loss| format!("{loss:.4}")),
                if chosen { "yes" } else { "" }.to_owned(),
            ]);
        }
    }
    blocks.push(Block::Table(table));
    blocks
}
