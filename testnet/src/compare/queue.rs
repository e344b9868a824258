//! One queue for all runs: as many at a time as the machine has cores for, and none twice.
//!
//! Each case's folder is that of a `run`: its record is written after every run, so a queue that
//! was stopped goes on where it was, and each case has a report of its own.

use std::cell::Cell as Shared;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use dnode_netem::WanError;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::case::Case;
use super::earlier::{CaseState, OtherPlan, found, same_maker};
use super::eta::{Eta, bar};
use super::judge;
use crate::experiment::TUNING;
use crate::local::baseline::INITIAL_FILE;
use crate::local::progress::Done;
use crate::local::variant;
use crate::local::variant_run::{VariantRun, in_short};
use crate::local::{Program, Progress, Python, Quotas, RunError, Stop, Variant, VariantPlan};
use crate::parameter_server;
use crate::report::MadeBy;
use crate::report::judged::Judged;
use crate::report::record::{self, RecordError};

/// Time between two showings of the bar on a terminal.
const REDRAW: Duration = Duration::from_millis(500);
/// Time between two plain lines where there is no terminal.
const PLAIN: Duration = Duration::from_secs(30);
/// Cores that an emulated network takes.
const NETWORK_CORES: f64 = 0.5;
/// Back to the start of the line, which is erased.
const ERASE: &str = "\r\x1b[K";

/// What all runs share.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `dnode` program.
    pub program: PathBuf,
    /// Folder of the comparison.
    pub folder: PathBuf,
    /// What holds processes to their shares, or why nothing does.
    pub quotas: Result<Quotas, String>,
    /// Cores for all runs together.
    pub cores: usize,
    /// Longest time of one run.
    pub deadline: Duration,
    /// The command line, for the records.
    pub command: String,
    /// The time, RFC 3339, for the records.
    pub begun: String,
    /// What makes the runs.
    pub made_by: MadeBy,
    /// Whether runs of another machine or commit may be mixed with new ones.
    pub mixed: bool,
    /// Whether runs that are not of the plan any more may go.
    pub changed: bool,
    /// What runs the programs of others.
    pub python: Python,
    /// Whether parameters are kept after they have been measured.
    pub keep: bool,
}

/// Why a queue cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A record cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The folder has runs that are not of this plan.
    #[error(transparent)]
    OtherPlan(#[from] OtherPlan),
    /// The folder has runs of another machine, commit or program.
    #[error(
        "{} has runs of another machine, commit or program ({found}; this is {own}); --mixed allows that",
        folder.display()
    )]
    OtherMaker {
        /// The folder.
        folder: PathBuf,
        /// What made the runs that are there.
        found: String,
        /// What this is.
        own: String,
    },
    /// The system failed us.
    #[error("cannot write {}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Somebody asked to stop.
    #[error("stopped on request; the same command goes on from here")]
    Interrupted,
}

struct Job {
    case: usize,
    variant: Variant,
    seed: u64,
}

/// A run that is on its way.
struct Current {
    title: String,
    done: Done,
    since: Instant,
}

/// Runs what is missing of the cases, and returns their states in order.
///
/// A run that fails does not stop the others; it is named in the record of its case.
///
/// # Errors
/// [`QueueError`]; everything that was completed is recorded.
pub async fn run(
    cases: &[Case],
    setup: &Setup,
    stop: &Stop,
    out: &mut dyn Write,
) -> Result<Vec<CaseState>, QueueError> {
    let mut states = found(cases, setup)?;
    for state in &mut states {
        same_maker(state, setup)?;
        // What failed before is run again.
        state.record.failure = None;
    }
    let mut queue = Queue::new(cases, setup, states);
    let local = LocalSet::new();
    let outcome = local.run_until(queue.work(stop, out)).await;
    outcome.map(|()| queue.states)
}

