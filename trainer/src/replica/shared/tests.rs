//! Two sides of one replica: what mixing does while training does not look.

use std::sync::mpsc;

use dnode_protocol::frame::Codec;

use super::*;
use crate::codec::encode;
use crate::mix::MixTerms;
use crate::mixer::Reading;
use crate::testing::{OUTER, assert_close, mean, mixed, peek, values, wide};
use crate::{Mixer, OuterStep, Replica, StepId};

const FRAGMENTS: [FragmentId; 3] = [FragmentId(0), FragmentId(1), FragmentId(2)];

fn pair(outer: Option<OuterStep>) -> (Replica, Replica) {
    let replica = |salt| mixed(values(60, salt), Mixer::Exchange, outer, None).0;
    (replica(0.1), replica(0.9))
}

/// Exchanges every fragment between sides whose training does not look.
fn exchange_all(i: &SharedReplica, j: &SharedReplica, weight: f32) {
    for fragment in FRAGMENTS {
        let offer = i.lock().read(fragment, Reading::Offer(Codec::F32));
        let (reply, _) =
            j.lock().answer(fragment, MixTerms::any(weight), &offer, Codec::F32).unwrap();
        i.lock().apply(fragment, MixTerms::any(weight), &reply).unwrap();
    }
}

#[test]
fn moves_add_up_until_training_makes_them_and_the_mean_is_kept() {
    for outer in [None, Some(OUTER)] {
        let (mut i, mut j) = pair(outer);
        let before = mean(&i.parameters(), &j.parameters());
        i.show_all();
        j.show_all();
        let (a, b) = (i.shared(), j.shared());
        for weight in [0.25, 0.5, 0.1] {
            exchange_all(&a, &b, weight);
            assert_close(&mean(&i.parameters(), &j.parameters()), &before, 3e-7);
        }
        // After the half, nothing is left to be moved.
        assert_close(&wide(&i.parameters()), &wide(&j.parameters()), 5e-7);
        let (held, live) = (i.parameters(), i.save());
        i.catch_up();
        assert_eq!((i.parameters(), i.save()), (held, live), "{outer:?}");
        assert!(!i.serve());
    }
}

#[test]
fn a_state_saved_between_a_mix_and_its_move_is_that_of_after_the_move() {
    let (mut i, mut j) = pair(Some(OUTER));
    for step in 0..3 {
        i.step(StepId::alone(step)).unwrap();
    }
    i.commit(1.0);
    i.step(StepId::alone(3)).unwrap();
    exchange_all(&i.shared(), &j.shared(), 0.5);
    let saved = i.save();
    i.catch_up();
    assert_eq!(i.save(), saved);
    // Who resumes there goes on alike.
    j.restore(&saved).unwrap();
    for replica in [&mut i, &mut j] {
        replica.step(StepId::alone(4)).unwrap();
        replica.commit(1.0);
    }
    assert_eq!(i.save(), j.save());
}

#[test]
fn what_is_moved_during_a_step_enters_no_momentum() {
    let (mut i, j) = pair(Some(OUTER));
    let (mut alone, _) = pair(Some(OUTER));
    for step in 0..6 {
        for replica in [&mut i, &mut alone] {
            replica.step(StepId::alone(step)).unwrap();
        }
        exchange_all(&i.shared(), &j.shared(), 0.5);
        if step % 3 == 2 {
            let (mixed, plain) = (i.commit(1.0), alone.commit(1.0));
            assert!((mixed.progress_norm - plain.progress_norm).abs() < 1e-5);
        }
    }
    let momentum = |replica: &Replica| wide(&replica.hold().momentum().unwrap());
    assert_close(&momentum(&i), &momentum(&alone), 5e-6);
}

#[test]
fn an_undo_meets_its_answer_before_training_has_seen_either() {
    for outer in [None, Some(OUTER)] {
        let (mut i, live) = mixed(values(60, 0.3), Mixer::Exchange, outer, None);
        i.show_all();
        let (before, shared) = (peek(&live), i.shared());
        let offer = encode(Codec::F32, &values(20, 1.7));
        let (reply, _) =
            shared.lock().answer(FRAGMENTS[1], MixTerms::any(0.5), &offer, Codec::F32).unwrap();
        assert_ne!(i.parameters(), before);
        shared.lock().undo(FRAGMENTS[1], 0.5, &reply);
        i.catch_up();
        assert_close(&wide(&peek(&live)), &wide(&before), 3e-7);
    }
}

