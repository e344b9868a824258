//! One queue for all runs: as many at a time as the machine has cores for, and none twice.
//!
//! Each cell's folder is that of a `run`: its record is written after every run, so a queue that
//! was stopped goes on where it was, and each cell has a report of its own.

use std::cell::Cell as Shared;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use dnode_netem::WanError;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::cell::Cell;
use super::judge;
use super::left::TimeLeft;
use crate::local::arm;
use crate::local::arm_run::{ArmRun, in_short};
use crate::local::baseline::INITIAL_FILE;
use crate::local::progress::Done;
use crate::local::{Arm, ArmPlan, Baseline, Program, Progress, Python, Quotas, RunError, Stop};
use crate::parameter_server;
use crate::report::record::{self, RECORD_FILE, RecordError};
use crate::report::{Machine, MadeBy, Record};

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
    /// The folder has runs of another plan.
    #[error(
        "{} has runs of another plan; a changed experiment needs a new folder", .0.display()
    )]
    OtherPlan(PathBuf),
    /// The folder has runs of another machine or commit.
    #[error(
        "{} has runs of another machine or commit ({found}; this is {own}); --mixed allows that",
        folder.display()
    )]
    OtherMachine {
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

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct CellState {
    /// Its record, as written.
    pub record: Record,
    /// Why it was not run, if it cannot be run here.
    pub skipped: Option<String>,
    /// Arms that cannot be run here, and why.
    pub arms_skipped: Vec<(String, String)>,
}

struct Job {
    cell: usize,
    arm: Arm,
    seed: u64,
}

/// A run that is on its way.
struct Current {
    title: String,
    done: Done,
    since: Instant,
}

/// Runs what is missing of the cells, and returns their states in order.
///
/// A run that fails does not stop the others; it is named in the record of its cell.
///
/// # Errors
/// [`QueueError`]; everything that was completed is recorded.
pub async fn run(
    cells: &[Cell],
    setup: &Setup,
    stop: &Stop,
    out: &mut dyn Write,
) -> Result<Vec<CellState>, QueueError> {
    let mut queue = Queue::new(cells, setup, found(cells, setup)?);
    let local = LocalSet::new();
    let outcome = local.run_until(queue.work(stop, out)).await;
    outcome.map(|()| queue.states)
}

/// What is there of the cells already.
///
/// # Errors
/// [`QueueError`]: a record cannot be read, or belongs to something else.
pub fn found(cells: &[Cell], setup: &Setup) -> Result<Vec<CellState>, QueueError> {
    let lacks = [Baseline::Ddp, Baseline::Hivemind].map(|baseline| {
        let used = cells.iter().flat_map(|cell| &cell.experiment.arms);
        let used = used.into_iter().any(|arm| arm.program == Program::Baseline(baseline));
        (Program::Baseline(baseline), if used { setup.python.lacks(baseline) } else { None })
    });
    let states = cells.iter().map(|cell| {
        let mut state = state(cell, setup)?;
        for arm in &cell.experiment.arms {
            let why = lacks.iter().find(|(program, _)| *program == arm.program);
            if let Some((_, Some(why))) = why {
                state.arms_skipped.push((arm.name.clone(), why.clone()));
            }
        }
        Ok(state)
    });
    states.collect()
}

/// What is there of a cell already.
fn state(cell: &Cell, setup: &Setup) -> Result<CellState, QueueError> {
    let folder = setup.folder.join(&cell.name);
    let machine = setup.made_by.machine.clone();
    let mut record = Record {
        command: setup.command.clone(),
        begun: setup.begun.clone(),
        machine,
        experiment: cell.experiment.clone(),
        runs: Vec::new(),
        failure: None,
    };
    if folder.join(RECORD_FILE).exists() {
        let found = Record::load(&folder)?;
        if found.experiment != record.experiment {
            return Err(QueueError::OtherPlan(folder));
        }
        if found.machine != record.machine && !setup.mixed && !found.runs.is_empty() {
            let name = |m: &Machine| format!("{} cores of {}, commit {}", m.cores, m.cpu, m.commit);
            let (found, own) = (name(&found.machine), name(&record.machine));
            return Err(QueueError::OtherMachine { folder, found, own });
        }
        if !found.runs.is_empty() {
            (record.begun, record.machine) = (found.begun, found.machine);
        }
        record.runs = found.runs;
    }
    Ok(CellState { record, skipped: skipped(cell, setup), arms_skipped: Vec::new() })
}

/// Why a cell cannot be run here.
fn skipped(cell: &Cell, setup: &Setup) -> Option<String> {
    let error = setup.quotas.as_ref().err()?;
    cell.condition
        .slow
        .is_some()
        .then(|| format!("a slow peer needs a limit that is not there: {error}"))
}

struct Queue<'a> {
    cells: &'a [Cell],
    setup: &'a Setup,
    states: Vec<CellState>,
    waiting: Vec<Job>,
    current: Vec<Option<Current>>,
    left: TimeLeft,
    /// Whether the bar is redrawn in place.
    live: bool,
}

