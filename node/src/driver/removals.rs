//! Who was removed from the run: takes what `dnode revoke` has written, and keeps what the network hears.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use dnode_network::NetworkHandle;
use dnode_protocol::invitation::{Revocation, Target};

use crate::storage::pass::{OWN_REVOCATIONS_FILE, REVOCATIONS_FILE, keep_revocations, revocations};

/// How often it is looked whether a person has removed somebody.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Least time between two writes of what is known: each waits for the disk, and a member can say many
/// things at once. After a crash others tell this peer what it had heard since the last one.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// The files of this data directory.
#[derive(Debug)]
pub(crate) struct Removals {
    folder: PathBuf,
    next: Instant,
    /// When the file was written that was read last, and its length: two writes may have one time.
    read: Option<(SystemTime, u64)>,
    /// All that the network knows, where that is not written yet.
    unwritten: Option<Vec<u8>>,
    /// When it was written last.
    written: Option<Instant>,
}

impl Removals {
    /// Those of the data directory `folder`, whose revocations of before are known.
    pub(crate) fn new(folder: PathBuf) -> Self {
        let (next, read, unwritten, written) = (Instant::now(), None, None, None);
        Self { folder, next, read, unwritten, written }
    }

    /// Tells the network what a person has revoked since the last time, and writes what is to be kept.
    pub(super) fn tick(&mut self, network: &NetworkHandle) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + LOOK_EVERY;
        self.write_due(now);
        let file = self.folder.join(OWN_REVOCATIONS_FILE);
        let written =
            std::fs::metadata(file).and_then(|file| Ok((file.modified()?, file.len()))).ok();
        if written.is_none() || written == self.read {
            return;
        }
        match revocations(&self.folder, OWN_REVOCATIONS_FILE) {
            Ok(own) => match network.revoke(own) {
                Ok(()) => self.read = written,
                Err(error) => tracing::debug!(%error, "a revocation waits"),
            },
            Err(error) => {
                self.read = written;
                tracing::warn!(%error, "cannot read who is to be removed");
            }
        }
    }

    /// Keeps all that the network knows: at once, or soon where something was written just now.
    pub(super) fn keep(&mut self, known: Vec<u8>, now: Instant) {
        self.unwritten = Some(known);
        self.write_due(now);
    }

    fn write_due(&mut self, now: Instant) {
        if self.written.is_none_or(|last| now.duration_since(last) >= KEEP_EVERY) {
            self.write(now);
        }
    }

    fn write(&mut self, now: Instant) {
        let Some(known) = self.unwritten.take() else { return };
        self.written = Some(now);
        if let Err(error) = keep_revocations(&self.folder, REVOCATIONS_FILE, &known) {
            tracing::warn!(%error, "cannot keep who was removed; this peer asks others after a restart");
        }
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        self.write(Instant::now());
    }
}

/// A revocation in words.
pub(super) fn words(statement: &Revocation) -> String {
    let by = statement.issuer().short();
    match statement.target() {
        Target::Holder(holder) => format!("{holder} was removed by {by}"),
        Target::Number(number) => format!("invitation {number:016x} was revoked by {by}"),
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::invitation::{Chain, IssuerKey};

    use super::*;

    #[test]
    fn what_is_heard_in_quick_succession_is_written_seldom_and_the_last_of_it_always() {
        let folder = tempfile::tempdir().unwrap();
        let key = IssuerKey::from_seed(&[7; 32]);
        let say = |number: u64| Revocation::sign(&key, Target::Number(number), 9, Chain::default());
        let known = |count: u64| {
            let statements: Vec<_> = (0..count).map(say).collect();
            Revocation::to_bytes(&statements)
        };
        let kept = || revocations(folder.path(), REVOCATIONS_FILE).unwrap().len();
        let began = Instant::now();
        let mut removals = Removals::new(folder.path().to_owned());
        removals.keep(known(1), began);
        assert_eq!(kept(), 1, "the first one is there at once");
        for count in 2..=100 {
            removals.keep(known(count), began + KEEP_EVERY / 2);
        }
        assert_eq!(kept(), 1);
        removals.write_due(began + KEEP_EVERY);
        assert_eq!(kept(), 100);
        removals.keep(known(101), began + KEEP_EVERY);
        assert_eq!(kept(), 100);
        drop(removals);
        assert_eq!(kept(), 101, "the end writes what is left");
    }
}
