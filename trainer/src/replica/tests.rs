//! Tests of one replica and of pairs of them, with a trainer whose weights the tests set.

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;
use proptest::prelude::*;

use super::*;
use crate::SKETCH_LEN;
use crate::codec::encode;
use crate::mix::{MixError, MixTerms};
use crate::mixer::Reading;
use crate::room::RoomFile;
use crate::testing::{
    OUTER, assert_close, mean, mixed, peek, probe, replica, set_weights, values, wide,
};
use crate::weights::CHUNK;

/// The only fragment of a [`replica`].
const ALL: FragmentId = FragmentId(0);

fn exchange(i: &mut Replica, j: &mut Replica, fragment: FragmentId, weight: f32) {
    let offer = i.read(fragment, Reading::Offer(Codec::F32));
    let (reply, _) = j.answer(fragment, MixTerms::any(weight), &offer, Codec::F32).unwrap();
    i.apply(fragment, MixTerms::any(weight), &reply).unwrap();
}

fn plain(values: &[f32]) -> Encoded {
    encode(Codec::F32, values)
}

proptest! {
    #[test]
    fn an_exchange_keeps_the_mean_and_stays_between_the_replicas(
        pairs in prop::collection::vec((-3.0_f32..3.0, -3.0_f32..3.0), 1..40),
        weight in 0.0_f32..=0.5,
        outer in any::<bool>(),
    ) {
        let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let outer = outer.then_some(OUTER);
        let (mut i, _) = replica(a.clone(), outer);
        let (mut j, _) = replica(b.clone(), outer);
        exchange(&mut i, &mut j, ALL, weight);
        let (p, q) = (i.parameters(), j.parameters());
        assert_close(&mean(&p, &q), &mean(&a, &b), 1e-6);
        for k in 0..a.len() {
            let (low, high) = (a[k].min(b[k]) - 1e-6, a[k].max(b[k]) + 1e-6);
            prop_assert!((low..=high).contains(&p[k]) && (low..=high).contains(&q[k]));
            prop_assert!((p[k] - q[k]).abs() <= (a[k] - b[k]).abs() + 1e-6);
        }
    }

    #[test]
    fn settling_reaches_any_target_that_is_let_in_exactly(
        pairs in prop::collection::vec(
            (prop::num::f32::NORMAL | prop::num::f32::ZERO, prop::num::f32::ANY), 1..30),
    ) {
        let (from, to): (Vec<f32>, Vec<f32>) = pairs.into_iter()
            .map(|(a, b)| (a * 1e-3, if b.is_finite() { b * 1e-3 } else { 0.0 })).unzip();
        let (mut i, live) = replica(from.clone(), None);
        let refused = i.adopt(ALL, &plain(&to));
        // What is out of proportion changes nothing.
        let out = matches!(refused, Err(MixError::Outlier { .. }));
        prop_assert!(out || refused.is_ok(), "{refused:?}");
        prop_assert_eq!(peek(&live), if out { from } else { to });
    }
}

#[test]
fn half_weight_makes_two_replicas_equal_and_weight_one_swaps_them() {
    let (a, b) = (values(100, 0.1), values(100, 0.9));
    let (mut i, _) = replica(a.clone(), Some(OUTER));
    let (mut j, _) = replica(b.clone(), Some(OUTER));
    exchange(&mut i, &mut j, ALL, 0.5);
    assert_close(&wide(&i.parameters()), &mean(&a, &b), 2e-7);
    assert_close(&wide(&j.parameters()), &mean(&a, &b), 2e-7);
    let (mut i, _) = replica(a.clone(), None);
    let (mut j, _) = replica(b.clone(), None);
    exchange(&mut i, &mut j, ALL, 1.0);
    assert_close(&wide(&i.parameters()), &wide(&b), 5e-7);
    assert_close(&wide(&j.parameters()), &wide(&a), 5e-7);
}

