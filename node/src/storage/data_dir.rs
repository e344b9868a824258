//! The data directory: one process uses it at a time, for one run; it counts the starts.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dnode_protocol::{RunDifference, RunField, RunSpec};
use serde::{Deserialize, Serialize};

const LOCK_FILE: &str = "lock";
const INCARNATION_FILE: &str = "incarnation";
/// Random bits that tell apart the processes of copied directories.
const LIFE_BITS: u32 = 16;
const RUN_FILE: &str = "run.json";
/// Longest file that is read whole: the description of a run has at most 20 kB, the peers that were met
/// 60 kB, uses of invitations 4 MB.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// End of the names of files that are being written.
const PARTIAL: &str = ".partial";
/// Age from which such a file belongs to a writer that has ended: a short text takes far less.
const PARTIAL_LIFE: Duration = Duration::from_secs(60);

/// A data directory that this process alone uses until the value is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    incarnation: u64,
    /// A random number below `1 <<` [`LIFE_BITS`].
    chance: u64,
    // The operating system releases the lock when the process ends, however it ends.
    _lock: File,
}

/// Why a data directory cannot be used. Apart from the lock file nothing was changed.
#[derive(thiserror::Error)]
pub enum DataDirError {
    /// Another process uses it.
    #[error("data directory {} is in use by process {owner}: stop that, or choose another with --data-dir", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Process id of the other process, or `?`.
        owner: String,
    },
    /// It belongs to another run.
    #[error(
        "data directory {} belongs to another run: {} is \"{}\" there and \"{}\" now; choose another with --data-dir, or delete it",
        path.display(), difference.field, difference.theirs, difference.ours
    )]
    OtherRun {
        /// The directory.
        path: PathBuf,
        /// The differing field; `ours` is the present run.
        difference: RunDifference,
    },
    /// A file in it has other contents than it should have.
    #[error("{} is damaged ({found}): expected {expected}; restore it, or choose another data directory with --data-dir", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The file system refuses.
    #[error("cannot {what} {}: {reason}; make it readable and writable, or choose another folder with --data-dir", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
}

impl DataDirError {
    /// Whether the remedy is another `--data-dir` (exit status 2) rather than a repair of the machine
    /// (exit status 1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Locked { .. } | Self::OtherRun { .. } => true,
            Self::Damaged { .. } | Self::Io { .. } => false,
        }
    }
}

/// The form of `run.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunBinding {
    run: String,
    fields: Vec<(String, String)>,
}

