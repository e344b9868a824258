//! First moments that are exchanged with the weights: what trainers show of them, that pairs keep their
//! mean, and that checkpoints and joiners have them.

use std::path::Path;

use crate::synthetic::{SAMPLES, bits, config, parameters, source, trainer};
use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, FragmentId, Fragments, RunField, RunSpec};
use dnode_trainer::checkpoint::{self, Checkpoint};
use dnode_trainer::{
    Description, LocalConfig, LocalTrainer, MixTerms, Mixer, ModelKind, OptimizerConfig,
    OptimizerKind, Reading, Replica, ReplicaConfig, Source, StepId, Trainer,
};

const OPTIMIZERS: [OptimizerKind; 3] =
    [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon];
const FRAGMENTS: usize = 3;

fn configured(optimizer: OptimizerKind, seed: u64) -> LocalConfig {
    let plain = config(ModelKind::Gpt);
    let optimizer = OptimizerConfig {
        learning_rate: 0.01,
        warmup_steps: 0,
        ..OptimizerConfig::default_of(optimizer)
    };
    LocalConfig { optimizer, seed, ..plain }
}

fn moments(trainer: &LocalTrainer) -> Vec<f32> {
    let mut values = vec![0.0; trainer.layout().parameters()];
    trainer.read_moments(0..values.len(), &mut values);
    values
}

/// A replica that exchanges moments, after some steps.
fn replica(optimizer: OptimizerKind, seed: u64, steps: u64) -> Replica {
    let trainer = trainer(configured(optimizer, seed));
    let fragments = Fragments::with_moments(trainer.layout().parameters(), FRAGMENTS).unwrap();
    let config = ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments, clip: None };
    let mut replica = Replica::with(Box::new(trainer), config);
    for step in 0..steps {
        replica.step(StepId::alone(step)).unwrap();
    }
    replica
}

/// Parameters, and moments behind them.
fn all(replica: &Replica) -> Vec<f32> {
    let mut values = vec![0.0; replica.fragments().elements()];
    replica.snapshot(0..values.len(), &mut values);
    values
}

fn exchange(i: &mut Replica, j: &mut Replica, fragment: FragmentId, codec: Codec) {
    let offer = i.read(fragment, Reading::Offer(codec));
    let (reply, _) = j.answer(fragment, MixTerms::any(0.5), &offer, codec).unwrap();
    i.apply(fragment, MixTerms::any(0.5), &reply).unwrap();
}

fn run() -> RunSpec {
    RunSpec::new(vec![RunField { name: "rule".to_owned(), value: "test".to_owned() }]).unwrap()
}

fn save(folder: &Path, replica: &Replica) {
    let held = replica.hold();
    let (description, replica) = (&Description::default(), Source::Held(&held));
    let (step, samples, clock) = (4, 4 * SAMPLES as u64, Clock(4));
    let (run, micro_steps, contents) = (run(), 4_000_000, &[][..]);
    let checkpoint = Checkpoint {
        run,
        description,
        step,
        micro_steps,
        end: 8,
        samples,
        clock,
        contents,
        replica,
        tail_average: None,
    };
    checkpoint::save(folder, 2, &checkpoint).unwrap();
}

#[test]
fn first_moments_of_every_optimizer_are_read_and_moved_and_nothing_else_is() {
    for kind in OPTIMIZERS {
        let mut trainer = trainer(configured(kind, 7));
        assert!(trainer.share_moments());
        for step in 0..3 {
            trainer.step(StepId::alone(step)).unwrap();
        }
        let saved = trainer.save().into_owned();
        let (weights, before) = (parameters(&trainer), moments(&trainer));
        // The first saved tensor is the momentum.
        assert_eq!(saved.tensors[0].values.f32(), Some(before.as_slice()), "{kind:?}");
        assert!(before.iter().any(|&m| m != 0.0), "{kind:?}");
        let (range, delta) = (5..105, vec![0.25; 100]);
        trainer.displace_moments(range.clone(), &delta, -2.0);
        let after = moments(&trainer);
        for (index, (after, before)) in after.iter().zip(&before).enumerate() {
            let moved = if range.contains(&index) { -0.5 } else { 0.0 };
            assert_eq!(after.to_bits(), (before + moved).to_bits(), "{kind:?} {index}");
        }
        assert_eq!(bits(&parameters(&trainer)), bits(&weights), "{kind:?}");
        assert_eq!(trainer.save().tensors[1..], saved.tensors[1..], "{kind:?}");
    }
}