#[test]
fn mixing_moves_slow_and_live_weights_alike_and_never_the_momentum() {
    let (mut i, live) = mixed(values(64, 0.2), Mixer::Exchange, Some(OUTER), None);
    let (mut j, _) = mixed(values(64, 0.7), Mixer::Exchange, Some(OUTER), None);
    let middle = FragmentId(1);
    let range = i.fragments().range(middle).unwrap();
    for step in 0..3 {
        i.step(StepId::alone(step)).unwrap();
        i.commit(1.0);
    }
    i.step(StepId::alone(3)).unwrap();
    let before = i.save();
    exchange(&mut i, &mut j, middle, 0.5);
    exchange(&mut j, &mut i, middle, 0.25);
    let after = i.save();
    let (old, new) = (before.outer.unwrap(), after.outer.unwrap());
    assert_eq!(old.momentum, new.momentum);
    assert!(old.momentum.iter().any(|&v| v != 0.0));
    assert_ne!(before.parameters[range.clone()], after.parameters[range.clone()]);
    assert_eq!(before.parameters[..range.start], after.parameters[..range.start]);
    assert_eq!(before.parameters[range.end..], after.parameters[range.end..]);
    // x − φ, the progress, is the same before and after.
    let progress = |x: &[f32], phi: &[f32]| -> Vec<f64> {
        x.iter().zip(phi).map(|(&x, &phi)| f64::from(x) - f64::from(phi)).collect()
    };
    let (was, is) =
        (progress(&old.live, &before.parameters), progress(&new.live, &after.parameters));
    assert_close(&was, &is, 5e-7);
    assert_eq!(peek(&live), new.live);
}

#[test]
fn a_later_commit_takes_no_displacement_into_its_momentum() {
    // Two replicas with the same training; one of them is displaced by an exchange in between.
    let start = values(40, 0.3);
    let (mut alone, _) = replica(start.clone(), Some(OUTER));
    let (mut mixed, _) = replica(start, Some(OUTER));
    let (mut other, _) = replica(values(40, 1.4), Some(OUTER));
    for step in 0..6 {
        alone.step(StepId::alone(step)).unwrap();
        mixed.step(StepId::alone(step)).unwrap();
        exchange(&mut mixed, &mut other, ALL, 0.5);
        if step % 2 == 1 {
            let (a, b) = (alone.commit(1.0), mixed.commit(1.0));
            assert!((a.progress_norm - b.progress_norm).abs() < 1e-5);
        }
    }
    let momentum = |replica: &Replica| wide(&replica.hold().momentum().unwrap());
    assert_close(&momentum(&alone), &momentum(&mixed), 5e-6);
}

#[test]
fn the_mean_of_two_outer_steps_is_dilocos_outer_step_on_the_mean() {
    let (a, b) = (values(50, 0.1), values(50, 0.5));
    let (mut i, live_i) = replica(a.clone(), Some(OUTER));
    let (mut j, live_j) = replica(b.clone(), Some(OUTER));
    let (alpha, beta) = (f64::from(OUTER.learning_rate), f64::from(OUTER.momentum));
    let (mut phi, mut v) = (mean(&a, &b), vec![0.0; 50]);
    for step in 0..20 {
        i.step(StepId::alone(2 * step)).unwrap();
        j.step(StepId::alone(3 * step + 1)).unwrap();
        let x = mean(&peek(&live_i), &peek(&live_j));
        for k in 0..50 {
            let progress = x[k] - phi[k];
            v[k] = beta * v[k] + progress;
            phi[k] += alpha * (progress + beta * v[k]);
        }
        i.commit(1.0);
        j.commit(1.0);
        exchange(&mut i, &mut j, ALL, if step % 3 == 0 { 0.5 } else { 0.2 });
        assert_close(&mean(&i.parameters(), &j.parameters()), &phi, 2e-5);
    }
}

#[test]
fn after_a_commit_the_live_weights_are_the_slow_ones_to_the_last_bit() {
    let (mut i, live) = replica(values(200, 0.6), Some(OUTER));
    for step in 0..10 {
        i.step(StepId::alone(step)).unwrap();
        let report = i.commit(1.0);
        assert!(report.progress_norm > 0.0);
        assert_eq!(peek(&live), i.parameters());
    }
}

#[test]
fn without_an_outer_step_the_replica_is_its_live_weights() {
    let (mut i, live) = replica(values(30, 0.4), None);
    i.step(StepId::alone(0)).unwrap();
    let before = peek(&live);
    assert_eq!(i.commit(1.0), CommitReport::default());
    assert_eq!(i.parameters(), before);
    let (mut j, _) = replica(values(30, 0.8), None);
    exchange(&mut i, &mut j, ALL, 0.5);
    assert_eq!(peek(&live), i.parameters());
    assert_ne!(peek(&live), before);
}

