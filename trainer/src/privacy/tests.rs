//! Commits with noise: what others get is made of the clipped progress with noise, and is what is applied.

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use super::{CommitNoise, NoiseSeed};
use crate::codec::decode;
use crate::mix::{MixTerms, norm};
use crate::mixer::Reading;
use crate::testing::{Live, OUTER, assert_close, noised, peek, values, wide};
use crate::{Mixer, OuterStep, Replica};

const PARAMETERS: usize = 900;
const FRAGMENTS: [FragmentId; 3] = [FragmentId(0), FragmentId(1), FragmentId(2)];
/// The outer step that takes over the live weights.
const COPY: OuterStep = OuterStep { learning_rate: 1.0, momentum: 0.0 };
const DELTA_SET: Mixer = Mixer::DeltaSet { codec: Codec::F32, feedback: true };

fn noise(clip: f64, multiplier: f64) -> CommitNoise {
    CommitNoise::new(clip, multiplier, NoiseSeed([3; 32]))
}

fn peer(mixer: Mixer, outer: OuterStep, noise: CommitNoise) -> (Replica, Live) {
    noised(values(PARAMETERS, 0.2), mixer, outer, noise)
}

/// Local steps: the live weights move.
fn train(live: &Live, by: &[f32]) {
    live.lock().unwrap().iter_mut().zip(by).for_each(|(x, by)| *x += by);
}

fn moved(replica: &Replica, before: &[f32]) -> Vec<f32> {
    replica.parameters().iter().zip(before).map(|(after, before)| after - before).collect()
}

#[test]
fn the_bound_is_that_of_all_fragments_together() {
    for mixer in [Mixer::Exchange, DELTA_SET] {
        let (mut replica, live) = peer(mixer, COPY, noise(0.75, 0.0));
        let (before, progress) = (replica.parameters(), values(PARAMETERS, 0.9));
        train(&live, &progress);
        let report = replica.commit(1.0);
        assert!((report.progress_norm - norm(&progress)).abs() < 1e-3, "{}", report.progress_norm);
        let moved = moved(&replica, &before);
        assert!((norm(&moved) - 0.75).abs() < 1e-5, "{mixer:?} {}", norm(&moved));
        // The direction stays.
        let factor = (0.75 / norm(&progress)) as f32;
        let want: Vec<f32> = progress.iter().map(|p| factor * p).collect();
        assert_close(&wide(&moved), &wide(&want), 1e-6);
    }
}

#[test]
fn all_that_is_shown_is_made_of_the_progress_with_noise() {
    for mixer in [Mixer::Exchange, DELTA_SET] {
        let (mut replica, live) = peer(mixer, OUTER, noise(0.5, 2.0));
        let (before, progress) = (replica.parameters(), values(PARAMETERS, 0.9));
        train(&live, &progress);
        let report = replica.commit(1.0);
        let mut want = progress.clone();
        let mut same = noise(0.5, 2.0);
        let factor = same.factor(norm(&want));
        FRAGMENTS.iter().for_each(|fragment| {
            let range = replica.fragments().range(*fragment).unwrap();
            same.protect(&mut want[range], factor);
        });
        // φ and v move by it alone: α (1 + β) Δ in the first commit.
        let step = OUTER.learning_rate * (1.0 + OUTER.momentum);
        let want: Vec<f32> = want.iter().map(|p| step * p).collect();
        assert_close(&wide(&moved(&replica, &before)), &wide(&want), 1e-5);
        // The peer's own weights are what the others get.
        assert_eq!(peek(&live), replica.parameters());
        for (fragment, contribution) in FRAGMENTS.into_iter().zip(&report.contributions) {
            let range = replica.fragments().range(fragment).unwrap();
            let mut told = vec![0.0; range.len()];
            decode(contribution, &mut told).unwrap();
            assert_close(&wide(&told), &wide(&want[range]), 1e-5);
        }
        // No progress, and noise all the same.
        let before = replica.parameters();
        replica.commit(1.0);
        let (length, clip) = (norm(&moved(&replica, &before)), 0.5);
        assert!(length > 10.0 * clip, "{length}");
    }
}

#[test]
fn what_a_peer_learns_between_commits_is_not_shown() {
    let (mut replica, live) = peer(Mixer::Exchange, OUTER, noise(0.5, 1.0));
    let (set, set_live) = peer(DELTA_SET, OUTER, noise(0.5, 1.0));
    let before = (replica.parameters(), set.parameters());
    let hashes = FRAGMENTS.map(|fragment| (replica.hash(fragment), set.hash(fragment)));
    for live in [&live, &set_live] {
        train(live, &values(PARAMETERS, 0.9));
    }
    assert_eq!((replica.parameters(), set.parameters()), before);
    assert_eq!(FRAGMENTS.map(|fragment| (replica.hash(fragment), set.hash(fragment))), hashes,);
    let mut told = vec![0.0; PARAMETERS / 3];
    let offer = replica.read(FRAGMENTS[0], Reading::Offer(Codec::F32));
    decode(&offer, &mut told).unwrap();
    assert_eq!(told, before.0[..PARAMETERS / 3]);
}

#[test]
fn exchanges_keep_the_mean_of_replicas_with_noise() {
    let (mut i, i_live) = peer(Mixer::Exchange, OUTER, noise(0.5, 1.0));
    let (mut j, j_live) = peer(Mixer::Exchange, OUTER, noise(0.5, 3.0));
    for (replica, live, salt) in [(&mut i, &i_live, 0.9), (&mut j, &j_live, 0.4)] {
        train(live, &values(PARAMETERS, salt));
        replica.commit(1.0);
    }
    let sum = |i: &Replica, j: &Replica| -> Vec<f64> {
        wide(&i.parameters()).iter().zip(wide(&j.parameters())).map(|(i, j)| i + j).collect()
    };
    let before = sum(&i, &j);
    for fragment in FRAGMENTS {
        let offer = i.read(fragment, Reading::Offer(Codec::F32));
        let terms = MixTerms::any(0.5);
        let (reply, _) = j.answer(fragment, terms, &offer, Codec::Int4).unwrap();
        i.apply(fragment, terms, &reply).unwrap();
    }
    assert_close(&sum(&i, &j), &before, 1e-5);
}

#[test]
fn contributions_with_noise_give_equal_bits_at_all() {
    let mixer = Mixer::DeltaSet { codec: Codec::Sign, feedback: true };
    let (mut i, live) = peer(mixer, OUTER, noise(0.5, 1.0));
    let (mut j, _) = peer(mixer, OUTER, noise(0.5, 1.0));
    for round in 0_u8..3 {
        train(&live, &values(PARAMETERS, f32::from(round)));
        let contributions = i.commit(1.0).contributions;
        for (fragment, contribution) in FRAGMENTS.into_iter().zip(&contributions) {
            j.include(fragment, contribution).unwrap();
        }
    }
    assert_eq!(i.parameters(), j.parameters());
    assert_eq!(FRAGMENTS.map(|f| i.hash(f)), FRAGMENTS.map(|f| j.hash(f)));
}
