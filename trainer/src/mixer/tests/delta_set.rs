//! Delta-set: equal sets give equal bits, and lock step is an all-reduce.

use dnode_protocol::frame::Codec;
use proptest::prelude::*;

use super::{FRAGMENTS, distance, length};
use crate::codec::{Encoded, encode, encode_i64};
use crate::mix::MixError;
use crate::testing::{OUTER, assert_close, mixed, peek, values, wide};
use crate::{Mixer, Reading, Replica, StepId};

const PARAMETERS: usize = 900;

fn peer(codec: Codec, feedback: bool) -> Replica {
    let mixer = Mixer::DeltaSet { codec, feedback };
    mixed(values(PARAMETERS, 0.4), mixer, Some(OUTER), None).0
}

/// What `peers` peers contribute in `rounds` rounds, each alone.
fn contributions(codec: Codec, peers: u64, rounds: u64) -> Vec<Vec<Encoded>> {
    let mut all = Vec::new();
    for index in 0..peers {
        let mut origin = peer(codec, true);
        for round in 0..rounds {
            origin.step(StepId::alone(17 * index + round)).unwrap();
            all.push(origin.commit(1.0 / peers as f32).contributions);
        }
    }
    all
}

fn hashes(replica: &Replica) -> [[u8; 32]; 3] {
    FRAGMENTS.map(|fragment| replica.hash(fragment))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_order_of_the_same_contributions_gives_the_same_bits(
        codec in prop::sample::select(Codec::CHOICES.to_vec()),
        (order, other) in {
            let order = (0..12_usize).collect::<Vec<_>>();
            (Just(order.clone()).prop_shuffle(), Just(order).prop_shuffle())
        },
    ) {
        let all = contributions(codec, 4, 3);
        let mut ends = Vec::new();
        for order in [order, other] {
            let mut replica = peer(codec, false);
            for at in order {
                for (fragment, contribution) in FRAGMENTS.into_iter().zip(&all[at]) {
                    replica.include(fragment, contribution).unwrap();
                }
            }
            ends.push((hashes(&replica), replica.parameters()));
        }
        prop_assert_eq!(&ends[0], &ends[1]);
        prop_assert_ne!(ends[0].0, hashes(&peer(codec, false)));
    }
}

#[test]
fn commits_in_between_end_at_the_same_bits() {
    for codec in Codec::CHOICES {
        let mut peers: Vec<Replica> = (0..3).map(|_| peer(codec, true)).collect();
        let mut sent: Vec<(usize, Vec<Encoded>)> = Vec::new();
        for round in 0..4_u64 {
            for (at, peer) in peers.iter_mut().enumerate() {
                peer.step(StepId::alone(round * 5 + at as u64)).unwrap();
                sent.push((at, peer.commit(1.0 / 3.0).contributions));
            }
        }
        // Everybody else's arrive late, in another order at each.
        for (at, replica) in peers.iter_mut().enumerate() {
            let mut foreign: Vec<_> = sent.iter().filter(|(origin, _)| *origin != at).collect();
            foreign.rotate_left(at);
            for (_, contribution) in foreign {
                for (fragment, part) in FRAGMENTS.into_iter().zip(contribution) {
                    replica.include(fragment, part).unwrap();
                }
            }
        }
        assert_eq!(hashes(&peers[0]), hashes(&peers[1]), "{codec:?}");
        assert_eq!(hashes(&peers[0]), hashes(&peers[2]), "{codec:?}");
        assert_eq!(peers[0].parameters(), peers[2].parameters());
    }
}

