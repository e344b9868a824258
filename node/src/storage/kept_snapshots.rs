//! Fragments of the swarm's model that a joiner has pulled, kept on disk until it has all of them. A
//! joiner that dies in between pulls only the others after its next start.
//!
//! There is one file for each fragment: a line of JSON, then the bytes of the snapshot. The hash of the
//! bytes is verified before they are kept and before they are used, so nothing needs to be forced to the
//! disk.
//!
//! A thread of its own writes them, so that mixing never waits for a disk. What comes faster than it
//! writes is passed over, and so is all of a pull that is over soon: both are quick to pull again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use dnode_gossip::SnapshotContents;
use dnode_protocol::frame::Codec;
use dnode_protocol::{
    Clock, ContentHash, FragmentId, Fragments, Information, PeerId, Versions, limits,
};
use dnode_trainer::Encoded;
use serde::{Deserialize, Serialize};

use crate::storage::data_dir::{no_follow, open};

/// Name of the folder in the data directory.
const FOLDER: &str = "pulled";
/// How long a pull has to last before anything of it is kept, and how long all of it would take at the rate
/// until then. A write takes about as long as the transfer over a fast line, and what is over soon is pulled
/// again as soon.
const KEPT_AFTER: Duration = Duration::from_secs(1);
const KEPT_OF: Duration = Duration::from_secs(10);
/// Most snapshots that wait to be written.
const WAITING_MAX: usize = 4;
/// Longest first line of a file: some numbers, and what the fragment contains of each peer, as text.
const LINE_MAX: u64 = 4096 + 128 * limits::INFORMATION_MAX as u64;

/// The folder of kept fragments, with at most one file for each.
#[derive(Clone, Debug)]
pub(crate) struct KeptSnapshots {
    folder: PathBuf,
    fragments: Fragments,
    /// How long a pull has to last before anything of it is kept, and how long all of it has to take.
    after: (Duration, Duration),
}

/// The writing of a joiner's snapshots, beside the thread that takes them over.
#[derive(Debug)]
pub(crate) struct Keeping {
    store: KeptSnapshots,
    /// When the first one came.
    first: Option<Instant>,
    /// How many have come.
    pulled: u32,
    /// Where to put what is to be written; `None` before there is anything, and once nothing is kept any
    /// more.
    queue: Option<SyncSender<Kept>>,
    writer: Option<JoinHandle<()>>,
    /// Nothing is kept any more.
    over: bool,
    /// The model is complete: what was kept is to be removed.
    whole: Arc<AtomicBool>,
}

/// A snapshot that waits to be written.
#[derive(Debug)]
struct Kept {
    fragment: FragmentId,
    contents: SnapshotContents,
    snapshot: Encoded,
}

impl Keeping {
    /// Nothing is written yet.
    pub(crate) fn new(store: KeptSnapshots) -> Self {
        let whole = Arc::new(AtomicBool::new(false));
        let (first, pulled, over) = (None, 0, false);
        Self { store, first, pulled, queue: None, writer: None, over, whole }
    }

    /// Keeps a snapshot, if there is time to write it. The hash of its bytes must have been verified.
    pub(crate) fn keep(
        &mut self,
        fragment: FragmentId,
        contents: &SnapshotContents,
        snapshot: &Encoded,
    ) {
        let first = *self.first.get_or_insert_with(Instant::now);
        self.pulled = self.pulled.saturating_add(1);
        if self.over || !self.store.lasts(first.elapsed(), self.pulled) {
            return;
        }
        if self.queue.is_none() {
            let (queue, waiting) = sync_channel(WAITING_MAX);
            let (store, whole) = (self.store.clone(), Arc::clone(&self.whole));
            let writer = Builder::new().name("pulled".to_owned());
            match writer.spawn(move || write(&store, &waiting, &whole)) {
                Ok(writer) => (self.queue, self.writer) = (Some(queue), Some(writer)),
                Err(error) => {
                    tracing::warn!("a snapshot cannot be kept for another start: {error}");
                    self.over = true;
                    return;
                }
            }
        }
        let Some(queue) = &self.queue else { return };
        let kept = Kept { fragment, contents: contents.clone(), snapshot: snapshot.clone() };
        match queue.try_send(kept) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::debug!(%fragment, "not kept: the disk is behind");
            }
            // The writer has said why.
            Err(TrySendError::Disconnected(_)) => self.over = true,
        }
    }

    /// Reads the kept snapshot of a fragment. Its bytes are still to be verified.
    pub(crate) fn load(&self, fragment: FragmentId) -> io::Result<Encoded> {
        if self.over { Err(io::ErrorKind::NotFound.into()) } else { self.store.load(fragment) }
    }

    /// Removes all files, because the model is complete. Where some are being written, their writer does it.
    pub(crate) fn remove(&mut self) {
        self.whole.store(true, Ordering::Relaxed);
        (self.queue, self.over) = (None, true);
        if self.writer.is_none() {
            self.store.remove();
        }
    }
}

