//! The account of commits with noise in a data directory: what they have revealed of this peer's data.

use std::path::{Path, PathBuf};

use dnode_metrics::Revealed;
use dnode_trainer::privacy::{Adjacency, PrivacyLoss};
use serde::{Deserialize, Serialize};

use crate::storage::data_dir::{DataDirError, excerpt, read, write_atomic};

/// The account in the data directory.
const FILE: &str = "privacy.json";
/// Commits that are written down before they are made: so many, or this part of those made before. A crash
/// then counts some that were never made, and none that was is left out.
const AHEAD: u64 = 64;
const AHEAD_PART: u64 = 8;

/// The form of the file. A later start may have other noise, so the sum is kept beside the number.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Account {
    commits: u64,
    inverse_squares: f64,
}

/// How noise is reckoned, and what earlier starts have revealed.
#[derive(Clone, Debug)]
pub(crate) struct NoiseTerms {
    /// z.
    multiplier: f64,
    delta: f64,
    file: PathBuf,
    before: PrivacyLoss,
}

impl NoiseTerms {
    /// Reads what earlier starts in `folder` have revealed. `multiplier`: z > 0.
    ///
    /// # Errors
    /// [`DataDirError`] when the file cannot be read or holds no account.
    pub(crate) fn open(
        folder: &Path,
        (multiplier, delta): (f64, f64),
    ) -> Result<Self, DataDirError> {
        let file = folder.join(FILE);
        let before = match read(&file)? {
            None => PrivacyLoss::default(),
            Some(text) => account(&text).ok_or_else(|| DataDirError::Damaged {
                path: file.clone(),
                found: excerpt(&text),
                expected: "the account of commits with noise",
            })?,
        };
        Ok(Self { multiplier, delta, file, before })
    }

    /// What earlier starts have revealed.
    pub(crate) fn before(&self) -> Revealed {
        self.revealed(self.before)
    }

    /// What these and `commits` more will have revealed.
    pub(crate) fn after(&self, commits: u64) -> Revealed {
        self.revealed(self.before.after(commits, self.multiplier))
    }

    fn revealed(&self, loss: PrivacyLoss) -> Revealed {
        let (commits, delta) = (loss.commits(), self.delta);
        Revealed { commits, epsilon: loss.epsilon(delta, Adjacency::Replaced), delta }
    }
}

fn account(text: &str) -> Option<PrivacyLoss> {
    let Account { commits, inverse_squares } = serde_json::from_str(text).ok()?;
    PrivacyLoss::of(commits, inverse_squares)
}

fn written(loss: PrivacyLoss) -> String {
    let account = Account { commits: loss.commits(), inverse_squares: loss.inverse_squares() };
    serde_json::to_string(&account).expect("numbers become JSON") + "\n"
}

/// Counts commits with noise, and writes them down before they are made.
#[derive(Debug)]
pub(super) struct NoiseLedger {
    terms: NoiseTerms,
    made: PrivacyLoss,
    /// What the file says: no less than was made.
    written: PrivacyLoss,
}

impl NoiseLedger {
    pub(super) const fn new(terms: NoiseTerms) -> Self {
        let (made, written) = (terms.before, terms.before);
        Self { terms, made, written }
    }

    /// Before a commit: sees to it that the file counts it.
    ///
    /// # Errors
    /// [`DataDirError`] when the file cannot be written; the commit must not be made then.
    pub(super) fn reserve(&mut self) -> Result<(), DataDirError> {
        if self.made.commits() < self.written.commits() {
            return Ok(());
        }
        let ahead = AHEAD.max(self.made.commits() / AHEAD_PART);
        self.write(self.made.after(ahead, self.terms.multiplier))
    }

    /// A commit was made.
    pub(super) fn commit(&mut self) {
        self.made = self.made.after(1, self.terms.multiplier);
    }

    /// No commit follows: the file says what was made.
    ///
    /// # Errors
    /// [`DataDirError`] when it cannot be written; it says more than was made then.
    pub(super) fn close(&mut self) -> Result<(), DataDirError> {
        if self.made == self.written { Ok(()) } else { self.write(self.made) }
    }

    pub(super) fn revealed(&self) -> Revealed {
        self.terms.revealed(self.made)
    }

    fn write(&mut self, loss: PrivacyLoss) -> Result<(), DataDirError> {
        write_atomic(&self.terms.file, written(loss).as_bytes(), 0o644)?;
        self.written = loss;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISE: (f64, f64) = (2.0, 1e-5);

    fn ledger(folder: &Path, noise: (f64, f64)) -> NoiseLedger {
        NoiseLedger::new(NoiseTerms::open(folder, noise).unwrap())
    }

    fn commit(ledger: &mut NoiseLedger, times: usize) {
        for _ in 0..times {
            ledger.reserve().unwrap();
            ledger.commit();
        }
    }

    #[test]
    fn made_accounts_are_read_as_written_or_refused() {
        let sound = written(account(r#"{"commits":3,"inverse_squares":0.75}"#).unwrap());
        dnode_mutate::check_made_inputs(&[sound], 4000, |bytes| {
            let Some(read) = str::from_utf8(bytes).ok().and_then(account) else { return };
            assert!(account(&written(read)).is_some());
        });
    }

    #[test]
    fn a_later_start_goes_on_counting_with_other_noise() {
        let folder = tempfile::tempdir().unwrap();
        let terms = NoiseTerms::open(folder.path(), NOISE).unwrap();
        assert_eq!(terms.before(), Revealed { commits: 0, epsilon: 0.0, delta: 1e-5 });
        let planned = terms.after(100);
        let mut first = NoiseLedger::new(terms);
        commit(&mut first, 100);
        assert_eq!(first.revealed(), planned);
        first.close().unwrap();
        let mut second = ledger(folder.path(), (4.0, 1e-5));
        assert_eq!(second.revealed(), planned);
        commit(&mut second, 100);
        second.close().unwrap();
        let third = NoiseTerms::open(folder.path(), NOISE).unwrap().before();
        let sum = PrivacyLoss::default().after(100, 2.0).after(100, 4.0);
        assert_eq!(third.commits, 200);
        assert!((third.epsilon - sum.epsilon(1e-5, Adjacency::Replaced)).abs() < 1e-9);
    }

    #[test]
    fn after_a_crash_no_commit_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for made in [1_usize, 63, 64, 65, 2000] {
            let before = ledger(folder.path(), NOISE).revealed().commits;
            let mut crashes = ledger(folder.path(), NOISE);
            commit(&mut crashes, made);
            let made = crashes.revealed().commits;
            drop(crashes);
            let counted = ledger(folder.path(), NOISE).revealed().commits;
            assert!((made..=made + made / 8 + 64).contains(&counted), "{before} {made} {counted}");
        }
    }

    #[test]
    fn a_commit_that_cannot_be_written_down_is_not_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = ledger(folder.path(), NOISE);
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert!(ledger.reserve().is_err());
    }

    #[test]
    fn what_is_no_account_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{}", r#"{"commits":1,"inverse_squares":-1.0}"#] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let error = NoiseTerms::open(folder.path(), NOISE).unwrap_err().to_string();
            assert!(error.contains("expected the account of commits with noise"), "{error}");
        }
    }
}