#[test]
fn taken_over_weights_and_later_moves_reach_the_live_weights_in_order() {
    for outer in [None, Some(OUTER)] {
        let (mut i, live) = mixed(values(60, 0.3), Mixer::Exchange, outer, None);
        let shared = i.shared();
        let donor = values(20, 0.8);
        shared.lock().adopt(FRAGMENTS[2], &encode(Codec::F32, &donor)).unwrap();
        let moved = encode(Codec::F32, &[0.25; 20]);
        shared.lock().undo(FRAGMENTS[2], 1.0, &moved);
        i.step(StepId::alone(0)).unwrap();
        i.catch_up();
        let want: Vec<f64> = donor.iter().map(|&x| f64::from(x) + 0.25).collect();
        assert_close(&wide(&peek(&live)[40..]), &want, 3e-7);
    }
}

#[test]
fn mixing_waits_until_training_shows_live_weights_and_sees_the_newest() {
    let (mut i, live) = mixed(values(60, 0.3), Mixer::Exchange, None, None);
    let (wake, woken) = mpsc::channel();
    let shared = i.shared();
    let mixing = std::thread::spawn(move || {
        FRAGMENTS.map(|fragment| {
            assert!(shared.wait(fragment, true, || wake.send(()).unwrap()));
            shared.lock().read(fragment, Reading::Snapshot)
        })
    });
    for step in 0..3 {
        woken.recv().unwrap();
        i.step(StepId::alone(step)).unwrap();
        let fragment = i.fragments().range(FRAGMENTS[step as usize]).unwrap();
        live.lock().unwrap()[fragment].fill(step as f32);
        assert!(i.serve());
    }
    let read = mixing.join().unwrap();
    assert_eq!(read, [0.0_f32, 1.0, 2.0].map(|x| encode(Codec::F32, &[x; 20])));
}

#[test]
fn what_mixing_has_waited_for_stays_while_training_goes_on() {
    let (mut i, live) = mixed(vec![1.0; 60], Mixer::Exchange, None, None);
    let shared = i.shared();
    assert!(i.show_all());
    assert!(shared.wait(FRAGMENTS[1], true, || panic!("training need not look")));
    i.hide_all();
    live.lock().unwrap().fill(2.0);
    let read = shared.lock().read(FRAGMENTS[1], Reading::Snapshot);
    assert_eq!(read, encode(Codec::F32, &[1.0; 20]), "the boundary that was waited for");
    // It was kept for that once; then training has to show it again.
    assert!(!shared.pending().is_ready(1, true));
}

#[test]
fn the_end_of_training_leaves_what_mixing_has_waited_for() {
    let (mut i, _) = mixed(vec![1.0; 60], Mixer::Exchange, None, None);
    let shared = i.shared();
    assert!(shared.want(FRAGMENTS[1]));
    i.catch_up();
    assert!(shared.wait(FRAGMENTS[1], true, || panic!("training need not look")));
    // Training comes first to the lock, ends, and evaluates.
    shared.lock().give_up_lead();
    i.catch_up();
    i.evaluate().unwrap();
    let read = shared.lock().read(FRAGMENTS[1], Reading::Offer(Codec::F32));
    assert_eq!(read, encode(Codec::F32, &[1.0; 20]));
}

#[test]
fn what_stands_is_read_many_times_and_shows_every_move() {
    let (mut i, live) = mixed(vec![1.0; 60], Mixer::Exchange, None, None);
    assert!(i.show_all());
    let shared = i.shared();
    let offer = encode(Codec::F32, &[0.0; 20]);
    for left in [0.5_f32, 0.25, 0.125] {
        assert!(shared.wait(FRAGMENTS[0], true, || panic!("training need not look")));
        shared.lock().answer(FRAGMENTS[0], MixTerms::any(0.5), &offer, Codec::F32).unwrap();
        let read = shared.lock().read(FRAGMENTS[0], Reading::Snapshot);
        assert_eq!(read, encode(Codec::F32, &[left; 20]));
    }
    assert_eq!(peek(&live), vec![1.0; 60]);
    i.hide_all();
    i.catch_up();
    assert_eq!(peek(&live)[..20], [0.125; 20]);
}

#[test]
fn who_waits_for_a_replica_that_is_gone_is_told() {
    let (i, _) = mixed(values(60, 0.3), Mixer::Exchange, None, None);
    let shared = i.shared();
    let (wake, woken) = mpsc::channel();
    let mixing =
        std::thread::spawn(move || shared.wait(FRAGMENTS[0], true, || wake.send(()).unwrap()));
    woken.recv().unwrap();
    drop(i);
    assert!(!mixing.join().unwrap());
}
