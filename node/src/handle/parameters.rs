//! What a program with a loop of its own lets the swarm read and move: its parameters.

use std::ops::Range;

use dnode_trainer::{DeviceError, Resident, TrainError, TrainerState};

/// The parameters of a loop that is not dnode's, wherever they lie.
///
/// They belong to the loop, and to the node for as long as a call of [`Swarm`](super::Swarm) lasts:
/// they are then used on another thread, and come back before the call returns. Ranges index the flat
/// vector of all parameters in the order of the layout; slices passed along have the range's length.
///
/// `Vec<f32>` is the simplest: parameters that lie one behind the other in host memory.
pub trait Parameters: Send + 'static {
    /// Copies the current parameters of `range` to `out`.
    fn read(&self, range: Range<usize>, out: &mut [f32]);

    /// Moves the parameters of `range`: `x ← x + weight · delta`.
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32);

    /// As [`Trainer::set_parameters`](crate::Trainer::set_parameters).
    fn set(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        let _ = (range, values);
        false
    }

    /// As [`Trainer::resident`](crate::Trainer::resident).
    ///
    /// # Errors
    /// [`DeviceError`] says why they cannot be mixed on the device where they lie.
    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        Ok(None)
    }

    /// As [`Trainer::on_moved`](crate::Trainer::on_moved).
    fn on_moved(&mut self) {}

    /// The parameters go back to the loop: what [`Parameters::displace`] has put off is done now.
    fn hand_back(&mut self) {}

    /// As [`Trainer::share_moments`](crate::Trainer::share_moments).
    fn share_moments(&mut self) -> bool {
        false
    }

    /// As [`Trainer::read_moments`](crate::Trainer::read_moments).
    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        let _ = (range, out);
    }

    /// As [`Trainer::displace_moments`](crate::Trainer::displace_moments).
    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let _ = (range, delta, weight);
    }

    /// What checkpoints keep beside the parameters, for example the optimizer's moments.
    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }

    /// Puts back what [`Parameters::save`] returned.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit; nothing is changed then.
    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        let _ = state;
        Ok(())
    }
}

impl Parameters for Vec<f32> {
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self[range].iter_mut().zip(delta).for_each(|(x, d)| *x += weight * d);
    }

    fn set(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        self[range].copy_from_slice(values);
        true
    }
}