#[test]
fn in_lock_step_with_f32_it_is_dilocos_all_reduce() {
    let n = 4;
    let mut sets: Vec<Replica> = (0..n).map(|_| peer(Codec::F32, false)).collect();
    let start = sets[0].parameters();
    let mut reduced: Vec<Replica> =
        (0..n).map(|_| mixed(start.clone(), Mixer::None, Some(OUTER), None).0).collect();
    for round in 0..25_u64 {
        let mut mean = vec![0.0_f32; PARAMETERS];
        let mut own = vec![0.0_f32; PARAMETERS];
        let mut told = Vec::new();
        for at in 0..n {
            for step in 0..3 {
                sets[at].step(StepId::alone(round * 3 + step + 100 * at as u64)).unwrap();
                reduced[at].step(StepId::alone(round * 3 + step + 100 * at as u64)).unwrap();
            }
            reduced[at].progress(&mut own);
            mean.iter_mut().zip(&own).for_each(|(mean, own)| *mean += own / n as f32);
            told.push(sets[at].commit(1.0 / n as f32).contributions);
        }
        for (at, replica) in reduced.iter_mut().enumerate() {
            replica.commit_mean(&mut mean.clone());
            for (origin, contribution) in told.iter().enumerate() {
                for (fragment, part) in FRAGMENTS.into_iter().zip(contribution) {
                    if origin != at {
                        sets[at].include(fragment, part).unwrap();
                    }
                }
            }
        }
        let (a, b) = (wide(&sets[1].parameters()), wide(&reduced[1].parameters()));
        let error = distance(&a, &b) / length(&b);
        assert!(error < 1e-6, "round {round}: {error:e}");
        assert_eq!(hashes(&sets[0]), hashes(&sets[3]));
    }
}

#[test]
fn what_a_code_loses_is_contributed_later() {
    for codec in [Codec::Int8, Codec::Int4, Codec::Int2, Codec::Bf16] {
        let (mut origin, mut exact) = (peer(codec, true), peer(Codec::F32, false));
        for round in 0..5 {
            for replica in [&mut origin, &mut exact] {
                replica.step(StepId::alone(round)).unwrap();
                replica.commit(0.5);
            }
            let lost = origin.save().fixed.unwrap().residual;
            assert!(lost.iter().any(|&e| e != 0.0), "{codec:?}");
            // φ has moved by what was sent: by all that was meant, less what is left to send.
            let rest: Vec<f64> = wide(&exact.parameters())
                .iter()
                .zip(wide(&origin.parameters()))
                .map(|(meant, sent)| meant - sent)
                .collect();
            assert_close(&rest, &wide(&lost), 1e-6);
        }
        assert!(peer(codec, false).save().fixed.unwrap().residual.is_empty());
    }
}

#[test]
fn a_contribution_moves_slow_and_live_weights_alike() {
    let mixer = Mixer::DeltaSet { codec: Codec::Int4, feedback: true };
    let (mut i, live) = mixed(values(PARAMETERS, 0.4), mixer, Some(OUTER), None);
    i.step(StepId::alone(0)).unwrap();
    let (slow, x) = (i.parameters(), peek(&live));
    for (fragment, part) in FRAGMENTS.into_iter().zip(&contributions(Codec::Int4, 1, 1)[0]) {
        i.include(fragment, part).unwrap();
    }
    let (slow_now, x_now) = (i.parameters(), peek(&live));
    assert_ne!(slow, slow_now);
    let moved = |now: &[f32], was: &[f32]| -> Vec<f64> {
        now.iter().zip(was).map(|(&now, &was)| f64::from(now) - f64::from(was)).collect()
    };
    assert_close(&moved(&slow_now, &slow), &moved(&x_now, &x), 3e-7);
}

