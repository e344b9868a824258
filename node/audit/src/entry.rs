//! What a line says: the closed list of what is recorded of a run.

use dnode_protocol::PeerId;
use serde::{Deserialize, Serialize};

use crate::text::peer;
use crate::{Account, Figure, Hash, RANGES_MAX, Signature, Text};

/// What a line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Entry {
    /// First line of each file: whose log it is.
    File(FileHead),
    /// What was known of a peer when the file began.
    Carried(Carried),
    /// The process opened a log that was there.
    Opened(Opened),
    /// The process begins to take part in a run.
    Start(Start),
    /// Values that the peers of the run compare.
    Agreed(Agreed),
    /// A peer was let in.
    Joined(Joined),
    /// A peer says what it is called.
    Named(Named),
    /// A peer is no longer connected.
    Left(Left),
    /// Numbers of a peer have moved this one's weights.
    Contributed(Contributed),
    /// How far this peer's own training is.
    Trained(Trained),
    /// The guard has changed its mind about a peer.
    Judged(Judged),
    /// A peer broke the rules.
    Offended(Offended),
    /// A peer was refused, or has refused this one.
    Denied(Denied),
    /// Somebody was removed from the run. Since form 2.
    Revoked(Revoked),
    /// This peer itself is no member any more. Since form 2.
    Expelled(Expelled),
    /// Settings of this peer alone that say whom it trusts. Since form 2.
    Local(Local),
    /// A fragment was replaced by a snapshot.
    Snapshot(Snapshot),
    /// This peer averages gradients with others in every step.
    Group(Group),
    /// What happened was not all written.
    Lost(Lost),
    /// Signs all lines before.
    Seal(Seal),
    /// The process ends in order.
    End(End),
}

impl Entry {
    /// The oldest form that has such a line.
    pub(crate) const fn form(&self) -> u32 {
        match self {
            Self::Revoked(_) | Self::Expelled(_) | Self::Local(_) => 2,
            Self::Joined(Joined { by: Some(_), .. } | Joined { way: Way::Invitation, .. }) => 2,
            Self::Carried(Carried { account, .. }) => match account {
                Account { by: Some(_), .. } | Account { way: Some(Way::Invitation), .. } => 2,
                Account { .. } => 1,
            },
            Self::File(_)
            | Self::Opened(_)
            | Self::Start(_)
            | Self::Agreed(_)
            | Self::Joined(_)
            | Self::Named(_)
            | Self::Left(_)
            | Self::Contributed(_)
            | Self::Trained(_)
            | Self::Judged(_)
            | Self::Offended(_)
            | Self::Denied(_)
            | Self::Snapshot(_)
            | Self::Group(_)
            | Self::Lost(_)
            | Self::Seal(_)
            | Self::End(_) => 1,
        }
    }
}

/// First line of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileHead {
    /// [`crate::FORMAT`].
    pub format: u32,
    /// From 1.
    pub file: u64,
    /// Who writes it, and whose key seals it.
    #[serde(with = "peer")]
    pub peer: PeerId,
}

/// What was known of a peer when a file began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// The peer; without one: all for which there was no place.
    #[serde(with = "maybe_peer", default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerId>,
    /// What was known of it.
    #[serde(flatten)]
    pub account: Account,
}

/// The process opened a log that was there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Lines at its end that no seal covers: from here on this peer vouches for them.
    pub unsigned: u64,
    /// Bytes of an unfinished line that were cut off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut: u64,
    /// The line of the file before, from 1, from which on it is not sound.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsound: u64,
}

/// The process begins to take part in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Of the program.
    pub version: Text,
    /// Which start in this data directory.
    pub incarnation: u64,
    /// Whether it goes on from a checkpoint.
    pub resumed: bool,
    /// Whether only members are let in.
    pub closed: bool,
    /// Local steps done before.
    pub step: u64,
    /// Samples trained on before.
    pub samples: u64,
    /// Commits before.
    pub clock: u64,
}

/// Values that the peers of the run compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// Whether they name the run. Else another value is legal within a tolerance.
    pub names_run: bool,
    /// Hash of all of them; where they name the run, its whole name.
    pub digest: Hash,
    /// Names and values.
    pub fields: Vec<(Text, Text)>,
}

/// How a peer was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// It has proved that it knows the secret of the run.
    Secret,
    /// The run is open.
    Open,
    /// It has shown an invitation, in a run with owners. Since form 2.
    Invitation,
}

impl Way {
    /// For a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Open => "open",
            Self::Invitation => "invitation",
        }
    }
}

/// By which invitation a peer came into a run with owners: the first of its chain, which an owner has
/// issued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invited {
    /// Who issued it.
    #[serde(with = "peer")]
    pub issuer: PeerId,
    /// Its number, as `dnode revoke` takes it.
    pub number: Text,
    /// How many machines may come by it; 0 is no bound.
    pub uses: u64,
    /// What the peer may do.
    pub role: Text,
}

/// A peer was let in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Joined {
    /// The peer, which has proved that it has this name's key.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// How.
    pub way: Way,
    /// The number of its process.
    pub incarnation: u64,
    /// Where it is.
    pub address: Text,
    /// By which invitation, in a run with owners. Since form 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Invited>,
}

