//! One scenario run from the start of all peers to the end of the last.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use dnode_protocol::Time;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::account::Account;
use super::lines::Lines;
use super::peer::{Bounds, LEAVE_MAX, LivePeer};
use super::stage::{Cast, Stage};
use crate::local::variant::{RunError, Stop};
use crate::report::consensus;
use crate::scenario::Scenario;
use crate::scenario::fault::{Fault, Return};

/// How often files and processes are looked at; the precision of every time of a scenario run.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two lines that say how it goes.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Longest wait from the start of a peer to its address, and from that of the last one until all train, beside
/// the bound of progress.
const START_MAX: Duration = Duration::from_secs(60);
/// Most that the held-out losses of two peers may differ at the end, nats: a little less than what
/// ten classes differ by from nothing learnt, ln 10. Each is of a moment of its peer's own; 0.45 was
/// measured after an hour (docs/measurements.md, Soak of real processes).
const LOSS_SPREAD_MAX: f64 = 2.0;
/// Largest consensus distance at the end over the norm of the mean. Guess: as for the loss; ten
/// replicas that never averaged are at 0.9.
const DISTANCE_MAX: f64 = 0.5;

/// What to run, on what, held to what.
#[derive(Debug)]
pub struct Plan {
    /// The `dnode` program.
    pub program: PathBuf,
    /// Peers, faults and their times.
    pub scenario: Scenario,
    /// Decides every fault; also the seed of the run.
    pub seed: u64,
    /// Settings `section.key=value` for every peer.
    pub settings: Vec<String>,
    /// Folder for everything; exists.
    pub directory: PathBuf,
    /// Longest time without progress of a process that may run.
    pub stall: Duration,
    /// Age before which memory and handles of a process may grow.
    pub warm_up: Duration,
    /// Whether to go on after a finding.
    pub keep_going: bool,
}

/// Why a scenario run has no account.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// Processes or the network could not be made or watched.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system failed us.
    #[error("cannot watch the peers: {0}")]
    System(#[from] io::Error),
}

/// Runs the scenario run; every process is gone when it returns.
///
/// A request to stop ends the faults early; what was found until then is in the account.
///
/// # Errors
/// [`LiveError`]. What is wrong with the peers is no error but a finding.
pub async fn run(
    plan: &Plan,
    lines: Lines,
    out: &mut dyn Write,
    stop: &mut Stop,
) -> Result<Account, LiveError> {
    let mut scenario_run = ScenarioRun::new(plan, lines, out)?;
    let outcome = tokio::select! {
        outcome = scenario_run.play() => outcome,
        () = stop.requested(1) => Err(RunError::Interrupted.into()),
    };
    let outcome = match outcome {
        Ok(()) | Err(LiveError::Run(RunError::Interrupted)) => scenario_run.curtain(stop).await,
        Err(error) => Err(error),
    };
    scenario_run.stage.kill().await;
    outcome.map(|()| scenario_run.account)
}

struct ScenarioRun<'a> {
    plan: &'a Plan,
    out: &'a mut dyn Write,
    stage: Stage,
    account: Account,
    bounds: Bounds,
    said: Instant,
}

impl<'a> ScenarioRun<'a> {
    fn new(plan: &'a Plan, lines: Lines, out: &'a mut dyn Write) -> io::Result<Self> {
        let peers = plan.scenario.peers;
        let cast = Cast {
            program: plan.program.clone(),
            settings: plan.settings.clone(),
            seed: plan.seed,
        };
        let bounds = Bounds { stall: plan.stall, warm_up: plan.warm_up, peers: peers as usize };
        Ok(Self {
            plan,
            out,
            stage: Stage::new(cast, peers, lines, &plan.directory),
            account: Account::begin(&plan.directory)?,
            bounds,
            said: Instant::now(),
        })
    }

    async fn play(&mut self) -> Result<(), LiveError> {
        self.open().await?;
        self.account.note("faults begin")?;
        self.faults().await?;
        self.account.note("faults are over")?;
        self.stage.calm()?;
        self.stage.forget_losses();
        let end = Instant::now() + self.plan.scenario.settle;
        let lives = |slot: &LivePeer| slot.lives();
        while Instant::now() < end && self.goes_on() && self.stage.slots().iter().any(lives) {
            self.look().await?;
        }
        Ok(())
    }

