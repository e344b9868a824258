//! What a replica is made of, and what that takes.

use std::time::Duration;

use dnode_protocol::Fragments;

use crate::mixer::Mixer;
use crate::outer::OuterStep;
use crate::privacy::CommitNoise;
use crate::room::RoomFile;

/// Largest model of which training shows all at once: 256 MiB.
const SHOWN_ELEMENTS_MAX: usize = 1 << 26;
/// Part of a local step that it may take to show all live weights to mixing.
const SHOW_SHARE: f64 = 0.02;
/// Parameters copied in a second, at least (guess: memory of any machine that trains is faster).
const COPY_RATE: f64 = 1e9;

/// What a replica is made of, beside its trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaConfig {
    /// How it meets others.
    pub mixer: Mixer,
    /// What a commit does with the progress of its local steps.
    ///
    /// `None`: the weights are x itself and commits do nothing; delta-set, which has slow weights
    /// always, then takes progress as it is (`α = 1`, `β = 0`).
    pub outer: Option<OuterStep>,
    /// The partition of the parameters.
    pub fragments: Fragments,
    /// Clipping radius of exchanges, multiple of the running average of `‖d‖`; `None`: no clipping.
    pub clip: Option<f32>,
}

/// What a replica has beside its trainer and its configuration.
#[derive(Debug, Default)]
pub struct Beside {
    /// What is done to the progress of each commit before anything is made of it that others may get. The
    /// weights are kept in host memory then.
    pub noise: Option<CommitNoise>,
    /// Where slow weights, their momentum and sums of contributions lie, if not in memory.
    pub file: Option<RoomFile>,
}

impl ReplicaConfig {
    /// What commits do. Delta-set has slow weights always.
    pub(crate) fn outer_step(&self) -> Option<OuterStep> {
        match self.mixer {
            Mixer::DeltaSet { .. } => {
                Some(self.outer.unwrap_or(OuterStep { learning_rate: 1.0, momentum: 0.0 }))
            }
            Mixer::None | Mixer::Exchange => self.outer,
        }
    }

    /// Bytes that a replica keeps in host memory for meeting others, beside its trainer and a
    /// [`RoomFile`], where it has one.
    pub(crate) fn mixing_bytes(&self, in_file: bool) -> u64 {
        let parameters = self.fragments.parameters() as u64;
        let slow = if self.outer_step().is_some() { 8 } else { 0 };
        let (sums, other) = match self.mixer {
            Mixer::None | Mixer::Exchange => (0, 0),
            // Accumulators; the lead, and what codes have left out.
            Mixer::DeltaSet { feedback, .. } => (8, if feedback { 8 } else { 4 }),
        };
        let in_memory = if in_file { other } else { slow + sums + other };
        let elements = self.shown_elements();
        let shown = if elements <= SHOWN_ELEMENTS_MAX { 4 * elements as u64 } else { 0 };
        in_memory * parameters + shown
    }

    /// Live weights, and moments, that mixing reads; 0 where it reads none.
    pub(super) fn shown_elements(&self) -> usize {
        let reads = self.mixer != Mixer::None && self.outer_step().is_none();
        if reads { self.fragments.elements() } else { 0 }
    }

    /// The shortest local step after which training shows to mixing all that is exchanged, because the copy
    /// takes at most 2 % of the step; exchanges then wait for the end of no step. Zero where they never do,
    /// `None` where there is too much to show.
    #[must_use]
    pub fn shown_from(&self) -> Option<Duration> {
        let elements = self.shown_elements();
        let seconds = elements as f64 / (COPY_RATE * SHOW_SHARE);
        (elements <= SHOWN_ELEMENTS_MAX).then(|| Duration::from_secs_f64(seconds))
    }
}