impl Drop for Keeping {
    /// Waits until what was to be kept is written, which is little.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // It does not panic; if it did, files were not kept.
            let _ = writer.join();
        }
    }
}

/// Writes snapshots until no more come, or one cannot be written.
fn write(store: &KeptSnapshots, waiting: &Receiver<Kept>, whole: &AtomicBool) {
    for Kept { fragment, contents, snapshot } in waiting {
        if whole.load(Ordering::Relaxed) {
            continue;
        }
        if let Err(error) = store.keep(fragment, &contents, &snapshot) {
            tracing::warn!("a snapshot cannot be kept for another start: {error}");
            break;
        }
    }
    if whole.load(Ordering::Relaxed) {
        store.remove();
    }
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    clock: u64,
    hash: [u8; 32],
    codec: String,
    information: Vec<(String, u64)>,
}

impl KeptSnapshots {
    /// The folder in the data directory `dir` where a joiner keeps what it pulls, and what an earlier
    /// start has kept there. A peer that begins with a model (`is_newcomer` is false) needs neither.
    pub(crate) fn begin(
        dir: &Path,
        fragments: Fragments,
        is_newcomer: bool,
    ) -> (Option<Self>, Vec<(FragmentId, SnapshotContents)>) {
        if !is_newcomer {
            // Files that cannot be removed are too old when they are looked at next.
            let _ = fs::remove_dir_all(dir.join(FOLDER));
            return (None, Vec::new());
        }
        let (this, kept) = Self::open(dir, fragments);
        if !kept.is_empty() {
            let (kept, of) = (kept.len(), fragments.count());
            tracing::info!(kept, of, "has fragments that it had pulled before it died");
        }
        (Some(this), kept)
    }

    /// Opens the folder and lists what it holds. A file that cannot be read is passed over; its fragment
    /// is pulled again.
    fn open(dir: &Path, fragments: Fragments) -> (Self, Vec<(FragmentId, SnapshotContents)>) {
        let this = Self { folder: dir.join(FOLDER), fragments, after: (KEPT_AFTER, KEPT_OF) };
        let all = (0..u32::try_from(fragments.count()).unwrap_or(u32::MAX)).map(FragmentId);
        let kept = if this.is_folder() {
            all.filter_map(|it| Some((it, this.describe(it).ok()?.0))).collect()
        } else {
            Vec::new()
        };
        (this, kept)
    }

    /// The same, which keeps also what comes first.
    #[cfg(test)]
    pub(crate) fn keeping_at_once(self) -> Self {
        Self { after: (Duration::ZERO, Duration::ZERO), ..self }
    }

    /// Whether a pull that has brought so many fragments in `elapsed` lasts long enough to be kept.
    fn lasts(&self, elapsed: Duration, pulled: u32) -> bool {
        let (after, of) = self.after;
        let all = u32::try_from(self.fragments.count()).unwrap_or(u32::MAX);
        elapsed >= after && elapsed.saturating_mul(all) >= of.saturating_mul(pulled)
    }

    /// Whether the folder is there. A symbolic link to one is none.
    fn is_folder(&self) -> bool {
        fs::symlink_metadata(&self.folder).is_ok_and(|it| it.is_dir())
    }

