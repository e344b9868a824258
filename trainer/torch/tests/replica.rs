//! Replicas whose weights libtorch has: mixed where they lie, they are those that are mixed on the host.
//!
//! On the processor both are the same; `DNODE_TEST_DEVICE=cuda:0` (`testnet/scripts/gpu.sh`) makes one of them
//! stay on the device.
#![cfg(feature = "torch")]
#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

#[path = "../../tests/model/synthetic.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod synthetic;

use std::ops::Range;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments, ParameterLayout};
use dnode_torch::{Device, Precision, TorchConfig};
use dnode_trainer::{
    Evaluation, LocalConfig, LocalTrainer, MixTerms, Mixer, ModelKind, OptimizerConfig,
    OptimizerKind, OuterStep, Reading, Replica, ReplicaConfig, StepId, StepReport, TrainError,
    Trainer, TrainerState,
};
use synthetic::{config, source};

const ROUNDS: u64 = 12;
const FRAGMENTS: usize = 3;

/// A trainer that does not tell where its weights lie.
struct Silent(LocalTrainer);

impl Trainer for Silent {
    fn layout(&self) -> &ParameterLayout {
        self.0.layout()
    }
    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.0.step(at)
    }
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.0.read(range, out);
    }
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.0.displace(range, delta, weight);
    }
    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.0.evaluate()
    }
    fn save(&self) -> TrainerState<'_> {
        self.0.save()
    }
    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.0.restore(state)
    }
}

fn device() -> Device {
    std::env::var("DNODE_TEST_DEVICE").map_or(Device::Cpu, |it| it.parse().unwrap())
}

fn configured(seed: u64, optimizer: OptimizerKind) -> LocalConfig {
    LocalConfig {
        seed,
        optimizer: OptimizerConfig::default_of(optimizer),
        ..config(ModelKind::Mlp)
    }
}

fn trainer(seed: u64) -> LocalTrainer {
    on_libtorch(LocalConfig { seed, ..config(ModelKind::Mlp) })
}

fn trainer_of(seed: u64, optimizer: OptimizerKind) -> LocalTrainer {
    on_libtorch(configured(seed, optimizer))
}

fn on_libtorch(config: LocalConfig) -> LocalTrainer {
    let source = source(config.model.kind);
    let torch = TorchConfig { device: device(), precision: Precision::F32 };
    let engine = dnode_torch::engine(&config, torch, source.shape).unwrap();
    LocalTrainer::on(engine, config, Box::new(source)).unwrap()
}

fn replica(trainer: Box<dyn Trainer>, outer: Option<OuterStep>) -> Replica {
    let fragments = Fragments::new(trainer.layout().parameters(), FRAGMENTS).unwrap();
    Replica::with(trainer, ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip: None })
}

/// A replica that exchanges first moments with its weights.
fn with_moments(trainer: LocalTrainer) -> Replica {
    let fragments = Fragments::with_moments(trainer.layout().parameters(), FRAGMENTS).unwrap();
    let config = ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments, clip: None };
    Replica::with(Box::new(trainer), config)
}

/// Takes some steps, so that there are moments.
fn train(replica: &mut Replica) {
    for step in 0..5 {
        replica.step(StepId::alone(step)).unwrap();
    }
}

/// Weights, and first moments behind them.
fn all(replica: &Replica) -> Vec<f32> {
    let mut values = vec![0.0; replica.fragments().elements()];
    replica.snapshot(0..values.len(), &mut values);
    values
}

/// The weights after each round of steps, exchanges and commits with a peer on the host.
fn rounds(mut own: Replica, outer: Option<OuterStep>, reply: Codec) -> Vec<Vec<f32>> {
    let mut peer = replica(Box::new(Silent(trainer(2))), outer);
    let mut left = Vec::new();
    for round in 0..ROUNDS {
        for index in round * 2..round * 2 + 2 {
            own.step(StepId { index, position: index }).unwrap();
            peer.step(StepId { index, position: index }).unwrap();
        }
        let fragment = FragmentId((round % FRAGMENTS as u64) as u32);
        let (from, to) = if round % 2 == 0 { (&mut own, &mut peer) } else { (&mut peer, &mut own) };
        let offer = from.read(fragment, Reading::Offer(reply));
        let (answer, _) = to.answer(fragment, MixTerms::any(0.5), &offer, reply).unwrap();
        from.apply(fragment, MixTerms::any(0.5), &answer).unwrap();
        if round % 3 == 2 {
            own.commit(1.0);
            peer.commit(1.0);
        }
        if round == 7 {
            let saved = own.save();
            own.step(StepId { index: 99, position: 99 }).unwrap();
            own.restore(&saved).unwrap();
        }
        left.push(own.parameters());
    }
    left
}

