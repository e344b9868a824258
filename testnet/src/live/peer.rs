//! One peer of a scenario run: what its process does, and whether a fault excuses it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::Instant;

use super::account::{Account, Gap};
use super::growth::{Growth, HANDLES_ALONE, HANDLES_PER_PEER, MEMORY_MAX, Sample};
use super::log::LogTail;
use super::recovery::{Beat, Recovery};
use crate::local::process::{LOG_FILE, PeerProcess};
use crate::local::slot::{CommandLine, Slot};
use crate::metrics::{Body, Line, STEPS_DONE};

/// Time between two looks at memory and handles.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Time within which a process that was told to leave is gone: the five seconds that `dnode`
/// promises, and as many again on a busy machine.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(10);
/// The signal that asks a process to leave.
const SIGTERM: i32 = 15;
/// Events of a peer that no fault excuses.
const BROKEN_EVENTS: [&str; 3] = ["offence", "offended", "checkpoint-failed"];

/// What lives are held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Longest time without progress of a process that may run.
    pub(super) stall: Duration,
    /// Age before which memory and handles may grow.
    pub(super) warm_up: Duration,
    /// Number of peers.
    pub(super) peers: usize,
}

/// What was last asked of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Lives,
    Killed,
    Leaving(Instant),
}

/// One process from its start to its end.
#[derive(Debug)]
struct Running {
    log: LogTail,
    born: Instant,
    /// The same, seconds after the start of the scenario run.
    born_s: f64,
    recovery: Recovery,
    /// Whether it has said that all steps are done.
    finished: bool,
    fate: Fate,
    step: Option<u64>,
    /// When it last made progress, or could begin to.
    moved: Instant,
    paused_until: Option<Instant>,
    sampled: Instant,
    growth: Growth,
    stalled: bool,
    /// How many times as long its work takes.
    slowness: f64,
    /// Share of a turn that a slow process has saved up; it runs when there is a whole one.
    saved: f64,
}

/// One peer, whatever process it has.
#[derive(Debug)]
pub(super) struct LivePeer {
    peer: u32,
    pub(super) slot: Slot,
    starts: u32,
    running: Option<Running>,
    /// Whether its last process has made all its steps and ended.
    done: bool,
    /// Held-out loss of its last evaluation, nats.
    pub(super) loss: Option<f64>,
    /// Where the process that left last put its parameters.
    pub(super) parameters: Option<PathBuf>,
}

impl LivePeer {
    pub(super) fn new(peer: u32, directory: &Path) -> Self {
        let slot = Slot::new(directory.join(format!("peer-{peer}")));
        let (loss, parameters, done) = (None, None, false);
        Self { peer, slot, starts: 0, running: None, done, loss, parameters }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.running.is_none()
    }

