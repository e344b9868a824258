//! The attacks of the table.

use std::time::Duration;

use crate::learn::{Misbehaviour, Wrong};

/// How an attack goes to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// With numbers that are plainly wrong: it is to do next to no harm, and to be named.
    Blatant,
    /// With numbers that could be those of an honest peer: how much harm it does is measured.
    Patient,
    /// With what it says and leaves unsaid, by numbers that are right.
    Protocol,
}

impl Blow {
    /// For the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blatant => "blatant",
            Self::Patient => "patient",
            Self::Protocol => "protocol",
        }
    }
}

/// An attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name in the table and for `--attack`.
    pub name: &'static str,
    /// How it goes to work.
    pub blow: Blow,
    /// How strongly, where it is not as the name says.
    pub strength: Option<f32>,
    kind: Wrong,
    factor: f32,
    /// Whether a newcomer joins while it goes on.
    newcomer: bool,
    /// Whether the attackers are honest until they have done their last step.
    at_end: bool,
}

/// When a newcomer joins, in virtual time.
const JOINS_AT: Duration = Duration::from_secs(30);

impl Attack {
    const fn new(name: &'static str, blow: Blow, kind: Wrong, factor: f32) -> Self {
        Self { name, blow, strength: None, kind, factor, newcomer: false, at_end: false }
    }

    const fn with_newcomer(name: &'static str, kind: Wrong, factor: f32) -> Self {
        Self { newcomer: true, ..Self::new(name, Blow::Blatant, kind, factor) }
    }

    const fn at_end(name: &'static str, kind: Wrong, factor: f32) -> Self {
        Self { at_end: true, ..Self::new(name, Blow::Blatant, kind, factor) }
    }

    /// The attack with another strength ([`Misbehaviour::factor`]).
    #[must_use]
    pub const fn at(self, strength: f32) -> Self {
        Self { strength: Some(strength), factor: strength, ..self }
    }

    /// Whether it is by the weights that are shown in exchanges while all train, so that any way to average may meet it.
    #[must_use]
    pub fn is_by_weights(&self) -> bool {
        self.blow != Blow::Protocol && !self.newcomer && !self.at_end
    }

    /// Whether it begins when the attackers have done their last step.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// What is wrong with so many peers that attack in this way in a run of `steps` local steps.
    #[must_use]
    pub const fn by(&self, peers: u32, steps: u64) -> Misbehaviour {
        let joins_at = if self.newcomer { JOINS_AT } else { Duration::ZERO };
        let from_step = if self.at_end { steps } else { 0 };
        Misbehaviour { peers, joins_at, from_step, ..Misbehaviour::new(self.kind, self.factor) }
    }

    /// The same run without these peers; where they are honest until the end, with them and without their attack.
    #[must_use]
    pub const fn without(&self, peers: u32, steps: u64) -> Misbehaviour {
        if self.at_end {
            return Misbehaviour { from_step: u64::MAX, ..self.by(peers, steps) };
        }
        Misbehaviour { kind: Wrong::Absent, ..self.by(peers, steps) }
    }
}

/// All attacks, in the order of the table.
pub const ATTACKS: [Attack; 41] = {
    use Blow::{Blatant, Patient, Protocol};
    [
        Attack::new("noise-9", Blatant, Wrong::Noise, 9.0),
        Attack::new("noise-0.3", Blatant, Wrong::Noise, 0.3),
        Attack::new("noise-0.3-and-heavy", Blatant, Wrong::NoiseAndHeavy, 0.3),
        Attack::new("noise-0.1", Patient, Wrong::Noise, 0.1),
        Attack::new("scaled-1000", Blatant, Wrong::Scaled, 1000.0),
        Attack::new("scaled-2.5", Blatant, Wrong::Scaled, 2.5),
        Attack::new("sign-flip", Blatant, Wrong::Negative, 1.0),
        Attack::new("learning-rate-1000", Blatant, Wrong::LearningRate, 1000.0),
        Attack::new("drift-0.3", Blatant, Wrong::Drift, 0.3),
        Attack::new("drift-0.3-and-returns", Blatant, Wrong::DriftAndReturns, 0.3),
        Attack::new("drift-0.3-and-seldom", Patient, Wrong::DriftAndSeldom, 0.3),
        Attack::new("equivocation-0.3", Blatant, Wrong::Equivocation, 0.3),
        Attack::with_newcomer("snapshot-1000", Wrong::Snapshot, 1000.0),
        Attack::with_newcomer("snapshot-3", Wrong::Snapshot, 3.0),
        Attack::with_newcomer("snapshot-sign", Wrong::Snapshot, -1.0),
        Attack::at_end("noise-0.3-at-the-end", Wrong::Noise, 0.3),
        Attack::at_end("scaled-2.5-at-the-end", Wrong::Scaled, 2.5),
        Attack::at_end("sign-flip-at-the-end", Wrong::Negative, 1.0),
        Attack::at_end("drift-0.3-at-the-end", Wrong::Drift, 0.3),
        Attack::at_end("frozen-at-the-end", Wrong::Frozen, 1.0),
        Attack::new("frozen", Patient, Wrong::Frozen, 1.0),
        Attack::new("frozen-and-fast", Patient, Wrong::FrozenAndFast, 1.0),
        Attack::new("uphill", Patient, Wrong::Uphill, 1.0),
        Attack::new("label-flip", Patient, Wrong::Flipped, 1.0),
        Attack::new("label-shuffle", Patient, Wrong::Shuffled, 1.0),
        Attack::new("little-is-enough-1", Patient, Wrong::LittleIsEnough, 1.0),
        Attack::new("little-is-enough-2", Patient, Wrong::LittleIsEnough, 2.0),
        Attack::new("inner-product-0.5", Patient, Wrong::InnerProduct, 0.5),
        Attack::new("inner-product-2", Patient, Wrong::InnerProduct, 2.0),
        Attack::new("mimic", Patient, Wrong::Mimic, 1.0),
        Attack::new("stale-replay", Patient, Wrong::Replay, 1.0),
        Attack::new("slow-poison", Patient, Wrong::SlowPoison, 0.001),
        Attack::new("drift-0.1", Patient, Wrong::Drift, 0.1),
        Attack::new("free-rider", Patient, Wrong::Idle, 1.0),
        Attack::new("clock-8", Protocol, Wrong::Clock, 8.0),
        Attack::new("clock-60", Protocol, Wrong::Clock, 60.0),
        Attack::new("clock-1000", Protocol, Wrong::Clock, 1000.0),
        Attack::new("busy", Protocol, Wrong::Busy, 1.0),
        Attack::new("never-acknowledges", Protocol, Wrong::NeverAcknowledges, 1.0),
        Attack::new("selective-silence", Protocol, Wrong::SelectiveSilence, 1.0),
        Attack::with_newcomer("clock-60-and-newcomer", Wrong::Clock, 60.0),
    ]
};
