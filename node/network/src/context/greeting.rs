//! What this peer says of itself, and what other peers must have in common with it.

use dnode_protocol::{RunDifference, RunSpec, SharedSettings};

use crate::swarm::ask::{self, Told};

/// Run, settings and hello of this peer.
#[derive(Debug)]
pub(crate) struct Greeting {
    run: RunSpec,
    settings: SharedSettings,
    /// The hello, as a complete frame.
    hello: Vec<u8>,
    /// The digest of the first step, for peers that ask; may be empty.
    digest: String,
}

impl Greeting {
    pub(crate) const fn new(
        run: RunSpec,
        settings: SharedSettings,
        hello: Vec<u8>,
        digest: String,
    ) -> Self {
        Self { run, settings, hello, digest }
    }

    /// Tells this digest from now on.
    pub(crate) fn tell(&mut self, digest: String) {
        self.digest = digest;
    }

    /// The first frame on a control stream.
    pub(crate) fn hello(&self) -> Vec<u8> {
        self.hello.clone()
    }

    /// What this peer tells before a run.
    pub(crate) fn answer(&self) -> Told {
        Told { micros: ask::now(), digest: self.digest.clone(), hello: self.hello.clone() }
    }

    /// In what settings another peer differs; an error when the difference keeps the two apart. `trains`:
    /// whether both of them train. Where one does not, settings do not matter.
    pub(crate) fn compare(
        &self,
        [run, settings]: &[RunSpec; 2],
        trains: bool,
    ) -> Result<Vec<RunDifference>, RunDifference> {
        self.run.difference(run).map_or(Ok(()), Err)?;
        if trains { self.settings.compare(settings) } else { Ok(Vec::new()) }
    }
}