    /// Removes all files, because the model is complete.
    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Keeps a snapshot. The hash of its bytes must have been verified.
    fn keep(
        &self,
        fragment: FragmentId,
        contents: &SnapshotContents,
        snapshot: &Encoded,
    ) -> io::Result<()> {
        let entries = contents.information.entries.iter();
        let description = Description {
            clock: contents.clock.0,
            hash: contents.hash.to_bytes(),
            codec: snapshot.codec.name().to_owned(),
            information: entries.map(|(peer, clock)| (peer.to_string(), clock.0)).collect(),
        };
        if !self.is_folder() {
            fs::create_dir(&self.folder)?;
        }
        let path = self.path(fragment);
        let partial = path.with_extension("partial");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = no_follow(&mut options).open(&partial)?;
        let written = serde_json::to_writer(&mut file, &description)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.write_all(&snapshot.bytes))
            .and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }

    fn load(&self, fragment: FragmentId) -> io::Result<Encoded> {
        let (_, (codec, elements), mut file) = self.describe(fragment)?;
        let mut bytes = vec![0; codec.payload_bytes(elements)];
        file.read_exact(&mut bytes)?;
        Ok(Encoded { codec, elements, bytes: bytes.into() })
    }

    /// Reads the first line of a file, and returns the file at the position after that line. It
    /// allocates no more than the fragment can need.
    fn describe(
        &self,
        fragment: FragmentId,
    ) -> io::Result<(SnapshotContents, (Codec, usize), BufReader<File>)> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let mut file = BufReader::new(open(&self.path(fragment))?);
        let mut line = Vec::new();
        (&mut file).take(LINE_MAX).read_until(b'\n', &mut line)?;
        let Description { clock, hash, codec, information } = serde_json::from_slice(&line)?;
        let codec: Codec = codec.parse().map_err(|_| damaged())?;
        let range = self.fragments.range(fragment).ok_or_else(damaged)?;
        let elements = range.len();
        let length = line.len() as u64 + codec.payload_bytes(elements) as u64;
        if file.get_ref().metadata()?.len() != length {
            return Err(damaged());
        }
        let entry = |(peer, clock): (String, u64)| -> io::Result<(PeerId, Clock)> {
            Ok((peer.parse().map_err(|_| damaged())?, Clock(clock)))
        };
        let entries = information.into_iter().map(entry).collect::<io::Result<_>>()?;
        let contents = SnapshotContents {
            clock: Clock(clock),
            hash: ContentHash::from_bytes(hash),
            information: Information { entries },
            versions: Versions::default(),
        };
        Ok((contents, (codec, elements), file))
    }

    fn path(&self, fragment: FragmentId) -> PathBuf {
        self.folder.join(format!("{:010}", fragment.0))
    }
}

#[cfg(test)]
mod tests {
    use dnode_trainer::encode;

    use super::*;

    /// What a donor said of this snapshot.
    fn described(snapshot: &Encoded, entries: Vec<(PeerId, Clock)>) -> SnapshotContents {
        SnapshotContents {
            clock: Clock(40),
            hash: ContentHash::of(&snapshot.bytes),
            information: Information { entries },
            versions: Versions::default(),
        }
    }

    #[test]
    fn a_pull_that_is_over_soon_is_not_kept() {
        let root = tempfile::tempdir().unwrap();
        let (store, _) = KeptSnapshots::open(root.path(), Fragments::new(1000, 100).unwrap());
        let seconds = Duration::from_secs_f64;
        // 100 fragments: so many in so long, and whether they are kept.
        let cases = [(1, 0.9, false), (1, 1.0, true), (30, 2.9, false), (30, 3.1, true)];
        for (pulled, elapsed, kept) in cases {
            assert_eq!(store.lasts(seconds(elapsed), pulled), kept, "{pulled} in {elapsed} s");
        }
        assert!(store.keeping_at_once().lasts(Duration::ZERO, 100));
    }