#[test]
fn mixed_where_they_lie_weights_are_those_mixed_on_the_host() {
    for outer in [Some(OuterStep::default()), None] {
        for reply in [Codec::F32, Codec::Int4] {
            let on_device = replica(Box::new(trainer(1)), outer);
            let stays = on_device.stays_on_device().unwrap();
            assert_eq!(stays, matches!(device(), Device::Cuda(_)));
            let found = rounds(on_device, outer, reply);
            let wanted = rounds(replica(Box::new(Silent(trainer(1))), outer), outer, reply);
            assert_ne!(found[0], found[1], "they train");
            for (round, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                assert!(found == wanted, "{outer:?}, {reply}: round {round} differs");
            }
        }
    }
}

/// Moments of libtorch's optimizer are exchanged as those of the embedded engine: with one of them, and with
/// another of its kind, every pair of values keeps its sum and comes together.
#[test]
fn moments_are_exchanged_with_the_embedded_engine_and_with_libtorch() {
    let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    for kind in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
        for embedded in [true, false] {
            let own = with_moments(trainer_of(1, kind));
            let other = if embedded {
                let config = configured(2, kind);
                let source = source(config.model.kind);
                LocalTrainer::new(config, Box::new(source)).unwrap()
            } else {
                trainer_of(2, kind)
            };
            let mut peers = [own, with_moments(other)];
            for peer in &mut peers {
                train(peer);
            }
            let before = peers.each_ref().map(all);
            for round in 0..4 {
                for fragment in peers[0].fragments().iter() {
                    if round % 2 == 1 {
                        peers.reverse();
                    }
                    let [from, to] = &mut peers;
                    let offer = from.read(fragment, Reading::Offer(Codec::F32));
                    let (reply, _) =
                        to.answer(fragment, MixTerms::any(0.5), &offer, Codec::F32).unwrap();
                    from.apply(fragment, MixTerms::any(0.5), &reply).unwrap();
                }
            }
            let after = peers.each_ref().map(all);
            let parameters = peers[0].fragments().parameters();
            for half in [0..parameters, parameters..2 * parameters] {
                let sum = |values: &[Vec<f32>; 2]| -> Vec<f64> {
                    let pairs = values[0][half.clone()].iter().zip(&values[1][half.clone()]);
                    pairs.map(|(a, b)| f64::from(*a) + f64::from(*b)).collect()
                };
                let apart = |values: &[Vec<f32>; 2]| -> f64 {
                    let pairs = values[0][half.clone()].iter().zip(&values[1][half.clone()]);
                    length(&pairs.map(|(a, b)| f64::from(a - b)).collect::<Vec<_>>())
                };
                let (was, is) = (sum(&before), sum(&after));
                let moved: Vec<f64> = was.iter().zip(&is).map(|(a, b)| b - a).collect();
                let what = format!("{kind:?}, embedded {embedded}, {half:?}");
                assert!(length(&was) > 0.0, "{what}: nothing to exchange");
                assert!(length(&moved) < 1e-6 * length(&was), "{what}: the sum moved");
                assert!(apart(&after) < 1e-3 * apart(&before), "{what}: still apart");
            }
        }
    }
}

/// A checkpoint of a replica on libtorch has its moments: whoever resumes from it goes on with them.
#[test]
fn moments_are_saved_and_restored_to_the_bit() {
    for kind in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
        let mut own = with_moments(trainer_of(1, kind));
        train(&mut own);
        let (saved, wanted) = (own.save(), all(&own));
        let mut resumed = with_moments(trainer_of(3, kind));
        resumed.restore(&saved).unwrap();
        assert!(all(&resumed) == wanted, "{kind:?}");
    }
}
