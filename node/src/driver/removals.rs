//! Who was removed from the run: takes what `dnode revoke` has written, and keeps what the network hears.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use dnode_network::NetworkHandle;
use dnode_protocol::invitation::{Revocation, Target};

use crate::storage::pass::{OWN_REVOCATIONS_FILE, REVOCATIONS_FILE, keep_revocations, revocations};

/// How often it is looked whether a person has removed somebody.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The files of this data directory.
#[derive(Debug)]
pub(crate) struct Removals {
    folder: PathBuf,
    next: Instant,
    /// When the file was written that was read last.
    read: Option<SystemTime>,
}

impl Removals {
    /// Those of the data directory `folder`, whose revocations of before are known.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, next: Instant::now(), read: None }
    }

    /// Tells the network what a person has revoked since the last time.
    pub(super) fn tick(&mut self, network: &NetworkHandle) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + LOOK_EVERY;
        let file = self.folder.join(OWN_REVOCATIONS_FILE);
        let written = std::fs::metadata(file).and_then(|file| file.modified()).ok();
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

    /// Keeps all that the network knows.
    pub(super) fn keep(&self, known: &[u8]) {
        if let Err(error) = keep_revocations(&self.folder, REVOCATIONS_FILE, known) {
            tracing::warn!(%error, "cannot keep who was removed; this peer asks others after a restart");
        }
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
