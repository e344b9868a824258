//! The comparison of ways to train, with a stand-in for `dnode`: what is run, what is not run twice,
//! and that every planted defect is found.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use dnode_testnet::experiment::Experiment;
use dnode_testnet::metrics::Log;
use dnode_testnet::parameter_server::write_parameters;
use dnode_testnet::report::judged::Judged;
use dnode_trainer::{
    DataConfig, Dataset, LocalConfig, LocalTrainer, ModelConfig, OptimizerConfig, OptimizerKind,
    Trainer,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{interval, timeout};

/// Generous, because the machine may be busy; nothing waits that long unless it is broken.
const DEADLINE: Duration = Duration::from_secs(60);

/// An experiment of two variants, and the parameters that every stand-in ends with.
struct Bench {
    folder: tempfile::TempDir,
    loss: f64,
    count: u64,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut trainer = trainer();
        let measured = trainer.evaluate().expect("held-out digits");
        let parameters = folder.path().join("parameters.safetensors");
        write_parameters(&trainer, &parameters).expect("a file");
        Self { folder, loss: measured.loss, count: measured.count }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes an experiment whose second variant has a defect, or none.
    fn experiment(&self, mode: &str, seeds: &str) -> PathBuf {
        let path = self.path("experiment.toml");
        let parameters = self.path("parameters.safetensors");
        let text = format!(
            r#"
            title = "Two variants"
            seeds = {seeds}
            peers = [2]
            [[workload]]
            name = "digits"
            steps = 100
            batch = 32
            set = ["fake.loss={}", "fake.count={}", "fake.parameters={}"]
            [[variant]]
            name = "sync"
            kind = "sync"
            [[variant]]
            name = "gossip"
            kind = "gossip-outer"
            set = ["fake.mode={mode}"]
            [[condition]]
            name = "undisturbed"
            "#,
            self.loss,
            self.count,
            parameters.display(),
        );
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// The record of the case, and where it is.
    fn record(&self) -> (PathBuf, serde_json::Value) {
        let path = self.path("out/digits-2-undisturbed/experiment.json");
        let text = std::fs::read_to_string(&path).expect("a record");
        (path, serde_json::from_str(&text).expect("a record"))
    }

    /// The exit code of the comparison and what it says.
    fn compare(&self, experiment: &Path) -> (Option<i32>, String) {
        self.compare_with(experiment, &[])
    }

    /// The same with further arguments.
    fn compare_with(&self, experiment: &Path, more: &[&str]) -> (Option<i32>, String) {
        said(&self.program(experiment).args(more).output().expect("the program runs"))
    }

    /// The program, about to compare.
    fn program(&self, experiment: &Path) -> Command {
        let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-dnode.sh");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dnode-testnet"));
        command.arg("compare").arg(experiment).arg("--out").arg(self.path("out"));
        command.arg("--dnode").arg(fake).stdin(Stdio::null());
        command
    }

    fn report(&self) -> String {
        std::fs::read_to_string(self.path("out/report.md")).expect("a report")
    }
}

/// How a program ended, and all that it said.
fn said(output: &Output) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = output;
    let text = String::from_utf8_lossy(stdout) + String::from_utf8_lossy(stderr);
    (status.code(), text.into_owned())
}

/// The model and the held-out data that the stand-in says it has.
fn trainer() -> LocalTrainer {
    let model = ModelConfig { hidden: vec![8], ..ModelConfig::default() };
    let source = Dataset::open(&DataConfig::default(), 1, model.context).expect("digits");
    let optimizer = OptimizerConfig::default_of(OptimizerKind::Adamw);
    let config = LocalConfig {
        model,
        optimizer,
        seed: 1,
        batch: 48,
        steps: 1,
        threads: 1,
        recompute: false,
    };
    LocalTrainer::new(config, Box::new(source)).expect("a small model")
}

#[test]
fn the_experiment_files_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("comparisons");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            continue;
        }
        Experiment::read(&path, Some(Path::new("data")))
            .and_then(|experiment| experiment.check_for_processes())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        read += 1;
    }
    assert!(read >= 12, "{read}");
}

