//! `dnode audit`: whether the audit log of a peer holds, and what it says of each peer.

mod table;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::{fs, io};

use dnode_audit::{Accounts, Entry, Fault, Findings, Hash, Invited, LineError, Reading, Record};
use dnode_protocol::PeerId;

use crate::telemetry::audit::files;
use table::{count, invitations, settings, table, verdict};

/// Largest number of verdicts, removals and refusals that are shown, the newest ones.
const VERDICTS_MAX: usize = 20;
/// Digits of the name of a run that are shown, as elsewhere.
const RUN_DIGITS: usize = 16;
const UNFINISHED: &str = "it has no end, though another file follows";

/// Why a log cannot be judged, or does not hold.
#[derive(thiserror::Error)]
pub(crate) enum AuditError {
    /// There is none.
    #[error("no audit log in {}: name a data directory, or a file such as audit.jsonl", .0.display())]
    NoLog(PathBuf),
    /// It cannot be read.
    #[error("read the audit log {}: {reason}; name a data directory, or a file that you may read", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// A line is wrong; those before it hold.
    #[error("the audit log does not hold: line {line} of {} is wrong: {fault}; nothing from there on proves anything", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// From 1, in that file.
        line: u64,
        /// What is wrong with it.
        fault: Fault,
    },
}

impl AuditError {
    /// Whether the person who asks is at fault (exit status 2) rather than the log (1).
    #[must_use]
    pub(crate) const fn is_usage(&self) -> bool {
        matches!(self, Self::NoLog(_) | Self::Read { .. })
    }

    /// Whether what was read begins with no line of any log.
    const fn is_of_no_log(&self) -> bool {
        let Self::Broken { line: 1, fault: Fault::Line(line), .. } = self else { return false };
        matches!(line, LineError::Form(_) | LineError::TooLong)
    }
}

/// What lines say that is in no account.
#[derive(Default)]
struct Notes {
    /// Whole name of the run, as far as it is told.
    run: Option<Hash>,
    closed: Option<bool>,
    /// Settings of the last start.
    local: Option<String>,
    verdicts: VecDeque<String>,
    /// Bytes of an unfinished line at the end.
    torn: u64,
}

impl Notes {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other lines are in the accounts")]
    fn note(&mut self, record: &Record, accounts: &Accounts) {
        match &record.entry {
            Entry::Start(start) => self.closed = Some(start.closed),
            Entry::Local(local) => self.local = Some(settings(local)),
            Entry::Agreed(agreed) if agreed.names_run => self.run = Some(agreed.digest),
            _ => {}
        }
        if let Some(verdict) = verdict(record, accounts) {
            if self.verdicts.len() == VERDICTS_MAX {
                self.verdicts.pop_front();
            }
            self.verdicts.push_back(verdict);
        }
    }
}

/// A log that was read, as far as it holds.
struct Read {
    reading: Reading,
    notes: Notes,
    broken: Option<AuditError>,
}

/// Whether the log in a data directory, or one file of it, holds: one line.
///
/// # Errors
/// [`AuditError`].
pub(crate) fn verify(path: &Path) -> Result<String, AuditError> {
    let read = read(path)?;
    let text = held(&read) + "\n";
    read.broken.map_or(Ok(text), Err)
}

/// What it says of each peer, as a table; and what is wrong with it, if anything is.
///
/// # Errors
/// [`AuditError`] when there is nothing to show.
pub(crate) fn show(path: &Path) -> Result<(String, Option<AuditError>), AuditError> {
    let read = read(path)?;
    let mut text = read.reading.peer().map_or_else(String::new, |peer| format!("peer {peer}"));
    if let Some(run) = read.notes.run {
        text += &format!(", run {}", &run.to_string()[..RUN_DIGITS]);
    }
    text += match read.notes.closed {
        Some(true) => ", a closed run\n",
        Some(false) => ", an open run\n",
        None => "\n",
    };
    if let Some(local) = &read.notes.local {
        text += &format!("settings of this peer alone: {local}\n");
    }
    text += &table(read.reading.accounts());
    text += &invitations(read.reading.accounts());
    if !read.notes.verdicts.is_empty() {
        text += "verdicts, removals and refusals, the newest last:\n";
        read.notes.verdicts.iter().for_each(|verdict| text += &format!("  {verdict}\n"));
    }
    text += &(held(&read) + "\n");
    Ok((text, read.broken))
}

