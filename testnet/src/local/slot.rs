//! The place of one peer: its folder, the process that fills it now, and the reader of its metrics.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::process::{ADDRESS_FILE, CHECKPOINTS_FOLDER, PeerProcess, log_tail};
use super::quota::{Limited, Quotas};
use crate::metrics::{METRICS_FILE, Tail};

/// A program and its arguments.
pub(crate) type CommandLine = (PathBuf, Vec<String>);

/// The arguments of `dnode join` that every peer has: it keeps everything in `folder`, listens on
/// `host`, and later settings `section.key=value` win.
pub(crate) fn join_arguments(
    folder: &Path,
    host: Ipv4Addr,
    config: Option<&Path>,
    settings: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let mut arguments = ["join", "--exit-with-stdin", "--no-mdns"].map(str::to_owned).to_vec();
    let mut flag = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    flag("--data-dir", folder.display().to_string());
    flag("--listen", format!("/ip4/{host}/udp/0/quic-v1"));
    if let Some(config) = config {
        flag("--config", config.display().to_string());
    }
    for setting in settings {
        flag("--set", setting);
    }
    arguments
}

/// The place of one peer: at most one process at a time, one folder for each name it had.
#[derive(Debug)]
pub(crate) struct Slot {
    root: PathBuf,
    names: u32,
    pub(crate) tail: Tail,
    process: Option<PeerProcess>,
    /// Removed after the process is gone.
    limit: Option<Limited>,
}

impl Slot {
    /// An empty place whose first folder is `root`.
    pub(crate) fn new(root: PathBuf) -> Self {
        let tail = Tail::new(root.join(METRICS_FILE));
        Self { root, names: 1, tail, process: None, limit: None }
    }

    /// The folder of its present name.
    pub(crate) fn folder(&self) -> PathBuf {
        match self.names {
            1 => self.root.clone(),
            name => self.root.with_extension(name.to_string()),
        }
    }

    /// It comes back under another name.
    pub(crate) fn rename(&mut self) {
        self.names += 1;
        self.tail = Tail::new(self.folder().join(METRICS_FILE));
    }

    /// It comes back without its checkpoints.
    pub(crate) fn forget(&self) -> io::Result<()> {
        forget(&self.folder())
    }

    /// Fills the place with a process, held to a share of a core if there is one.
    pub(crate) fn start(
        &mut self,
        (program, arguments): &CommandLine,
        share: Option<(&Quotas, f64)>,
    ) -> io::Result<()> {
        let folder = self.folder();
        // The address of the process before is nobody's now.
        match std::fs::remove_file(folder.join(ADDRESS_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let process = PeerProcess::start(program, arguments, &folder)?;
        let share = share.and_then(|(quotas, share)| Some((quotas, process.id()?, share)));
        self.process = Some(process);
        self.limit = share.map(|(quotas, id, share)| quotas.limit(id, share)).transpose()?;
        Ok(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.process.is_none()
    }

    /// Its process, if it has one that has not been found ended.
    pub(crate) const fn process(&self) -> Option<&PeerProcess> {
        self.process.as_ref()
    }

    /// Sends its process a signal, if it has one.
    pub(crate) fn tell(&self, signal: impl FnOnce(&PeerProcess)) {
        self.process.as_ref().map(signal);
    }

    /// How its process ended, if it has; then the place is empty.
    pub(crate) fn poll_exit(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let status = process.poll_exit()?;
        if status.is_some() {
            (self.process, self.limit) = (None, None);
        }
        Ok(status)
    }

    /// Waits for the end of its process.
    pub(crate) async fn wait(&mut self) {
        if let Some(process) = &mut self.process {
            // A process that cannot be waited for is not ours any more.
            let _ = process.wait_exit().await;
        }
    }

    /// The listening addresses that its process has published, or the last one that it had.
    pub(crate) fn addresses(&self) -> io::Result<Option<Vec<String>>> {
        match std::fs::read_to_string(self.folder().join(ADDRESS_FILE)) {
            Ok(text) => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                let addresses: Vec<String> = lines.map(str::to_owned).collect();
                Ok((!addresses.is_empty()).then_some(addresses))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The last lines of the log of its process, for a person.
    pub(crate) fn log_tail(&self) -> String {
        log_tail(&self.folder())
    }
}

/// Removes the checkpoints of a peer whose data directory is `home`, if it has some.
///
/// # Errors
/// Whatever the system says.
pub fn forget(home: &Path) -> io::Result<()> {
    let checkpoints = home.join(CHECKPOINTS_FOLDER);
    if checkpoints.is_dir() { std::fs::remove_dir_all(checkpoints) } else { Ok(()) }
}