    /// Whether there is a process that nobody has told to end.
    pub(super) fn lives(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.fate == Fate::Lives)
    }

    /// Whether its last process has made all its steps and ended.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    /// Whether its process has trained.
    pub(super) fn trains(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.fate == Fate::Lives && running.step.is_some())
    }

    /// Only evaluations from here on count, and those of who is done.
    pub(super) fn forget_loss(&mut self) {
        self.loss = self.loss.filter(|_| self.done);
    }

    pub(super) const fn life(&self) -> u32 {
        self.starts
    }

    /// The addresses of its process, if it lives and has published them.
    pub(super) fn addresses(&self) -> io::Result<Option<Vec<String>>> {
        match &self.running {
            Some(running) if running.fate == Fate::Lives => self.slot.addresses(),
            _ => Ok(None),
        }
    }

    /// Fills the place with a process of its own.
    ///
    /// `at` is the time since the start of the scenario run.
    pub(super) fn start(&mut self, command: &CommandLine, at: Duration) -> io::Result<()> {
        self.slot.start(command, None)?;
        let now = Instant::now();
        self.starts += 1;
        self.done = false;
        self.running = Some(Running {
            log: LogTail::new(self.slot.folder().join(LOG_FILE)),
            born: now,
            born_s: at.as_secs_f64(),
            recovery: Recovery::default(),
            finished: false,
            fate: Fate::Lives,
            step: None,
            moved: now,
            paused_until: None,
            sampled: now,
            growth: Growth::default(),
            stalled: false,
            slowness: 1.0,
            saved: 0.0,
        });
        Ok(())
    }

    pub(super) fn kill(&mut self) {
        if let Some(running) = &mut self.running {
            running.fate = Fate::Killed;
            self.slot.tell(PeerProcess::kill);
        }
    }

    pub(super) fn leave(&mut self) {
        if let Some(running) = &mut self.running {
            running.fate = Fate::Leaving(Instant::now());
            running.paused_until = None;
            self.slot.tell(PeerProcess::terminate);
        }
    }

    pub(super) fn pause(&mut self, time: Duration) {
        if let Some(running) = &mut self.running {
            running.paused_until = Some(Instant::now() + time);
            self.slot.tell(PeerProcess::pause);
        }
    }

    /// From now on it stands still for a part of the time.
    pub(super) fn slow(&mut self, factor: f64) {
        if let Some(running) = &mut self.running {
            running.slowness = factor;
            if factor <= 1.0 && running.paused_until.is_none() {
                self.slot.tell(PeerProcess::resume);
            }
        }
    }

    /// It is neither paused nor slow.
    pub(super) fn calm(&mut self) {
        self.resume();
        if let Some(running) = &mut self.running {
            running.slowness = 1.0;
            self.slot.tell(PeerProcess::resume);
        }
    }

    /// Ends a pause.
    pub(super) fn resume(&mut self) {
        if let Some(running) = &mut self.running
            && running.paused_until.take().is_some()
        {
            self.slot.tell(PeerProcess::resume);
            running.moved = Instant::now();
        }
    }

    /// Reads what is new and judges it.
    pub(super) fn look(&mut self, bounds: &Bounds, account: &mut Account) -> io::Result<()> {
        if self.running.is_none() {
            return Ok(());
        }
        // The order matters: all that an ended process wrote is in its files.
        let exit = self.slot.poll_exit()?;
        let now = Instant::now();
        let paused_until = self.running.as_ref().and_then(|running| running.paused_until);
        if paused_until.is_some_and(|end| now >= end) {
            self.resume();
        }
        if let Some(running) = &mut self.running {
            running.take_turn(&self.slot);
        }
        self.read(account, now)?;
        match exit {
            Some(status) => self.end(status, bounds, account),
            None => self.judge(bounds, account, now),
        }
    }

    fn read(&mut self, account: &mut Account, now: Instant) -> io::Result<()> {
        let (peer, number) = (self.peer, self.starts);
        let Some(running) = &mut self.running else { return Ok(()) };
        match self.slot.tail.poll() {
            Ok(lines) => {
                for line in lines {
                    match &line.body {
                        Body::Evaluate(evaluate) => self.loss = Some(evaluate.loss),
                        Body::Final(end) => {
                            self.parameters.clone_from(&end.parameters_path);
                            self.loss =
                                Some(end.loss).filter(|loss| loss.is_finite()).or(self.loss);
                        }
                        Body::Start(_)
                        | Body::Train(_)
                        | Body::Staleness(_)
                        | Body::Shares(_)
                        | Body::Event(_) => {}
                    }
                    if let Some(complaint) = running.hear(&line, peer, account, now) {
                        account.find(peer, number, complaint)?;
                    }
                }
            }
            Err(error) => account.find(peer, number, error.to_string())?,
        }
        if let Some(line) = running.log.poll()? {
            account.find(peer, number, format!("log: {line}"))?;
        }
        Ok(())
    }

    fn end(
        &mut self,
        status: ExitStatus,
        bounds: &Bounds,
        account: &mut Account,
    ) -> io::Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        account.keep(std::mem::take(&mut running.recovery));
        self.done = running.finished && status.success();
        let tail = self.slot.log_tail();
        let complaint = match running.fate {
            Fate::Killed => None,
            // Told to leave before it could listen to that.
            Fate::Leaving(_) if running.step.is_none() && status.signal() == Some(SIGTERM) => None,
            Fate::Leaving(since) => {
                let (time, at) = (since.elapsed(), account.elapsed());
                account.departure.longest(Gap { time, at, peer: self.peer });
                let late = time > LEAVE_MAX;
                if late {
                    Some(format!("took {:.1} s to leave\n{tail}", time.as_secs_f64()))
                } else {
                    (!status.success()).then(|| format!("left with {status}\n{tail}"))
                }
            }
            Fate::Lives if running.finished && status.success() => None,
            Fate::Lives => Some(format!("ended by itself with {status}\n{tail}")),
        };
        if let Some(complaint) = complaint {
            account.find(self.peer, self.starts, complaint)?;
        }
        self.judge_growth(&running, bounds, account)
    }

    fn judge_growth(
        &self,
        running: &Running,
        bounds: &Bounds,
        account: &mut Account,
    ) -> io::Result<()> {
        let name = (self.peer, self.starts);
        let Some(life) = running.growth.life(name, bounds.warm_up) else { return Ok(()) };
        account.lives.push(life);
        match life.slopes.and_then(|slopes| slopes.complaint()) {
            Some(complaint) => account.find(self.peer, self.starts, complaint),
            None => Ok(()),
        }
    }

    fn judge(&mut self, bounds: &Bounds, account: &mut Account, now: Instant) -> io::Result<()> {
        let (peer, number) = (self.peer, self.starts);
        let Some(running) = &mut self.running else { return Ok(()) };
        if let Fate::Leaving(since) = running.fate {
            if now - since > LEAVE_MAX {
                // Its end says how long it took in all.
                self.slot.tell(PeerProcess::kill);
            }
            return Ok(());
        }
        if running.fate == Fate::Killed || running.paused_until.is_some() {
            return Ok(());
        }
        let still = now - running.moved;
        if still > bounds.stall.mul_f64(running.slowness) && !running.stalled {
            // Said once for each time that it stands still.
            running.stalled = true;
            let step = running.step.map_or_else(|| "not begun".to_owned(), |step| step.to_string());
            let tail = self.slot.log_tail();
            let what = format!("no progress for {:.1} s; step {step}\n{tail}", still.as_secs_f64());
            account.find(peer, number, what)?;
        }
        if now - running.sampled < SAMPLE_EVERY {
            return Ok(());
        }
        running.sampled = now;
        let Some(id) = self.slot.process().and_then(PeerProcess::id) else { return Ok(()) };
        // A process that has just ended is heard of by the next look.
        let Some(sample) = Sample::take(id, now - running.born) else { return Ok(()) };
        running.growth.push(sample);
        let handles_max = HANDLES_ALONE + HANDLES_PER_PEER * bounds.peers;
        if sample.memory > MEMORY_MAX {
            account.find(peer, number, format!("holds {} MiB of memory", sample.memory >> 20))?;
        }
        if sample.handles > handles_max {
            account.find(peer, number, format!("holds {} handles", sample.handles))?;
        }
        Ok(())
    }
}

