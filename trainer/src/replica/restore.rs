//! Putting back what a replica was, from memory or from a disk, without a second copy of it.

use super::store::{HostStore, Store};
use super::{Replica, ReplicaLock, ReplicaState};
use crate::mix::norm;
use crate::mixer::{MixerState, read_accumulators};
use crate::seam::TrainError;
use crate::trainer_state::TrainerState;
use crate::weights::{CHUNK, chunks};

/// A vector of a saved replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The replica's weights, `[P]`, and moments, `[P]`, where they are exchanged.
    Parameters,
    /// x, `[P]`.
    Live,
    /// v, `[P]`.
    Momentum,
    /// As of [`FixedState`](super::FixedState).
    Residual,
}

/// How long the vectors of a saved replica are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Of [`Part::Parameters`].
    pub(crate) parameters: usize,
    /// Live weights and outer momentum.
    pub(crate) outer: Option<(usize, usize)>,
    /// Accumulators and residual.
    pub(crate) fixed: Option<(usize, usize)>,
}

/// What a replica was, wherever that is kept.
///
/// Ranges are within the lengths. An error is of what keeps it.
pub(crate) trait SavedReplica {
    /// What there is.
    fn lengths(&self) -> Lengths;

    /// Reads the elements of `part` from `start` on.
    fn read(&mut self, part: Part, start: usize, out: &mut [f32]) -> Result<(), TrainError>;

    /// Reads the accumulators from `start` on.
    fn accumulators(&mut self, start: usize, out: &mut [i64]) -> Result<(), TrainError>;

    /// The trainer's private state.
    fn trainer(&mut self) -> Result<TrainerState<'_>, TrainError>;
}

impl SavedReplica for &ReplicaState {
    fn lengths(&self) -> Lengths {
        let outer = self.outer.as_ref().map(|outer| (outer.live.len(), outer.momentum.len()));
        let fixed = self.fixed.as_ref();
        let fixed = fixed.map(|fixed| (fixed.accumulators.len(), fixed.residual.len()));
        Lengths { parameters: self.parameters.len(), outer, fixed }
    }

    fn read(&mut self, part: Part, start: usize, out: &mut [f32]) -> Result<(), TrainError> {
        let values = match part {
            Part::Parameters => Some(&self.parameters),
            Part::Live => self.outer.as_ref().map(|outer| &outer.live),
            Part::Momentum => self.outer.as_ref().map(|outer| &outer.momentum),
            Part::Residual => self.fixed.as_ref().map(|fixed| &fixed.residual),
        };
        let values = values.map_or(&[][..], Vec::as_slice);
        out.copy_from_slice(&values[start..start + out.len()]);
        Ok(())
    }

    fn accumulators(&mut self, start: usize, out: &mut [i64]) -> Result<(), TrainError> {
        let values = self.fixed.as_ref().map_or(&[][..], |fixed| &fixed.accumulators);
        out.copy_from_slice(&values[start..start + out.len()]);
        Ok(())
    }

    fn trainer(&mut self) -> Result<TrainerState<'_>, TrainError> {
        Ok(self.trainer.lend())
    }
}

impl Replica {
    /// Puts back what [`Self::save`] returned.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit or is not finite; nothing is changed then.
    pub fn restore(&mut self, state: &ReplicaState) -> Result<(), TrainError> {
        let shared = self.shared.clone();
        self.restore_in(&mut shared.lock(), state)
    }

    /// As [`Self::restore`], under a lock that the caller goes on to hold.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit or is not finite; nothing is changed then.
    pub fn restore_in(
        &mut self,
        lock: &mut ReplicaLock<'_>,
        mut state: &ReplicaState,
    ) -> Result<(), TrainError> {
        self.take(lock, &mut state)
    }

    /// As [`Self::restore`]. An error of what keeps the numbers may come after some of them were put back;
    /// the replica is of no use then.
    pub(crate) fn restore_from(&mut self, saved: &mut dyn SavedReplica) -> Result<(), TrainError> {
        let shared = self.shared.clone();
        self.take(&mut shared.lock(), saved)
    }

    fn take(
        &mut self,
        lock: &mut ReplicaLock<'_>,
        saved: &mut dyn SavedReplica,
    ) -> Result<(), TrainError> {
        self.check(&lock.store, saved)?;
        // First, because it comes with a copy and the vectors below were not touched before.
        self.trainer_mut().restore(saved.trainer()?)?;
        lock.store.restore(saved)?;
        let live = if saved.lengths().outer.is_some() { Part::Live } else { Part::Parameters };
        self.shared.pending().clear();
        self.shared.notify();
        let mut values = vec![0.0; CHUNK];
        for part in chunks(0..saved.lengths().parameters) {
            let values = &mut values[..part.len()];
            saved.read(live, part.start, values)?;
            self.live.settle(part.start, values);
        }
        Ok(())
    }

