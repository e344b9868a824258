//! What a replica needs to continue as if it had never stopped.

use std::borrow::Cow;
use std::ops::Range;

use dnode_protocol::{FragmentId, Fragments, ParameterLayout};

use super::{Replica, ReplicaLock};
use crate::trainer_state::TrainerState;

/// Everything a replica needs to continue.
///
/// Not kept: clipping radii and distances of exchanges, which are learnt again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaState {
    /// The replica's weights, `[P]`: φ, or x without an outer step. Behind them the first moments,
    /// `[P]`, where they are exchanged.
    pub parameters: Vec<f32>,
    /// What the outer step adds; `None` without one.
    pub outer: Option<OuterState>,
    /// What delta-set adds; `None` for other mixers.
    pub fixed: Option<FixedState>,
    /// The trainer's private state.
    pub trainer: TrainerState<'static>,
}

/// The state that an outer step adds to a replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OuterState {
    /// Live weights x, `[P]`.
    pub live: Vec<f32>,
    /// Outer momentum v, `[P]`.
    pub momentum: Vec<f32>,
}

/// The integers behind a replica of delta-set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FixedState {
    /// Accumulators A in units of 2⁻³², `[P]`.
    pub accumulators: Vec<i64>,
    /// With feedback: what its code has not sent yet, `[P]`; else empty.
    pub residual: Vec<f32>,
}

/// A replica at one moment: nothing is mixed while it is held.
#[derive(Debug)]
pub struct Held<'r, 't> {
    replica: &'r Replica,
    lock: ReplicaLock<'t>,
}

impl<'r, 't> Held<'r, 't> {
    pub(super) const fn new(replica: &'r Replica, lock: ReplicaLock<'t>) -> Self {
        Self { replica, lock }
    }

    pub(super) fn into_turn(self) -> ReplicaLock<'t> {
        self.lock
    }

    /// A copy of all of it.
    #[must_use]
    pub fn to_copy(&self) -> ReplicaCopy {
        let (layout, fragments) = (self.layout().clone(), self.fragments());
        ReplicaCopy { state: self.copy(), layout, fragments }
    }

    /// Everything needed to continue.
    pub(super) fn copy(&self) -> ReplicaState {
        let outer = self.momentum().map(|momentum| {
            let mut live = vec![0.0; momentum.len()];
            self.live(0..live.len(), &mut live);
            OuterState { live, momentum: momentum.into_owned() }
        });
        let fixed = self.fixed().map(|(accumulators, residual)| FixedState {
            accumulators: accumulators.to_vec(),
            residual: residual.to_vec(),
        });
        ReplicaState {
            parameters: self.values(),
            outer,
            fixed,
            trainer: self.trainer_state().into_owned(),
        }
    }

    /// Reads the replica's weights of `range`.
    pub(crate) fn weights(&self, range: Range<usize>, out: &mut [f32]) {
        if !self.lock.store.weights(range.clone(), out) {
            self.live(range, out);
        }
    }

    /// All that is exchanged: the replica's weights, `[P]`, and moments, `[P]`, where they are.
    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.fragments().elements()];
        self.weights(0..values.len(), &mut values);
        values
    }

    /// Reads the live weights x of `range`, with the displacements that they have yet to make and
    /// without what they are ahead of a sum of contributions.
    pub(crate) fn live(&self, range: Range<usize>, out: &mut [f32]) {
        self.replica.live.read(range.clone(), out);
        self.replica.shared.pending().overlay(&self.replica.shared, &range, out);
        if let Some(state) = self.lock.store.delta_set() {
            state.subtract_lead(range, out);
        }
    }

    /// The outer momentum v, `[P]`; `None` without an outer step.
    pub(crate) fn momentum(&self) -> Option<Cow<'_, [f32]>> {
        self.lock.store.momentum()
    }

    /// Accumulators and residual of [`FixedState`]; `None` for mixers without.
    pub(crate) fn fixed(&self) -> Option<(&[i64], &[f32])> {
        self.lock.store.fixed()
    }

    /// Whether the replica is a sum of contributions (delta-set), of which a checkpoint must say which.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        self.fixed().is_some()
    }

    /// The partition of the parameters.
    pub(crate) const fn fragments(&self) -> Fragments {
        self.replica.fragments()
    }

    /// The trainer's private state.
    pub(crate) fn trainer_state(&self) -> TrainerState<'_> {
        self.replica.live.save()
    }

    /// Names, shapes and offsets of the parameters.
    pub(crate) fn layout(&self) -> &ParameterLayout {
        self.replica.layout()
    }
}