struct Queue<'a> {
    cases: &'a [Case],
    setup: &'a Setup,
    states: Vec<CaseState>,
    waiting: Vec<Job>,
    current: Vec<Option<Current>>,
    eta: Eta,
    /// Whether the bar is redrawn in place.
    live: bool,
}

fn skips(state: &CaseState, variant: &Variant) -> bool {
    state.variants_skipped.iter().any(|(name, _)| *name == variant.name)
}

/// How a run ended.
type Ended = (Job, Result<VariantRun, RunError>);

impl<'a> Queue<'a> {
    fn new(cases: &'a [Case], setup: &'a Setup, states: Vec<CaseState>) -> Self {
        let mut eta = Eta::default();
        let mut waiting = Vec::new();
        // Seeds last: a queue that is stopped early has something of every variant.
        let seeds = cases.iter().map(|case| case.experiment.seeds.len()).max().unwrap_or(0);
        for round in 0..seeds {
            for (index, (case, state)) in cases.iter().zip(&states).enumerate() {
                let Some(&seed) = case.experiment.seeds.get(round) else { continue };
                for variant in &case.experiment.variants {
                    let is_it = |run: &&VariantRun| run.variant == variant.name && run.seed == seed;
                    let weight = weight(case, variant, setup);
                    match state.record.runs.iter().find(is_it) {
                        Some(run) => eta.took(&case.name, &variant.name, run.wall_s, weight),
                        None if state.skipped.is_some() || skips(state, variant) => {}
                        None => waiting.push(Job { case: index, variant: variant.clone(), seed }),
                    }
                }
            }
        }
        waiting.reverse();
        let live = io::stdout().is_terminal();
        Self { cases, setup, states, waiting, current: Vec::new(), eta, live }
    }

    /// Starts what fits, and measures what has ended while nothing runs: measuring takes all cores.
    async fn work(&mut self, stop: &Stop, out: &mut dyn Write) -> Result<(), QueueError> {
        let mut running: JoinSet<(usize, Ended)> = JoinSet::new();
        let mut ended: Vec<Ended> = Vec::new();
        let mut ticks = interval(if self.live { REDRAW } else { PLAIN });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = stop.clone();
        let mut stopped = false;
        let mut used = 0.0;
        loop {
            while !stopped && ended.is_empty() && self.next_fits(used) {
                let Some(job) = self.waiting.pop() else { break };
                used += self.weight(&job);
                self.start(job, stop, &mut running);
            }
            if running.is_empty() {
                if ended.is_empty() {
                    break;
                }
                for (job, result) in ended.drain(..) {
                    let result = result.and_then(|run| self.measure(&job, run));
                    self.finish(&job, result, out)?;
                }
                continue;
            }
            tokio::select! {
                Some(Ok((slot, (job, result)))) = running.join_next() => {
                    self.current[slot] = None;
                    used -= self.weight(&job);
                    stopped |= matches!(result, Err(RunError::Interrupted));
                    ended.push((job, result));
                }
                _ = ticks.tick() => self.show(out),
                () = asked.requested(1), if !stopped => stopped = true,
            }
        }
        if stopped { Err(QueueError::Interrupted) } else { Ok(()) }
    }

    fn weight(&self, job: &Job) -> f64 {
        weight(&self.cases[job.case], &job.variant, self.setup)
    }

    fn next_fits(&self, used: f64) -> bool {
        let next = self.waiting.last().map(|job| self.weight(job));
        // Rounding must not keep a core idle.
        next.is_some_and(|next| used <= 0.0 || used + next <= cores(self.setup) + 1e-6)
    }

    fn start(&mut self, job: Job, stop: &Stop, running: &mut JoinSet<(usize, Ended)>) {
        let case = self.cases[job.case].clone();
        let setup = self.setup.clone();
        let done: Done = Rc::new(Shared::new(0));
        let title = format!("{} {} seed {}", case.name, job.variant.name, job.seed);
        let current = Current { title, done: Rc::clone(&done), since: Instant::now() };
        let slot = self.current.iter().position(Option::is_none).unwrap_or_else(|| {
            self.current.push(None);
            self.current.len() - 1
        });
        self.current[slot] = Some(current);
        let mut stop = stop.clone();
        running.spawn_local(async move {
            let result = one(&case, &setup, &job, done, &mut stop).await;
            (slot, (job, result))
        });
    }