impl DataDir {
    /// Creates the directory where it is missing, locks it and counts this start.
    ///
    /// # Errors
    /// [`DataDirError`]; the count stays unchanged in that case.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        create(path).map_err(io_error("create data directory", path))?;
        #[cfg(unix)]
        if let Some(others) = what_others_can(path) {
            tracing::warn!(
                "others on this machine can {others} the data directory {}: `chmod 700` it, unless that is wanted",
                path.display()
            );
        }
        let lock = lock(path)?;
        remove_left_over(path, SystemTime::now());
        let file = path.join(INCARNATION_FILE);
        let before = match read(&file)? {
            None => 0,
            Some(text) => text.trim().parse::<u64>().map_err(|_| DataDirError::Damaged {
                path: file.clone(),
                found: excerpt(&text),
                expected: "a decimal number",
            })?,
        };
        let incarnation = before.saturating_add(1);
        write_atomic(&file, format!("{incarnation}\n").as_bytes(), 0o644)?;
        let chance = rand::random_range(0..1 << LIFE_BITS);
        Ok(Self { path: path.to_owned(), incarnation, chance, _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which start of a process in this directory this is, from 1.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The number by which others know this process. It is larger for every later start. A process that
    /// was started from a copy of this directory has another one.
    #[must_use]
    pub const fn life(&self) -> u64 {
        self.incarnation.wrapping_shl(LIFE_BITS) | self.chance
    }

    /// Whether a run has used the directory before.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.path.join(RUN_FILE).exists()
    }

    /// Binds the directory to `run` if it is new, else checks that it belongs to `run`.
    ///
    /// # Errors
    /// [`DataDirError::OtherRun`] names the differing field.
    pub fn bind(&self, run: &RunSpec) -> Result<(), DataDirError> {
        self.check(run)?;
        if self.is_bound() {
            return Ok(());
        }
        write_atomic(&self.path.join(RUN_FILE), binding_text(run).as_bytes(), 0o644)
    }

    /// Checks that the directory is new, or belongs to `run`.
    ///
    /// # Errors
    /// [`DataDirError::OtherRun`] names the differing field.
    pub(crate) fn check(&self, run: &RunSpec) -> Result<(), DataDirError> {
        let difference = self.bound()?.and_then(|bound| run.difference(&bound));
        difference.map_or(Ok(()), |difference| {
            Err(DataDirError::OtherRun { path: self.path.clone(), difference })
        })
    }

    /// Takes back what [`DataDir::bind`] did: nothing of that run came to be here.
    ///
    /// # Errors
    /// [`DataDirError`].
    pub(crate) fn unbind(&self) -> Result<(), DataDirError> {
        let path = self.path.join(RUN_FILE);
        fs::remove_file(&path).map_err(io_error("delete", &path))
    }

    /// The run to which the directory is bound, if it is to any.
    ///
    /// # Errors
    /// [`DataDirError`].
    pub fn bound(&self) -> Result<Option<RunSpec>, DataDirError> {
        let path = self.path.join(RUN_FILE);
        let Some(text) = read(&path)? else { return Ok(None) };
        let damaged = || DataDirError::Damaged {
            path: path.clone(),
            found: excerpt(&text),
            expected: "the description of a run",
        };
        let binding: RunBinding = serde_json::from_str(&text).map_err(|_| damaged())?;
        let fields = binding.fields.into_iter().map(|(name, value)| RunField { name, value });
        RunSpec::new(fields.collect()).map(Some).map_err(|_| damaged())
    }
}

fn binding_text(run: &RunSpec) -> String {
    let field = |field: &RunField| (field.name.clone(), field.value.clone());
    let binding =
        RunBinding { run: run.id().to_string(), fields: run.fields().iter().map(field).collect() };
    let text = serde_json::to_string_pretty(&binding).expect("strings become JSON");
    text + "\n"
}

/// Takes the lock of the directory and notes this process's id in it.
fn lock(folder: &Path) -> Result<File, DataDirError> {
    let path = folder.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = no_follow(&mut options).open(&path).map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = file.read_to_string(&mut owner);
            let digits =
                !owner.trim().is_empty() && owner.trim().bytes().all(|b| b.is_ascii_digit());
            let owner = if digits { owner.trim().to_owned() } else { "?".to_owned() };
            return Err(DataDirError::Locked { path: folder.to_owned(), owner });
        }
        Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(io_error("write", &path))?;
    Ok(file)
}

/// Waits until no other process holds the lock file `path`, and holds it until the value is dropped.
pub(crate) fn wait_for_lock(path: &Path) -> Result<File, DataDirError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = no_follow(&mut options).open(path).map_err(io_error("open", path))?;
    file.lock().map_err(io_error("lock", path))?;
    Ok(file)
}

/// Removes what writers have left that were ended while they wrote. What cannot be removed is in
/// nobody's way.
fn remove_left_over(folder: &Path, now: SystemTime) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let partial = entry.file_name().to_str().is_some_and(|name| name.ends_with(PARTIAL));
        let old =
            |written: SystemTime| now.duration_since(written).is_ok_and(|age| age >= PARTIAL_LIFE);
        let written = || entry.metadata().and_then(|metadata| metadata.modified());
        if partial && written().is_ok_and(old) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Where the new contents of `path` are written: a file that no other writer has, of this file or another.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{:016x}{PARTIAL}", std::process::id(), rand::random::<u64>()));
    path.with_file_name(name)
}

/// Creates a folder that only this user may look into, and the folders above it. One that is there stays
/// as it is: others may be meant to use it.
fn create(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// What users beside the owner of the folder can do in it, if anything.
#[cfg(unix)]
fn what_others_can(folder: &Path) -> Option<&'static str> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder).ok()?.permissions());
    match (mode & 0o022, mode & 0o077) {
        (0, 0) => None,
        (0, _) => Some("look into"),
        _ => Some("change what is in"),
    }
}

/// The same options, with which a symbolic link at the end of the path is not followed. Who may write to
/// the folder could else have this process read or overwrite a file of another folder.
pub(crate) fn no_follow(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        let flag = rustix::fs::OFlags::NOFOLLOW.bits();
        // The flag is one bit of an int, which the system takes as such.
        let flag = i32::try_from(flag).unwrap_or(0);
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flag);
    }
    options
}

