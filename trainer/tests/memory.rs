//! What training is said to take is what it takes: peaks of processes of their own.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failure in a test's preparation fails the test")]
#![expect(clippy::print_stdout, reason = "what a process of the test has to say")]

use std::process::Command;

use dnode_protocol::Fragments;
use dnode_trainer::{
    BatchSource as _, Beside, DataConfig, DataKind, Dataset, LocalConfig, LocalTrainer, Memory,
    Mixer, ModelConfig, ModelKind, MomentFormat, OptimizerConfig, OptimizerKind, OuterStep,
    Replica, ReplicaConfig, RoomFile, StepId, Trainer,
};

/// Tells a process of this test which case it is to train; 0 is only its start.
const CASE: &str = "DNODE_TEST_MEMORY";
/// How the line begins in which it tells its peak.
const PEAK: &str = "peak in bytes: ";
/// How much less, and more, training may take than is said, parts of that: some buffers are not all used at a
/// time, and allocators keep a little more than is asked of them.
const LESS: f64 = 0.20;
const MORE: f64 = 0.06;
/// Bytes beside: code that is run for the first time, batches, small buffers.
const BESIDE: f64 = 8e6;

/// A model with an optimizer, micro-batches and a rule.
struct Case {
    model: ModelConfig,
    optimizer: OptimizerConfig,
    batch: usize,
    replica: fn(Fragments) -> ReplicaConfig,
    /// Whether slow weights lie in a file.
    in_file: bool,
    recompute: bool,
}

impl Case {
    fn local(&self) -> LocalConfig {
        let (model, optimizer) = (self.model.clone(), self.optimizer.clone());
        LocalConfig {
            model,
            optimizer,
            seed: 1,
            batch: self.batch,
            steps: 10,
            threads: 1,
            recompute: self.recompute,
        }
    }
}

fn pairwise(fragments: Fragments) -> ReplicaConfig {
    ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments, clip: None }
}

fn outer(fragments: Fragments) -> ReplicaConfig {
    ReplicaConfig { outer: Some(OuterStep::default()), ..pairwise(fragments) }
}

/// Cases that take far more than the rest of the process.
fn cases() -> Vec<Case> {
    let of = OptimizerConfig::default_of;
    let model = ModelConfig::default();
    let text = |kind, context| ModelConfig { kind, context, width: 256, ..model.clone() };
    let split = OptimizerConfig { accumulate: 4, ..of(OptimizerKind::Adamw) };
    let mlp = ModelConfig { hidden: vec![3_000, 3_000], ..model.clone() };
    let cnn = ModelConfig { kind: ModelKind::Cnn, ..model.clone() };
    let eight = OptimizerConfig { moments: MomentFormat::F8, ..of(OptimizerKind::Adamw) };
    let case = |model: &ModelConfig, optimizer: &OptimizerConfig, batch| Case {
        model: model.clone(),
        optimizer: optimizer.clone(),
        batch,
        replica: pairwise,
        in_file: false,
        recompute: false,
    };
    let (gpt, llama) = (text(ModelKind::Gpt, 64), text(ModelKind::Llama, 256));
    let [adamw, sgd, muon] =
        [OptimizerKind::Adamw, OptimizerKind::Sgd, OptimizerKind::Muon].map(of);
    vec![
        Case { replica: outer, ..case(&mlp, &adamw, 8) },
        Case { replica: outer, in_file: true, ..case(&mlp, &adamw, 8) },
        case(&mlp, &sgd, 8),
        case(&mlp, &eight, 8),
        case(&cnn, &muon, 1_024),
        case(&gpt, &muon, 64),
        Case { recompute: true, ..case(&gpt, &muon, 64) },
        Case { replica: outer, ..case(&llama, &split, 32) },
        Case { recompute: true, ..case(&llama, &eight, 16) },
    ]
}

fn data(case: &Case) -> Dataset {
    let kind = if case.model.kind.is_text() { DataKind::Shakespeare } else { DataKind::Digits };
    let config = DataConfig { kind, ..DataConfig::default() };
    Dataset::open(&config, 1, case.model.context).unwrap()
}

/// Trains a case for two steps, measures it, and tells the peak.
fn train(case: &Case) {
    let data = data(case).with_micro_batches(case.optimizer.accumulate);
    let shape = data.shape();
    let trainer = LocalTrainer::new(case.local(), Box::new(data)).unwrap();
    let fragments = Fragments::new(trainer.layout().parameters(), 4).unwrap();
    let replica = (case.replica)(fragments);
    let said =
        Memory::of_training(&case.local(), shape).unwrap().with_mixing(&replica, case.in_file);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = case.in_file.then(|| RoomFile::create(folder.path(), &replica).unwrap());
    let mut replica =
        Replica::with_beside(Box::new(trainer), replica, Beside { noise: None, file });
    for step in 0..2 {
        replica.step(StepId::alone(step)).unwrap();
        replica.commit(1.0);
        replica.show_all();
        replica.hide_all();
    }
    println!("said in bytes: {} {said}", said.total());
    tell_peak();
}

/// Prints the most memory that this process has had, as the system counts it, without pages of files, which the
/// system takes back where memory is short.
fn tell_peak() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    };
    println!("{PEAK}{}", 1024 * (of("VmHWM:") - of("RssFile:")));
}

/// What the process of a case has taken, and what was said.
fn run(case: usize) -> (f64, f64) {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "training_takes_what_is_said", "--nocapture"]);
    let output = process.env(CASE, case.to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{case}: {said}{}", String::from_utf8_lossy(&output.stderr));
    let number = |head: &str| -> f64 {
        let line = said.lines().find_map(|line| Some(line.split_once(head)?.1)).unwrap_or("0");
        line.split(' ').next().unwrap().parse().unwrap()
    };
    (number(PEAK), number("said in bytes: "))
}

#[test]
fn training_takes_what_is_said() {
    let cases = cases();
    if let Ok(case) = std::env::var(CASE) {
        return match case.parse().unwrap() {
            0 => tell_peak(),
            case => train(&cases[case - 1usize]),
        };
    }
    let (start, _) = run(0);
    for (index, case) in cases.iter().enumerate() {
        let (peak, said) = run(index + 1);
        let taken = peak - start;
        println!(
            "{} {:?} {:?} recompute {}: {taken} of {said}",
            case.model.kind, case.optimizer.kind, case.optimizer.moments, case.recompute
        );
        let (least, most) = ((1.0 - LESS) * said - BESIDE, (1.0 + MORE) * said + BESIDE);
        assert!(taken > least && taken < most, "case {index}: {taken} bytes, said {said}");
    }
}
