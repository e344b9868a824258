//! How fast replicas agree by mixing alone, against the theory of each schedule.
//!
//! Source of the rates: docs/math.md; Boyd et al. 2006 (random pairs), Ying et al. 2021
//! (one-peer exponential graph). Prints a table and fails when a ratio is off by more than 10 %.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::process::ExitCode;
use std::time::Duration;

use dnode_gossip::Schedule;
use dnode_protocol::Time;
use dnode_testnet::scenario::Scenario;
use dnode_testnet::sim::contraction::{self, mixing_only};
use dnode_testnet::sim::{Trace, World};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Largest allowed difference of the measured loss of distance from the theoretical one, relative.
const TOLERANCE: f64 = 0.1;
/// A squared distance below this share of the first one is rounding.
const ZERO: f64 = 1e-24;
/// Numbers of peers of the lockstep part.
const PEERS: [usize; 4] = [8, 16, 64, 1024];

/// One line of the table.
struct Line {
    schedule: &'static str,
    peers: usize,
    unit: &'static str,
    theory: f64,
    measured: f64,
}

impl Line {
    /// Of what is lost, not of what is left: on a large ring next to all is left, whatever happens.
    fn ratio(&self) -> f64 {
        (1.0 - self.measured) / (1.0 - self.theory)
    }

    fn holds(&self) -> bool {
        (self.ratio() - 1.0).abs() <= TOLERANCE
    }

    fn print(&self) {
        let Self { schedule, peers, unit, theory, measured } = self;
        let verdict = if self.holds() { "" } else { " off" };
        println!(
            "| {schedule} | {peers} | {unit} | {theory:.6} | {measured:.6} | {:.3}{verdict} |",
            self.ratio()
        );
    }
}