/// How a run ended.
type Ended = (Job, Result<ArmRun, RunError>);

impl<'a> Queue<'a> {
    fn new(cells: &'a [Cell], setup: &'a Setup, states: Vec<CellState>) -> Self {
        let mut left = TimeLeft::default();
        let mut waiting = Vec::new();
        // Seeds last: a queue that is stopped early has something of every arm.
        let seeds = cells.iter().map(|cell| cell.experiment.seeds.len()).max().unwrap_or(0);
        for round in 0..seeds {
            for (index, (cell, state)) in cells.iter().zip(&states).enumerate() {
                let Some(&seed) = cell.experiment.seeds.get(round) else { continue };
                for arm in &cell.experiment.arms {
                    let is_it = |run: &&ArmRun| run.arm == arm.name && run.seed == seed;
                    let weight = weight(cell, arm, setup);
                    match state.record.runs.iter().find(is_it) {
                        Some(run) => left.took(&cell.name, &arm.name, run.wall_s, weight),
                        None if state.skipped.is_some() => {}
                        None if state.arms_skipped.iter().any(|(name, _)| *name == arm.name) => {}
                        None => waiting.push(Job { cell: index, arm: arm.clone(), seed }),
                    }
                }
            }
        }
        waiting.reverse();
        let live = io::stdout().is_terminal();
        Self { cells, setup, states, waiting, current: Vec::new(), left, live }
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
        weight(&self.cells[job.cell], &job.arm, self.setup)
    }

    fn next_fits(&self, used: f64) -> bool {
        let next = self.waiting.last().map(|job| self.weight(job));
        // Rounding must not keep a core idle.
        next.is_some_and(|next| used <= 0.0 || used + next <= cores(self.setup) + 1e-6)
    }

    fn start(&mut self, job: Job, stop: &Stop, running: &mut JoinSet<(usize, Ended)>) {
        let cell = self.cells[job.cell].clone();
        let setup = self.setup.clone();
        let done: Done = Rc::new(Shared::new(0));
        let title = format!("{} {} seed {}", cell.name, job.arm.name, job.seed);
        let current = Current { title, done: Rc::clone(&done), since: Instant::now() };
        let slot = self.current.iter().position(Option::is_none).unwrap_or_else(|| {
            self.current.push(None);
            self.current.len() - 1
        });
        self.current[slot] = Some(current);
        let mut stop = stop.clone();
        running.spawn_local(async move {
            let result = one(&cell, &setup, &job, done, &mut stop).await;
            (slot, (job, result))
        });
    }

    /// Measures what a run has left, unless it failed.
    fn measure(&self, job: &Job, run: ArmRun) -> Result<ArmRun, RunError> {
        if run.failure.is_none() {
            let folder = self.setup.folder.join(&self.cells[job.cell].name);
            let folder = record::run_folder(&folder, &run.arm, run.seed);
            judged(&folder, job.arm.peers, self.setup.keep)?;
        }
        Ok(run)
    }

