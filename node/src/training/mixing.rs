//! The mixing thread: the numeric work of exchanges, beside the steps of the training thread.
//!
//! What it does and what it reports happen in one turn of the replica's commons, and so do a commit
//! and its report: the driver hears of both in the order in which they changed the replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Instant;

use dnode_gossip::{Evidence, RefusedMix, Role, SnapshotContents};
use dnode_protocol::{Clock, ContentHash, ExchangeId, FragmentId};
use dnode_trainer::{Commons, Encoded, MixError, MixReport, Reading, Tolerance, Turn};
use tokio::sync::mpsc;

use crate::pulled::PulledFragments;
use crate::traces::Tracer;

use super::mailbox::Mailbox;
use super::{Activity, Command, Meter, MixTerms, Report};

/// Why numbers were not used: whose fault, the reason in words, and what was seen of the other replica.
struct Refusal {
    reason: RefusedMix,
    detail: String,
    evidence: Option<Evidence>,
}

/// What came of numbers: what goes back, and what they have shown of the other replica.
type Mixed = (Option<Encoded>, Option<Evidence>);

/// The thread's ends of the queues, and the replica's side that mixes.
pub(super) struct Mixing {
    pub(super) commons: Commons,
    /// The replica's clock; changes only in a turn of the commons.
    pub(super) clock: Arc<AtomicU64>,
    pub(super) commands: blocking::Receiver<Command>,
    pub(super) mailbox: Mailbox,
    pub(super) meter: Arc<Meter>,
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) tracer: Tracer,
    /// Where a newcomer keeps what it has pulled until it has everything.
    pub(super) pulled: Option<PulledFragments>,
}

impl Drop for Mixing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Training ends too, and with both the reports.
            self.commons.close();
            self.mailbox.wake();
        }
    }
}

impl Mixing {
    /// Mixes until told to stop, or the driver or training are gone.
    pub(super) fn run(mut self) {
        while let Ok(command) = self.commands.recv() {
            if !self.obey(command) {
                return;
            }
        }
    }

    /// Obeys; false when this was the last command.
    fn obey(&mut self, command: Command) -> bool {
        if let Command::AdoptClock { clock, replaced } = command {
            if let Some(pulled) = self.pulled.take_if(|_| replaced) {
                pulled.remove();
            }
            let turn = self.commons.turn();
            self.clock.fetch_max(clock.0, Ordering::Relaxed);
            drop(turn);
            return self.mailbox.send(command);
        }
        if matches!(command, Command::Stop { .. }) {
            self.mailbox.send(command);
            return false;
        }
        let fresh = matches!(command, Command::Adopt { .. });
        let command = match self.recalled(command) {
            Ok(command) => command,
            Err(refused) => return self.reports.blocking_send(refused).is_ok(),
        };
        if let Some(refused) = refused_snapshot(&command) {
            return self.reports.blocking_send(refused).is_ok();
        }
        let work = command.work();
        let wake = || self.mailbox.wake();
        if work.is_some_and(|(fragment, reads)| !self.commons.wait(fragment, reads, wake)) {
            return false;
        }
        let mut turn = self.commons.turn();
        let reads = matches!(command, Command::Read { .. });
        let activity = if reads { Activity::Coding } else { Activity::Mixing };
        let begun = Instant::now();
        self.meter.enter(activity, begun);
        let mark = self.tracer.begins(&command, begun);
        let snapshot = if fresh { snapshot(&command) } else { None };
        let report = self.work(&mut turn, command);
        let done = Instant::now();
        self.meter.enter(Activity::Idle, done);
        let adopted = matches!(report, Some(Report::Adopted { .. }));
        // In the same turn, so that no commit is reported in between.
        let told = report.is_none_or(|report| self.reports.blocking_send(report).is_ok());
        drop(turn);
        if adopted {
            self.keep(snapshot);
            // Training that waits for the rest takes over what is there.
            self.mailbox.wake();
        }
        self.tracer.ends(mark, done);
        told
    }

    /// Takes what an earlier life has kept from the disk.
    fn recalled(&self, command: Command) -> Result<Command, Report> {
        let Command::Recall { exchange, fragment, contents } = command else {
            return Ok(command);
        };
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let pulled = self.pulled.as_ref().ok_or_else(missing);
        match pulled.and_then(|pulled| pulled.load(fragment)) {
            Ok(snapshot) => Ok(Command::Adopt { exchange, fragment, snapshot, contents }),
            Err(error) => {
                let detail = format!("what was kept of fragment {fragment}: {error}");
                let (reason, evidence) = (RefusedMix::Local, None);
                Err(Report::MixRefused { exchange, reason, detail, evidence })
            }
        }
    }

    /// Keeps a snapshot that was taken over for a later life, which may have to go on from here.
    fn keep(&mut self, snapshot: Option<(FragmentId, SnapshotContents, Encoded)>) {
        let (Some(pulled), Some((fragment, contents, snapshot))) = (&self.pulled, snapshot) else {
            return;
        };
        if let Err(error) = pulled.keep(fragment, &contents, &snapshot) {
            tracing::warn!("what is pulled cannot be kept for another start: {error}");
            self.pulled = None;
        }
    }