#[test]
fn undo_takes_the_displacement_back_and_leaves_later_training() {
    for outer in [None, Some(OUTER)] {
        let (mut i, live) = replica(values(30, 0.4), outer);
        let (start, offer) = (i.parameters(), plain(&values(30, 2.0)));
        let (reply, _) = i.answer(ALL, MixTerms::any(0.3), &offer, Codec::F32).unwrap();
        assert_ne!(i.parameters(), start);
        i.undo(ALL, 0.3, &reply);
        assert_close(&wide(&i.parameters()), &wide(&start), 3e-7);
        assert_close(&wide(&peek(&live)), &wide(&start), 3e-7);
        // With a step between mixing and undoing, exactly that step remains.
        let (reply, _) = i.answer(ALL, MixTerms::any(0.3), &offer, Codec::F32).unwrap();
        let mixed = peek(&live);
        i.step(StepId::alone(5)).unwrap();
        let trained = peek(&live);
        i.undo(ALL, 0.3, &reply);
        for k in 0..30 {
            let step = f64::from(trained[k]) - f64::from(mixed[k]);
            let rest = f64::from(peek(&live)[k]) - f64::from(start[k]);
            assert!((step - rest).abs() < 1e-6, "element {k}");
        }
    }
}

#[test]
fn bad_numbers_are_refused_and_change_nothing() {
    for outer in [None, Some(OUTER)] {
        let (mut i, _) = mixed(values(24, 0.4), Mixer::Exchange, outer, None);
        let before = i.save();
        let middle = FragmentId(1);
        let good = vec![0.1; 8];
        for weight in [-0.1, 1.1, f32::NAN] {
            let refused = i.answer(middle, MixTerms::any(weight), &plain(&good), Codec::F32);
            assert!(matches!(refused, Err(MixError::Weight(_))));
            assert!(matches!(
                i.apply(middle, MixTerms::any(weight), &plain(&good)),
                Err(MixError::Weight(_))
            ));
        }
        for (bad, outlier) in [(f32::NAN, false), (f32::INFINITY, false), (1e4, true)] {
            let mut remote = good.clone();
            remote[5] = bad;
            let results = [
                i.answer(middle, MixTerms::any(0.5), &plain(&remote), Codec::F32).unwrap_err(),
                i.apply(middle, MixTerms::any(0.5), &plain(&remote)).unwrap_err(),
            ];
            for error in results {
                assert_eq!(matches!(error, MixError::Outlier { .. }), outlier, "{error}");
                assert_eq!(matches!(error, MixError::NotFinite { .. }), !outlier, "{error}");
            }
        }
        let short = i.apply(middle, MixTerms::any(0.5), &plain(&good[..7]));
        assert_eq!(short, Err(MixError::Length { expected: 8, found: 7 }));
        let broken = i.adopt(middle, &plain(&[f32::NAN; 8]));
        assert!(matches!(broken, Err(MixError::NotFinite { .. })));
        let poisoned = i.adopt(middle, &plain(&[1e3; 8]));
        assert!(matches!(poisoned, Err(MixError::Outlier { .. })), "{poisoned:?}");
        assert_eq!(i.save(), before);
    }
}

#[test]
fn own_numbers_that_are_not_finite_are_not_blamed_on_the_peer() {
    let mut broken = values(8, 0.1);
    broken[3] = f32::NAN;
    let (mut i, _) = replica(broken, None);
    let (theirs, own_fault) = (plain(&[0.1; 8]), MixError::Local { start: 0, end: 8 });
    assert_eq!(i.answer(ALL, MixTerms::any(0.5), &theirs, Codec::F32), Err(own_fault.clone()));
    assert_eq!(i.apply(ALL, MixTerms::any(0.5), &theirs), Err(own_fault));
}

#[test]
fn a_joiner_adopts_the_donors_weights_with_no_momentum() {
    let (mut joiner, live) = mixed(values(20, 0.1), Mixer::Exchange, Some(OUTER), None);
    joiner.step(StepId::alone(0)).unwrap();
    joiner.commit(1.0);
    joiner.step(StepId::alone(1)).unwrap();
    let donor = values(20, 0.9);
    set_weights(&mut joiner, &donor);
    let state = joiner.save();
    assert_eq!(state.parameters, donor);
    assert_eq!(peek(&live), donor);
    assert!(state.outer.unwrap().momentum.iter().all(|&v| v == 0.0));
}

