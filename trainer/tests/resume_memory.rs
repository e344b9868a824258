//! A resume needs no more memory than the training before it: peaks of processes of their own.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failure in a test's preparation fails the test")]
#![expect(clippy::print_stdout, reason = "what a process of the test has to say")]

use std::path::Path;
use std::process::Command;

use dnode_protocol::{Clock, Fragments, RunField, RunSpec};
use dnode_trainer::checkpoint::{self, Checkpoint};
use dnode_trainer::{
    DataConfig, Dataset, Description, LocalConfig, LocalTrainer, Mixer, ModelConfig,
    OptimizerConfig, OptimizerKind, OuterStep, Replica, ReplicaConfig, Source, StepId,
};

/// Tells a process of this test what it is to do: `train` or `resume`, and where.
const PART: &str = "DNODE_TEST_RESUME_MEMORY";
/// How the line begins in which it tells its peak.
const PEAK: &str = "peak in bytes: ";
/// About ten million parameters, of which the rest of a process is a small part.
const HIDDEN: [usize; 2] = [3_200, 3_000];
const STEPS: u64 = 2;

fn replica() -> Replica {
    let config = LocalConfig {
        model: ModelConfig { hidden: HIDDEN.to_vec(), ..ModelConfig::default() },
        optimizer: OptimizerConfig::default_of(OptimizerKind::Adamw),
        seed: 1,
        batch: 4,
        steps: 10,
        threads: 1,
        recompute: false,
    };
    let digits = Dataset::open(&DataConfig::default(), 1, 0).unwrap();
    let trainer = LocalTrainer::new(config, Box::new(digits)).unwrap();
    let parameters = dnode_trainer::Trainer::layout(&trainer).parameters();
    let fragments = Fragments::new(parameters, 16).unwrap();
    let outer = Some(OuterStep::default());
    Replica::with(
        Box::new(trainer),
        ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip: None },
    )
}

fn run() -> RunSpec {
    RunSpec::new(vec![RunField { name: "rule".to_owned(), value: "test".to_owned() }]).unwrap()
}

/// Trains and commits; what it has needed until then is told before the checkpoint is written.
fn train(folder: &Path) {
    let mut replica = replica();
    for step in 0..STEPS {
        replica.step(StepId::alone(step)).unwrap();
    }
    replica.commit(1.0);
    tell_peak();
    let held = replica.hold();
    let description = Description::default();
    let checkpoint = Checkpoint {
        run: run(),
        description: &description,
        step: STEPS,
        micro_steps: 0,
        end: STEPS,
        samples: 4 * STEPS,
        clock: Clock(1),
        contents: &[],
        replica: Source::Held(&held),
        tail_average: None,
    };
    checkpoint::save(folder, 2, &checkpoint).unwrap();
}

fn resume(folder: &Path) {
    let mut replica = replica();
    let form = (replica.layout(), replica.fragments());
    let loaded = checkpoint::load_latest(folder, &run(), form, &Description::default());
    loaded.unwrap().unwrap().restore(&mut replica).unwrap();
    tell_peak();
}

/// Prints the most memory that this process has had, as the system counts it.
fn tell_peak() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    println!("{PEAK}{}", 1024 * kib);
}

fn peak_of(part: &str, folder: &Path) -> f64 {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "a_resume_needs_no_more_memory_than_training", "--nocapture"]);
    let output = process.env(PART, part).env("DNODE_TEST_FOLDER", folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{part}: {said}{}", String::from_utf8_lossy(&output.stderr));
    let peak = said.lines().find_map(|line| line.split_once(PEAK)).unwrap().1;
    peak.parse().unwrap()
}

#[test]
fn a_resume_needs_no_more_memory_than_training() {
    if let (Ok(part), Some(folder)) = (std::env::var(PART), std::env::var_os("DNODE_TEST_FOLDER")) {
        return if part == "train" { train(folder.as_ref()) } else { resume(folder.as_ref()) };
    }
    let folder = tempfile::tempdir().unwrap();
    let parameters = replica().layout().parameters() as f64;
    let training = peak_of("train", folder.path()) / parameters;
    let resuming = peak_of("resume", folder.path()) / parameters;
    println!("bytes per parameter: training {training:.1}, resuming {resuming:.1}");
    assert!(training > 20.0, "x, gradient, two moments, φ and v: {training}");
    assert!(resuming <= training, "resuming {resuming}, training {training}");
}
