//! The mean that exchanges keep under each code, over a bad network.
//!
//! `cargo bench -p dnode-trainer --bench mean` makes 10,000 random exchanges among 16 replicas of
//! 10,000 parameters per code, half of those that break down undone, and prints one line of a table
//! for each.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and stops at the first error"
)]

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments};
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

/// Weights as at the start of training, and 5 % of them different in every replica.
fn swarm(rng: &mut ChaCha8Rng) -> Vec<Replica> {
    let mut noise = || 0.1 * (0..6).map(|_| rng.random_range(-0.5_f32..0.5)).sum::<f32>();
    let common: Vec<f32> = (0..PARAMETERS).map(|_| noise()).collect();
    let fragments = Fragments::new(PARAMETERS, FRAGMENTS).unwrap();
    let (mixer, outer) = (Mixer::Exchange, Some(OuterStep::default()));
    let config = ReplicaConfig { mixer, outer, fragments, clip: None };
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
    let mut replicas = swarm(&mut rng);
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

fn main() {
    println!("| code | error of the mean | apart before | after | undone | blocks unread |");
    println!("|---|---|---|---|---|---|");
    for codec in Codec::CHOICES {
        exchanges(codec);
    }
}