    /// Starts all peers, the first one alone, and waits until all train.
    async fn open(&mut self) -> Result<(), LiveError> {
        let patience = START_MAX + self.plan.stall;
        let mut deadline = Instant::now() + patience;
        let joiners: BTreeSet<u32> = self.plan.scenario.joiners().collect();
        for peer in (0..self.plan.scenario.peers).filter(|peer| !joiners.contains(peer)) {
            self.stage.start(peer, Return::Name, &mut self.account)?;
            deadline = Instant::now() + patience;
            while self.stage.slots()[peer as usize].addresses()?.is_none() && self.goes_on() {
                self.look().await?;
                if Instant::now() > deadline {
                    self.account.find(peer, 1, "did not publish its address".to_owned())?;
                    return Ok(());
                }
            }
        }
        let waits = |slot: &LivePeer| slot.lives() && !slot.trains();
        while self.stage.slots().iter().any(waits) && self.goes_on() {
            self.look().await?;
            if Instant::now() > deadline {
                let silent = self.stage.slots().iter().position(waits);
                let peer = silent.and_then(|peer| u32::try_from(peer).ok()).unwrap_or(0);
                self.account.find(peer, 1, "did not begin to train".to_owned())?;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn faults(&mut self) -> Result<(), LiveError> {
        let scenario = &self.plan.scenario;
        let mut rng = ChaCha8Rng::seed_from_u64(self.plan.seed);
        let mut plan = scenario.faults.draw(scenario.peers, scenario.faults_for, &mut rng);
        let scripted = scenario.script.iter();
        plan.extend(scripted.map(|scripted| (Time::ZERO + scripted.at, scripted.fault.clone())));
        plan.sort_by_key(|(at, _)| *at);
        let begun = Instant::now();
        let mut due = plan.into_iter().peekable();
        while begun.elapsed() < scenario.faults_for && self.goes_on() {
            let now = Time::ZERO + begun.elapsed();
            while let Some((_, fault)) = due.next_if(|(at, _)| *at <= now) {
                self.stage.strike(&fault, &mut self.account)?;
            }
            self.look().await?;
        }
        if self.goes_on() {
            self.last_returns(due.map(|(_, fault)| fault))?;
        }
        Ok(())
    }

    /// Who was to come back later comes back now: the end is about a whole swarm.
    fn last_returns(&mut self, rest: impl Iterator<Item = Fault>) -> Result<(), LiveError> {
        for fault in rest {
            if let Fault::Restart { peer, .. } = fault
                && self.stage.slots()[peer as usize].is_empty()
            {
                self.stage.strike(&fault, &mut self.account)?;
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        self.plan.keep_going || self.account.findings.is_empty()
    }

    async fn look(&mut self) -> Result<(), LiveError> {
        tokio::time::sleep(LOOK).await;
        self.stage.look(&self.bounds, &mut self.account)?;
        if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            let account = &self.account;
            let alive = self.stage.slots().iter().filter(|slot| slot.lives()).count();
            let faults: u64 = account.faults.values().sum();
            let (at, steps) = (account.elapsed().as_secs(), account.steps);
            let clock = account.clock;
            let found = account.findings.len();
            // A closed output is no reason to leave processes behind.
            let _ = writeln!(
                self.out,
                "{at} s: {alive} alive, {faults} faults, {steps} steps, clock {clock}, longest \
                 without progress {}, {found} findings",
                account.still
            );
        }
        Ok(())
    }

    /// All leave; what they leave behind is compared.
    async fn curtain(&mut self, stop: &mut Stop) -> Result<(), LiveError> {
        self.stage.calm()?;
        let alive: Vec<u32> = (0..self.plan.scenario.peers)
            .filter(|peer| {
                let slot = &self.stage.slots()[*peer as usize];
                slot.trains() || slot.is_done()
            })
            .collect();
        self.account.note(&format!("all leave: {alive:?}"))?;
        self.stage.leave();
        let limit = Instant::now() + LEAVE_MAX * 2;
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < limit && !self.stage.slots().iter().all(|slot| slot.is_empty()) {
            tokio::select! {
                _ = ticks.tick() => self.stage.look(&self.bounds, &mut self.account)?,
                () = stop.requested(2) => break,
            }
        }
        self.stage.lines().finish()?;
        self.compare(&alive)?;
        Ok(())
    }

    fn compare(&mut self, alive: &[u32]) -> io::Result<()> {
        let slots = self.stage.slots();
        let slots = alive.iter().map(|peer| (*peer, &slots[*peer as usize]));
        let mut parameters = Vec::new();
        for (peer, slot) in slots {
            self.account.losses.extend(slot.loss.map(|loss| (peer, loss)));
            parameters.extend(slot.parameters.clone());
        }
        match consensus::exact(&parameters) {
            Ok(exact) => self.account.distance = exact.map(consensus::Exact::relative),
            Err(error) => self.account.find(0, 0, error.to_string())?,
        }
        if let Some(distance) = self.account.distance.filter(|distance| *distance > DISTANCE_MAX) {
            self.account.find(0, 0, format!("replicas are {distance:.3} of their norm apart"))?;
        }
        let by_loss = |a: &&(u32, f64), b: &&(u32, f64)| a.1.total_cmp(&b.1);
        let losses = self.account.losses.clone();
        let (least, most) = (losses.iter().min_by(by_loss), losses.iter().max_by(by_loss));
        if let (Some((_, least)), Some((peer, most))) = (least, most)
            && most - least > LOSS_SPREAD_MAX
        {
            let life = self.stage.slots()[*peer as usize].life();
            let what = format!("held-out loss {most:.4}, another has {least:.4}");
            self.account.find(*peer, life, what)?;
        }
        Ok(())
    }
}
