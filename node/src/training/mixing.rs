//! The mixing thread: the numeric work of exchanges, beside the steps of the training thread.
//!
//! It holds the replica's lock for a piece of work together with its report; so does a commit. So the
//! driver hears of both in the order in which they changed the replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Instant;

use dnode_gossip::{Evidence, Input, RefusedMix, Role, Work};
use dnode_protocol::{Clock, ContentHash, ExchangeId, Reading};
use dnode_trainer::{
    Encoded, MixError, MixReport, MixTerms, ReplicaLock, SharedReplica, Tolerance,
};
use tokio::sync::mpsc;

use crate::storage::kept_snapshots::Keeping;
use crate::telemetry::traces::Tracer;

use super::mailbox::Mailbox;
use super::{Activity, Answer, Command, Meter, Report, reads};

/// The mixing thread's ends of the queues, and its handle of the shared replica.
pub(super) struct Mixing {
    pub(super) shared: SharedReplica,
    /// The replica's clock; changes only under the replica's lock.
    pub(super) clock: Arc<AtomicU64>,
    pub(super) commands: blocking::Receiver<Command>,
    pub(super) mailbox: Mailbox,
    pub(super) meter: Arc<Meter>,
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) tracer: Tracer,
    /// Where a newcomer keeps snapshots until it has all of them.
    pub(super) snapshots: Option<Keeping>,
}

impl Drop for Mixing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Training ends, too; when both have ended, so do the reports.
            self.shared.close();
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
        match command {
            Command::Work(work, tensor) => self.on_work(work, tensor),
            Command::AdoptClock(adoption) => {
                if let Some(snapshots) = self.snapshots.as_mut().filter(|_| adoption.replaced) {
                    snapshots.remove();
                }
                let lock = self.shared.lock();
                self.clock.fetch_max(adoption.clock.0, Ordering::Relaxed);
                drop(lock);
                self.mailbox.adopt(adoption);
                true
            }
            Command::Stop { .. } => {
                self.mailbox.send(command);
                false
            }
            Command::Permission => true,
        }
    }

    fn answer(&self, answer: Answer) -> bool {
        self.reports.blocking_send(Report::Answer(Box::new(answer))).is_ok()
    }

    /// Does a piece of work and answers; false when the driver or training are gone.
    fn on_work(&mut self, work: Work, tensor: Option<Encoded>) -> bool {
        let (work, tensor, recalled) = match self.recalled(work, tensor) {
            Ok(found) => found,
            Err(refused) => return self.answer(*refused),
        };
        if let Some(refused) = refused_snapshot(&work, tensor.as_ref()) {
            return self.answer(refused);
        }
        let wake = || self.mailbox.wake();
        if !self.shared.wait(work.fragment(), reads(&work), wake) {
            return false;
        }
        let mut lock = self.shared.lock();
        let coding = matches!(work, Work::Read { .. });
        let begun = Instant::now();
        self.meter.enter(if coding { Activity::Coding } else { Activity::Mixing }, begun);
        let mark = self.tracer.begins(&work, begun);
        let clock = Clock(self.clock.load(Ordering::Relaxed));
        let answer = do_work(&mut lock, clock, &work, tensor.as_ref());
        let done = Instant::now();
        self.meter.enter(Activity::Idle, done);
        let adopted = matches!(answer.input, Input::Adopted { .. });
        // Under the same lock, so that no commit is reported in between.
        let told = self.answer(answer);
        drop(lock);
        if adopted {
            if !recalled {
                self.keep(&work, tensor.as_ref());
            }
            // Training that waits for the rest takes over what is there.
            self.mailbox.wake();
        }
        self.tracer.ends(mark, done);
        told
    }

    /// Turns a recall into taking over a snapshot that an earlier start has kept on the disk. Returns
    /// whether it was a recall.
    fn recalled(
        &self,
        work: Work,
        tensor: Option<Encoded>,
    ) -> Result<(Work, Option<Encoded>, bool), Box<Answer>> {
        let Work::Recall { exchange, fragment, contents } = work else {
            return Ok((work, tensor, false));
        };
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let snapshots = self.snapshots.as_ref().ok_or_else(missing);
        match snapshots.and_then(|snapshots| snapshots.load(fragment)) {
            Ok(snapshot) => {
                Ok((Work::Adopt { exchange, fragment, contents }, Some(snapshot), true))
            }
            Err(error) => {
                let detail = format!("what was kept of fragment {fragment}: {error}");
                Err(Box::new(refused(exchange, RefusedMix::Local, detail)))
            }
        }
    }

    /// Keeps a snapshot that was taken over on the disk, as a later start may have to go on from it.
    fn keep(&mut self, work: &Work, snapshot: Option<&Encoded>) {
        let Work::Adopt { fragment, contents, .. } = work else { return };
        let (Some(snapshots), Some(snapshot)) = (&mut self.snapshots, snapshot) else { return };
        snapshots.keep(*fragment, contents, snapshot);
    }
}