#[test]
fn a_fair_comparison_is_reported_and_not_run_twice() {
    let bench = Bench::new();
    let experiment = bench.experiment("good", "[1]");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("digits-2-undisturbed gossip seed 1: "), "{text}");
    let report = bench.report();
    let page = std::fs::read_to_string(bench.path("out/report.html")).expect("a page");
    for part in ["<title>Two variants</title>", "<svg", "staleness of exchanges", "</html>"] {
        assert!(page.contains(part), "`{part}` is missing in the page");
    }
    for part in ["Fair: ", "6400 samples in every run", "| gossip", "`gossip` came within 1 %"] {
        assert!(report.contains(part), "`{part}` is missing in\n{report}");
    }
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("seed 1"), "nothing is left to run: {text}");
    // More seeds go on with what is there; fewer do not, unless what has run with them may go.
    let (code, text) = bench.compare(&bench.experiment("good", "[1, 2]"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("gossip seed 2: ") && !text.contains("seed 1: "), "{text}");
    let experiment = bench.experiment("good", "[2]");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("`sync` with seed 1") && text.contains("--changed"), "{text}");
    let (code, text) = bench.compare_with(&experiment, &["--changed"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("seed 2: "), "nothing is left to run: {text}");
    assert!(bench.report().contains("Fair: "), "{}", bench.report());
    // Peers of other machines are another condition.
    let text = std::fs::read_to_string(&experiment).expect("the experiment");
    let shared = text.replacen("peers = [2]", "peers = [2]\nshare = 0.3", 1);
    std::fs::write(&experiment, shared).expect("a file");
    let (code, text) = bench.compare_with(&experiment, &["--changed"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another workload or condition"), "{text}");
}

#[test]
fn runs_of_another_program_are_not_gone_on_with_unless_that_is_wanted() {
    let bench = Bench::new();
    let experiment = bench.experiment("good", "[1]");
    bench.compare(&experiment);
    let (path, mut record) = bench.record();
    for run in record["runs"].as_array_mut().expect("runs") {
        run["made_by"]["program"] = "0123456789abcdef".into();
    }
    std::fs::write(&path, record.to_string()).expect("a file");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("dnode 0123456789abcdef; this is"), "{text}");
    // A report of what is there mixes nothing.
    for more in ["--report-only", "--mixed"] {
        let (code, text) = bench.compare_with(&experiment, &[more]);
        assert_eq!(code, Some(0), "{more}: {text}");
    }
}

#[test]
fn what_is_missing_after_an_interruption_is_run_and_nothing_else() {
    let bench = Bench::new();
    let experiment = bench.experiment("good", "[1]");
    bench.compare(&experiment);
    let (path, mut record) = bench.record();
    record["runs"].as_array_mut().expect("runs").pop();
    std::fs::write(&path, record.to_string()).expect("a file");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches(" seed 1: ").count(), 1, "{text}");
}

#[tokio::test]
async fn ctrl_c_keeps_what_has_ended_and_the_same_command_goes_on() {
    let bench = Bench::new();
    let experiment = bench.experiment("held", "[1]");
    let mut program = bench.program(&experiment);
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let folder = bench.path("out/digits-2-undisturbed");
    let ended = |variant: &str, peer: usize| {
        let path = folder.join(format!("{variant}/1/peer-{peer}/metrics.jsonl"));
        std::fs::read_to_string(path).map(|text| text.contains("\"final\""))
    };
    let both = |is: fn(std::io::Result<bool>) -> bool, variant: &str| {
        (0..2).all(|peer| is(ended(variant, peer)))
    };
    let mut ticks = interval(Duration::from_millis(10));
    let reached = async {
        while !both(|end| end.is_ok_and(|end| end), "sync") || !both(|end| end.is_ok(), "gossip") {
            ticks.tick().await;
        }
    };
    timeout(DEADLINE, reached).await.expect("one variant ends and the other one hangs");
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::INT).expect("the program is there");
    let (code, text) = said(&child.wait_with_output().expect("the program ends"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the same command goes on from here"), "{text}");
    assert!(text.contains("sync seed 1: ") && !text.contains("gossip seed 1: "), "{text}");
    assert!(bench.report().contains("`digits-2-undisturbed`: 1 of 2 runs are there"));

    std::fs::write(bench.path("go"), "").expect("a file");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("gossip seed 1: ") && !text.contains("sync seed 1: "), "{text}");
    assert!(bench.report().contains("Fair: "), "{}", bench.report());
}

