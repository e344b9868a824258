//! One variant for one seed: starts its peers, watches them, strikes the kills, stops everything.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use dnode_netem::{Plan, WanError};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::baseline::Python;
use super::experiment::{Kill, Program, Variant, Workload};
use super::network::Network;
use super::process::PeerProcess;
use super::progress::{Progress, ProgressView};
use super::quota::Quotas;
use super::slot::Slot;
use super::variant_run::{VariantRun, unix_s};
use crate::metrics::MetricsError;

/// How often files and processes are looked at. A look costs a few system calls per peer.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for a peer's address file. Starting takes well under a second, and a baseline in
/// Python half a minute; the rest is for a loaded machine.
const ADDRESS_DEADLINE: Duration = Duration::from_secs(180);
/// Time between SIGTERM and SIGKILL: the time within which `dnode` promises to end.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Requests to stop, counted: the first asks, the second forces.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<u32>);

impl Stop {
    /// A stop that nobody has asked for, and the means to ask.
    pub fn channel() -> (watch::Sender<u32>, Self) {
        let (sender, receiver) = watch::channel(0);
        (sender, Self(receiver))
    }

    /// Waits until there were at least `count` requests.
    pub(crate) async fn requested(&mut self, count: u32) {
        if self.0.wait_for(|&requests| requests >= count).await.is_err() {
            // Nobody is left who could ask.
            std::future::pending::<()>().await;
        }
    }
}

/// What to run and where.
#[derive(Debug, Clone)]
pub struct VariantPlan<'a> {
    /// The `dnode` program.
    pub program: &'a Path,
    /// What all variants train.
    pub workload: &'a Workload,
    /// The variant.
    pub variant: &'a Variant,
    /// The seed.
    pub seed: u64,
    /// Folder of this variant and seed; peers get `peer-<i>` inside.
    pub directory: PathBuf,
    /// Longest time for the whole variant.
    pub deadline: Duration,
    /// The emulated network between the peers, `None` for loopback.
    pub wan: Option<&'a Plan>,
    /// Cores of each peer, and what holds it to them; `None` for as many as there are.
    pub shares: Option<(&'a Quotas, Vec<f64>)>,
    /// What runs the programs of others, if there are some.
    pub python: Option<&'a Python>,
}

/// Why a variant failed. All its processes are gone when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program could not be started.
    #[error("cannot start peer {peer}: {source}")]
    Start {
        /// Index of the peer.
        peer: usize,
        /// What the system says.
        source: io::Error,
    },
    /// A peer did not publish its address.
    #[error("peer {peer} did not write its address file within {} s\n{tail}", ADDRESS_DEADLINE.as_secs())]
    Address {
        /// Index of the peer.
        peer: usize,
        /// End of its log.
        tail: String,
    },
    /// A peer ended, and not because it was done.
    #[error("peer {peer} failed ({status})\n{tail}")]
    Exited {
        /// Index of the peer.
        peer: usize,
        /// How it ended.
        status: ExitStatus,
        /// Whether peers had trained by then.
        trained: bool,
        /// End of its log.
        tail: String,
    },
    /// A peer ended with success, but its metrics do not say that all steps were made.
    #[error("peer {peer} ended before its steps were done\n{tail}")]
    Early {
        /// Index of the peer.
        peer: usize,
        /// End of its log.
        tail: String,
    },
    /// A kill was planned for a peer that does not exist or ended before it struck.
    #[error("the kill planned for peer {peer} never struck: the peer was done before")]
    KillMissed {
        /// Index of the peer.
        peer: usize,
    },
    /// The variant took too long.
    #[error("not finished within {} s (steps so far: {steps}); a longer timeout sets another limit", limit.as_secs())]
    Deadline {
        /// The limit.
        limit: Duration,
        /// Steps by peer.
        steps: String,
    },
    /// A peer wrote something that is no metrics line.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The emulated network could not be made, or failed.
    #[error(transparent)]
    Network(WanError),
    /// The system failed us.
    #[error("cannot watch the peers: {0}")]
    System(#[from] io::Error),
    /// Somebody asked to stop.
    #[error("stopped on request")]
    Interrupted,
}