#[test]
fn a_joiner_is_its_donor_to_the_last_bit_and_goes_on_alike() {
    let all = contributions(Codec::Int4, 3, 2);
    let include = |replica: &mut Replica, contribution: &[Encoded]| {
        for (fragment, part) in FRAGMENTS.into_iter().zip(contribution) {
            replica.include(fragment, part).unwrap();
        }
    };
    let mut donor = peer(Codec::Int4, true);
    all[..4].iter().for_each(|contribution| include(&mut donor, contribution));
    let mixer = Mixer::DeltaSet { codec: Codec::Int4, feedback: true };
    let (mut joiner, live) = mixed(values(PARAMETERS, 2.0), mixer, Some(OUTER), None);
    joiner.step(StepId::alone(0)).unwrap();
    joiner.commit(1.0);
    for fragment in FRAGMENTS {
        let snapshot = donor.read(fragment, Reading::Snapshot);
        assert_eq!(snapshot.codec, Codec::Fixed64);
        joiner.adopt(fragment, &snapshot).unwrap();
    }
    assert_eq!(hashes(&joiner), hashes(&donor));
    assert_eq!(peek(&live), donor.parameters());
    let state = joiner.save();
    assert!(state.outer.unwrap().momentum.iter().all(|&v| v == 0.0));
    assert!(state.fixed.unwrap().residual.iter().all(|&e| e == 0.0));
    for contribution in &all[4..] {
        include(&mut donor, contribution);
        include(&mut joiner, contribution);
    }
    assert_eq!(hashes(&joiner), hashes(&donor));
}

#[test]
fn restored_it_continues_alike_and_foreign_state_is_refused() {
    let mut i = peer(Codec::Int2, true);
    for step in 0..3 {
        i.step(StepId::alone(step)).unwrap();
        i.commit(0.5);
    }
    // A lead is taken out of the live weights that are saved, which rounds them.
    i.shared().lock().give_up_lead();
    i.catch_up();
    i.step(StepId::alone(3)).unwrap();
    let state = i.save();
    let mut j = peer(Codec::Int2, true);
    j.restore(&state).unwrap();
    assert_eq!(j.save(), state);
    assert_eq!(i.commit(0.5), j.commit(0.5));
    assert_eq!(hashes(&i), hashes(&j));
    let (good, mut wrong) = (j.save(), state.clone());
    wrong.fixed.as_mut().unwrap().accumulators[5] += 1 << 20;
    let none = crate::ReplicaState { fixed: None, ..state.clone() };
    let mut short = state;
    short.fixed.as_mut().unwrap().residual.pop();
    for state in [wrong, none, short] {
        assert!(j.restore(&state).is_err());
        assert_eq!(j.save(), good);
    }
}

#[test]
fn bad_contributions_are_refused_and_change_nothing() {
    let mut i = peer(Codec::F32, false);
    let before = i.save();
    let f = FRAGMENTS[0];
    for value in [f32::NAN, f32::INFINITY, 11.0] {
        assert!(i.include(f, &encode(Codec::F32, &[value; 300])).is_err());
    }
    assert!(i.include(f, &encode(Codec::F32, &[0.1; 299])).is_err());
    let other = i.include(f, &encode(Codec::Int8, &[0.1; 300]));
    assert_eq!(other, Err(MixError::Codec(Codec::Int8)));
    assert!(i.adopt(f, &encode(Codec::F32, &[0.1; 300])).is_err());
    assert!(i.adopt(f, &encode_i64(&[1; 299])).is_err());
    assert_eq!(i.save(), before);
}

#[test]
fn a_round_that_went_wild_contributes_nothing_and_the_next_one_is_whole() {
    let mixer = Mixer::DeltaSet { codec: Codec::Int4, feedback: true };
    let (mut i, live) = mixed(values(PARAMETERS, 0.4), mixer, Some(OUTER), None);
    let before = hashes(&i);
    live.lock().unwrap()[7] = f32::NAN;
    let report = i.commit(0.5);
    assert!(!report.progress_norm.is_finite());
    assert_eq!(hashes(&i), before);
    let mut other = peer(Codec::Int4, false);
    for (fragment, part) in FRAGMENTS.into_iter().zip(&report.contributions) {
        other.include(fragment, part).unwrap();
    }
    assert_eq!(hashes(&other), before);
}

/// Live weights of a replica with its handle.
fn beside(codec: Codec) -> (Replica, std::sync::Arc<std::sync::Mutex<Vec<f32>>>) {
    let mixer = Mixer::DeltaSet { codec, feedback: true };
    mixed(values(PARAMETERS, 0.4), mixer, Some(OUTER), None)
}