/// A replica at one moment, copied: what a checkpoint can be written of while the replica goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaCopy {
    state: ReplicaState,
    layout: ParameterLayout,
    fragments: Fragments,
}

impl ReplicaCopy {
    /// For [`Replica::restore`].
    #[must_use]
    pub const fn state(&self) -> &ReplicaState {
        &self.state
    }
}

/// What a checkpoint is written of.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The replica itself.
    Held(&'a Held<'a, 'a>),
    /// A copy of it.
    Copy(&'a ReplicaCopy),
}

impl<'a> Source<'a> {
    /// As [`Held::weights`].
    pub(crate) fn weights(self, range: Range<usize>, out: &mut [f32]) {
        match self {
            Self::Held(held) => held.weights(range, out),
            Self::Copy(copy) => out.copy_from_slice(&copy.state.parameters[range]),
        }
    }

    /// As [`Held::live`].
    pub(crate) fn live(self, range: Range<usize>, out: &mut [f32]) {
        match self {
            Self::Held(held) => held.live(range, out),
            Self::Copy(ReplicaCopy { state, .. }) => {
                let live = state.outer.as_ref().map_or(&state.parameters, |outer| &outer.live);
                out.copy_from_slice(&live[range]);
            }
        }
    }

    /// As [`Held::momentum`].
    pub(crate) fn momentum(self) -> Option<Cow<'a, [f32]>> {
        match self {
            Self::Held(held) => held.momentum(),
            Self::Copy(copy) => {
                copy.state.outer.as_ref().map(|outer| Cow::Borrowed(&*outer.momentum))
            }
        }
    }

    /// As [`Held::fixed`].
    pub(crate) fn fixed(self) -> Option<(&'a [i64], &'a [f32])> {
        match self {
            Self::Held(held) => held.fixed(),
            Self::Copy(copy) => {
                let fixed = copy.state.fixed.as_ref();
                fixed.map(|fixed| (&*fixed.accumulators, &*fixed.residual))
            }
        }
    }

    /// As [`Held::is_sum`].
    pub(crate) fn is_sum(self) -> bool {
        self.fixed().is_some()
    }

    /// The partition of the parameters.
    pub(crate) const fn fragments(self) -> Fragments {
        match self {
            Self::Held(held) => held.fragments(),
            Self::Copy(copy) => copy.fragments,
        }
    }

    /// The trainer's private state.
    pub(crate) fn trainer_state(self) -> TrainerState<'a> {
        match self {
            Self::Held(held) => held.trainer_state(),
            Self::Copy(copy) => copy.state.trainer.lend(),
        }
    }

    /// Names, shapes and offsets of the parameters.
    pub(crate) fn layout(self) -> &'a ParameterLayout {
        match self {
            Self::Held(held) => held.layout(),
            Self::Copy(copy) => &copy.layout,
        }
    }
}

impl Replica {
    /// Keeps mixing from changing the replica as long as what is returned lives.
    #[must_use]
    pub fn hold(&self) -> Held<'_, '_> {
        Held { replica: self, lock: self.shared.lock() }
    }

    /// BLAKE3 of a fragment: of delta-set's accumulators, else of the weights; little-endian.
    ///
    /// # Panics
    /// When the model has no such fragment.
    #[must_use]
    pub fn hash(&self, fragment: FragmentId) -> [u8; 32] {
        let range = self.fragments.range(fragment).expect("only fragments of the model are hashed");
        let held = self.hold();
        let mut hasher = blake3::Hasher::new();
        if let Some(state) = held.lock.store.delta_set() {
            for accumulator in &state.state().0[range] {
                hasher.update(&accumulator.to_le_bytes());
            }
        } else {
            let mut values = vec![0.0; range.len()];
            held.weights(range, &mut values);
            for value in values {
                hasher.update(&value.to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// Everything needed to continue, copied.
    #[must_use]
    pub fn save(&self) -> ReplicaState {
        self.hold().copy()
    }
}