/// The text of the file `path`; `None` when there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, DataDirError> {
    match open(path) {
        Ok(file) => text_of(file, path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// The same of a file that others must not read; where they may, that is mended and told.
pub(crate) fn read_private(path: &Path) -> Result<Option<String>, DataDirError> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    #[cfg(unix)]
    if others_may(&file).map_err(io_error("read", path))? {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        file.set_permissions(private).map_err(io_error("keep others from", path))?;
        tracing::warn!(file = %path.display(), "others could read this file until now; if one of them may have, replace it");
    }
    text_of(file, path).map(Some)
}

/// Whether it is a file that other users may read, write or run. Pipes and terminals are none.
#[cfg(unix)]
pub(crate) fn others_may(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    Ok(metadata.is_file() && mode & 0o077 != 0)
}

/// Opens a file of the data directory to read it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    no_follow(OpenOptions::new().read(true)).open(path)
}

/// The text of a file of bounded length: anything longer is no file of this directory.
fn text_of(file: File, path: &Path) -> Result<String, DataDirError> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(DataDirError::Damaged {
            path: path.to_owned(),
            found: format!("more than {FILE_BYTES_MAX} bytes"),
            expected: "a short text",
        });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes `bytes` to a file that is not there yet; a symbolic link of that name counts as there. Where that fails half
/// way nothing stays of it, which would be in the way of the next try.
///
/// `mode`: Unix permissions of the file.
pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    create_new(path, mode)?.write_all(bytes).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

/// A file that is not there yet.
fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

/// As [`replace`], in words for a person.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DataDirError> {
    replace(path, bytes, mode).map_err(io_error("write", path))
}

/// As [`write_atomic`], for what holds while this process runs and no longer: it is not forced to the disk.
pub(crate) fn write_passing(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DataDirError> {
    put(path, bytes, (mode, false)).map_err(io_error("write", path))
}

/// Replaces the contents of `path` by `bytes`. A crash leaves the old contents or the new ones, never a
/// mixture. Of several writers at once the last one wins; none takes the bytes of another.
///
/// `mode`: Unix permissions of the new file.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put(path, bytes, (mode, true))
}

fn put(path: &Path, bytes: &[u8], (mode, lasts): (u32, bool)) -> io::Result<()> {
    let partial = partial(path);
    let write = || -> io::Result<()> {
        let mut file = create_new(&partial, mode)?;
        file.write_all(bytes)?;
        if lasts {
            file.sync_all()?;
        }
        fs::rename(&partial, path)?;
        if !lasts {
            return Ok(());
        }
        // The rename is durable only once the folder is written as well.
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            #[cfg(unix)]
            File::open(folder)?.sync_all()?;
            #[cfg(not(unix))]
            let _ = folder;
        }
        Ok(())
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |reason| DataDirError::Io { what, path, reason }
}

