//! Who was removed from the run, who came by which invitation, and that a run is open: takes what `dnode revoke`
//! has written, and keeps what the network knows.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use dnode_network::{InvitationUse, NetworkHandle};
use dnode_protocol::PeerId;
use dnode_protocol::invitation::{Revocation, Target};

use crate::storage::pass::{
    OWN_REVOCATIONS_FILE, REVOCATIONS_FILE, USES_FILE, keep_known, revocations,
};
use crate::storage::secret::keep_open;
use crate::storage::told_once::ToldOnce;

/// How often it is looked whether a person has removed somebody.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Least time between two writes of what is known: each waits for the disk, and a member can say many
/// things at once. After a crash others tell this peer what it had heard since the last one.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// A file with all that the network knows of something.
#[derive(Debug)]
struct Known {
    name: &'static str,
    /// What is to be kept and is not written yet.
    unwritten: Option<Vec<u8>>,
    /// When it was written last.
    written: Option<Instant>,
    once: ToldOnce,
    /// What follows where it cannot be written.
    otherwise: &'static str,
}

impl Known {
    const fn new(name: &'static str, otherwise: &'static str) -> Self {
        Self { name, unwritten: None, written: None, once: ToldOnce::new(), otherwise }
    }

    fn write_due(&mut self, folder: &Path, now: Instant) {
        if self.written.is_none_or(|last| now.duration_since(last) >= KEEP_EVERY) {
            self.write(folder, now);
        }
    }

    fn write(&mut self, folder: &Path, now: Instant) {
        let Some(known) = &self.unwritten else { return };
        self.written = Some(now);
        let kept = keep_known(folder, self.name, known);
        let tell = |error| tracing::warn!(%error, "{}", self.otherwise);
        if self.once.note(kept, tell) {
            self.unwritten = None;
        }
    }
}

/// The files of this data directory.
#[derive(Debug)]
pub(crate) struct Removals {
    folder: PathBuf,
    next: Instant,
    /// When the file was written that was read last, and its length: two writes may have one time.
    read: Option<(SystemTime, u64)>,
    removed: Known,
    uses: Known,
    /// Whether the run is open, and that is not kept yet.
    opens: bool,
}

impl Removals {
    /// Those of the data directory `folder`, which are known to the network. `is_open`: whether the run is.
    pub(crate) fn new(folder: PathBuf, is_open: bool) -> Self {
        let removed = Known::new(
            REVOCATIONS_FILE,
            "cannot keep who was removed, and tries again; until then a restart has to ask others",
        );
        let uses = Known::new(
            USES_FILE,
            "cannot keep who came by which invitation, and tries again; until then a restart counts anew",
        );
        Self { folder, next: Instant::now(), read: None, removed, uses, opens: is_open }
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

    /// A peer of the run was met: where that is open, a later start need not be told so.
    pub(super) fn on_met(&mut self) {
        if std::mem::take(&mut self.opens)
            && let Err(error) = keep_open(&self.folder)
        {
            tracing::warn!(%error, "cannot keep that the run is open; a start without --bootstrap begins another");
        }
    }

    fn write_due(&mut self, now: Instant) {
        self.removed.write_due(&self.folder, now);
        self.uses.write_due(&self.folder, now);
    }

    /// Keeps who was removed as far as the network knows: at once, or soon where that was written just now.
    pub(super) fn keep(&mut self, known: Vec<u8>, now: Instant) {
        self.removed.unwritten = Some(known);
        self.removed.write_due(&self.folder, now);
    }

    /// Keeps who came by which invitation, likewise.
    pub(super) fn keep_uses(&mut self, known: &[InvitationUse], now: Instant) {
        self.uses.unwritten = Some(InvitationUse::to_bytes(known));
        self.uses.write_due(&self.folder, now);
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        for known in [&mut self.removed, &mut self.uses] {
            known.write(&self.folder, Instant::now());
        }
    }
}

/// A revocation in words, in a run of these owners.
pub(super) fn words(statement: &Revocation, owners: &[PeerId]) -> String {
    let by = statement.issuer().short();
    match statement.target() {
        Target::Holder(holder)
            if owners.contains(&holder) && owners.contains(statement.issuer()) =>
        {
            format!("owner {by} says that {holder} is no owner any more")
        }
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
        let mut removals = Removals::new(folder.path().to_owned(), false);
        // What cannot be written is written when it can.
        let file = folder.path().join(REVOCATIONS_FILE);
        std::fs::create_dir_all(file.join("in the way")).unwrap();
        let before = began.checked_sub(KEEP_EVERY).unwrap();
        removals.keep(known(1), before);
        std::fs::remove_dir_all(&file).unwrap();
        removals.write_due(began);
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