    fn work(&self, turn: &mut Turn<'_>, command: Command) -> Option<Report> {
        let clock = Clock(self.clock.load(Ordering::Relaxed));
        Some(match command {
            Command::Read { exchange, fragment, what } => {
                let numbers = turn.read(fragment, what);
                if what == Reading::Snapshot {
                    let hash = ContentHash::of(&numbers.bytes);
                    Report::SnapshotRead { exchange, clock, numbers, hash }
                } else {
                    Report::Read { exchange, clock, numbers }
                }
            }
            Command::Mix { exchange, fragment, terms, numbers } => {
                mixed(exchange, clock, mix(turn, (fragment, clock), terms, &numbers))
            }
            Command::Absorb { exchange, fragment, from, weight, tolerance, numbers } => {
                turn.tolerate(let_in(tolerance));
                let absorbed = turn.absorb(fragment, weight, from, &numbers);
                let absorbed = absorbed.map(|report| (None, Some(evidence(&report, &numbers))));
                mixed(exchange, clock, absorbed.map_err(|error| refused(&error)))
            }
            Command::Include { exchange, fragment, numbers } => {
                let included = turn.include(fragment, &numbers);
                let included = included.map(|_| (None, None));
                mixed(exchange, clock, included.map_err(|error| refused(&error)))
            }
            Command::Undo { exchange, fragment, weight, reply } => {
                turn.undo(fragment, weight, &reply);
                Report::Undone { exchange }
            }
            Command::Adopt { exchange, fragment, snapshot, .. } => {
                match turn.adopt(fragment, &snapshot) {
                    Ok(()) => Report::Adopted { exchange },
                    Err(error) => mixed(exchange, clock, Err(refused(&error))),
                }
            }
            Command::Delivered { fragment, to, push } => {
                turn.delivered(fragment, to, &push);
                return None;
            }
            Command::Permission
            | Command::RoundDone
            | Command::Shard(_)
            | Command::Steps(_)
            | Command::Recall { .. }
            | Command::AdoptClock { .. }
            | Command::Ring(..)
            | Command::Stop { .. } => return None,
        })
    }
}

/// The snapshot that is to be taken over.
fn snapshot(command: &Command) -> Option<(FragmentId, SnapshotContents, Encoded)> {
    let Command::Adopt { fragment, snapshot, contents, .. } = command else { return None };
    Some((*fragment, contents.clone(), snapshot.clone()))
}

/// What is said of a snapshot whose bytes are not those that its donor has announced; without a turn,
/// as it takes a millisecond or two.
fn refused_snapshot(command: &Command) -> Option<Report> {
    let Command::Adopt { exchange, snapshot, contents, .. } = command else { return None };
    let hash = &contents.hash;
    let found = ContentHash::of(&snapshot.bytes);
    (found != *hash).then(|| Report::MixRefused {
        exchange: *exchange,
        reason: RefusedMix::OtherHash,
        detail: format!("the snapshot hashes to {found:?}, not to {hash:?}"),
        evidence: None,
    })
}

fn mixed(exchange: ExchangeId, clock: Clock, mixed: Result<Mixed, Refusal>) -> Report {
    match mixed {
        Ok((reply, evidence)) => Report::Mixed { exchange, clock, reply, evidence },
        Err(Refusal { reason, detail, evidence }) => {
            Report::MixRefused { exchange, reason, detail, evidence }
        }
    }
}

fn mix(
    turn: &mut Turn<'_>,
    (fragment, clock): (FragmentId, Clock),
    terms: MixTerms,
    numbers: &Encoded,
) -> Result<Mixed, Refusal> {
    let MixTerms { role, weight, codec, clock_max, tolerance } = terms;
    if clock > clock_max {
        let detail = format!("own clock {clock} is past {clock_max}");
        return Err(Refusal { reason: RefusedMix::TooOld, detail, evidence: None });
    }
    turn.tolerate(let_in(tolerance));
    let mixed = match role {
        Role::Initiator if numbers.codec != codec => Err(MixError::Codec(numbers.codec)),
        Role::Initiator => {
            let applied = turn.apply(fragment, weight, numbers);
            applied.map(|report| (None, Some(evidence(&report, numbers))))
        }
        Role::Responder => {
            let answer = turn.answer(fragment, weight, numbers, codec);
            answer.map(|(reply, report)| (Some(reply), Some(evidence(&report, numbers))))
        }
    };
    mixed.map_err(|error| refused(&error))
}

/// What a mix has shown of the other replica.
const fn evidence(report: &MixReport, numbers: &Encoded) -> Evidence {
    let (difference, own) = (report.difference_norm, report.local_norm);
    Evidence { difference, own, len: numbers.elements, refused: false }
}

/// The core's tolerance in the trainer's words.
const fn let_in(tolerance: dnode_gossip::Tolerance) -> Tolerance {
    let dnode_gossip::Tolerance { weights, rms_min } = tolerance;
    Tolerance { weights, rms_min }
}

/// Whose fault it is: only what the peer sent counts against it.
fn refused(error: &MixError) -> Refusal {
    let detail = error.to_string();
    if let MixError::Unlike { norm, local, start, end, .. } = *error {
        let len = end - start;
        let evidence = Some(Evidence { difference: norm, own: local, len, refused: true });
        return Refusal { reason: RefusedMix::Outlier, detail, evidence };
    }
    let blames = error.blames_peer();
    let reason = if blames { RefusedMix::BadParameters } else { RefusedMix::Local };
    Refusal { reason, detail, evidence: None }
}