/// The beginning of a damaged text, on one line.
pub(crate) fn excerpt(text: &str) -> String {
    let text: String = text.chars().take(40).collect();
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(seed: &str) -> RunSpec {
        let field =
            |name: &str, value: &str| RunField { name: name.to_owned(), value: value.to_owned() };
        RunSpec::new(vec![field("run.seed", seed), field("gossip.rule", "pairwise")]).unwrap()
    }

    #[test]
    fn made_bindings_are_runs_or_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        let path = folder.path().join(RUN_FILE);
        dnode_mutate::check_made_inputs(&[binding_text(&spec("1"))], 2000, |bytes| {
            fs::write(&path, bytes).unwrap();
            if let Err(error) = dir.bound() {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        });
    }

    #[test]
    fn every_start_has_a_larger_incarnation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        for want in 1..=3 {
            assert_eq!(DataDir::open(&path).unwrap().incarnation(), want);
        }
    }

    #[test]
    fn a_later_start_is_known_by_a_larger_number_and_a_copy_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("original");
        let mut last = 0;
        for start in 1..=20 {
            let life = DataDir::open(&path).unwrap().life();
            assert!(life > last && life >> LIFE_BITS == start, "{life:x} after {last:x}");
            last = life;
        }
        let copies = (0..8).map(|copy| {
            let copy = folder.path().join(copy.to_string());
            fs::create_dir(&copy).unwrap();
            fs::copy(path.join(INCARNATION_FILE), copy.join(INCARNATION_FILE)).unwrap();
            DataDir::open(&copy).unwrap().life()
        });
        // That all of eight are one number by chance happens in 2^112 runs once.
        assert!(copies.collect::<std::collections::BTreeSet<_>>().len() > 1);
    }

    #[test]
    fn a_second_user_is_refused_with_the_first_ones_process() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDir::open(folder.path()).unwrap();
        let error = DataDir::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("is in use by process {}", std::process::id())), "{error}");
        drop(first);
        assert!(DataDir::open(folder.path()).is_ok());
    }

    #[test]
    fn a_directory_of_another_run_is_refused_by_the_differing_field() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        dir.check(&spec("3")).unwrap();
        assert!(!dir.is_bound());
        dir.bind(&spec("1")).unwrap();
        dir.bind(&spec("1")).unwrap();
        let error = dir.bind(&spec("2")).unwrap_err().to_string();
        assert!(error.contains("run.seed is \"1\" there and \"2\" now"), "{error}");
        dir.bind(&spec("1")).unwrap();
    }

    #[test]
    fn damaged_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        fs::write(folder.path().join(RUN_FILE), "{\"run\":").unwrap();
        let error = dir.bind(&spec("1")).unwrap_err().to_string();
        assert!(error.contains("run.json is damaged"), "{error}");
        drop(dir);
        fs::write(folder.path().join(INCARNATION_FILE), "soon\n").unwrap();
        let error = DataDir::open(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("incarnation is damaged (\"soon\\n\"): expected a decimal number"),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_others_could_read_is_made_private_and_links_are_not_followed() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/here");
        drop(DataDir::open(&path).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&folder.path().join("made"))), (0o700, 0o700));
        for (wide, others) in [
            (0o700, None),
            (0o750, Some("look into")),
            (0o701, Some("look into")),
            (0o770, Some("change what is in")),
            (0o702, Some("change what is in")),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(wide)).unwrap();
            assert_eq!(what_others_can(&path), others, "{wide:o}");
            drop(DataDir::open(&path).unwrap());
            assert_eq!(mode(&path), wide, "that of a folder that was there stays");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let file = path.join("private");
        fs::write(&file, "text").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_private(&file).unwrap().as_deref(), Some("text"));
        assert_eq!(mode(&file), 0o600);
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "1").unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o644)).unwrap();
        for name in ["linked", LOCK_FILE, INCARNATION_FILE] {
            let link = path.join(name);
            let _ = fs::remove_file(&link);
            symlink(&elsewhere, &link).unwrap();
            assert!(read(&link).is_err() && read_private(&link).is_err(), "{name}");
            let opened = DataDir::open(&path);
            assert_eq!(opened.is_err(), name != "linked", "{name}");
            fs::remove_file(&link).unwrap();
        }
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "1");
        assert_eq!(mode(&elsewhere), 0o644, "a link's target keeps its mode");
    }

    #[test]
    fn files_of_endless_length_are_not_read_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("long");
        let longer = usize::try_from(FILE_BYTES_MAX).unwrap() + 1;
        fs::write(&file, vec![b'1'; longer]).unwrap();
        let error = read(&file).unwrap_err().to_string();
        let words = format!("is damaged (more than {FILE_BYTES_MAX} bytes)");
        assert!(error.contains(&words), "{error}");
    }

    /// Names of the files in `folder` that are being written.
    fn partials(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(PARTIAL)).collect()
    }

    #[test]
    fn what_writers_have_left_is_removed_and_what_they_write_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let old = folder.path().join("x.1-0.partial");
        let young = folder.path().join("x.2-0.partial");
        for partial in [&old, &young] {
            fs::write(partial, "half").unwrap();
        }
        let file = OpenOptions::new().write(true).open(&old).unwrap();
        file.set_modified(SystemTime::now() - PARTIAL_LIFE).unwrap();
        drop(DataDir::open(folder.path()).unwrap());
        write_atomic(&path, b"whole", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(partials(folder.path()), ["x.2-0.partial"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn files_that_differ_in_their_ends_and_are_written_at_once_are_not_mixed_up() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["revocations", "revocations.own", "revocations"];
        std::thread::scope(|scope| {
            for name in names {
                let path = folder.path().join(name);
                scope.spawn(move || {
                    for _ in 0..50 {
                        write_atomic(&path, name.as_bytes(), 0o600).unwrap();
                        assert_eq!(fs::read(&path).unwrap(), name.as_bytes());
                    }
                });
            }
        });
        assert!(partials(folder.path()).is_empty());
    }
}
