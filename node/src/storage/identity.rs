//! The identity of this peer: an Ed25519 key, made once and kept in the data directory.

use std::fmt;
use std::path::Path;

use dnode_protocol::PeerId;
use libp2p::identity::ed25519::{Keypair, SecretKey};

use crate::storage::data_dir::{DataDir, DataDirError, read_private, write_atomic};

/// Name of the key file in the data directory.
pub const IDENTITY_FILE: &str = "identity.key";

/// The secret key of this peer.
#[derive(Clone)]
pub struct Identity {
    secret: [u8; 32],
    peer: PeerId,
}

impl fmt::Debug for Identity {
    /// Shows the public half of the key only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.peer).finish()
    }
}

impl Identity {
    /// The identity kept in `folder`; `None` when there is none yet.
    ///
    /// # Errors
    /// [`DataDirError`] when the file cannot be read or holds no key.
    pub fn load(folder: &Path) -> Result<Option<Self>, DataDirError> {
        let path = folder.join(IDENTITY_FILE);
        let Some(text) = read_private(&path)? else {
            return Ok(None);
        };
        // What a damaged key file holds is still secret, so only its length is told.
        let secret = from_hex(text.trim()).ok_or_else(|| DataDirError::Damaged {
            path,
            found: format!("{} bytes", text.len()),
            expected: "64 hexadecimal digits",
        })?;
        Ok(Some(Self::from_secret(secret)))
    }

    /// The identity kept in `dir`, made now when there is none yet.
    ///
    /// # Errors
    /// [`DataDirError`] when the file cannot be read or written, or holds no key.
    pub fn load_or_create(dir: &DataDir) -> Result<Self, DataDirError> {
        if let Some(identity) = Self::load(dir.path())? {
            return Ok(identity);
        }
        let mut secret = [0; 32];
        secret.copy_from_slice(Keypair::generate().secret().as_ref());
        let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        write_atomic(&dir.path().join(IDENTITY_FILE), format!("{text}\n").as_bytes(), 0o600)?;
        Ok(Self::from_secret(secret))
    }

    /// The peer's name: its public key.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// The Ed25519 secret key.
    #[must_use]
    pub const fn secret_key(&self) -> &[u8; 32] {
        &self.secret
    }

    /// The Ed25519 signature of these words.
    pub(crate) fn sign(&self, words: &[u8]) -> [u8; 64] {
        let signature =
            SecretKey::try_from_bytes(self.secret).map(|key| Keypair::from(key).sign(words));
        let Some(Ok(signature)) = signature.ok().map(TryInto::try_into) else {
            unreachable!("any 32 bytes are an Ed25519 secret key, which signs with 64")
        };
        signature
    }

    fn from_secret(secret: [u8; 32]) -> Self {
        let Ok(key) = SecretKey::try_from_bytes(secret) else {
            unreachable!("any 32 bytes are an Ed25519 secret key");
        };
        let public = Keypair::from(key).public().to_bytes();
        Self { secret, peer: PeerId::from_public_key(public) }
    }
}

/// The 32 bytes that `text` spells in hexadecimal.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(text.get(2 * pair..2 * pair + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_made_once_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Identity::load(folder.path()).unwrap().is_none());
        let dir = DataDir::open(folder.path()).unwrap();
        let made = Identity::load_or_create(&dir).unwrap();
        let read = Identity::load_or_create(&dir).unwrap();
        assert_eq!((made.peer(), made.secret_key()), (read.peer(), read.secret_key()));
        assert!(made.peer().to_string().starts_with("12D3KooW"));
        let text = std::fs::read_to_string(folder.path().join(IDENTITY_FILE)).unwrap();
        assert!(!format!("{made:?}").contains(text.trim()));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = folder.path().join(IDENTITY_FILE).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let other = tempfile::tempdir().unwrap();
        let other = Identity::load_or_create(&DataDir::open(other.path()).unwrap()).unwrap();
        assert_ne!(other.peer(), made.peer());
    }

    #[test]
    fn a_known_secret_makes_the_known_peer_id() {
        // RFC 8032 §7.1, test 1.
        let secret =
            from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let public =
            from_hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a").unwrap();
        assert_eq!(Identity::from_secret(secret).peer(), PeerId::from_public_key(public));
    }

    #[test]
    fn a_damaged_key_is_named_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(IDENTITY_FILE), "c0ffee").unwrap();
        let error = Identity::load(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("identity.key is damaged (6 bytes): expected 64 hexadecimal digits"),
            "{error}"
        );
        assert!(!error.contains("c0ffee"), "{error}");
    }
}