    fn check(&self, store: &Store, saved: &mut dyn SavedReplica) -> Result<(), TrainError> {
        let parameters = self.fragments.elements();
        let lengths = saved.lengths();
        let refuse = |detail: String| Err(TrainError::State(detail));
        if lengths.outer.is_some() != self.outer.is_some() {
            return refuse("saved with another rule: outer step missing or unexpected".to_owned());
        }
        let outer = lengths.outer.into_iter();
        let outer = outer.flat_map(|(live, momentum)| {
            [("live", Part::Live, live), ("outer momentum", Part::Momentum, momentum)]
        });
        for (name, part, found) in
            outer.chain([("parameters", Part::Parameters, lengths.parameters)])
        {
            if found != parameters {
                return refuse(format!("{name}: expected {parameters} values, found {found}"));
            }
            finite(saved, (name, part), found)?;
        }
        check_fixed(store, saved)
    }
}

impl Store {
    /// Puts back φ, v and what the mixer keeps.
    fn restore(&mut self, saved: &mut dyn SavedReplica) -> Result<(), TrainError> {
        let Lengths { parameters, outer, .. } = saved.lengths();
        match self {
            Self::Host(HostStore { slow, mixer, .. }) => {
                if let (Some(slow), Some(_)) = (slow, outer) {
                    saved.read(Part::Parameters, 0, &mut slow.values)?;
                    saved.read(Part::Momentum, 0, &mut slow.momentum)?;
                }
                if let MixerState::DeltaSet(own) = mixer {
                    let (accumulators, residual) = own.state_mut();
                    saved.accumulators(0, accumulators)?;
                    saved.read(Part::Residual, 0, residual)?;
                }
            }
            Self::Device(_) if outer.is_none() => {}
            Self::Device(device) => {
                let (mut values, mut momentum) = (vec![0.0; CHUNK], vec![0.0; CHUNK]);
                for part in chunks(0..parameters) {
                    let (values, momentum) =
                        (&mut values[..part.len()], &mut momentum[..part.len()]);
                    saved.read(Part::Parameters, part.start, values)?;
                    saved.read(Part::Momentum, part.start, momentum)?;
                    device.set(part.start, values, Some(momentum));
                }
            }
        }
        Ok(())
    }
}

/// Says which vector of weights, outer momentum or residual has a number that is not finite; `None` when
/// all are.
///
/// # Errors
/// Of what keeps the numbers.
pub(crate) fn unsound(saved: &mut dyn SavedReplica) -> Result<Option<String>, TrainError> {
    let Lengths { parameters, outer, fixed } = saved.lengths();
    let outer = outer.into_iter().flat_map(|(live, momentum)| {
        [("live", Part::Live, live), ("outer momentum", Part::Momentum, momentum)]
    });
    let residual = fixed.map(|(_, residual)| ("residual", Part::Residual, residual));
    let all = outer.chain(residual).chain([("parameters", Part::Parameters, parameters)]);
    for (name, part, len) in all {
        if let Some(detail) = not_finite(saved, (name, part), len)? {
            return Ok(Some(detail));
        }
    }
    Ok(None)
}

/// Refuses a vector in which a number is not finite.
fn finite(
    saved: &mut dyn SavedReplica,
    vector: (&str, Part),
    len: usize,
) -> Result<(), TrainError> {
    not_finite(saved, vector, len)?.map_or(Ok(()), |detail| Err(TrainError::State(detail)))
}

/// What is wrong with a vector in which a number is not finite.
fn not_finite(
    saved: &mut dyn SavedReplica,
    (name, part): (&str, Part),
    len: usize,
) -> Result<Option<String>, TrainError> {
    let mut values = vec![0.0; CHUNK.min(len)];
    for piece in chunks(0..len) {
        let values = &mut values[..piece.len()];
        saved.read(part, piece.start, values)?;
        if !norm(values).is_finite() {
            return Ok(Some(format!("{name}: expected finite values, found NaN or infinity")));
        }
    }
    Ok(None)
}

fn check_fixed(store: &Store, saved: &mut dyn SavedReplica) -> Result<(), TrainError> {
    let refuse = |detail: &str| Err(TrainError::State(detail.to_owned()));
    let (accumulators, residual) = match (store.fixed(), saved.lengths().fixed) {
        (None, None) => return Ok(()),
        (Some((accumulators, residual)), Some(found)) => {
            let own = (accumulators.len(), residual.len());
            if own != found {
                return refuse("saved with another number of parameters, or feedback");
            }
            own
        }
        _ => return refuse("saved with another mixer: integers missing or unexpected"),
    };
    finite(saved, ("residual", Part::Residual), residual)?;
    let mut integers = vec![0; CHUNK.min(accumulators)];
    let (mut read, mut values) = (vec![0.0; integers.len()], vec![0.0; integers.len()]);
    for piece in chunks(0..accumulators) {
        let integers = &mut integers[..piece.len()];
        let (read, values) = (&mut read[..piece.len()], &mut values[..piece.len()]);
        saved.accumulators(piece.start, integers)?;
        saved.read(Part::Parameters, piece.start, values)?;
        read_accumulators(integers, read);
        if read != values {
            return refuse("parameters: not those of the accumulators");
        }
    }
    Ok(())
}
