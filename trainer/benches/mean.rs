//! What every mixer keeps: the mean under each code, and push-sum's mass, over a bad network.
//!
//! `cargo bench -p dnode-trainer --bench mean` makes 10,000 random exchanges among 16 replicas of
//! 10,000 parameters per code, half of those that break down undone, and 10,000 pushes with loss,
//! duplicates and reordering, and prints one line of a table for each.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and stops at the first error"
)]

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments, Origin, PeerId};
use dnode_trainer::codec::Encoded;
use dnode_trainer::{IdleTrainer, MixTerms, Mixer, OuterStep, Reading, Replica, ReplicaConfig};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const REPLICAS: usize = 16;
const PARAMETERS: usize = 10_000;
const FRAGMENTS: usize = 4;
const EVENTS: usize = 10_000;
/// Share of exchanges whose reply never arrives: the responder takes its half back.
const BROKEN: f64 = 0.2;
const LOSS: f64 = 0.2;
const DUPLICATES: f64 = 0.2;

/// Weights as at the start of training, and 5 % of them different in every replica.
fn swarm(mixer: Mixer, rng: &mut ChaCha8Rng) -> Vec<Replica> {
    let mut noise = || 0.1 * (0..6).map(|_| rng.random_range(-0.5_f32..0.5)).sum::<f32>();
    let common: Vec<f32> = (0..PARAMETERS).map(|_| noise()).collect();
    let fragments = Fragments::new(PARAMETERS, FRAGMENTS).unwrap();
    let config = ReplicaConfig { mixer, outer: Some(OuterStep::default()), fragments, clip: None };
    let mut replica = || {
        let x = common.iter().map(|x| x + 0.05 * noise()).collect();
        Replica::with(Box::new(IdleTrainer::new(x).unwrap()), config)
    };
    (0..REPLICAS).map(|_| replica()).collect()
}

fn mean(replicas: &[Replica]) -> Vec<f64> {
    let mut mean = vec![0.0; PARAMETERS];
    for replica in replicas {
        for (mean, x) in mean.iter_mut().zip(replica.parameters()) {
            *mean += f64::from(x) / REPLICAS as f64;
        }
    }
    mean
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

fn error(found: &[f64], expected: &[f64]) -> f64 {
    norm(found.iter().zip(expected).map(|(a, b)| a - b)) / norm(expected.iter().copied())
}

/// Root mean square distance of the replicas from `mean`, relative to its norm.
fn consensus(replicas: &[Replica], mean: &[f64]) -> f64 {
    let squares = replicas.iter().map(|replica| {
        let parameters = replica.parameters();
        norm(parameters.iter().zip(mean).map(|(&x, mean)| f64::from(x) - mean)).powi(2)
    });
    (squares.sum::<f64>() / REPLICAS as f64).sqrt() / norm(mean.iter().copied())
}

fn any_pair(rng: &mut ChaCha8Rng) -> (usize, usize, FragmentId) {
    let from = rng.random_range(0..REPLICAS);
    let to = (from + rng.random_range(1..REPLICAS)) % REPLICAS;
    (from, to, FragmentId(rng.random_range(0..4)))
}

/// Random exchanges; those that break down are undone, half of them after others have followed.
fn exchanges(codec: Codec) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut replicas = swarm(Mixer::Exchange, &mut rng);
    let start = mean(&replicas);
    let apart = consensus(&replicas, &start);
    let mut pending: Vec<(usize, FragmentId, f32, Encoded)> = Vec::new();
    let (mut undone, mut unread) = (0, 0);
    for _ in 0..EVENTS {
        let (from, to, fragment) = any_pair(&mut rng);
        let weight = if rng.random_bool(0.5) { 0.5 } else { rng.random_range(0.05_f32..0.5) };
        let offer = replicas[from].read(fragment, Reading::Offer(codec));
        let (reply, report) =
            replicas[to].answer(fragment, MixTerms::any(weight), &offer, codec).unwrap();
        unread += report.blocks_failed;
        if !rng.random_bool(BROKEN) {
            replicas[from].apply(fragment, MixTerms::any(weight), &reply).unwrap();
            continue;
        }
        undone += 1;
        pending.push((to, fragment, weight, reply));
        while pending.len() > 8 || (!pending.is_empty() && rng.random_bool(0.5)) {
            let (at, fragment, weight, reply) =
                pending.swap_remove(rng.random_range(0..pending.len()));
            replicas[at].undo(fragment, weight, &reply);
        }
    }
    for (at, fragment, weight, reply) in pending {
        replicas[at].undo(fragment, weight, &reply);
    }
    let end = mean(&replicas);
    println!(
        "| {codec} | {:.1e} | {apart:.1e} | {:.1e} | {undone} | {unread} |",
        error(&end, &start),
        consensus(&replicas, &end),
    );
}

