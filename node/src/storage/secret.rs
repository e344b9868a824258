//! The secret of a closed run, or that the run is open, kept in the data directory of each of its members.

use std::path::Path;

use dnode_protocol::membership::{RunSecret, Ticket};

use crate::storage::data_dir::{DataDir, DataDirError, read_private, write_atomic};

/// Name of the file in the data directory: a ticket without addresses.
pub(crate) const SECRET_FILE: &str = "secret";

/// The secret kept in `folder`; `None` where there is none.
///
/// # Errors
/// [`DataDirError`] when the file cannot be read or holds no secret. What it holds is not told.
pub(crate) fn load(folder: &Path) -> Result<Option<RunSecret>, DataDirError> {
    let path = folder.join(SECRET_FILE);
    let Some(text) = read_private(&path)? else { return Ok(None) };
    match text.parse::<Ticket>() {
        Ok(ticket) => Ok(Some(ticket.secret().clone())),
        Err(_) => Err(DataDirError::Damaged {
            path,
            found: format!("{} bytes", text.len()),
            expected: "the secret of a closed run",
        }),
    }
}

/// Keeps the secret in `dir`, in place of one from before.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn keep(dir: &DataDir, secret: &RunSecret) -> Result<(), DataDirError> {
    let text = alone(secret.clone()).to_text() + "\n";
    write_atomic(&dir.path().join(SECRET_FILE), text.as_bytes(), 0o600)
}

/// Name of the file in the data directory of a peer that began an open run, or has met a peer of one.
const OPEN_FILE: &str = "open";

/// Whether the run in `folder` is known to be open.
///
/// # Errors
/// [`DataDirError`] when the file cannot be read.
pub(crate) fn is_open(folder: &Path) -> Result<bool, DataDirError> {
    Ok(read_private(&folder.join(OPEN_FILE))?.is_some())
}

/// Keeps that the run in `folder` is open.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn keep_open(folder: &Path) -> Result<(), DataDirError> {
    if is_open(folder)? {
        return Ok(());
    }
    write_atomic(&folder.join(OPEN_FILE), b"whoever knows an address may join\n", 0o600)
}

/// A ticket with a secret and no address.
pub(crate) fn alone(secret: RunSecret) -> Ticket {
    let Ok(ticket) = Ticket::new(secret, []) else { unreachable!("no address is too long") };
    ticket
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_kept_for_its_owner_alone_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        assert_eq!(load(folder.path()).unwrap(), None);
        let secret = RunSecret::from_bytes([5; 32]);
        keep(&dir, &secret).unwrap();
        assert_eq!(load(folder.path()).unwrap(), Some(secret));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = folder.path().join(SECRET_FILE).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_damaged_secret_is_named_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(SECRET_FILE), "dnode1Vj4m").unwrap();
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("secret is damaged (10 bytes): expected the secret"), "{error}");
        assert!(!error.contains("Vj4m"), "{error}");
    }
}
