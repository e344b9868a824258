//! What a member of a run with owners keeps in its data directory: an owner's key, how it came in, and who
//! was removed.

use std::path::Path;

use dnode_network::InvitationUse;
use dnode_protocol::invitation::{IssuerKey, Pass, Revocation};
use dnode_protocol::limits::REVOCATIONS_MAX;

use crate::storage::data_dir::{DataDirError, read_private, wait_for_lock, write_atomic};

/// Name of the file with the owners of the run and the chain of this peer.
pub(crate) const PASS_FILE: &str = "invitation";
/// Name of the file with an owner's key.
pub(crate) const OWNER_FILE: &str = "owner.key";
/// Name of the file with all revocations that the running peer knows.
pub(crate) const REVOCATIONS_FILE: &str = "revocations";
/// Name of the file with those that `dnode revoke` has made in this data directory; the running peer
/// looks at it once a second.
pub(crate) const OWN_REVOCATIONS_FILE: &str = "revocations.own";
/// Name of the file with the uses of invitations that the running peer has counted.
pub(crate) const USES_FILE: &str = "uses";
/// Name of the file that `dnode revoke` locks while it adds to these.
const REVOCATIONS_LOCK: &str = "revocations.lock";

/// The owners of the run and the chain of this peer; `None` where the run has no owners.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn load(folder: &Path) -> Result<Option<Pass>, DataDirError> {
    let expected = "the invitation of a member";
    from_file(folder, PASS_FILE, expected, |bytes| Pass::from_bytes(&bytes))
}

/// Keeps it.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn keep(folder: &Path, pass: &Pass) -> Result<(), DataDirError> {
    to_file(folder, PASS_FILE, &pass.to_bytes())
}

/// Forgets it: this peer takes part in another run now.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn forget(folder: &Path) -> Result<(), DataDirError> {
    for name in [PASS_FILE, REVOCATIONS_FILE, OWN_REVOCATIONS_FILE, USES_FILE] {
        let path = folder.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(crate::storage::data_dir::io_error("delete", &path)(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The owner's key; `None` where this is no owner's data directory.
///
/// # Errors
/// [`DataDirError`]. What the file holds is not told.
pub(crate) fn owner(folder: &Path) -> Result<Option<IssuerKey>, DataDirError> {
    from_file(folder, OWNER_FILE, "the key of an owner", |bytes| {
        Some(IssuerKey::from_seed(&bytes.try_into().ok()?))
    })
}

/// Keeps an owner's key.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn keep_owner(folder: &Path, key: &IssuerKey) -> Result<(), DataDirError> {
    to_file(folder, OWNER_FILE, &key.seed())
}

/// The revocations in one of the files of this directory; none where there is no such file.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn revocations(folder: &Path, name: &str) -> Result<Vec<Revocation>, DataDirError> {
    let read = from_file(folder, name, "revocations", |bytes| Revocation::from_bytes(&bytes))?;
    Ok(read.unwrap_or_default())
}

/// The uses of invitations that were counted here; none where there is no such file.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn uses(folder: &Path) -> Result<Vec<InvitationUse>, DataDirError> {
    let expected = "uses of invitations";
    let read = from_file(folder, USES_FILE, expected, |bytes| InvitationUse::from_bytes(&bytes))?;
    Ok(read.unwrap_or_default())
}

/// Keeps revocations or uses of invitations, as bytes.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn keep_known(folder: &Path, name: &str, known: &[u8]) -> Result<(), DataDirError> {
    to_file(folder, name, known)
}

/// Adds a revocation to those that were made in this data directory; one of the same issuer about the
/// same target goes. Of several processes that do so at once, each waits for the one before it. Returns
/// whether there was room.
///
/// # Errors
/// [`DataDirError`].
pub(crate) fn add_revocation(folder: &Path, statement: Revocation) -> Result<bool, DataDirError> {
    let _lock = wait_for_lock(&folder.join(REVOCATIONS_LOCK))?;
    let mut own = revocations(folder, OWN_REVOCATIONS_FILE)?;
    own.retain(|kept| (kept.issuer(), kept.target()) != (statement.issuer(), statement.target()));
    if own.len() >= REVOCATIONS_MAX {
        return Ok(false);
    }
    own.push(statement);
    keep_known(folder, OWN_REVOCATIONS_FILE, &Revocation::to_bytes(&own))?;
    Ok(true)
}