/// A peer says what it is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// The peer.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// Its name.
    pub name: Text,
}

/// A peer is no longer connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Left {
    /// The peer.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// Why.
    pub reason: Text,
}

/// What a neighbour has moved in some time; sums of all that happened since the last such line of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contributed {
    /// The peer.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// Samples that it says it has trained on.
    pub samples: u64,
    /// Own clock at the first and the last one.
    pub clock: (u64, u64),
    /// How many were mixed.
    pub count: u64,
    /// Into which fragments: first ones and lengths of ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fragments: Vec<(u32, u32)>,
    /// Mean mixing weight.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub weight: Figure,
    /// Mean norm of the differences.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub norm: Figure,
    /// Largest one.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub norm_max: Figure,
    /// Sum of weight times norm, as far as differences were mixed: how far they moved the weights at
    /// most.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub moved: Figure,
    /// How many were shortened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shortened: u64,
    /// How many were taken back; they count no more in `count` and `moved`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undone: u64,
    /// How many were refused, because they are too far away or no sound numbers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Largest norm of a difference that was refused, where it is known.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub refused_max: Figure,
}

impl Contributed {
    /// These fragments as ranges, at most [`RANGES_MAX`] of them. `fragments` go up.
    #[must_use]
    pub fn ranges(fragments: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for fragment in fragments {
            let full = ranges.len() == RANGES_MAX;
            match ranges.last_mut() {
                Some((first, length)) if full || first.checked_add(*length) == Some(fragment) => {
                    *length = fragment.saturating_sub(*first).saturating_add(1);
                }
                _ => ranges.push((fragment, 1)),
            }
        }
        ranges
    }
}

/// How far this peer's own training is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// Local steps.
    pub step: u64,
    /// Samples.
    pub samples: u64,
    /// Commits.
    pub clock: u64,
}

/// How much a peer's numbers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// As anybody's.
    #[default]
    Trusted,
    /// It is met seldom.
    WeighedDown,
    /// It is not met.
    LeftOut,
}

impl Trust {
    pub(crate) fn is_trusted(&self) -> bool {
        *self == Self::Trusted
    }

    /// For a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::WeighedDown => "weighed-down",
            Self::LeftOut => "left-out",
        }
    }
}

/// The guard has changed its mind about a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The peer.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// How much its numbers count from now on.
    pub trust: Trust,
    /// Why, in words.
    pub why: Text,
    /// Length of the difference, multiple of the own weights, or of the differences with others where
    /// `most` is missing.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub length: Figure,
    /// What was let in, multiple of the own weights.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub most: Figure,
}

/// A peer broke the rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offended {
    /// The peer.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// How.
    pub what: Text,
}

/// A peer was refused, or has refused this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Denied {
    /// The peer.
    #[serde(with = "peer")]
    pub peer: PeerId,
    /// Whether this peer refused.
    pub by_us: bool,
    /// In what the two differ.
    pub field: Text,
    /// This peer's value.
    pub ours: Text,
    /// The other's.
    pub theirs: Text,
}

/// Somebody was removed from the run, by a statement that counts here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revoked {
    /// Who has signed it.
    #[serde(with = "peer")]
    pub issuer: PeerId,
    /// Who was removed; without one: all who came by an invitation.
    #[serde(with = "maybe_peer", default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerId>,
    /// The number of that invitation.
    #[serde(default, skip_serializing_if = "Text::is_empty")]
    pub invitation: Text,
    /// Until when the statement counts, seconds since 1970.
    pub until_s: u64,
}

/// This peer is no member any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expelled {
    /// Why.
    pub why: Text,
}

/// Settings of this peer alone, that others do not compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Local {
    /// Names and values.
    pub fields: Vec<(Text, Text)>,
}

/// A fragment was replaced by a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Who gave it; this peer itself where it was kept from an earlier start.
    #[serde(with = "peer")]
    pub donor: PeerId,
    /// The fragment.
    pub fragment: u32,
    /// The donor's clock when it read it.
    pub clock: u64,
    /// Of its bytes: blake3, as docs/protocol.md says.
    pub content: Hash,
}

/// This peer averages gradients with others in every step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// How many there are, this peer included; 1: it trains alone again.
    pub size: u32,
    /// Its place among them.
    pub rank: u32,
}

/// What happened was not all written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// Lines for which the queue had no room.
    pub lines: u64,
}

/// Signs all lines before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seal {
    /// Of hash of the line before, number and time of this one.
    pub signature: Signature,
}

/// The process ends in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Why.
    pub reason: Text,
    /// Local steps.
    pub step: u64,
    /// Samples.
    pub samples: u64,
    /// Commits.
    pub clock: u64,
}

pub(crate) const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A peer that may be missing.
mod maybe_peer {
    use dnode_protocol::PeerId;
    use serde::{Deserializer, Serializer};

    use crate::text::peer;

    pub(super) fn serialize<S: Serializer>(of: &Option<PeerId>, to: S) -> Result<S::Ok, S::Error> {
        match of {
            Some(of) => peer::serialize(of, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PeerId>, D::Error> {
        peer::deserialize(from).map(Some)
    }
}
