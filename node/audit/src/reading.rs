//! The reader's end: whether lines hold, up to where they are sealed, and what is missing.

use dnode_protocol::PeerId;

use crate::{Accounts, Chain, Entry, Fault, Hash, Record};

/// A log that is read, file by file and line by line.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    chain: Chain,
    accounts: Accounts,
    findings: Findings,
    /// The number of the last start, if there was one, and whether its end is still to come.
    start: Option<(u64, bool)>,
}

/// What was found of the lines that hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Files that were begun.
    pub files: u64,
    /// Number of the first line; 0 when there is none.
    pub first: u64,
    /// Number of the last one.
    pub last: u64,
    /// Lines at the end that no seal covers.
    pub unsigned: u64,
    /// Lines that no seal covered when the peer started again; it vouches for them since.
    pub vouched: u64,
    /// Unfinished lines that were cut off.
    pub cut: u64,
    /// Files of which the peer itself has found that they are not sound.
    pub unsound: u64,
    /// Starts of the process.
    pub starts: u64,
    /// Starts between two of these that are not in the log.
    pub starts_missing: u64,
    /// Starts before the last one without an end.
    pub unended: u64,
    /// Whether the last start has ended in order.
    pub ended: bool,
    /// Lines for which the queue had no room.
    pub lost: u64,
}

impl Default for Reading {
    fn default() -> Self {
        Self::new()
    }
}

impl Reading {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let (accounts, findings) = (Accounts::default(), Findings::default());
        Self { chain: Chain::unknown(), accounts, findings, start: None }
    }

    /// A file begins.
    pub const fn begin_file(&mut self) {
        self.chain.begin_file();
        self.findings.files += 1;
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// [`Fault`] when it does not belong here. Nothing has changed then.
    pub fn line(&mut self, bytes: &[u8]) -> Result<Record, Fault> {
        let record = self.chain.take(bytes)?;
        self.accounts.add(&record);
        self.note(&record);
        Ok(record)
    }

    fn note(&mut self, record: &Record) {
        let found = &mut self.findings;
        if found.first == 0 {
            found.first = record.number;
        }
        (found.last, found.unsigned) = (record.number, self.chain.unsigned());
        match &record.entry {
            Entry::Opened(opened) => {
                found.vouched = found.vouched.saturating_add(opened.unsigned);
                found.cut += u64::from(opened.cut > 0);
                found.unsound += u64::from(opened.unsound > 0);
            }
            Entry::Start(start) => {
                if let Some((last, runs)) = self.start {
                    found.unended += u64::from(runs);
                    let between = start.incarnation.saturating_sub(last).saturating_sub(1);
                    found.starts_missing = found.starts_missing.saturating_add(between);
                }
                found.starts += 1;
                (self.start, found.ended) = (Some((start.incarnation, true)), false);
            }
            Entry::End(_) => {
                found.ended = true;
                self.start = self.start.map(|(incarnation, _)| (incarnation, false));
            }
            Entry::Lost(lost) => found.lost = found.lost.saturating_add(lost.lines),
            Entry::File(_)
            | Entry::Carried(_)
            | Entry::Agreed(_)
            | Entry::Joined(_)
            | Entry::Named(_)
            | Entry::Left(_)
            | Entry::Contributed(_)
            | Entry::Trained(_)
            | Entry::Judged(_)
            | Entry::Offended(_)
            | Entry::Denied(_)
            | Entry::Revoked(_)
            | Entry::Expelled(_)
            | Entry::Local(_)
            | Entry::Snapshot(_)
            | Entry::Group(_)
            | Entry::Seal(_) => {}
        }
    }

    /// What was found.
    #[must_use]
    pub const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// What the lines say of each peer.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Whose log it is; `None` before the first line.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        self.chain.peer()
    }

    /// Number of the file that was read last; 0 when there is none.
    #[must_use]
    pub fn file(&self) -> u64 {
        self.chain.file()
    }

    /// Hash of the last line: whoever has noted it elsewhere knows later that nothing before it was
    /// changed or cut off.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.chain.hash()
    }

    pub(crate) fn into_parts(self) -> (Chain, Accounts) {
        (self.chain, self.accounts)
    }
}
