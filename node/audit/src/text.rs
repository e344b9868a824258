//! Values of a line that have one text each: hashes, signatures, names, short texts and rounded numbers.

use std::fmt;

use dnode_protocol::{is_label, label};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::TEXT_BYTES_MAX;

/// Largest number that a line holds; what is larger, or no number, is told as this.
const FIGURE_MAX: f64 = 1e18;
/// Smallest one that is not told as zero.
const FIGURE_MIN: f64 = 1e-12;

/// SHA-256 of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 32]);

impl Hash {
    /// What stands before the first line.
    pub const NONE: Self = Self([0; 32]);

    /// Of the bytes of a line, its end not counted.
    #[must_use]
    pub fn of(line: &[u8]) -> Self {
        Self(Sha256::digest(line).into())
    }

    /// This hash.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([u8; 64]);

impl Signature {
    /// This signature.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

/// Writes bytes as hexadecimal digits, and reads them.
macro_rules! hexadecimal {
    ($name:ident, $length:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                let bytes = bytes_of::<$length>(&text);
                bytes.map(Self).ok_or_else(|| D::Error::custom("hexadecimal digits"))
            }
        }
    };
}

hexadecimal!(Hash, 32);
hexadecimal!(Signature, 64);

/// The bytes that `text` spells in small hexadecimal digits.
fn bytes_of<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let digits = text.as_bytes();
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * LENGTH {
        return None;
    }
    let mut bytes = [0; LENGTH];
    for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks().0) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// A short text of one line, of characters that can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Text(String);

impl Text {
    /// What of `text` can be shown on one line, its end cut off.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(label(text, TEXT_BYTES_MAX))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if is_label(&text, TEXT_BYTES_MAX) {
            Ok(Self(text))
        } else {
            Err(D::Error::custom("a short text of one line"))
        }
    }
}

/// A number that is not negative, rounded to six digits: reading it back gives the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Figure(f64);

impl Figure {
    /// `number`, rounded.
    #[must_use]
    pub fn new(number: f64) -> Self {
        if number.is_nan() || number >= FIGURE_MAX {
            return Self(FIGURE_MAX);
        }
        if number < FIGURE_MIN {
            return Self(0.0);
        }
        Self(format!("{number:.5e}").parse().unwrap_or(FIGURE_MAX))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0 == 0.0
    }
}

impl<'de> Deserialize<'de> for Figure {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        f64::deserialize(from).map(Self::new)
    }
}

/// A peer by the text of its name.
pub(crate) mod peer {
    use dnode_protocol::PeerId;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(peer: &PeerId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(peer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PeerId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