fn to_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), DataDirError> {
    let mut text = String::with_capacity(2 * bytes.len() + 1);
    for byte in bytes {
        text.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
    }
    text.push('\n');
    write_atomic(&folder.join(name), text.as_bytes(), 0o600)
}

const DIGITS: [u8; 16] = *b"0123456789abcdef";

fn from_file<T>(
    folder: &Path,
    name: &str,
    expected: &'static str,
    read: impl FnOnce(Vec<u8>) -> Option<T>,
) -> Result<Option<T>, DataDirError> {
    let path = folder.join(name);
    let Some(text) = read_private(&path)? else { return Ok(None) };
    let found = format!("{} bytes", text.len());
    match bytes(text.trim()).and_then(read) {
        Some(value) => Ok(Some(value)),
        None => Err(DataDirError::Damaged { path, found, expected }),
    }
}

/// The bytes that `text` spells in hexadecimal.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let (pairs, rest) = text.as_bytes().as_chunks();
    let pair = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::invitation::{Chain, Target};

    use super::*;

    #[test]
    fn what_a_member_keeps_is_private_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert!(load(at).unwrap().is_none() && owner(at).unwrap().is_none());
        assert!(revocations(at, REVOCATIONS_FILE).unwrap().is_empty());
        let key = IssuerKey::from_seed(&[7; 32]);
        let pass = Pass::new(vec![key.peer()], Chain::default()).unwrap();
        let statement = Revocation::sign(&key, Target::Number(5), 9, Chain::default());
        keep(at, &pass).unwrap();
        keep_owner(at, &key).unwrap();
        keep_known(at, REVOCATIONS_FILE, &Revocation::to_bytes([&statement])).unwrap();
        assert_eq!((load(at).unwrap(), owner(at).unwrap()), (Some(pass), Some(key)));
        assert_eq!(revocations(at, REVOCATIONS_FILE).unwrap(), [statement]);
        #[cfg(unix)]
        for name in [PASS_FILE, OWNER_FILE, REVOCATIONS_FILE] {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = at.join(name).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        std::fs::write(at.join(OWNER_FILE), "0707\n").unwrap();
        let error = owner(at).unwrap_err().to_string();
        assert!(error.contains("owner.key is damaged (5 bytes): expected the key"), "{error}");
        forget(at).unwrap();
        forget(at).unwrap();
        assert!(load(at).unwrap().is_none());
    }

    #[test]
    fn revocations_that_are_made_at_once_are_all_kept() {
        const WRITERS: u8 = 4;
        const EACH: u64 = 8;
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    let key = IssuerKey::from_seed(&[writer; 32]);
                    for number in 0..EACH {
                        let target = Target::Number(number);
                        let statement = Revocation::sign(&key, target, 9, Chain::default());
                        assert!(add_revocation(at, statement).unwrap());
                    }
                });
            }
            // The peer meanwhile keeps what it hears, in a file of nearly the same name.
            scope.spawn(move || {
                for _ in 0..32 {
                    keep_known(at, REVOCATIONS_FILE, &[]).unwrap();
                    assert!(revocations(at, REVOCATIONS_FILE).unwrap().is_empty());
                }
            });
        });
        let own = revocations(at, OWN_REVOCATIONS_FILE).unwrap();
        assert_eq!(own.len() as u64, u64::from(WRITERS) * EACH);
        let again = own[0].clone();
        assert!(add_revocation(at, again).unwrap());
        let own = revocations(at, OWN_REVOCATIONS_FILE).unwrap();
        assert_eq!(own.len() as u64, u64::from(WRITERS) * EACH, "the same one takes no room");
    }
}