fn main() -> ExitCode {
    println!("| schedule | peers | per | left, theory | left, measured | ratio of what is lost |");
    println!("|---|---|---|---|---|---|");
    let mut holds = true;
    let mut say = |line: &Line| {
        line.print();
        holds &= line.holds();
    };
    for peers in PEERS {
        say(&ring(peers));
        say(&exponential(peers));
        say(&matching(peers));
        say(&complete(peers));
    }
    for (peers, runs) in [(8, 40), (16, 20), (64, 2)] {
        say(&core_pairs(peers, runs));
    }
    for peers in [8, 16, 64] {
        say(&core_ring(peers));
        say(&core_exponential(peers));
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `Σ (x − x̄)²`.
fn distance(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

fn random_values(peers: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    (0..peers).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Averages every peer with its partner of `round` where the two name each other.
fn mix(values: &mut [f64], partner: impl Fn(u64) -> Option<u64>) {
    let count = values.len() as u64;
    for rank in 0..count {
        let Some(other) = partner(rank).filter(|other| rank < *other) else {
            continue;
        };
        let (Ok(a), Ok(b)) = (usize::try_from(rank), usize::try_from(other)) else {
            continue;
        };
        if partner(other) == Some(rank) {
            let mean = 0.5 * (values[a] + values[b]);
            (values[a], values[b]) = (mean, mean);
        }
    }
}

/// The ring, whose even and odd edges take turns: the slowest mode's squared distance shrinks by
/// `cos²(2π/n)` per round, once the faster modes have died.
fn ring(peers: usize) -> Line {
    let n = peers as f64;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut values = random_values(peers, &mut rng);
    // The worst mode at the start: random values reach it after about n² rounds only.
    for (index, value) in values.iter_mut().enumerate() {
        *value = (std::f64::consts::TAU * index as f64 / n).cos() + 1e-3 * *value;
    }
    let rounds = 40_u64;
    for round in 0..rounds {
        mix(&mut values, |rank| Schedule::Ring.partner(rank, peers as u64, round));
    }
    let first = distance(&values);
    for round in rounds..2 * rounds {
        mix(&mut values, |rank| Schedule::Ring.partner(rank, peers as u64, round));
    }
    let measured = (distance(&values) / first).powf(1.0 / rounds as f64);
    let theory = (std::f64::consts::TAU / n).cos().powi(2);
    Line { schedule: "ring", peers, unit: "round", theory, measured }
}

/// One-peer exponential graph: nothing is left after `log₂ n` rounds.
fn exponential(peers: usize) -> Line {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut values = random_values(peers, &mut rng);
    let first = distance(&values);
    for round in 0..u64::from(peers.ilog2()) {
        mix(&mut values, |rank| Schedule::Exponential.partner(rank, peers as u64, round));
    }
    let left = distance(&values) / first;
    let measured = if left < ZERO { 0.0 } else { left };
    Line { schedule: "one-peer exponential", peers, unit: "log₂ n rounds", theory: 0.0, measured }
}

/// Uniform random perfect matchings: `1 − n/(2(n−1))` in expectation, whatever the values are.
fn matching(peers: usize) -> Line {
    let n = peers as f64;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let samples = 200_000 / peers.max(100);
    let mut sum = 0.0;
    for _ in 0..samples {
        let mut values = random_values(peers, &mut rng);
        let first = distance(&values);
        let mut order: Vec<usize> = (0..peers).collect();
        order.shuffle(&mut rng);
        let mut partner = vec![0; peers];
        for pair in order.chunks_exact(2) {
            (partner[pair[0]], partner[pair[1]]) = (pair[1] as u64, pair[0] as u64);
        }
        mix(&mut values, |rank| {
            usize::try_from(rank).ok().and_then(|rank| partner.get(rank).copied())
        });
        sum += distance(&values) / first;
    }
    let (theory, measured) = (1.0 - n / (2.0 * (n - 1.0)), sum / samples as f64);
    Line { schedule: "random pairs", peers, unit: "round", theory, measured }
}

/// Everybody averages with everybody.
fn complete(peers: usize) -> Line {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut values = random_values(peers, &mut rng);
    let first = distance(&values);
    let mean = values.iter().sum::<f64>() / peers as f64;
    values.fill(mean);
    let left = distance(&values) / first;
    let measured = if left < ZERO { 0.0 } else { left };
    Line { schedule: "complete graph", peers, unit: "round", theory: 0.0, measured }
}

/// The real cores on a complete graph, one pair at a time: `1 − 1/(n−1)` per exchange.
fn core_pairs(peers: u32, runs: u64) -> Line {
    let ratios: Vec<f64> = (0..runs).flat_map(|seed| exchanges(peers, seed)).collect();
    let measured = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let theory = 1.0 - 1.0 / f64::from(peers - 1);
    let peers = peers as usize;
    Line { schedule: "random pairs, the core", peers, unit: "exchange", theory, measured }
}

/// The real cores on a ring, once all but the slowest mode has died.
fn core_ring(peers: u32) -> Line {
    let rounds = 4 * peers;
    let [forgotten, last] = core_rounds(peers, Schedule::Ring, [rounds, 2 * rounds]);
    let measured = (last / forgotten).powf(1.0 / f64::from(rounds));
    let theory = (std::f64::consts::TAU / f64::from(peers)).cos().powi(2);
    let peers = peers as usize;
    Line { schedule: "ring, the core", peers, unit: "round", theory, measured }
}

/// The real cores on the one-peer exponential graph.
fn core_exponential(peers: u32) -> Line {
    // From the second round on everybody knows everybody.
    let [first, last] = core_rounds(peers, Schedule::Exponential, [1, 1 + peers.ilog2()]);
    let left = last / first;
    let measured = if left < ZERO { 0.0 } else { left };
    let (peers, unit) = (peers as usize, "log₂ n rounds");
    Line { schedule: "one-peer exponential, the core", peers, unit, theory: 0.0, measured }
}

/// The squared distance after each of these numbers of rounds, which all peers begin at moments of
/// their own within the time of one.
fn core_rounds(peers: u32, schedule: Schedule, rounds: [u32; 2]) -> [f64; 2] {
    let round = Duration::from_secs(4);
    let mut scenario = Scenario { round_time: round, poisson: false, ..scenario(peers) };
    scenario.rule.schedule = schedule;
    let mut world = World::new(scenario, 1, Trace::off());
    rounds.map(|rounds| {
        world.run_until(Time::ZERO + round * rounds, |_| false);
        contraction::distance(&world)
    })
}

/// Peers that only mix; exchanges are much shorter than the time between them.
fn scenario(peers: u32) -> Scenario {
    mixing_only(peers, Duration::from_millis(u64::from(peers) * 50))
}

/// What each exchange of a run leaves of the squared distance.
fn exchanges(peers: u32, seed: u64) -> Vec<f64> {
    contraction::ratios(scenario(peers), seed, 1e-9).unwrap_or_default()
}