#[test]
fn evaluation_measures_the_slow_weights_and_leaves_the_live_ones() {
    let (mut i, live) = replica(values(CHUNK + 3, 0.6), Some(OUTER));
    i.step(StepId::alone(0)).unwrap();
    let before = peek(&live);
    let expected: f64 = wide(&i.parameters()).iter().sum();
    assert!((i.evaluate().unwrap().loss - expected).abs() < 1e-9);
    assert_eq!(peek(&live), before);
    i.commit(1.0);
    let expected: f64 = wide(&i.parameters()).iter().sum();
    assert!((i.evaluate().unwrap().loss - expected).abs() < 1e-9);
}

#[test]
fn saved_and_restored_a_replica_continues_alike() {
    for outer in [None, Some(OUTER)] {
        let (mut i, _) = replica(values(25, 0.6), outer);
        for step in 0..5 {
            i.step(StepId::alone(step)).unwrap();
            if step == 3 {
                i.commit(1.0);
            }
        }
        let state = i.save();
        let (mut j, _) = replica(values(25, 7.0), outer);
        j.restore(&state).unwrap();
        assert_eq!(j.save(), state);
        for replica in [&mut i, &mut j] {
            replica.step(StepId::alone(5)).unwrap();
            replica.commit(1.0);
        }
        assert_eq!(i.save(), j.save());
    }
}

#[test]
fn slow_weights_in_a_file_are_those_in_memory_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    let sums = Mixer::DeltaSet { codec: Codec::Int4, feedback: true };
    for mixer in [Mixer::Exchange, sums] {
        let of = |in_file: bool| {
            let fragments = Fragments::new(25, 3).unwrap();
            let config = ReplicaConfig { mixer, outer: Some(OUTER), fragments, clip: None };
            let file = in_file.then(|| RoomFile::create(folder.path(), &config).unwrap());
            Replica::with_beside(probe(values(25, 0.6)).0, config, Beside { noise: None, file })
        };
        let mut both = [of(false), of(true)];
        for step in 0..5 {
            for replica in &mut both {
                replica.step(StepId::alone(step)).unwrap();
                replica.commit(1.0);
            }
        }
        let state = both[0].save();
        assert_eq!(both[1].save(), state, "{mixer:?}");
        let mut again = of(true);
        again.restore(&state).unwrap();
        for replica in both.iter_mut().chain([&mut again]) {
            replica.adopt(FragmentId(1), &snapshot(mixer)).unwrap();
            replica.step(StepId::alone(5)).unwrap();
            replica.commit(1.0);
        }
        let state = both[0].save();
        assert_eq!((both[1].save(), again.save()), (state.clone(), state), "{mixer:?}");
    }
}

/// Fragment 1 of three of 25 numbers, as others of the mixer give it.
fn snapshot(mixer: Mixer) -> Encoded {
    let (mut donor, _) = mixed(values(25, 3.0), mixer, Some(OUTER), None);
    donor.read(FragmentId(1), Reading::Snapshot)
}

#[test]
fn state_that_does_not_fit_is_refused_and_changes_nothing() {
    let (mut i, _) = replica(values(25, 0.6), Some(OUTER));
    let good = i.save();
    let mut short = good.clone();
    short.parameters.pop();
    let mut broken = good.clone();
    broken.outer.as_mut().unwrap().momentum[3] = f32::INFINITY;
    let mut foreign = good.clone();
    foreign.trainer.tensors.clear();
    let other_rule = ReplicaState { outer: None, ..good.clone() };
    for state in [short, broken, foreign, other_rule] {
        assert!(matches!(i.restore(&state), Err(TrainError::State(_))));
        assert_eq!(i.save(), good);
    }
}

#[test]
fn sketches_of_two_replicas_estimate_their_distance() {
    let (a, b) = (values(5000, 0.2), values(5000, 0.9));
    let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    for outer in [None, Some(OUTER)] {
        let (mut p, mut q) = ([0.0; SKETCH_LEN], [0.0; SKETCH_LEN]);
        replica(a.clone(), outer).0.sketch(&mut p);
        replica(b.clone(), outer).0.sketch(&mut q);
        let estimate: f64 = p.iter().zip(&q).map(|(p, q)| f64::from(p - q).powi(2)).sum();
        assert!((estimate / exact - 1.0).abs() < 0.44, "{estimate} for {exact}");
    }
}