/// Runs one variant for one seed to its end.
///
/// # Errors
/// [`RunError`]; every process is stopped and reaped before it is returned.
pub async fn run(
    plan: &VariantPlan<'_>,
    progress: &mut Progress,
    stop: &mut Stop,
) -> Result<VariantRun, RunError> {
    progress.begin(format!("{}, seed {}", plan.variant.name, plan.seed));
    let (begun, began_unix_s) = (Instant::now(), Some(unix_s()));
    let processes = plan.variant.peers + usize::from(plan.variant.program.has_server());
    let machines = plan.workload.machine(processes.saturating_sub(1)) + 1;
    let network = plan.wan.map(|scenario| Network::start(scenario, machines, &plan.directory));
    let mut swarm = Swarm::new(plan, network.transpose()?);
    if let Err(error) = swarm.drive(progress, stop, begun).await {
        swarm.stop(stop).await;
        return Err(error);
    }
    Ok(VariantRun {
        wall_s: begun.elapsed().as_secs_f64(),
        killed_at: swarm.views.iter().map(|view| view.killed_at).collect(),
        began_unix_s,
        ..VariantRun::new(&plan.variant.name, plan.seed)
    })
}

/// A peer and its kill.
struct Watched {
    slot: Slot,
    /// When it was killed, until it starts again.
    away_since: Option<Instant>,
}

struct Swarm<'a> {
    plan: &'a VariantPlan<'a>,
    peers: Vec<Watched>,
    /// The process that all peers speak with, where the variant has one.
    server: Option<Slot>,
    views: Vec<ProgressView>,
    /// Dropped after the peers that are on it.
    network: Option<Network>,
}

impl<'a> Swarm<'a> {
    fn new(plan: &'a VariantPlan<'a>, network: Option<Network>) -> Self {
        let views = vec![ProgressView::default(); plan.variant.peers];
        Self { plan, peers: Vec::new(), server: None, views, network }
    }