    #[test]
    fn made_files_are_whole_fragments_or_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let fragments = Fragments::new(8, 2).unwrap();
        let (store, _) = KeptSnapshots::open(root.path(), fragments);
        let first = FragmentId(0);
        let snapshot = encode(Codec::F32, &[1.5; 4]);
        let entries = vec![(PeerId::from_public_key([3; 32]), Clock(9))];
        let contents = described(&snapshot, entries);
        store.keep(first, &contents, &snapshot).unwrap();
        let sound = fs::read(store.path(first)).unwrap();
        dnode_mutate::check_made_inputs(&[sound], 2000, |bytes| {
            fs::write(store.path(first), bytes).unwrap();
            let (store, kept) = KeptSnapshots::open(root.path(), fragments);
            assert!(kept.iter().all(|(fragment, _)| *fragment == first));
            assert_eq!(store.load(first).is_ok(), !kept.is_empty());
        });
    }

    #[cfg(unix)]
    #[test]
    fn no_link_is_followed_to_write_or_read_a_fragment() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let fragments = Fragments::new(8, 2).unwrap();
        let (store, _) = KeptSnapshots::open(root.path(), fragments);
        let snapshot = encode(Codec::F32, &[1.5; 4]);
        let contents = described(&snapshot, Vec::new());
        let keep = |it: u32| store.keep(FragmentId(it), &contents, &snapshot);
        let kept = || KeptSnapshots::open(root.path(), fragments).1.len();
        keep(0).unwrap();
        // A file that is read, one that is written, and the folder.
        let elsewhere = root.path().join("elsewhere");
        fs::rename(store.path(FragmentId(0)), &elsewhere).unwrap();
        let sound = fs::read(&elsewhere).unwrap();
        symlink(&elsewhere, store.path(FragmentId(0))).unwrap();
        assert_eq!(kept(), 0);
        assert!(store.load(FragmentId(0)).is_err());
        symlink(&elsewhere, store.path(FragmentId(1)).with_extension("partial")).unwrap();
        assert!(keep(1).is_err());
        assert_eq!(fs::read(&elsewhere).unwrap(), sound);
        store.remove();
        let other = root.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::rename(&elsewhere, other.join("0000000000")).unwrap();
        symlink(&other, &store.folder).unwrap();
        assert_eq!(kept(), 0);
        assert!(keep(1).is_err());
        store.remove();
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1, "the link went, not what it names");
        keep(1).unwrap();
        assert_eq!(kept(), 1);
    }

    #[test]
    fn what_is_kept_is_found_by_the_next_life_and_damage_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let fragments = Fragments::new(1000, 4).unwrap();
        let (store, kept) = KeptSnapshots::open(root.path(), fragments);
        assert_eq!(kept, []);
        let contents = |fragment: FragmentId, snapshot: &Encoded| SnapshotContents {
            clock: Clock(40 + u64::from(fragment.0)),
            hash: ContentHash::of(&snapshot.bytes),
            information: Information {
                entries: vec![(PeerId::from_public_key([3; 32]), Clock(9))],
            },
            versions: Versions::default(),
        };
        let all: Vec<_> = (0..3).map(FragmentId).collect();
        let snapshots: Vec<_> = all
            .iter()
            .map(|it| encode(Codec::F32, &vec![it.0 as f32; fragments.range(*it).unwrap().len()]))
            .collect();
        for (fragment, snapshot) in all.iter().zip(&snapshots) {
            store.keep(*fragment, &contents(*fragment, snapshot), snapshot).unwrap();
        }
        let (store, kept) = KeptSnapshots::open(root.path(), fragments);
        let expected = all.iter().zip(&snapshots).map(|(it, of)| (*it, contents(*it, of)));
        assert_eq!(kept, expected.collect::<Vec<_>>());
        assert_eq!(store.load(all[1]).unwrap(), snapshots[1]);
        // Three damaged files: one that was cut, one without a description, and one with a changed byte.
        let path = |it: usize| store.path(all[it]);
        let bytes = fs::read(path(0)).unwrap();
        fs::write(path(0), &bytes[..bytes.len() - 1]).unwrap();
        fs::write(path(1), "what\n").unwrap();
        let mut bytes = fs::read(path(2)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path(2), bytes).unwrap();
        let (store, kept) = KeptSnapshots::open(root.path(), fragments);
        let [(fragment, contents)] = &kept[..] else { panic!("{kept:?}") };
        assert_ne!(ContentHash::of(&store.load(*fragment).unwrap().bytes), contents.hash);
        store.remove();
        assert_eq!(KeptSnapshots::open(root.path(), fragments).1, []);
    }

    #[test]
    fn what_comes_first_is_not_kept_and_what_was_kept_goes_with_the_last() {
        let root = tempfile::tempdir().unwrap();
        let fragments = Fragments::new(1000, 4).unwrap();
        let snapshot = encode(Codec::F32, &[1.0; 250]);
        let contents = described(&snapshot, Vec::new());
        let (store, _) = KeptSnapshots::open(root.path(), fragments);
        let mut keeping = Keeping::new(store.clone());
        keeping.keep(FragmentId(0), &contents, &snapshot);
        drop(keeping);
        assert_eq!(KeptSnapshots::open(root.path(), fragments).1, [], "it is quick to pull again");
        let mut keeping = Keeping::new(store.clone().keeping_at_once());
        keeping.keep(FragmentId(1), &contents, &snapshot);
        drop(keeping);
        let kept = KeptSnapshots::open(root.path(), fragments).1;
        assert_eq!(kept, [(FragmentId(1), contents.clone())]);
        let mut keeping = Keeping::new(store.keeping_at_once());
        assert_eq!(keeping.load(FragmentId(1)).unwrap(), snapshot);
        keeping.keep(FragmentId(2), &contents, &snapshot);
        keeping.remove();
        keeping.keep(FragmentId(3), &contents, &snapshot);
        assert!(keeping.load(FragmentId(1)).is_err());
        drop(keeping);
        assert_eq!(KeptSnapshots::open(root.path(), fragments).1, []);
    }
}
