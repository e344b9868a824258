//! The audit log of a running peer: a bounded queue, and the thread that writes what is in it.
//!
//! Whoever records waits for nothing. A queue that is full, or a disk, costs lines of the log and never
//! a step; how many lines were lost stands in the log.

pub(crate) mod files;
pub(crate) mod sums;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use dnode_audit::{Agreed, Entry, Hash, Lost, Signer, Text};
use dnode_network::unix_time;
use dnode_protocol::{PeerId, RunField, RunSpec};

use crate::storage::identity::Identity;
use files::AuditFiles;

/// Lines that may wait for the thread: as many as the fragments that a newcomer takes over at once, and
/// that of all neighbours beside them.
const QUEUE_MAX: usize = 4096 + 256;
/// Longest time for which a line is without a seal.
const SEAL_EVERY: Duration = Duration::from_secs(10);
/// How long the end of a run waits for the thread.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// A line to be written, and when it happened.
type Timed = (u64, Entry);

/// What the thread and its owner share.
#[derive(Debug, Default)]
struct Common {
    /// Lines for which there was no room, and that the log has yet to tell.
    lost: AtomicU64,
    /// The last line, which needs no room.
    end: Mutex<Option<Timed>>,
}

/// The owner's end of the queue.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// `None` where nothing is recorded.
    queue: Option<blocking::SyncSender<Timed>>,
    common: Arc<Common>,
    /// Disconnected when the thread has ended.
    ended: blocking::Receiver<()>,
}

impl AuditLog {
    /// Records nothing.
    pub(crate) fn off() -> Self {
        let (_, ended) = blocking::sync_channel(1);
        Self { queue: None, common: Arc::default(), ended }
    }

    /// Opens the log in `folder` on a thread of its own. A log that cannot be opened or written is told
    /// by one warning, and the run goes on without it.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn start(folder: &Path, identity: &Identity) -> io::Result<Self> {
        let (peer, sign) = (identity.peer(), signer(identity));
        Self::start_with(folder, (peer, sign), QUEUE_MAX)
    }

    fn start_with(folder: &Path, of: (PeerId, Signer), room: usize) -> io::Result<Self> {
        let (queue, orders) = blocking::sync_channel(room);
        let (ends, ended) = blocking::sync_channel(1);
        let common = Arc::<Common>::default();
        let (folder, shared) = (folder.to_owned(), Arc::clone(&common));
        let write = move || {
            if let Err(error) = run(&folder, of, &orders, &shared) {
                tracing::warn!(folder = %folder.display(), %error, "the audit log ends here; training goes on without it");
            }
            drop(ends);
        };
        thread::Builder::new().name("audit".to_owned()).spawn(write)?;
        Ok(Self { queue: Some(queue), common, ended })
    }

    /// Whether anything is recorded.
    pub(crate) const fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Has lines written that say what peers must agree on, which names the run, and what they should.
    pub(crate) fn agreed(&self, run: &RunSpec, settings: &RunSpec) {
        for (spec, names_run) in [(run, true), (settings, false)] {
            let digest = Hash::from_bytes(*spec.id().as_bytes());
            let texts = |field: &RunField| (Text::new(&field.name), Text::new(&field.value));
            let fields = spec.fields().iter().map(texts).collect();
            self.record(Entry::Agreed(Agreed { names_run, digest, fields }));
        }
    }

    /// Has a line written, if there is room for it.
    pub(crate) fn record(&self, entry: Entry) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send((unix_ms(), entry)) {
            self.lose();
        }
    }

    /// Counts a line that is left out.
    pub(crate) fn lose(&self) {
        self.common.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the last line written, and waits for that, but not for long.
    pub(crate) fn close(&mut self, end: Entry) {
        let Some(queue) = self.queue.take() else { return };
        let mut last = self.common.end.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((unix_ms(), end));
        drop((last, queue));
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(CLOSE_MAX) {
            tracing::warn!("the end of the audit log is not written in time");
        }
    }
}