    async fn drive(
        &mut self,
        progress: &mut Progress,
        stop: &mut Stop,
        begun: Instant,
    ) -> Result<(), RunError> {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut bootstrap = Vec::new();
        let mut waiting_since = begun;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.requested(1) => return Err(RunError::Interrupted),
            }
            self.look()?;
            self.bring_back()?;
            progress.show(&self.views)?;
            if begun.elapsed() > self.plan.deadline {
                return Err(self.too_late());
            }
            match self.next_address(waiting_since)? {
                Next::Wait => {}
                Next::Serve => self.server = Some(self.filled(self.plan.variant.peers, &[])?),
                Next::Start(addresses) => {
                    if !addresses.is_empty() {
                        bootstrap = addresses;
                    }
                    self.start(&bootstrap)?;
                    waiting_since = Instant::now();
                }
                Next::AllUp if self.all_ended() => break,
                Next::AllUp => {}
            }
        }
        progress.show_now(&self.views)?;
        self.network.as_mut().map_or(Ok(()), Network::finish)?;
        self.check_kills()
    }

    /// Whether every process has ended, and none is to come back.
    fn all_ended(&self) -> bool {
        let returns = |index: usize| {
            let away = self.peers[index].away_since.is_some();
            away && self.due(index).is_some_and(|kill| kill.away_ms.is_some())
        };
        (0..self.peers.len()).all(|index| self.peers[index].slot.is_empty() && !returns(index))
    }

    /// Whether the next peer may start, and with which bootstrap addresses: those of the peer
    /// started last, so that every live member serves as one.
    fn next_address(&self, waiting_since: Instant) -> Result<Next, RunError> {
        if self.peers.len() == self.plan.variant.peers {
            return Ok(Next::AllUp);
        }
        let last = match (self.peers.last(), &self.server) {
            (_, None) if self.plan.variant.program.has_server() => return Ok(Next::Serve),
            (_, Some(server)) => server,
            (Some(last), None) => &last.slot,
            (None, None) => return Ok(Next::Start(Vec::new())),
        };
        if let Some(addresses) = last.addresses()? {
            return Ok(Next::Start(addresses));
        }
        if waiting_since.elapsed() > ADDRESS_DEADLINE {
            let peer = self.peers.len().saturating_sub(1);
            return Err(RunError::Address { peer, tail: last.log_tail() });
        }
        Ok(Next::Wait)
    }

    fn start(&mut self, bootstrap: &[String]) -> Result<(), RunError> {
        let slot = self.filled(self.peers.len(), bootstrap)?;
        self.peers.push(Watched { slot, away_since: None });
        Ok(())
    }

    /// The place of a peer, with a process.
    fn filled(&self, peer: usize, bootstrap: &[String]) -> Result<Slot, RunError> {
        let mut slot = Slot::new(self.plan.directory.join(format!("peer-{peer}")));
        self.fill(&mut slot, peer, bootstrap)?;
        Ok(slot)
    }

    /// Starts a process of a peer.
    fn fill(&self, slot: &mut Slot, peer: usize, bootstrap: &[String]) -> Result<(), RunError> {
        let VariantPlan { program, workload, variant, seed, directory, .. } = self.plan;
        let mut arguments = variant.arguments(workload, *seed, peer, &slot.folder());
        if self.views.get(peer).is_some_and(|view| view.returns > 0) {
            // It waits for one of those that train on, so that it begins where they are.
            let trains = |view: &ProgressView| !view.finished && view.killed_at.is_none();
            let others = self.views.iter().enumerate();
            let met = others.filter(|(other, view)| *other != peer && trains(view)).count().min(1);
            arguments.extend(["--set".to_owned(), format!("network.require_peers={met}")]);
        }
        for address in bootstrap {
            arguments.extend(["--bootstrap".to_owned(), address.clone()]);
        }
        let command = match variant.program {
            Program::Dnode => (program.to_path_buf(), arguments),
            Program::Baseline(baseline) => {
                let missing = || io::Error::new(io::ErrorKind::NotFound, "no Python is named");
                let python = self.plan.python.ok_or_else(missing)?;
                python.command(baseline, arguments, directory)
            }
            Program::ParameterServer => {
                // In the place of `join`.
                let role = if peer < variant.peers { "work" } else { "serve" };
                arguments.splice(..1, ["parameter-server", role].map(str::to_owned));
                (std::env::current_exe()?, arguments)
            }
        };
        let command = match &self.network {
            Some(network) => network.command(workload.machine(peer), command),
            None => command,
        };
        let share = self.plan.shares.as_ref().and_then(|(quotas, shares)| {
            // The server has as much as the first peer.
            Some((*quotas, *shares.get(peer).or_else(|| shares.first())?))
        });
        slot.start(&command, share).map_err(|source| RunError::Start { peer, source })
    }

    /// Starts killed peers whose time has come, as the same peers, with nothing of what they learnt.
    fn bring_back(&mut self) -> Result<(), RunError> {
        for index in 0..self.peers.len() {
            let due = self.due(index).and_then(|kill| kill.away_ms).map(Duration::from_millis);
            let (Some(away), Some(since)) = (due, self.peers[index].away_since) else { continue };
            if !self.peers[index].slot.is_empty() || since.elapsed() < away {
                continue;
            }
            let mut bootstrap = Vec::new();
            let slots = self.server.iter().chain(self.peers.iter().map(|peer| &peer.slot));
            for slot in slots.filter(|slot| !slot.is_empty()) {
                bootstrap.extend(slot.addresses()?.unwrap_or_default());
            }
            self.views[index].return_from_death();
            let home = self.peers[index].slot.folder();
            let mut slot = std::mem::replace(&mut self.peers[index].slot, Slot::new(home));
            slot.forget()?;
            let filled = self.fill(&mut slot, index, &bootstrap);
            self.peers[index] = Watched { slot, away_since: None };
            filled?;
        }
        Ok(())
    }

    /// The kill that strikes a peer next, or has struck it last if it is away.
    fn due(&self, index: usize) -> Option<&Kill> {
        let kills = self.plan.variant.kills.iter().filter(|kill| kill.peer == index);
        kills.into_iter().nth(self.views[index].returns)
    }

    /// Reads what is new, strikes due kills, and hears who has ended.
    fn look(&mut self) -> Result<(), RunError> {
        if let Some(server) = &mut self.server
            && let Some(status) = server.poll_exit()?.filter(|status| !status.success())
        {
            let tail = server.log_tail();
            let (peer, trained) = (self.plan.variant.peers, self.has_trained());
            return Err(RunError::Exited { peer, status, trained, tail });
        }
        self.network.as_mut().map_or(Ok(()), Network::look)?;
        for index in 0..self.peers.len() {
            let slot = &mut self.peers[index].slot;
            if slot.is_empty() {
                continue;
            }
            // The order matters: all lines of an ended process are in the file.
            let exit = slot.poll_exit()?;
            for line in slot.tail.poll()? {
                self.views[index].apply(&line);
            }
            match exit {
                None => self.strike(index),
                Some(status) => self.end(index, status)?,
            }
        }
        Ok(())
    }

    fn strike(&mut self, index: usize) {
        let (Some(kill), view) = (self.due(index), &self.views[index]) else { return };
        let Some(steps) = view.steps else { return };
        let stands = view.killed_at.is_none() && !view.finished;
        // Who still waits for the required peers would wait for the killed one for ever.
        let begun = self.views.iter().all(ProgressView::has_begun);
        if stands && begun && view.position >= kill.at.step(steps) {
            let peer = &mut self.peers[index];
            peer.slot.tell(PeerProcess::kill);
            peer.away_since = Some(Instant::now());
            self.views[index].killed_at = Some(self.views[index].step);
        }
    }

    fn end(&self, index: usize, status: ExitStatus) -> Result<(), RunError> {
        let view = &self.views[index];
        if view.killed_at.is_some() || (status.success() && view.finished) {
            return Ok(());
        }
        let tail = self.peers[index].slot.log_tail();
        Err(if status.success() {
            RunError::Early { peer: index, tail }
        } else {
            RunError::Exited { peer: index, status, trained: self.has_trained(), tail }
        })
    }

    fn has_trained(&self) -> bool {
        self.views.iter().any(|view| view.step > 0)
    }

    fn check_kills(&self) -> Result<(), RunError> {
        let planned = |peer: usize| self.plan.variant.kills.iter().filter(move |k| k.peer == peer);
        let struck = |peer: usize| {
            let view: Option<&ProgressView> = self.views.get(peer);
            view.map_or(0, |view| view.returns + usize::from(view.killed_at.is_some()))
        };
        match self.plan.variant.kills.iter().find(|k| struck(k.peer) < planned(k.peer).count()) {
            Some(kill) => Err(RunError::KillMissed { peer: kill.peer }),
            None => Ok(()),
        }
    }

    fn too_late(&self) -> RunError {
        let steps: Vec<String> = self.views.iter().map(|view| view.step.to_string()).collect();
        RunError::Deadline { limit: self.plan.deadline, steps: steps.join(", ") }
    }

    /// Ends every process: SIGTERM, then SIGKILL after [`STOP_GRACE`] or a second request.
    async fn stop(&mut self, stop: &mut Stop) {
        if let Some(server) = &self.server {
            server.tell(PeerProcess::kill);
        }
        for peer in &self.peers {
            peer.slot.tell(PeerProcess::terminate);
        }
        tokio::select! {
            _ = timeout(STOP_GRACE, wait_all(&mut self.peers)) => {}
            () = stop.requested(2) => {}
        }
        for peer in &self.peers {
            peer.slot.tell(PeerProcess::kill);
        }
        wait_all(&mut self.peers).await;
        if let Some(server) = &mut self.server {
            server.wait().await;
        }
    }
}

enum Next {
    Wait,
    Serve,
    Start(Vec<String>),
    AllUp,
}

async fn wait_all(peers: &mut [Watched]) {
    for peer in peers {
        peer.slot.wait().await;
    }
}
