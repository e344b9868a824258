//! What a replica tells of its weights: their quality on held-out data, and a sketch to compare them by.

use super::Replica;
use super::store::Store;
use crate::device::{DeviceError, DeviceVector};
use crate::mixer::DeltaSet;
use crate::seam::{Evaluation, TrainError};
use crate::sketch::{self, SKETCH_LEN};
use crate::weights::{CHUNK, chunks};

impl Replica {
    /// Measures the replica's weights (φ, or x without an outer step) on held-out data.
    ///
    /// In the middle of a round, and where they are ahead of a sum of contributions, the live weights are
    /// set aside and put back to the last bit (in a trainer that keeps f32), at the price of a copy. Right
    /// after a commit they are φ already, if they are not ahead.
    ///
    /// # Errors
    /// [`TrainError`] of the trainer; the weights are unchanged then, too.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.catch_up();
        if self.outer.is_none() {
            self.show_all();
            let evaluation = self.live.evaluate();
            self.hide_all();
            return evaluation;
        }
        let leads = self.shared.lock().store.delta_set().is_some_and(DeltaSet::leads);
        if self.live.is_settled() && !leads {
            return self.live.evaluate();
        }
        if self.stays_on_device() == Ok(true) {
            return self.evaluate_on_device();
        }
        let (shared, whole) = (self.shared.clone(), 0..self.fragments.parameters());
        self.live.evaluate_placed(|live| {
            let (lock, mut values) = (shared.lock(), vec![0.0; CHUNK]);
            for part in chunks(whole) {
                let (start, values) = (part.start, &mut values[..part.len()]);
                if lock.store.weights(part, values) {
                    live.settle(start, values);
                }
            }
        })
    }

    /// Measures these weights, `[P]`, on held-out data; the live weights are set aside and put back.
    ///
    /// # Errors
    /// [`TrainError`] of the trainer; the weights are unchanged then, too.
    ///
    /// # Panics
    /// When there is not one for each parameter.
    pub fn evaluate_at(&mut self, weights: &[f32]) -> Result<Evaluation, TrainError> {
        assert_eq!(weights.len(), self.fragments.parameters(), "one weight per parameter");
        self.catch_up();
        if self.outer.is_none() {
            self.show_all();
        }
        let evaluation = self.live.evaluate_placed(|live| live.settle(0, weights));
        self.hide_all();
        evaluation
    }

    /// Measures φ, with x set aside on the device.
    fn evaluate_on_device(&mut self) -> Result<Evaluation, TrainError> {
        let shared = self.shared.clone();
        let failed = |error: DeviceError| TrainError::Other(error.to_string());
        let whole = 0..self.fragments.parameters();
        let mut aside = None;
        if let Some(resident) = self.at_device() {
            let mut copy = DeviceVector::new(&resident.device, whole.len()).map_err(failed)?;
            let x = resident.weights.shared();
            let copied = resident.device.set_scaled(copy.span_mut(whole.clone()), x, 1.0);
            copied.map_err(failed)?;
            aside = Some(copy);
            let lock = shared.lock();
            if let Store::Device(device) = &*lock.store {
                device.settle(resident);
            }
        }
        let evaluation = self.live.evaluate();
        if let (Some(mut resident), Some(aside)) = (self.at_device(), aside) {
            let x = resident.weights.part_mut(whole.clone());
            resident.device.set_scaled(x, aside.span(whole), 1.0).map_err(failed)?;
        }
        evaluation
    }

    /// Writes the count sketch of the replica's weights.
    ///
    /// `Σ (S(a) − S(b))²` estimates the squared Euclidean distance of two replicas without bias,
    /// with a relative standard deviation of at most 8.8 %. Equal on every peer for equal weights.
    /// More than 262,144 weights are sampled, which adds what layers differ by.
    ///
    /// Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams".
    pub fn sketch(&mut self, sketch: &mut [f32; SKETCH_LEN]) {
        self.catch_up();
        let mut sums = [0.0; SKETCH_LEN];
        let (pieces, factor) = sketch::sample(self.fragments.parameters());
        if self.outer.is_some() {
            let (lock, mut values) = (self.shared.lock(), vec![0.0; CHUNK]);
            for part in pieces.flat_map(chunks) {
                let (start, values) = (part.start, &mut values[..part.len()]);
                lock.store.weights(part, values);
                sketch::accumulate(start, values, &mut sums);
            }
        } else {
            for piece in pieces {
                let visit = |start, values: &[f32]| sketch::accumulate(start, values, &mut sums);
                self.live.visit(piece, visit);
            }
        }
        for (out, sum) in sketch.iter_mut().zip(sums) {
            *out = (factor * sum) as f32;
        }
    }
}
