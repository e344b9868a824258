//! What the tests of this crate share: a trainer without a model, whose weights a test can set.

mod device;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use dnode_protocol::frame::Codec;
use dnode_protocol::{Fragments, ParameterLayout};

use crate::codec::encode;
use crate::privacy::CommitNoise;
use crate::{
    Beside, Evaluation, Mixer, OuterStep, Replica, ReplicaConfig, StateTensor, StepId, StepReport,
    TrainError, Trainer, TrainerState,
};

pub(crate) use self::device::{TestDevice, TestWeights};

/// Live weights that a test can read and set while the replica owns the trainer.
pub(crate) type Live = Arc<Mutex<Vec<f32>>>;

/// A trainer without a model: a step adds a pattern, an evaluation returns the sum of the weights.
pub(crate) struct Probe {
    layout: ParameterLayout,
    live: Live,
    counter: f32,
}

impl Probe {
    fn live(&self) -> MutexGuard<'_, Vec<f32>> {
        self.live.lock().unwrap()
    }
}

impl Trainer for Probe {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }
    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        for (index, x) in (0_u64..).zip(self.live().iter_mut()) {
            *x += ((index * 7 + at.index * 13) % 11) as f32 * 0.013 - 0.05;
        }
        self.counter += 1.0;
        Ok(StepReport { samples: 1, ..StepReport::default() })
    }
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.live()[range]);
    }
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        for (x, d) in self.live()[range].iter_mut().zip(delta) {
            *x += weight * d;
        }
    }
    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let loss = self.live().iter().map(|&x| f64::from(x)).sum();
        Ok(Evaluation { loss, accuracy: 0.0, count: 1 })
    }
    fn save(&self) -> TrainerState<'_> {
        TrainerState { tensors: vec![StateTensor::new("counter", vec![self.counter])] }
    }
    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        match state.tensors.first().and_then(|tensor| tensor.values.f32()) {
            Some(&[counter]) => {
                self.counter = counter;
                Ok(())
            }
            _ => Err(TrainError::State("expected one counter".to_owned())),
        }
    }
}

/// A copy, so that no lock is held while the replica works.
pub(crate) fn peek(live: &Live) -> Vec<f32> {
    live.lock().unwrap().clone()
}

pub(crate) const OUTER: OuterStep = OuterStep { learning_rate: 0.7, momentum: 0.8 };

pub(crate) fn probe(values: Vec<f32>) -> (Box<Probe>, Live) {
    let mut layout = ParameterLayout::new();
    layout.push("w", &[values.len()]).unwrap();
    let live: Live = Arc::new(Mutex::new(values));
    let probe = Probe { layout, live: Arc::clone(&live), counter: 0.0 };
    (Box::new(probe), live)
}

/// A replica that makes exchanges, of one fragment.
pub(crate) fn replica(values: Vec<f32>, outer: Option<OuterStep>) -> (Replica, Live) {
    let (probe, live) = probe(values);
    (Replica::new(probe, outer), live)
}

/// A replica of three fragments.
pub(crate) fn mixed(
    values: Vec<f32>,
    mixer: Mixer,
    outer: Option<OuterStep>,
    clip: Option<f32>,
) -> (Replica, Live) {
    let fragments = Fragments::new(values.len(), 3).unwrap();
    let (probe, live) = probe(values);
    (Replica::with(probe, ReplicaConfig { mixer, outer, fragments, clip }), live)
}

/// A replica of three fragments that adds noise to its commits.
pub(crate) fn noised(
    values: Vec<f32>,
    mixer: Mixer,
    outer: OuterStep,
    noise: CommitNoise,
) -> (Replica, Live) {
    let fragments = Fragments::new(values.len(), 3).unwrap();
    let (probe, live) = probe(values);
    let config = ReplicaConfig { mixer, outer: Some(outer), fragments, clip: None };
    (Replica::with_beside(probe, config, Beside { noise: Some(noise), file: None }), live)
}

/// Puts other weights into the replica, as a donor's snapshots do.
pub(crate) fn set_weights(replica: &mut Replica, values: &[f32]) {
    let fragments = replica.fragments();
    for fragment in fragments.iter() {
        let range = fragments.range(fragment).unwrap();
        replica.adopt(fragment, &encode(Codec::F32, &values[range])).unwrap();
    }
}

pub(crate) fn values(len: usize, salt: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37 + salt).sin() * (1.0 + salt)).collect()
}

pub(crate) fn mean(a: &[f32], b: &[f32]) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f64::midpoint(f64::from(a), f64::from(b))).collect()
}

pub(crate) fn assert_close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance, "element {index}: {a} and {b}");
    }
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