#[test]
fn exchanges_keep_the_mean_of_weights_and_of_moments_each_by_itself() {
    let sum = |i: &Replica, j: &Replica| -> Vec<f64> {
        all(i).iter().zip(all(j)).map(|(a, b)| f64::from(*a) + f64::from(b)).collect()
    };
    let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    for kind in OPTIMIZERS {
        for codec in [Codec::F32, Codec::Int4] {
            let (mut i, mut j) = (replica(kind, 7, 3), replica(kind, 7, 5));
            let before = sum(&i, &j);
            for round in 0..12 {
                for fragment in i.fragments().iter() {
                    if round % 2 == 0 {
                        exchange(&mut i, &mut j, fragment, codec);
                    } else {
                        exchange(&mut j, &mut i, fragment, codec);
                    }
                }
            }
            let moved: Vec<f64> =
                sum(&i, &j).iter().zip(&before).map(|(after, before)| after - before).collect();
            let parameters = i.fragments().parameters();
            for half in [0..parameters, parameters..2 * parameters] {
                let drift = length(&moved[half.clone()]) / length(&before[half.clone()]);
                assert!(drift < 1e-6, "{kind:?} {codec:?} {half:?}: {drift:e}");
                let apart = |replica: &Replica| all(replica)[half.clone()].to_vec();
                let (a, b) = (apart(&i), apart(&j));
                let left: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(a - b)).collect();
                let left = length(&left) / length(&before[half.clone()]);
                let most = if codec == Codec::F32 { 1e-3 } else { 0.1 };
                assert!(left < most, "{kind:?} {codec:?} {half:?}: {left}");
            }
        }
    }
}

#[test]
fn a_checkpoint_has_parameters_alone_in_their_file_and_a_resume_goes_on_to_the_bit() {
    for kind in OPTIMIZERS {
        let folder = tempfile::tempdir().unwrap();
        let (mut i, mut j) = (replica(kind, 7, 4), replica(kind, 7, 6));
        let fragments = i.fragments();
        // Training has yet to make what mixing has moved of the first weights and of the last moments.
        let shared = i.shared();
        let last = FragmentId(fragments.count() as u32 - 1);
        for fragment in [FragmentId(0), last] {
            shared.want(fragment);
            i.serve();
        }
        for fragment in [FragmentId(0), last] {
            let offer = j.read(fragment, Reading::Offer(Codec::F32));
            let answer = shared.lock().answer(fragment, MixTerms::any(0.5), &offer, Codec::F32);
            answer.unwrap();
        }
        let whole = all(&i);
        save(folder.path(), &i);
        let form = (i.layout(), fragments);
        let loaded = checkpoint::load_latest(folder.path(), &run(), form, &Description::default());
        let mut loaded = loaded.unwrap().unwrap();
        let mut resumed = replica(kind, 8, 0);
        loaded.restore(&mut resumed).unwrap();
        assert_eq!(bits(&all(&resumed)), bits(&whole), "{kind:?}");

        let file = std::fs::read(loaded.directory.join("parameters.safetensors")).unwrap();
        let parameters = safetensors::SafeTensors::deserialize(&file).unwrap();
        let mut names: Vec<_> = parameters.names().into_iter().map(ToString::to_string).collect();
        let mut own: Vec<_> = i.layout().tensors().iter().map(|it| it.name.clone()).collect();
        names.sort();
        own.sort();
        assert_eq!(names, own, "{kind:?}");

        for step in 4..8 {
            i.catch_up();
            let (a, b) = (i.step(StepId::alone(step)), resumed.step(StepId::alone(step)));
            assert_eq!(a.unwrap().loss.to_bits(), b.unwrap().loss.to_bits(), "{kind:?} {step}");
        }
        assert_eq!(bits(&all(&resumed)), bits(&all(&i)), "{kind:?}");
        assert_eq!(resumed.save().trainer, i.save().trainer, "{kind:?}");
    }
}

#[test]
fn a_checkpoint_without_moments_is_not_resumed_by_a_run_that_exchanges_them() {
    let folder = tempfile::tempdir().unwrap();
    let config = configured(OptimizerKind::Adamw, 7);
    let plain = LocalTrainer::new(config, Box::new(source(ModelKind::Gpt))).unwrap();
    save(folder.path(), &Replica::new(Box::new(plain), None));
    let with = replica(OptimizerKind::Adamw, 7, 0);
    let form = (with.layout(), with.fragments());
    let error = checkpoint::load_latest(folder.path(), &run(), form, &Description::default());
    let text = error.unwrap_err().to_string();
    assert!(text.contains("tensor \"exchanged.moments\" is missing"), "{text}");
}

#[test]
fn a_joiner_has_its_donors_moments_to_the_bit_and_a_first_step_of_usual_length() {
    for kind in OPTIMIZERS {
        let (mut donor, mut joiner) = (replica(kind, 7, 40), replica(kind, 8, 0));
        for fragment in donor.fragments().iter() {
            let snapshot = donor.read(fragment, Reading::Snapshot);
            joiner.adopt(fragment, &snapshot).unwrap();
        }
        let start = all(&donor);
        assert_eq!(bits(&all(&joiner)), bits(&start), "{kind:?}");
        let length = |replica: &mut Replica| {
            replica.step(StepId::alone(40)).unwrap();
            let parameters = replica.parameters();
            let squares = parameters.iter().zip(&start).map(|(a, b)| f64::from(a - b).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let (usual, first) = (length(&mut donor), length(&mut joiner));
        // The newcomer has no second moments yet, and no element moves further than by the rate.
        let most = 0.01 * (joiner.parameters().len() as f64).sqrt();
        assert!(first < 1.1 * most.max(usual), "{kind:?}: {first} after {usual}, at most {most}");
    }
}