#[test]
fn a_part_of_a_comparison_is_run_alone() {
    let bench = Bench::new();
    let experiment = bench.experiment("good", "[1]");
    let all = std::fs::read_to_string(&experiment).expect("the experiment");
    std::fs::write(&experiment, all + "[[condition]]\nname = \"again\"\n").expect("a file");
    let (code, text) = bench.compare_with(&experiment, &["--only", "digits-2-a"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("digits-2-again gossip seed 1: "), "{text}");
    assert!(!text.contains("digits-2-undisturbed"), "{text}");
    let (code, text) = bench.compare_with(&experiment, &["--only", "digits-4"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no case begins so") && text.contains("digits-2-again"), "{text}");
}

#[test]
fn peers_of_a_parameter_server_share_the_samples_and_end_with_equal_models() {
    let bench = Bench::new();
    let path = bench.path("experiment.toml");
    let text = r#"
        title = "One process holds the parameters"
        seeds = [3]
        peers = [3]
        reference = "server"
        [[workload]]
        name = "digits"
        steps = 60
        batch = 16
        set = ["model.kind=mlp", "data.kind=digits", "model.hidden=[8]", "optimizer.warmup_steps=5"]
        [[variant]]
        name = "server"
        kind = "parameter-server"
        [[condition]]
        name = "undisturbed"
    "#;
    std::fs::write(&path, text).expect("a file");
    let (code, text) = bench.compare(&path);
    assert_eq!(code, Some(0), "{text}");
    let folder = bench.path("out/digits-3-undisturbed/server/3");
    let judged = Judged::load(&folder).expect("it was measured");
    let losses: Vec<f64> = judged.peers.iter().flatten().map(|peer| peer.loss).collect();
    assert_eq!(losses.len(), 3);
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-12), "{losses:?}");
    assert!(losses[0] < 2.2, "it has learnt: {losses:?}");
    let lags: u64 = (0..3)
        .map(|peer| {
            let log = Log::read(&folder.join(format!("peer-{peer}"))).expect("metrics");
            log.end.expect("a final line").1.staleness_histogram.iter().sum::<u64>()
        })
        .sum();
    assert_eq!(lags, 180, "every gradient has a lag");
}

#[test]
fn a_change_for_the_worse_fails_the_comparison() {
    let bench = Bench::new();
    let experiment = bench.experiment("good", "[1, 2]");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(0), "{text}");
    let numbers = std::fs::read_to_string(bench.path("out/numbers.json")).expect("numbers");
    let old = bench.path("old.json");
    let against = |text: String| {
        std::fs::write(&old, text).expect("a file");
        let arguments = ["--report-only", "--against", old.to_str().expect("a path")];
        bench.compare_with(&experiment, &arguments)
    };
    let (code, text) = against(numbers.clone());
    assert_eq!(code, Some(0), "{text}");
    assert!(bench.report().contains("Nothing has changed by more than noise."));
    // Half the bytes before: now they are twice as many.
    let (code, text) = against(numbers.replace("100000.0", "50000.0"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("gossip: bytes sent per peer: +100.0 %"), "{text}");
    assert!(bench.report().contains("worse: digits-2-undisturbed gossip"), "{}", bench.report());
}

#[test]
fn a_baseline_that_is_not_installed_is_skipped_with_a_word() {
    let bench = Bench::new();
    let path = bench.experiment("good", "[1]");
    let text = std::fs::read_to_string(&path).expect("a file");
    let text = text.replace(r#"kind = "gossip-outer""#, r#"kind = "ddp""#);
    std::fs::write(&path, text).expect("a file");
    let (code, text) = bench.compare_with(&path, &["--python", "/nonexistent/python"]);
    assert_eq!(code, Some(0), "{text}");
    let report = bench.report();
    assert!(
        report.contains("variant `gossip` was skipped: no Python `/nonexistent/python`"),
        "{report}"
    );
}

/// What the report says of a variant with a defect; the comparison fails with the first finding.
fn finding(mode: &str) -> String {
    let bench = Bench::new();
    let (code, text) = bench.compare(&bench.experiment(mode, "[1]"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("not fair"), "{text}");
    let report = bench.report();
    assert!(report.contains("**Not fair, so no result:**"), "{report}");
    report
}

#[test]
fn an_variant_that_trains_on_more_samples_is_found() {
    let report = finding("greedy");
    assert!(
        report.contains(
            "digits-2-undisturbed gossip seed 1: trained on 8320 samples, but the budget is 6400"
        ),
        "{report}"
    );
}

#[test]
fn a_variant_that_trains_with_other_settings_is_found() {
    let report = finding("other");
    let found = "gossip seed 1: run.batch is 16, but 32 in variant sync";
    assert!(report.contains(found), "{report}");
}

#[test]
fn an_variant_that_begins_with_other_weights_is_found() {
    let report = finding("ahead");
    for (peer, weights) in ["f00d0", "f00d1"].iter().enumerate() {
        let found = format!(
            "gossip seed 1: peer {peer} began with the weights {weights}, but others with cafe (sync)"
        );
        assert!(report.contains(&found), "{report}");
    }
    assert!(!report.contains("sync seed 1: "), "{report}");
}

#[test]
fn a_run_that_does_not_tell_its_first_weights_is_counted() {
    let bench = Bench::new();
    let (code, text) = bench.compare(&bench.experiment("mute", "[1]"));
    assert_eq!(code, Some(0), "{text}");
    let report = bench.report();
    assert!(report.contains("In 1 of the 2 runs no peer tells the hash"), "{report}");
}

#[test]
fn a_peer_that_stands_still_is_found() {
    let report = finding("frozen");
    assert!(report.contains("gossip seed 1: peer 1 stood still"), "{report}");
    assert!(!report.contains("peer 0 stood still"), "{report}");
}

#[test]
fn a_peer_that_lets_others_do_its_work_is_found_where_samples_may_differ() {
    let bench = Bench::new();
    let experiment = bench.experiment("idle", "[1]");
    let text = std::fs::read_to_string(&experiment).expect("the experiment");
    std::fs::write(&experiment, text + "samples_within_percent = 5.0\n").expect("a file");
    let (code, text) = bench.compare(&experiment);
    assert_eq!(code, Some(1), "{text}");
    let report = bench.report();
    let stood = "gossip seed 1: peer 1 stood still: it trained on 800 samples";
    assert!(report.contains(stood), "{report}");
    assert!(!report.contains("trained on 6400 samples, but"), "{report}");
}

#[test]
fn checkpoints_on_the_way_are_measured_and_one_that_never_changes_is_found() {
    let bench = Bench::new();
    let (code, text) = bench.compare(&bench.experiment("stuck", "[1]"));
    assert_eq!(code, Some(1), "{text}");
    let report = bench.report();
    assert!(report.contains("gossip seed 1: peer 1 stood still: all its"), "{report}");
    assert!(!report.contains("peer 0 stood still"), "{report}");
    let folder = bench.path("out/digits-2-undisturbed/gossip/1");
    let judged = Judged::load(&folder).expect("it was measured");
    let points: Vec<(u64, u64)> =
        judged.way[1].iter().map(|point| (point.step, point.measured.count)).collect();
    assert_eq!(points, [25, 50, 75].map(|step| (step, bench.count)));
    assert!(judged.way[1].iter().all(|point| (point.measured.loss - bench.loss).abs() < 1e-6));
    assert_eq!(judged.way[0], []);
    assert!(!folder.join("peer-1/checkpoints").exists(), "what was measured is let go");
}

#[test]
fn a_peer_that_is_measured_on_its_training_data_is_found() {
    let report = finding("flattering");
    assert!(
        report.contains("gossip seed 1: peer 0 says that its held-out loss is 0.001"),
        "{report}"
    );
    assert!(report.contains("it was measured on other data"), "{report}");
    assert!(!report.contains("sync seed 1: "), "{report}");
}