/// By which invitation a peer came the last time, as far as the log in a data directory says that.
pub(crate) fn invitation_of(folder: &Path, peer: &PeerId) -> Option<Invited> {
    let read = read(folder).ok()?;
    let mut accounts = read.reading.accounts().peers();
    accounts.find(|(other, _)| *other == peer)?.1.by.clone()
}

/// Reads the files in their order until one does not hold. The log of a peer that runs may get another file
/// meanwhile; what was read then is read again.
fn read(path: &Path) -> Result<Read, AuditError> {
    let found = || path.canonicalize().and_then(|named| files::list(&named)).ok();
    let before = found();
    let read = read_once(path);
    let sound = read.as_ref().is_ok_and(|read| read.broken.is_none());
    if sound || found() == before { read } else { read_once(path) }
}

fn read_once(path: &Path) -> Result<Read, AuditError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |reason| AuditError::Read { path, reason }
    };
    let named = fs::canonicalize(path).map_err(failed(path))?;
    let found: Vec<PathBuf> = if named.is_dir() {
        let listed = files::list(&named).map_err(failed(path))?;
        listed.into_iter().map(|(_, path)| path).collect()
    } else {
        vec![named]
    };
    let (mut reading, mut notes) = (Reading::new(), Notes::default());
    let mut broken = None;
    for (index, file) in found.iter().enumerate() {
        let mut note = |record: &Record, accounts: &Accounts| notes.note(record, accounts);
        let end = files::read(file, &mut reading, &mut note).map_err(failed(file))?;
        notes.torn = end.torn;
        // A file that is followed by another was ended in order.
        let unfinished = || (end.torn > 0 && index + 1 < found.len()).then_some(UNFINISHED);
        let fault =
            end.fault.or_else(|| unfinished().map(|why| LineError::Form(why.into()).into()));
        if let Some(fault) = fault {
            let path = file.clone();
            broken = Some(AuditError::Broken { path, line: end.lines + 1, fault });
            break;
        }
    }
    if reading.findings().last == 0 && broken.as_ref().is_none_or(AuditError::is_of_no_log) {
        return Err(AuditError::NoLog(path.to_owned()));
    }
    Ok(Read { reading, notes, broken })
}

/// What holds, in one line, and what a reader should know beside it.
fn held(read: &Read) -> String {
    let Findings { files, first, last, .. } = *read.reading.findings();
    if last == 0 {
        return "no line holds".to_owned();
    }
    let peer = read.reading.peer().map_or_else(String::new, |peer| peer.to_string());
    let mut text = format!("lines {first} to {last} in {} hold, ", count(files, "file"));
    text += &format!("sealed by {peer}; SHA-256 of the last: {}", read.reading.hash());
    for remark in remarks(read) {
        text += "; ";
        text += &remark;
    }
    text
}

fn remarks(read: &Read) -> Vec<String> {
    let found = read.reading.findings();
    let mut remarks = Vec::new();
    let mut remark = |is: bool, text: String| remarks.extend(is.then_some(text));
    let Findings { unsigned, vouched, starts_missing, unended, lost, cut, unsound, .. } = *found;
    remark(
        found.first > 1,
        "older lines were removed, as files are when there are too many".into(),
    );
    remark(unsigned > 0, format!("the last {} without a seal", count(unsigned, "line")));
    remark(read.notes.torn > 0, "an unfinished line at the end".into());
    let runs = found.starts > 0 && !found.ended;
    remark(
        runs,
        "the last start has no end: it goes on, was killed, or lines behind were cut off".into(),
    );
    remark(unended > 0, format!("{} without an end before", count(unended, "start")));
    remark(starts_missing > 0, format!("{} missing", count(starts_missing, "start")));
    remark(vouched > 0, format!("{} without a seal before a start", count(vouched, "line")));
    remark(cut > 0, format!("{} cut off at a start", count(cut, "unfinished line")));
    remark(unsound > 0, format!("{} that did not hold before", count(unsound, "file")));
    remark(lost > 0, format!("{} left out, for lack of room", count(lost, "line")));
    remarks
}