    fn finish(
        &mut self,
        job: &Job,
        result: Result<ArmRun, RunError>,
        out: &mut dyn Write,
    ) -> Result<(), QueueError> {
        let cell = &self.cells[job.cell];
        let weight = self.weight(job);
        let state = &mut self.states[job.cell];
        let name = format!("{} {} seed {}", cell.name, job.arm.name, job.seed);
        let word = match result {
            Ok(mut run) => {
                self.left.took(&cell.name, &job.arm.name, run.wall_s, weight);
                let word = run.failure.clone().unwrap_or_else(|| format!("{:.1} s", run.wall_s));
                run.made_by = Some(self.setup.made_by.clone());
                state.record.runs.push(run);
                word
            }
            Err(RunError::Interrupted) => return Ok(()),
            Err(RunError::Network(WanError::Missing(what))) => {
                state.skipped = Some(format!("no network can be emulated here; missing: {what}"));
                self.waiting.retain(|waiting| waiting.cell != job.cell);
                "skipped: no network can be emulated here".to_owned()
            }
            Err(error) => {
                let text = format!("arm {}, seed {}: {error}", job.arm.name, job.seed);
                let before = state.record.failure.take();
                state.record.failure =
                    Some(before.map_or_else(|| text.clone(), |before| format!("{before}\n{text}")));
                format!("failed: {error}")
            }
        };
        let folder = self.setup.folder.join(&cell.name);
        let unwritable = |source| QueueError::System { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(unwritable)?;
        state.record.save(&folder)?;
        // A closed output is no reason to stop measuring.
        let begin = if self.live { ERASE } else { "" };
        let _ = writeln!(out, "{begin}{name}: {word}");
        Ok(())
    }

    fn show(&self, out: &mut dyn Write) {
        let total: usize =
            self.cells.iter().map(|c| c.experiment.arms.len() * c.experiment.seeds.len()).sum();
        let current: Vec<&Current> = self.current.iter().flatten().collect();
        let missing = self.waiting.len() + current.len();
        let jobs = self.waiting.iter().map(|job| {
            let cell = &self.cells[job.cell];
            (cell.name.as_str(), job.arm.name.as_str(), self.weight(job))
        });
        let left = self.left.estimate(jobs, cores(self.setup));
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

/// `[####      ] 12/40 runs, about 7 min left; what is running`.
fn bar(done: usize, total: usize, left: Option<Duration>, now: &str) -> String {
    const WIDTH: usize = 20;
    let filled = (WIDTH * done).checked_div(total).unwrap_or(WIDTH);
    let left = left.map_or_else(String::new, |left| {
        let whole = Duration::from_secs(left.as_secs());
        format!(", about {} left", humantime::format_duration(whole))
    });
    format!(
        "[{}{}] {done}/{total} runs{left}; {now}",
        "#".repeat(filled),
        " ".repeat(WIDTH - filled)
    )
}

#[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
fn cores(setup: &Setup) -> f64 {
    setup.cores as f64
}

/// Cores that a run takes.
fn weight(cell: &Cell, arm: &Arm, setup: &Setup) -> f64 {
    let limited = setup.quotas.is_ok();
    let shares = cell.shares(arm).into_iter().map(|share| if limited { share } else { 1.0 });
    let server = if arm.program.has_server() { cell.share } else { 0.0 };
    let peers = shares.sum::<f64>() + server;
    let network = if cell.network.is_some() { NETWORK_CORES } else { 0.0 };
    (peers + network).min(cores(setup))
}

/// One run.
async fn one(
    cell: &Cell,
    setup: &Setup,
    job: &Job,
    done: Done,
    stop: &mut Stop,
) -> Result<ArmRun, RunError> {
    let directory = record::run_folder(&setup.folder.join(&cell.name), &job.arm.name, job.seed);
    // What an interrupted run has left.
    match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let plan = ArmPlan {
        program: &setup.program,
        workload: &cell.experiment.workload,
        arm: &job.arm,
        seed: job.seed,
        directory: directory.clone(),
        deadline: setup.deadline,
        wan: cell.network.as_ref(),
        shares: setup.quotas.as_ref().ok().map(|quotas| (quotas, cell.shares(&job.arm))),
        python: Some(&setup.python),
    };
    if matches!(job.arm.program, Program::Baseline(_)) {
        std::fs::create_dir_all(&directory)?;
        let settings = cell.experiment.workload.settings.iter().chain(&job.arm.settings);
        let initial = parameter_server::initial(settings, job.seed, &directory.join(INITIAL_FILE));
        initial.map_err(|error| RunError::System(io::Error::other(error)))?;
    }
    let begun = Instant::now();
    match arm::run(&plan, &mut Progress::quiet(done), stop).await {
        Err(error) if is_result(cell, &error) => {
            let failure = in_short(&error.to_string());
            let wall_s = begun.elapsed().as_secs_f64();
            let killed_at = vec![None; job.arm.peers];
            let run = ArmRun { wall_s, killed_at, ..ArmRun::new(&job.arm.name, job.seed) };
            Ok(ArmRun { failure: Some(failure), ..run })
        }
        outcome => outcome,
    }
}

/// Whether the failure says something about the arm: its peers die, or the time runs out, where the
/// condition disturbs them.
fn is_result(cell: &Cell, error: &RunError) -> bool {
    let churn = cell.condition.churn.is_some();
    let network = cell.condition.network.is_some();
    match error {
        RunError::Exited { .. } | RunError::Early { .. } | RunError::KillMissed { .. } => churn,
        RunError::Deadline { .. } => churn || network,
        RunError::Start { .. }
        | RunError::Address { .. }
        | RunError::Metrics(_)
        | RunError::Network(_)
        | RunError::System(_)
        | RunError::Interrupted => false,
    }
}

/// Measures the parameters of a run, keeps the numbers, and lets the parameters go.
fn judged(directory: &Path, peers: usize, keep: bool) -> Result<(), RunError> {
    let peers: Result<Vec<_>, _> =
        (0..peers).map(|index| record::read_peer(directory, index)).collect();
    let judged = judge::judge(&peers?);
    let judged = judged.map_err(|error| RunError::System(io::Error::other(error)))?;
    judged.save(directory)?;
    if !keep {
        remove_checkpoints(directory)?;
    }
    Ok(())
}

fn remove_checkpoints(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        arm::forget(&entry?.path())?;
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
