//! A report from hand-written metrics files: the numbers, the table, the CSV and the plots.

use std::path::Path;

use dnode_testnet::local::variant_run::VariantRun;
use dnode_testnet::local::{Kill, KillAt, LocalExperiment, Variant, Workload};
use dnode_testnet::report::numbers::Numbers;
use dnode_testnet::report::{self, Machine, Record, Results};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A swarm of two peers, trained twice by three variants; peer 1 of the last variant is killed.
struct Bench(tempfile::TempDir);

const SEEDS: [u64; 2] = [1, 2];

impl Bench {
    fn new() -> Self {
        let bench = Self(tempfile::tempdir().expect("a temporary folder"));
        let mut killed = Variant::new("gossip-outer", 2);
        killed.name = "gossip-outer-kill".to_owned();
        killed.kills = vec![Kill { peer: 1, at: KillAt::Percent(50), away_ms: None }];
        let variants = vec![Variant::new("gossip-outer", 2), killed, Variant::new("all-reduce", 2)];
        let mut runs = Vec::new();
        for seed in SEEDS {
            for variant in &variants {
                let killed_at = variant.kills.first().map(|_| 50);
                for peer in 0..2 {
                    let killed = killed_at.filter(|_| peer == 1);
                    bench.peer(&variant.name, seed, peer, killed);
                }
                let killed_at = vec![None, killed_at];
                runs.push(VariantRun {
                    wall_s: 12.5,
                    killed_at,
                    ..VariantRun::new(&variant.name, seed)
                });
            }
        }
        let record = Record {
            command: "dnode-testnet run -n 2 --seeds 1,2".to_owned(),
            begun: "2026-11-20T12:00:00Z".to_owned(),
            machine: Machine {
                cpu: "Test CPU".to_owned(),
                cores: 2,
                memory_bytes: 24_000_000_000,
                system: "Linux 6".to_owned(),
                commit: "abcdef".to_owned(),
            },
            experiment: LocalExperiment {
                workload: Workload::default(),
                variants,
                seeds: SEEDS.to_vec(),
            },
            runs,
            failure: None,
        };
        record.save(bench.folder()).expect("the record is written");
        bench
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn peer(&self, variant: &str, seed: u64, peer: u64, killed: Option<u64>) {
        let home = self.folder().join(variant).join(seed.to_string()).join(format!("peer-{peer}"));
        std::fs::create_dir_all(&home).expect("a folder");
        let spread = if variant == "all-reduce" { 0.0_f32 } else { 1.0 };
        let mut text = format!(
            r#"{{"kind":"start","time_s":0.1,"step":0,"samples":0,"clock":0,"unix_s":{},"peer":"p{peer}","run":"r","incarnation":1,"parameters":10,"config":{{"node":{{"data_dir":"/elsewhere/peer"}},"run":{{"steps":100,"seed":{seed}}},"gossip":{{"rule":"{variant}"}},"data":{{"shard":{peer}}}}}}}"#,
            1_700_000_000 + peer
        );
        text.push('\n');
        for step in
            [25, 50, 75, 100].into_iter().filter(|&step| killed.is_none_or(|end| step <= end))
        {
            text += &format!(
                r#"{{"kind":"train","time_s":{},"step":{step},"samples":{},"clock":{},"loss":{},"learning_rate":0.1,"samples_per_s":800,"peers":1,"bytes_out":{},"bytes_in":7,"staleness":1,"wait_s":0.25,"sketch":[{},1.0]}}"#,
                step / 10,
                step * 32,
                step / 25,
                100.0 / (step as f64),
                step * 1000,
                f64::from(spread) * (peer as f64) * 100.0 / (step as f64),
            );
            text.push('\n');
        }
        if killed.is_some() {
            text += r#"{"kind":"train","time_s":5.5,"st"#;
        } else {
            let accuracy =
                if variant == "all-reduce" { 0.98 } else { 0.97 + 0.005 * (peer as f64) }
                    + 0.001 * (seed as f64);
            text += &format!(
                r#"{{"kind":"evaluate","time_s":10,"step":100,"samples":3200,"clock":4,"loss":0.2,"accuracy":{accuracy},"count":360}}
{{"kind":"final","time_s":11,"step":100,"samples":3200,"clock":4,"reason":"steps done","loss":{},"accuracy":{accuracy},"bytes_out":2000000,"bytes_in":1900000,"wait_s":0.5,"train_s":10.5,"exchanges":{{"completed":9,"busy":1}},"staleness_histogram":[8,1,1],"parameters_path":"/elsewhere/peer/end/parameters.safetensors"}}
"#,
                if variant == "all-reduce" { 0.1 } else { 0.11 },
            );
        }
        std::fs::write(home.join("metrics.jsonl"), text).expect("a file");
        std::fs::create_dir_all(home.join("end")).expect("a folder");
        // Peers end at 3 and 5: both are 1 away from their mean, whose norm is 4.
        let weight = 4.0 + spread * (2.0 * (peer as f32) - 1.0);
        let bytes = weight.to_le_bytes();
        let view = TensorView::new(Dtype::F32, vec![1], &bytes).expect("one number");
        let file = safetensors::serialize([("weight", view)], None).expect("a small file");
        std::fs::write(home.join("end/parameters.safetensors"), file).expect("a file");
    }
}

#[test]
fn the_gap_is_that_of_the_worst_peer_to_the_reference_seed_by_seed() {
    let bench = Bench::new();
    let numbers = Numbers::of(&Results::load(bench.folder()).unwrap()).unwrap();
    let [gossip, killed, synchronous] = &numbers.0[..] else { panic!("three variants") };
    assert!(synchronous.gaps.is_empty());
    let [gap] = &gossip.gaps[..] else { panic!("one reference") };
    assert_eq!(gap.reference, "all-reduce");
    let points = gap.accuracy_points.unwrap();
    assert!((points.mean - 1.0).abs() < 1e-9 && points.sd.unwrap() < 1e-9, "{points:?}");
    assert!((gap.loss_percent.unwrap().mean - 10.0).abs() < 1e-9);
    let references: Vec<&str> = killed.gaps.iter().map(|gap| gap.reference.as_str()).collect();
    assert_eq!(references, ["gossip-outer", "all-reduce"]);
    assert!(killed.gaps[0].accuracy_points.unwrap().mean.abs() < 0.3);
}

#[test]
fn a_killed_peer_counts_with_what_it_did_but_not_in_the_accuracy() {
    let bench = Bench::new();
    let numbers = Numbers::of(&Results::load(bench.folder()).unwrap()).unwrap();
    let run = &numbers.0[1].runs[0];
    assert_eq!(run.peers[1].killed_at, Some(50));
    assert_eq!((run.peers[1].samples, run.peers[1].accuracy), (1600, None));
    assert_eq!(run.samples(), 4800);
    let accuracy = run.accuracy.unwrap();
    assert!((accuracy.min - accuracy.max).abs() < 1e-12);
    assert!((run.bytes_out_per_peer().unwrap().mean - 2e6).abs() < 1e-6);
    assert_eq!(numbers.0[0].staleness().as_deref(), Some("0 / 2 / 2"));
}

#[test]
fn the_report_has_every_number_and_the_way_to_repeat_it() {
    let bench = Bench::new();
    let written = report::write(bench.folder()).unwrap();
    let text = std::fs::read_to_string(&written.report).unwrap();
    for part in [
        "| gossip-outer ",
        // Worst, median and best peer over two seeds.
        "97.15 ± 0.07 / 97.40 ± 0.07 / 97.65 ± 0.07",
        "| all-reduce | 1.00 ± 0.00 |",
        "killed at step 50",
        "0 / 2 / 2",
        "dnode-testnet run -n 2 --seeds 1,2",
        "commit `abcdef`, on 2 cores of Test CPU with 24.0 GB",
        "these peers were killed (SIGKILL): 1@50%",
        "![Training loss over samples](loss-samples.svg)",
        "| `gossip.rule` |",
        "1.000 ± 0.000 (25.00 %)",
    ] {
        let squeezed =
            text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        assert!(squeezed.contains(part.trim()), "`{part}` is missing in\n{text}");
    }
    assert!(!text.contains("data.shard"), "{text}");
    assert!(written.table.contains("gossip-outer-kill"), "{}", written.table);
}

#[test]
fn the_table_of_numbers_is_tidy() {
    let bench = Bench::new();
    report::write(bench.folder()).unwrap();
    let text = std::fs::read_to_string(bench.folder().join("metrics.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(report::csv::HEADER));
    assert!(text.lines().all(|line| line.split(',').count() == 10), "{text}");
    for row in [
        "gossip-outer,1,0,train,2,25,800,1,loss,4",
        "gossip-outer,2,1,final,11,100,3200,4,exchanges_completed,9",
        // Replicas at 0 and 2 on one axis: both are 1 away from their mean.
        "gossip-outer,1,,swarm,,,1600,,consensus_distance,1",
    ] {
        assert!(text.lines().any(|line| line == row), "`{row}` is missing in\n{text}");
    }
    let killed = "gossip-outer-kill,1,1,train";
    assert_eq!(text.lines().filter(|line| line.starts_with(killed)).count(), 2 * 8);
}

#[test]
fn plots_hold_the_series_that_have_points() {
    let bench = Bench::new();
    report::write(bench.folder()).unwrap();
    let read = |name: &str| std::fs::read_to_string(bench.folder().join(name)).unwrap();
    for name in ["loss-samples.svg", "loss-seconds.svg", "accuracy-samples.svg"] {
        let svg = read(name);
        for variant in ["gossip-outer", "gossip-outer-kill", "all-reduce"] {
            assert!(svg.contains(variant), "{variant} is missing in {name}");
        }
    }
    let svg = read("consensus-samples.svg");
    assert!(svg.contains("gossip-outer"));
    assert!(!svg.contains("all-reduce"), "a distance of zero has no place on a logarithmic axis");
}

#[test]
fn a_folder_without_experiment_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let message = report::write(folder.path()).unwrap_err().to_string();
    assert!(message.contains("experiment.json"), "{message}");
}

#[test]
fn missing_metrics_of_a_peer_are_named() {
    let bench = Bench::new();
    let missing = bench.folder().join("all-reduce/2/peer-1/metrics.jsonl");
    std::fs::remove_file(&missing).unwrap();
    let message = report::write(bench.folder()).unwrap_err().to_string();
    assert!(message.contains("all-reduce/2/peer-1/metrics.jsonl"), "{message}");
}