/// Writes what comes until the queue is closed.
fn run(
    folder: &Path,
    of: (PeerId, Signer),
    orders: &blocking::Receiver<Timed>,
    common: &Common,
) -> io::Result<()> {
    let mut files = AuditFiles::open(folder, of, unix_ms())?;
    let mut seal_at = Instant::now() + SEAL_EVERY;
    loop {
        match orders.recv_timeout(seal_at.saturating_duration_since(Instant::now())) {
            Ok((at, entry)) => files.add(at, entry)?,
            Err(RecvTimeoutError::Timeout) => {
                files.seal(unix_ms())?;
                seal_at = Instant::now() + SEAL_EVERY;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let lines = common.lost.swap(0, Ordering::Relaxed);
        if lines > 0 {
            files.add(unix_ms(), Entry::Lost(Lost { lines }))?;
        }
    }
    let end = common.end.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((at, end)) = end {
        files.add(at, end)?;
    }
    files.close(unix_ms())
}

/// Signs with the key of this peer.
fn signer(identity: &Identity) -> Signer {
    let identity = identity.clone();
    Box::new(move |words| identity.sign(words))
}

/// The clock of the machine, milliseconds since 1970.
fn unix_ms() -> u64 {
    u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use dnode_audit::{AUDIT_FILE, End, Reading, Trained};

    use super::*;
    use crate::storage::data_dir::DataDir;

    fn trained(step: u64) -> Entry {
        Entry::Trained(Trained { step, samples: step, clock: 0 })
    }

    fn end() -> Entry {
        Entry::End(End { reason: Text::new("done"), step: 1, samples: 1, clock: 1 })
    }

    fn read(folder: &Path) -> Reading {
        let mut reading = Reading::new();
        let end = files::read(&folder.join(AUDIT_FILE), &mut reading, &mut |_, _| {}).unwrap();
        assert!(end.fault.is_none() && end.torn == 0, "{:?}", end.fault);
        reading
    }

    #[test]
    fn what_is_recorded_is_sealed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        let identity = Identity::load_or_create(&dir).unwrap();
        for start in 1..=2 {
            let mut log = AuditLog::start(folder.path(), &identity).unwrap();
            (0..10).for_each(|step| log.record(trained(step)));
            log.close(end());
            let reading = read(folder.path());
            assert_eq!(reading.peer(), Some(identity.peer()));
            let found = reading.findings();
            assert!(found.ended && found.unsigned == 0 && found.lost == 0, "{found:?}");
            // Head, the first start; Opened, the second; ten lines, the end, a seal.
            assert_eq!(found.last, 13 * start, "{found:?}");
        }
    }

    #[test]
    fn a_queue_without_room_loses_lines_and_says_how_many() {
        let folder = tempfile::tempdir().unwrap();
        let (go, wait) = blocking::sync_channel::<()>(1);
        // The thread stands still at its first seal.
        let key = libp2p::identity::ed25519::Keypair::generate();
        let peer = PeerId::from_public_key(key.public().to_bytes());
        let sign: Signer = Box::new(move |words| {
            let _ = wait.recv();
            key.sign(words).try_into().unwrap()
        });
        let mut log = AuditLog::start_with(folder.path(), (peer, sign), 4).unwrap();
        for step in 0..1000 {
            log.record(trained(step));
        }
        drop(go);
        log.close(end());
        let found = read(folder.path()).findings().clone();
        assert!(found.ended && found.unsigned == 0, "{found:?}");
        let text = std::fs::read_to_string(folder.path().join(AUDIT_FILE)).unwrap();
        let written = text.matches("\"kind\":\"trained\"").count() as u64;
        assert_eq!(written + found.lost, 1000, "{found:?}");
        // Until the first seal, and as many as there is room for.
        assert!(found.lost > 900, "{found:?}");
    }

    #[test]
    fn without_a_log_nothing_is_waited_for() {
        let mut log = AuditLog::off();
        log.record(trained(1));
        log.close(end());
        assert!(!log.is_on());
    }
}