/// Exact sums of numerators and weights.
fn mass(replicas: &[Replica]) -> (Vec<i128>, u128) {
    let (mut numerators, mut weights) = (vec![0; PARAMETERS], 0);
    for replica in replicas {
        let fixed = replica.save().fixed.unwrap();
        for (sum, x) in numerators.iter_mut().zip(fixed.accumulators) {
            *sum += i128::from(x);
        }
        weights += fixed.masses.iter().map(|&w| u128::from(w)).sum::<u128>();
    }
    (numerators, weights)
}

fn edge(index: usize) -> Origin {
    let mut key = [0; 32];
    key[0] = u8::try_from(index).unwrap();
    Origin { peer: PeerId::from_public_key(key), incarnation: 1 }
}

/// Random pushes over a network that loses, repeats and reorders; at the end the newest sum of
/// every edge arrives, so that all mass is at the replicas again.
fn pushes() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut replicas = swarm(Mixer::PushSum, &mut rng);
    let (start, before) = (mean(&replicas), mass(&replicas));
    let apart = consensus(&replicas, &start);
    let mut newest = std::collections::BTreeMap::new();
    let mut under_way: Vec<(usize, usize, FragmentId, Encoded)> = Vec::new();
    let mut lost = 0;
    for _ in 0..EVENTS {
        let (from, to, fragment) = any_pair(&mut rng);
        let push = Reading::Push { to: edge(to), codec: Codec::F32 };
        let sum = replicas[from].read(fragment, push);
        newest.insert((from, to, fragment), sum.clone());
        for _ in 0..if rng.random_bool(DUPLICATES) { 2 } else { 1 } {
            if rng.random_bool(LOSS) {
                lost += 1;
            } else {
                under_way.push((from, to, fragment, sum.clone()));
            }
        }
        while under_way.len() > 20 || (!under_way.is_empty() && rng.random_bool(0.5)) {
            let (from, to, fragment, sum) =
                under_way.swap_remove(rng.random_range(0..under_way.len()));
            let report =
                replicas[to].absorb(fragment, MixTerms::any(1.0), edge(from), &sum).unwrap();
            if !rng.random_bool(LOSS) {
                replicas[from].acknowledged(fragment, edge(to), report.received);
            }
        }
    }
    for ((from, to, fragment), sum) in newest {
        replicas[to].absorb(fragment, MixTerms::any(1.0), edge(from), &sum).unwrap();
    }
    let after = mass(&replicas);
    let off = |k: usize| (after.0[k] - before.0[k]) as f64;
    let numerators = norm((0..PARAMETERS).map(off)) / norm(before.0.iter().map(|&x| x as f64));
    let weights = (after.1 as f64 - before.1 as f64).abs() / before.1 as f64;
    println!(
        "| push-sum | {numerators:.1e} | {weights:.1e} | {apart:.1e} | {:.1e} | {lost} |",
        consensus(&replicas, &start)
    );
}

fn main() {
    println!("| code | error of the mean | apart before | after | undone | blocks unread |");
    println!("|---|---|---|---|---|---|");
    for codec in Codec::CHOICES {
        exchanges(codec);
    }
    println!();
    println!("| | error of Σ X | error of Σ W | apart before | after | sums lost |");
    println!("|---|---|---|---|---|---|");
    pushes();
}
