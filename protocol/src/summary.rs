//! How a peer does, as it tells all others by way of its neighbours: for display alone.

use wincode::{SchemaRead, SchemaWrite};

use crate::limits::{DEVICE_BYTES_MAX, NAME_BYTES_MAX};
use crate::{PeerId, Phase, is_label};

/// Numbers of a [`Summary`]'s sketch.
pub const SUMMARY_SKETCH_LEN: usize = 32;
/// Entries of a [`Summary`]'s histogram: lags 0 to 7, and 8 or more.
pub const SUMMARY_LAGS: usize = 9;

/// A real number by the bits of its binary32 form; one that is not finite stands for "not known".
#[derive(Clone, Copy, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Real(pub u32);

impl Real {
    /// Not known.
    pub const UNKNOWN: Self = Self(f32::NAN.to_bits());

    /// The nearest to `value`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is the meaning")]
    pub fn new(value: f64) -> Self {
        Self((value as f32).to_bits())
    }

    /// The number, if it is known.
    #[must_use]
    pub fn get(self) -> Option<f64> {
        let value = f64::from(f32::from_bits(self.0));
        value.is_finite().then_some(value)
    }
}

/// One link of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct SummaryLink {
    /// The first eight bytes of the other end's key, read from the most significant on.
    pub to: u64,
    /// Bytes per second of late, both ways together.
    pub bytes_per_s: u32,
    /// Round-trip time, microseconds; `u32::MAX` when not known.
    pub rtt_micros: u32,
    /// Time since an exchange was last applied, milliseconds; `u32::MAX` when none was.
    pub exchange_millis: u32,
    /// What carries tensors: 0 not known, 1 shared memory, 2 TCP with TLS, 3 TCP without, 4 QUIC,
    /// 5 a stream over QUIC, 6 a stream over TCP; 256 more when through a relay, 512 more when the
    /// other end is silent.
    pub path: u32,
}

/// What a peer says it is, in words for persons.
///
/// Each text is a label ([`crate::is_label`]); an empty one says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct About {
    /// What its owner calls it, at most [`NAME_BYTES_MAX`]; several peers may have one name.
    pub name: String,
    /// Its host, at most [`NAME_BYTES_MAX`].
    pub host: String,
    /// What it computes on, at most [`DEVICE_BYTES_MAX`].
    pub device: String,
}

impl About {
    /// Whether every text is short enough and can be shown.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        is_label(&self.name, NAME_BYTES_MAX)
            && is_label(&self.host, NAME_BYTES_MAX)
            && is_label(&self.device, DEVICE_BYTES_MAX)
    }
}

/// How a peer does.
///
/// Nobody signs it, so whoever passes it on may have changed it: it is shown, and nothing is decided
/// by it.
#[derive(Clone, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Summary {
    /// Who.
    pub peer: PeerId,
    /// Which start of its process.
    pub incarnation: u64,
    /// Counts its summaries.
    pub number: u64,
    /// What it says it is.
    pub about: About,
    /// How long ago it said so, milliseconds, as far as those know who passed it on.
    pub age_millis: u32,
    /// What it is doing.
    pub phase: Phase,
    /// Exchanges that have not ended.
    pub open: u32,
    /// Part of a hash of its rack's name; 0 without one.
    pub rack: u64,
    /// Local steps.
    pub step: u64,
    /// Where it stands in the run, steps of the run.
    pub position: u64,
    /// Commits; no clock, nothing is compared with it.
    pub commits: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Mean training loss of late, nats.
    pub loss: Real,
    /// Mean loss on held-out data at its last evaluation, nats.
    pub held_out: Real,
    /// Samples per second of late.
    pub samples_per_s: Real,
    /// Seconds that its training has waited for others: at a staleness bound, or for the other ranks.
    pub wait_s: Real,
    /// Memory that its process holds, bytes; 0 when not known.
    pub memory_bytes: u64,
    /// Bytes sent since its start.
    pub sent_bytes: u64,
    /// Bytes received since its start.
    pub received_bytes: u64,
    /// Exchanges applied by clock lag, commits; the last entry counts everything above.
    pub lags: [u32; SUMMARY_LAGS],
    /// Count sketch of its slow weights.
    pub sketch: [Real; SUMMARY_SKETCH_LEN],
    /// Its links, at most [`crate::limits::SUMMARY_LINKS_MAX`].
    pub links: Vec<SummaryLink>,
}
