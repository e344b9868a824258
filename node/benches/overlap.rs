//! Time of a step of several ranks with the mean of their gradients: reduced after it is computed, and
//! part by part while the rest is computed.
//!
//! `cargo bench -p dnode --bench overlap -- [tcp] [shm] [ucx] [ucx-tcp]`: processes on loopback, each
//! with one thread that computes; the two ways take turns, step by step.
//! `docs/measurements.md` has the tables.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time, and waits for files")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

#[path = "../collective/benches/ranks/mod.rs"]
mod ranks;
#[path = "../../trainer/benches/workload/mod.rs"]
#[expect(dead_code, reason = "steps of one rank alone are measured elsewhere")]
mod workload;

use std::path::Path;
use std::time::Instant;

use dnode_collective::{Collective, Place, Reduction, all_reduce_while};
use dnode_trainer::{LocalTrainer, StepId, Trainer as _};
use ranks::{group, start};
use workload::{Fixed, Workload, workloads};

const WORLDS: [usize; 2] = [2, 4];
/// Steps of each way, and those before.
const STEPS: usize = 200;
const WARM: usize = 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [word, rest @ ..] = &words[..]
        && word == "rank"
    {
        rank(rest);
        return;
    }
    println!("ranks backend workload: milliseconds of a step (median, ninth tenth) after, while");
    let all = ["tcp", "shm", "ucx", "ucx-tcp"];
    for world in WORLDS {
        for name in
            all.iter().filter(|name| words.is_empty() || words.iter().any(|one| one == *name))
        {
            start(name, world, &[]);
        }
    }
}

fn rank(words: &[String]) {
    let [backend, rank, size, folder] = words else { panic!("{words:?}") };
    let place = Place { rank: rank.parse().unwrap(), size: size.parse().unwrap() };
    let mut group = group(backend, place, Path::new(folder));
    for workload in workloads() {
        let times = measure(&mut *group, &workload);
        if place.rank == 0 {
            let [after, meanwhile] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                [times[times.len() / 2], times[times.len() * 9 / 10]]
            });
            let name = workload.name;
            println!("{:>2} {backend:<8} {name:<28} {after:6.2?} {meanwhile:6.2?}", place.size);
        }
    }
}

/// Milliseconds of the steps of both ways.
fn measure(group: &mut dyn Collective, workload: &Workload) -> [Vec<f64>; 2] {
    let source = Box::new(Fixed(workload.shape));
    let mut trainer = LocalTrainer::new(workload.config(1), source).unwrap();
    let whole = trainer.layout().parameters();
    let mut times = [Vec::new(), Vec::new()];
    for step in 0..2 * (WARM + STEPS) {
        let at = StepId::alone(step as u64);
        let trainer = trainer.split().unwrap();
        group.barrier().unwrap();
        let began = Instant::now();
        if step % 2 == 0 {
            trainer.gradient(at).unwrap();
            group.all_reduce(trainer.gradient_mut(), Reduction::Mean).unwrap();
        } else {
            let (report, reduced) = all_reduce_while(group, (whole, Reduction::Mean), |hand| {
                trainer.gradient_in_parts(at, hand)
            });
            report.unwrap();
            reduced.unwrap();
        }
        trainer.update(at).unwrap();
        if step >= 2 * WARM {
            times[step % 2].push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    times
}
