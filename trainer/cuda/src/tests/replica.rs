//! A replica whose weights lie on a device is one in host memory, to the last bit, through steps,
//! exchanges, commits and snapshots; and while one thread trains another one may mix.

use std::ops::Range;
use std::sync::{Arc, mpsc};

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments, ParameterLayout};
use dnode_trainer::{
    Device, DeviceError, DeviceVector, Evaluation, MixTerms, Mixer, OuterStep, Reading, Replica,
    ReplicaConfig, Resident, StepId, StepReport, TrainError, Trainer, TrainerState, encode,
};

use super::{Words, devices, downloaded, uploaded};

/// Three fragments, the last one shorter, none a whole number of blocks.
const LEN: usize = 2_900;
const FRAGMENTS: usize = 3;
const ROUNDS: u64 = 24;
const REPLY: Codec = Codec::Int4;
const OUTER: OuterStep = OuterStep { learning_rate: 0.7, momentum: 0.8 };
/// What a step leaves of the weights.
const KEPT: f32 = 0.97;

/// The weights of a trainer.
enum Place {
    Host(Vec<f32>),
    Device(Arc<dyn Device>, DeviceVector),
}

/// Weights that each step shrinks.
struct Shrink {
    layout: ParameterLayout,
    place: Place,
}

impl Shrink {
    fn replica(place: Place, outer: Option<OuterStep>) -> Replica {
        let mut layout = ParameterLayout::new();
        layout.push("weights", &[LEN]).unwrap();
        let fragments = Fragments::new(LEN, FRAGMENTS).unwrap();
        let config = ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip: None };
        Replica::with(Box::new(Self { layout, place }), config)
    }

    fn all(&self) -> Vec<f32> {
        match &self.place {
            Place::Host(values) => values.clone(),
            Place::Device(device, numbers) => downloaded(device, numbers),
        }
    }
}

impl Trainer for Shrink {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }
    fn step(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        match &mut self.place {
            Place::Host(values) => values.iter_mut().for_each(|value| *value *= KEPT),
            Place::Device(device, numbers) => {
                let scaled = device.scale(numbers.span_mut(0..LEN), KEPT);
                scaled.map_err(|error| TrainError::Other(error.to_string()))?;
            }
        }
        Ok(StepReport { loss: 1.0, samples: 1, learning_rate: 0.1, gradient_norm: 1.0 })
    }
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.all()[range]);
    }
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let mut all = self.all();
        all[range].iter_mut().zip(delta).for_each(|(x, d)| *x += weight * d);
        match &mut self.place {
            Place::Host(values) => *values = all,
            Place::Device(device, numbers) => {
                device.upload(&all, numbers.span_mut(0..LEN)).unwrap();
            }
        }
    }
    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        let Place::Device(device, numbers) = &mut self.place else { return Ok(None) };
        Ok(Some(Resident { device: Arc::clone(device), weights: numbers.span_mut(0..LEN) }))
    }
    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let loss = self.all().iter().map(|value| f64::from(value * value)).sum();
        Ok(Evaluation { loss, accuracy: 0.0, count: 1 })
    }
    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }
    fn restore(&mut self, _: TrainerState<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}

fn steps(replica: &mut Replica, round: u64) {
    for index in round * 3..round * 3 + 3 {
        replica.step(StepId { index, position: index }).unwrap();
    }
}

/// What a replica's weights are after each of many rounds with a peer on the host.
fn rounds(mut replica: Replica, outer: Option<OuterStep>) -> Vec<Vec<f32>> {
    let mut words = Words(5);
    let mut peer = Shrink::replica(Place::Host(words.gaussian(LEN)), outer);
    let mut left = Vec::new();
    for round in 0..ROUNDS {
        steps(&mut replica, round);
        steps(&mut peer, round);
        let fragment = FragmentId((round % FRAGMENTS as u64) as u32);
        let (from, to) =
            if round % 2 == 0 { (&mut replica, &mut peer) } else { (&mut peer, &mut replica) };
        let offer = from.read(fragment, Reading::Offer(REPLY));
        let (answer, _) = to.answer(fragment, MixTerms::any(0.5), &offer, REPLY).unwrap();
        from.apply(fragment, MixTerms::any(0.5), &answer).unwrap();
        match round % 8 {
            3 => {
                replica.commit(1.0);
            }
            5 => {
                let range = replica.fragments().range(fragment).unwrap();
                let snapshot = encode(Codec::F32, &words.gaussian(range.len()));
                replica.adopt(fragment, &snapshot).unwrap();
            }
            6 => {
                let saved = replica.save();
                steps(&mut replica, round);
                replica.restore(&saved).unwrap();
            }
            _ => {}
        }
        left.push(replica.parameters());
    }
    left
}

#[test]
fn a_replica_on_a_device_is_one_on_the_host() {
    for (name, device) in devices() {
        for outer in [Some(OUTER), None] {
            let first = Words(3).gaussian(LEN);
            let replica = Shrink::replica(
                Place::Device(Arc::clone(&device), uploaded(&device, &first)),
                outer,
            );
            assert_eq!(replica.stays_on_device(), Ok(true), "{name}");
            let found = rounds(replica, outer);
            let wanted = rounds(Shrink::replica(Place::Host(first), outer), outer);
            for (round, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                assert!(found == wanted, "{name}, {outer:?}: round {round} differs");
            }
        }
    }
}

#[test]
fn one_thread_trains_while_another_mixes() {
    for (name, device) in devices() {
        let numbers = uploaded(&device, &Words(3).gaussian(LEN));
        let mut replica = Shrink::replica(Place::Device(Arc::clone(&device), numbers), Some(OUTER));
        let mut peer = Shrink::replica(Place::Host(Words(4).gaussian(LEN)), Some(OUTER));
        let (shared, (done, mixed)) = (replica.shared(), mpsc::channel());
        let fragments: Vec<FragmentId> = replica.fragments().iter().collect();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for &fragment in fragments.iter().cycle().take(100) {
                    let offer = peer.read(fragment, Reading::Offer(REPLY));
                    assert!(shared.wait(fragment, true, || {}));
                    shared.lock().answer(fragment, MixTerms::any(0.5), &offer, REPLY).unwrap();
                }
                done.send(()).unwrap();
            });
            for round in 0.. {
                steps(&mut replica, round);
                replica.catch_up();
                if round % 3 == 0 {
                    replica.commit(1.0);
                }
                // A thread that panics drops its end.
                if mixed.try_recv() != Err(mpsc::TryRecvError::Empty) {
                    break;
                }
            }
        });
        let most = replica.parameters().iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        // Means and shrunken values of numbers below 6; what was torn is likely 0xabababab or beyond.
        assert!(most < 6.0, "{name}: {most}");
    }
}
