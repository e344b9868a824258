//! Reports two processes with one identity.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dnode_protocol::PeerId;

use super::Telemetry;

/// Time before the same is reported again.
const REPEAT: Duration = Duration::from_secs(300);
/// Largest number of peers that are reported within that time.
const OTHERS_MAX: usize = 16;

/// When copies of identities were reported.
#[derive(Debug)]
pub(super) struct Copies {
    file: PathBuf,
    own: Option<Instant>,
    /// At most [`OTHERS_MAX`], so that peers that make up copies fill no log.
    others: Vec<(PeerId, Instant)>,
}

impl Copies {
    /// `file` holds the identity of this peer.
    pub(super) const fn new(file: PathBuf) -> Self {
        Self { file, own: None, others: Vec::new() }
    }
}

impl Telemetry {
    /// Another process has the identity of this one.
    pub(super) fn copied(&mut self, how: &str) {
        if self.copies.own.is_some_and(|said| said.elapsed() < REPEAT) {
            return;
        }
        self.copies.own = Some(Instant::now());
        let file = self.copies.file.display().to_string();
        tracing::warn!(
            "another process has the identity of this peer, {how}: a data directory or machine was copied; delete {file} in one of the two and start it again, or start it with another --data-dir"
        );
        self.event("copied-identity", how);
    }

    /// A peer refuses this process, and stays connected to the other one with this identity.
    pub(crate) fn refused_copy(&mut self, peer: &PeerId) {
        self.copied(&format!("peer {} meets both, and keeps the other", peer.short()));
    }

    /// Two processes have the identity of a peer.
    pub(super) fn copied_peer(&mut self, peer: &PeerId) {
        let others = &mut self.copies.others;
        others.retain(|(_, said)| said.elapsed() < REPEAT);
        if others.len() >= OTHERS_MAX || others.iter().any(|(of, _)| of == peer) {
            return;
        }
        others.push((*peer, Instant::now()));
        tracing::warn!(peer = %peer.short(), "two processes have the identity of this peer: a data directory or machine was copied; the one that started last is kept, both are told");
        self.event("copied-peer", &peer.to_string());
    }
}
