//! The types of values: words that a key chooses from, and how codecs and durations are written.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How replicas are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Outer steps with momentum at the origin, pairwise averaging of fragments between them.
    GossipOuter,
    /// Pairwise averaging of the live weights.
    Pairwise,
    /// Every contribution reaches everybody; a replica is the sum of those it contains.
    DeltaSet,
    /// Synchronous ring all-reduce: of the gradients, or with several local steps per commit of
    /// their progress.
    AllReduce,
    /// No averaging.
    None,
}

/// What a slow peer does less of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Local steps per commit.
    Steps,
    /// Samples per local step.
    Batch,
    /// Nothing.
    Off,
}

/// Whether NATs are traversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nat {
    /// By relays and punched holes, where needed.
    Auto,
    /// Never.
    Off,
}

/// When this peer relays for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relay {
    /// When others can dial it.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Which direct paths tensors may take inside a host and local networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direct {
    /// Shared memory with processes of the same user, TCP under TLS with near addresses.
    Auto,
    /// The same, and TCP in plain after the proof of identity, where the other peer says so too.
    Trusted,
    /// None.
    Off,
}

/// What carries the operations of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// The fastest that all ranks have.
    Auto,
    /// Shared memory inside a host.
    Shm,
    /// Direct paths.
    Tcp,
    /// UCX.
    Ucx,
    /// NCCL.
    Nccl,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for persons.
    Human,
    /// One JSON object per line.
    Json,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The embedded engine where it can do what is asked, else libtorch.
    Auto,
    /// The embedded engine.
    Embedded,
    /// libtorch.
    Libtorch,
}

/// A part of a whole, in `(0, 1]`; in text as a percentage such as `50%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let share =
            percent.map(|percent| percent / 100.0).filter(|share| *share > 0.0 && *share <= 1.0);
        share.map(Self).ok_or("a share such as \"50%\", more than 0% and at most 100%")
    }
}

/// What exchanges may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// This part of the time of the link.
    Link(Share),
    /// So many bytes sent per local step.
    BytesPerStep(u64),
}

/// Budgets: a share in text, or a number of bytes.
pub(super) mod budget {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::{Budget, Share};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Share(String),
        Bytes(u64),
    }

    pub(in crate::config) fn serialize<S: Serializer>(
        value: &Budget,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Budget::Link(Share(share)) => to.collect_str(&format_args!("{}%", share * 100.0)),
            Budget::BytesPerStep(bytes) => to.serialize_u64(*bytes),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Budget, D::Error> {
        match Written::deserialize(from)? {
            Written::Share(text) => text.parse().map(Budget::Link).map_err(de::Error::custom),
            Written::Bytes(bytes) => Ok(Budget::BytesPerStep(bytes)),
        }
    }
}

/// Numbers, or the word `auto` for `None`.
pub(super) mod number_or_auto {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Word(String),
        Number(u64),
    }

    pub(in crate::config) fn serialize<S: Serializer>(
        value: &Option<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(number) => to.serialize_u64(*number),
            None => to.serialize_str("auto"),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<u64>, D::Error> {
        match Written::deserialize(from)? {
            Written::Word(word) if word == "auto" => Ok(None),
            Written::Word(word) => Err(de::Error::custom(format!("{word} is not \"auto\""))),
            Written::Number(number) => Ok(Some(number)),
        }
    }
}

/// Codecs by their names.
pub(super) mod codec_names {
    use dnode_protocol::frame::Codec;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in crate::config) fn serialize<S: Serializer>(
        codecs: &[Codec],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(codecs.iter().map(|codec| codec.name()))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Codec>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect()
    }
}

/// Durations as text such as `10s`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in crate::config) fn serialize<S: Serializer>(
        value: &Duration,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Duration, D::Error> {
        humantime::parse_duration(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// Durations as text such as `10s`, or the word `auto` for `None`.
pub(super) mod duration_or_auto {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    const AUTO: &str = "auto";

    pub(in crate::config) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(&humantime::format_duration(*value)),
            None => to.serialize_str(AUTO),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(from)?;
        if text == AUTO {
            return Ok(None);
        }
        humantime::parse_duration(&text).map(Some).map_err(de::Error::custom)
    }
}