impl Running {
    /// A slow process runs in one look of so many.
    fn take_turn(&mut self, slot: &Slot) {
        if self.slowness <= 1.0 || self.paused_until.is_some() || self.fate != Fate::Lives {
            return;
        }
        self.saved += 1.0 / self.slowness;
        if self.saved >= 1.0 {
            self.saved -= 1.0;
            slot.tell(PeerProcess::resume);
        } else {
            slot.tell(PeerProcess::pause);
        }
    }

    /// Takes over what a line says; what is wrong with it, if something is.
    fn hear(
        &mut self,
        line: &Line,
        peer: u32,
        account: &mut Account,
        now: Instant,
    ) -> Option<String> {
        account.clock = account.clock.max(line.stamp.clock);
        match &line.body {
            Body::Start(_) => self.step = None,
            Body::Train(train) => {
                self.recovery
                    .push(Beat { at_s: self.born_s + line.stamp.time_s, step: line.stamp.step });
                let before = self.step.replace(line.stamp.step);
                if before.is_none_or(|before| line.stamp.step > before) {
                    let gap = Gap { time: now - self.moved, at: account.elapsed(), peer };
                    let kind =
                        if before.is_none() { &mut account.arrival } else { &mut account.still };
                    kind.longest(gap);
                    account.steps += before.map_or(0, |before| line.stamp.step - before);
                    (self.moved, self.stalled) = (now, false);
                }
                if !train.loss.is_finite() {
                    return Some(format!(
                        "training loss is not finite at step {}",
                        line.stamp.step
                    ));
                }
            }
            Body::Event(event) => {
                *account.events.entry(event.name.clone()).or_default() += 1;
                if BROKEN_EVENTS.contains(&event.name.as_str()) {
                    let detail = &event.detail;
                    return Some(format!("event {}: {detail}", event.name));
                }
            }
            Body::Evaluate(evaluate) if !evaluate.loss.is_finite() => {
                return Some(format!("held-out loss is not finite at step {}", line.stamp.step));
            }
            Body::Final(end) => self.finished = end.reason == STEPS_DONE,
            Body::Evaluate(_) | Body::Staleness(_) | Body::Shares(_) => {}
        }
        None
    }
}