    /// Measures what a run has left, unless it failed.
    fn measure(&self, job: &Job, mut run: VariantRun) -> Result<VariantRun, RunError> {
        if run.failure.is_none() {
            let folder = self.setup.folder.join(&self.cases[job.case].name);
            let folder = record::run_folder(&folder, &run.variant, run.seed);
            let judged = judged(&folder, job.variant.peers, self.setup.keep)?;
            let mut losses = judged.peers.iter().flatten().map(|peer| peer.loss);
            if losses.any(|loss| !loss.is_finite()) {
                run.failure = Some("its loss is not a number".to_owned());
            }
        }
        Ok(run)
    }

    fn finish(
        &mut self,
        job: &Job,
        result: Result<VariantRun, RunError>,
        out: &mut dyn Write,
    ) -> Result<(), QueueError> {
        let case = &self.cases[job.case];
        let weight = self.weight(job);
        let state = &mut self.states[job.case];
        let name = format!("{} {} seed {}", case.name, job.variant.name, job.seed);
        let word = match result {
            Ok(mut run) => {
                self.eta.took(&case.name, &job.variant.name, run.wall_s, weight);
                let word = run.failure.clone().unwrap_or_else(|| format!("{:.1} s", run.wall_s));
                run.made_by = Some(self.setup.made_by.clone());
                state.record.runs.push(run);
                word
            }
            Err(RunError::Interrupted) => return Ok(()),
            Err(RunError::Network(WanError::Missing(what))) => {
                state.skipped = Some(format!("no network can be emulated here; missing: {what}"));
                self.waiting.retain(|waiting| waiting.case != job.case);
                "skipped: no network can be emulated here".to_owned()
            }
            Err(error) => {
                let text = format!("variant {}, seed {}: {error}", job.variant.name, job.seed);
                let before = state.record.failure.take();
                state.record.failure =
                    Some(before.map_or_else(|| text.clone(), |before| format!("{before}\n{text}")));
                format!("failed: {error}")
            }
        };
        let folder = self.setup.folder.join(&case.name);
        let unwritable = |source| QueueError::System { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(unwritable)?;
        state.record.save(&folder)?;
        // A closed output is no reason to stop measuring.
        let begin = if self.live { ERASE } else { "" };
        let _ = writeln!(out, "{begin}{name}: {word}");
        Ok(())
    }

    fn show(&self, out: &mut dyn Write) {
        let total: usize = self.cases.iter().map(Case::runs).sum();
        let current: Vec<&Current> = self.current.iter().flatten().collect();
        let missing = self.waiting.len() + current.len();
        let jobs = self.waiting.iter().map(|job| {
            let case = &self.cases[job.case];
            (case.name.as_str(), job.variant.name.as_str(), self.weight(job))
        });
        let left = self.eta.estimate(jobs, cores(self.setup));
        let now: Vec<String> = current
            .iter()
            .map(|run| {
                let seconds = run.since.elapsed().as_secs();
                format!("{} {} % {seconds} s", run.title, run.done.get())
            })
            .collect();
        let line = bar(total - missing.min(total), total, left, &now.join("; "));
        let (begin, end) = if self.live { (ERASE, "") } else { ("", "\n") };
        let _ = write!(out, "{begin}{line}{end}");
        let _ = out.flush();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
fn cores(setup: &Setup) -> f64 {
    setup.cores as f64
}

/// Cores that a run takes.
fn weight(case: &Case, variant: &Variant, setup: &Setup) -> f64 {
    let limited = setup.quotas.is_ok();
    let shares = case.shares(variant).into_iter().map(|share| if limited { share } else { 1.0 });
    let server = if variant.program.has_server() { case.share } else { 0.0 };
    let peers = shares.sum::<f64>() + server;
    let network = if case.network.is_some() { NETWORK_CORES } else { 0.0 };
    (peers + network).min(cores(setup))
}

/// One run.
async fn one(
    case: &Case,
    setup: &Setup,
    job: &Job,
    done: Done,
    stop: &mut Stop,
) -> Result<VariantRun, RunError> {
    let directory = record::run_folder(&setup.folder.join(&case.name), &job.variant.name, job.seed);
    // What an interrupted run has left.
    match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let plan = VariantPlan {
        program: &setup.program,
        workload: &case.experiment.workload,
        variant: &job.variant,
        seed: job.seed,
        directory: directory.clone(),
        deadline: setup.deadline,
        wan: case.network.as_ref(),
        shares: setup.quotas.as_ref().ok().map(|quotas| (quotas, case.shares(&job.variant))),
        python: Some(&setup.python),
    };
    if matches!(job.variant.program, Program::Baseline(_)) {
        std::fs::create_dir_all(&directory)?;
        let settings = case.experiment.workload.settings.iter().chain(&job.variant.settings);
        let initial = parameter_server::initial(settings, job.seed, &directory.join(INITIAL_FILE));
        initial.map_err(|error| RunError::System(io::Error::other(error)))?;
    }
    let begun = Instant::now();
    match variant::run(&plan, &mut Progress::quiet(done), stop).await {
        Err(error) if is_result(case, &error) => {
            let failure = in_short(&error.to_string());
            let wall_s = begun.elapsed().as_secs_f64();
            let killed_at = vec![None; job.variant.peers];
            let run =
                VariantRun { wall_s, killed_at, ..VariantRun::new(&job.variant.name, job.seed) };
            Ok(VariantRun { failure: Some(failure), ..run })
        }
        outcome => outcome,
    }
}

/// Whether the failure says something about the variant: its peers die, or the time runs out, where the
/// condition disturbs them; or a trial's rate is too high to train with.
fn is_result(case: &Case, error: &RunError) -> bool {
    let churn = case.condition.churn.is_some();
    let network = case.condition.link.is_some();
    let trial = case.condition.name == TUNING;
    match error {
        // A program that does not even begin is wrong, whatever becomes of its peers.
        RunError::Exited { trained, .. } => *trained && (churn || trial),
        RunError::Early { .. } => churn,
        RunError::Deadline { .. } => churn || network,
        RunError::KillMissed { .. }
        | RunError::Start { .. }
        | RunError::Address { .. }
        | RunError::Metrics(_)
        | RunError::Network(_)
        | RunError::System(_)
        | RunError::Interrupted => false,
    }
}

/// Measures the parameters of a run, keeps the numbers, and lets the parameters go.
fn judged(directory: &Path, peers: usize, keep: bool) -> Result<Judged, RunError> {
    let peers: Result<Vec<_>, _> =
        (0..peers).map(|index| record::read_peer(directory, index)).collect();
    let judged = judge::judge(&peers?);
    let judged = judged.map_err(|error| RunError::System(io::Error::other(error)))?;
    judged.save(directory)?;
    if !keep {
        remove_checkpoints(directory)?;
    }
    Ok(judged)
}

fn remove_checkpoints(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        crate::local::slot::forget(&entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_says_how_many_runs_are_done_and_how_long_the_rest_takes() {
        let text = bar(12, 40, Some(Duration::from_millis(421_900)), "tiny-2 sync seed 1 40 % 9 s");
        assert_eq!(
            text,
            "[######              ] 12/40 runs, about 7m 1s left; tiny-2 sync seed 1 40 % 9 s"
        );
        assert_eq!(bar(0, 0, None, ""), "[####################] 0/0 runs; ");
    }
}