/// Does a piece of the core's work on the replica; the one place that says what each kind of work
/// means.
fn do_work(
    lock: &mut ReplicaLock<'_>,
    clock: Clock,
    work: &Work,
    tensor: Option<&Encoded>,
) -> Answer {
    let (exchange, fragment) = (work.exchange(), work.fragment());
    if let Work::Read { what, .. } = work {
        let numbers = lock.read(fragment, *what);
        let input = if *what == Reading::Snapshot {
            Input::SnapshotRead { exchange, clock, hash: ContentHash::of(&numbers.bytes) }
        } else {
            Input::FragmentRead { exchange, clock }
        };
        return Answer { tensor: Some(numbers), ..answer(exchange, input) };
    }
    let Some(numbers) = tensor else {
        return refused(exchange, RefusedMix::Local, "its tensor is missing".to_owned());
    };
    let mixed = Input::Mixed { exchange, clock };
    let done = match work {
        Work::Mix { clock_max, .. } if clock > *clock_max => {
            let detail = format!("own clock {clock} is past {clock_max}");
            return refused(exchange, RefusedMix::TooOld, detail);
        }
        Work::Mix { role: Role::Initiator, codec, .. } if numbers.codec != *codec => {
            Err(MixError::Codec(numbers.codec))
        }
        Work::Mix { role: Role::Initiator, weight, tolerance, .. } => {
            let applied = lock.apply(fragment, terms(*weight, *tolerance), numbers);
            applied.map(|seen| Answer {
                evidence: Some(evidence(&seen, numbers)),
                mixed: Some(seen),
                ..answer(exchange, mixed)
            })
        }
        Work::Mix { role: Role::Responder, weight, codec, tolerance, .. } => {
            let replied = lock.answer(fragment, terms(*weight, *tolerance), numbers, *codec);
            replied.map(|(reply, seen)| Answer {
                tensor: Some(reply),
                evidence: Some(evidence(&seen, numbers)),
                mixed: Some(seen),
                blocks: (seen.blocks, seen.blocks_failed),
                ..answer(exchange, mixed)
            })
        }
        Work::Include { .. } => lock
            .include(fragment, numbers)
            .map(|seen| Answer { mixed: Some(seen), ..answer(exchange, mixed) }),
        Work::Undo { weight, .. } => {
            lock.undo(fragment, *weight, numbers);
            Ok(answer(exchange, Input::Undone { exchange }))
        }
        Work::Adopt { .. } | Work::Recall { .. } | Work::Read { .. } => {
            lock.adopt(fragment, numbers).map(|()| answer(exchange, Input::Adopted { exchange }))
        }
    };
    done.unwrap_or_else(|error| failed(exchange, &error))
}

const fn answer(exchange: ExchangeId, input: Input) -> Answer {
    plain(exchange, input, String::new())
}

const fn refused(exchange: ExchangeId, reason: RefusedMix, detail: String) -> Answer {
    let input = Input::MixRefused { exchange, reason };
    plain(exchange, input, detail)
}

const fn plain(exchange: ExchangeId, input: Input, detail: String) -> Answer {
    Answer { exchange, input, tensor: None, evidence: None, mixed: None, blocks: (0, 0), detail }
}

/// The answer for a mix that failed: only what the peer sent counts against it.
fn failed(exchange: ExchangeId, error: &MixError) -> Answer {
    let detail = error.to_string();
    if let MixError::Unlike { norm, local, start, end, .. } = *error {
        let len = end - start;
        let evidence = Some(Evidence { difference: norm, own: local, len, refused: true });
        return Answer { evidence, ..refused(exchange, RefusedMix::Outlier, detail) };
    }
    let blames = error.blames_peer();
    let reason = if blames { RefusedMix::BadParameters } else { RefusedMix::Local };
    refused(exchange, reason, detail)
}

/// The refusal of a snapshot whose bytes are not those that its donor has announced. It is checked
/// without the lock, as it takes a millisecond or two.
fn refused_snapshot(work: &Work, snapshot: Option<&Encoded>) -> Option<Answer> {
    let (Work::Adopt { exchange, contents, .. }, Some(snapshot)) = (work, snapshot) else {
        return None;
    };
    let hash = &contents.hash;
    let found = ContentHash::of(&snapshot.bytes);
    let detail = || format!("the snapshot hashes to {found:?}, not to {hash:?}");
    (found != *hash).then(|| refused(*exchange, RefusedMix::OtherHash, detail()))
}

/// What a mix has shown of the other replica.
const fn evidence(report: &MixReport, numbers: &Encoded) -> Evidence {
    let (difference, own) = (report.difference_norm, report.local_norm);
    Evidence { difference, own, len: numbers.elements, refused: false }
}

/// The core's weight and tolerance in the trainer's types.
const fn terms(weight: f32, tolerance: dnode_gossip::Tolerance) -> MixTerms {
    let dnode_gossip::Tolerance { weights, rms_min, radius, far, moves_min } = tolerance;
    MixTerms { weight, tolerance: Tolerance { weights, rms_min, radius, far, moves_min } }
}