fn include_all(replica: &mut Replica, contributions: &[Encoded]) {
    for (fragment, part) in FRAGMENTS.into_iter().zip(contributions) {
        replica.include(fragment, part).unwrap();
    }
}

/// `a − b`.
fn minus(a: &[f32], b: &[f32]) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect()
}

#[test]
fn live_weights_keep_the_own_progress_until_that_of_others_is_here() {
    let (mut i, live) = beside(Codec::F32);
    let start = i.parameters();
    i.step(StepId::alone(0)).unwrap();
    // One of four: a quarter is contributed, and three quarters stand in for the others.
    let sent = i.commit(0.25).contributions;
    let moved = minus(&i.parameters(), &start);
    let lead = minus(&peek(&live), &i.parameters());
    assert!(length(&moved) > 0.0);
    assert_close(&lead, &moved.iter().map(|u| 3.0 * u).collect::<Vec<_>>(), 1e-6);
    // Each of the three that comes takes its place.
    for left in [2.0, 1.0] {
        include_all(&mut i, &sent);
        let lead = minus(&peek(&live), &i.parameters());
        assert_close(&lead, &moved.iter().map(|u| left * u).collect::<Vec<_>>(), 1e-6);
    }
    include_all(&mut i, &sent);
    assert_eq!(peek(&live), i.parameters(), "nothing is expected any more");
    include_all(&mut i, &sent);
    assert_eq!(peek(&live), i.parameters(), "more than expected");
}

#[test]
fn progress_is_counted_from_the_lead_and_no_commit_is_expected_of_who_is_gone() {
    let (mut i, live) = beside(Codec::F32);
    i.step(StepId::alone(0)).unwrap();
    i.commit(0.5);
    let (slow, before) = (i.parameters(), peek(&live));
    assert_ne!(slow, before);
    let mut progress = vec![0.0; PARAMETERS];
    i.progress(&mut progress);
    assert!(progress.iter().all(|&u| u == 0.0), "the lead is no progress");
    // The other has taken in all, and its own does not come: it is gone, or slower.
    i.shared().lock().expect_at_most(0);
    for _ in 0..20 {
        i.commit(0.5);
    }
    // The outer momentum has died away, so what is left would be the lead of the first commit.
    let left = length(&minus(&peek(&live), &i.parameters()));
    assert!(left < 0.05 * length(&minus(&before, &slow)), "{left}");
}

#[test]
fn a_lead_is_not_saved_not_adopted_and_given_up_at_the_end() {
    let (mut i, live) = beside(Codec::F32);
    i.step(StepId::alone(0)).unwrap();
    i.commit(0.25);
    let state = i.save();
    let saved = state.outer.as_ref().unwrap();
    assert_close(&wide(&saved.live), &wide(&i.parameters()), 1e-6);
    let ahead = peek(&live);
    assert_ne!(ahead, i.parameters());
    let sum: f64 = wide(&i.parameters()).iter().sum();
    assert!((i.evaluate().unwrap().loss - sum).abs() < 1e-9, "what is saved is what is measured");
    assert_eq!(peek(&live), ahead);
    let (mut resumed, _) = beside(Codec::F32);
    resumed.restore(&state).unwrap();
    let mut progress = vec![0.0; PARAMETERS];
    resumed.progress(&mut progress);
    assert!(length(&wide(&progress)) < 1e-5, "nothing is contributed twice");
    let (mut joiner, joined) = beside(Codec::F32);
    joiner.step(StepId::alone(3)).unwrap();
    joiner.commit(0.25);
    for fragment in FRAGMENTS {
        let snapshot = i.read(fragment, Reading::Snapshot);
        joiner.adopt(fragment, &snapshot).unwrap();
    }
    assert_eq!(peek(&joined), i.parameters());
    i.shared().lock().give_up_lead();
    i.catch_up();
    assert_close(&wide(&peek(&live)), &wide(&i.parameters()), 1e-6);
    assert!(hashes(&i) == hashes(&joiner), "the sum is as it was");
}
