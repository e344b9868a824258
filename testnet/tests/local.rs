//! The process runner against a stand-in for `dnode`: start, end, failure, kill and stop.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dnode_netem::{Plan, WanError};
use dnode_testnet::local::variant;
use dnode_testnet::local::variant_run::VariantRun;
use dnode_testnet::local::{Progress, RunError, Stop, Variant, VariantPlan, Workload};
use tokio::time::{interval, timeout};

/// Generous, because the machine may be busy; nothing waits that long unless it is broken.
const DEADLINE: Duration = Duration::from_secs(60);

fn fake() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-dnode.sh")
}

struct Bench {
    folder: tempfile::TempDir,
    variant: Variant,
    workload: Workload,
    deadline: Duration,
    wan: Option<Plan>,
}

impl Bench {
    fn new(mode: &str, peers: usize) -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            variant: Variant::new("gossip-outer", peers),
            workload: Workload {
                settings: vec![format!("fake.mode={mode}")],
                ..Workload::default()
            },
            deadline: DEADLINE,
            wan: None,
        }
    }

    async fn run(&self, mut stop: Stop) -> Result<VariantRun, RunError> {
        let program = fake();
        let plan = VariantPlan {
            program: &program,
            workload: &self.workload,
            variant: &self.variant,
            seed: 5,
            directory: self.folder.path().to_path_buf(),
            deadline: self.deadline,
            wan: self.wan.as_ref(),
            shares: None,
            python: None,
        };
        let mut progress = Progress::new(Box::new(std::io::sink()), false);
        let result = variant::run(&plan, &mut progress, &mut stop).await;
        for peer in 0..self.variant.peers {
            if let Some(pid) = self.pid(peer) {
                assert!(!is_alive(pid), "peer {peer} was left behind");
            }
        }
        result
    }

    fn file(&self, peer: usize, name: &str) -> Option<String> {
        let path = self.folder.path().join(format!("peer-{peer}")).join(name);
        std::fs::read_to_string(path).ok()
    }

    fn pid(&self, peer: usize) -> Option<u32> {
        self.file(peer, "pid")?.trim().parse().ok()
    }

    /// Waits until every peer has published its address.
    async fn all_up(&self) {
        let mut ticks = interval(Duration::from_millis(10));
        let up = async {
            while !(0..self.variant.peers).all(|peer| self.file(peer, "address").is_some()) {
                ticks.tick().await;
            }
        };
        timeout(DEADLINE, up).await.expect("all peers start");
    }
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[tokio::test]
async fn all_peers_start_one_through_the_other_and_end() {
    let bench = Bench::new("good", 3);
    let (_ask, stop) = Stop::channel();
    let run = bench.run(stop).await.unwrap();
    assert_eq!((run.seed, run.killed_at), (5, vec![None, None, None]));
    let first = bench.file(0, "log.txt").unwrap();
    assert!(!first.contains("--bootstrap"), "{first}");
    assert!(first.contains("network.require_peers=2"), "{first}");
    for (peer, port) in [(1, 40000), (2, 40001)] {
        let log = bench.file(peer, "log.txt").unwrap();
        let earlier = peer - 1;
        let want = format!("--bootstrap /ip4/127.0.0.1/udp/{port}/quic-v1/p2p/12D3Fake{earlier}\n");
        assert!(log.contains(&want), "{log}");
    }
}

#[tokio::test]
async fn on_an_emulated_network_each_peer_has_a_machine_of_its_own() {
    let mut bench = Bench::new("good", 3);
    bench.workload.emulated = true;
    let network = |line: &str| Plan { setup: vec![line.parse().unwrap()], ..Plan::default() };
    bench.wan = Some(network("link 0 3 delay_ms=1"));
    let (_ask, stop) = Stop::channel();
    let error = bench.run(stop.clone()).await.unwrap_err().to_string();
    assert!(error.contains("no machine 3"), "{error}");
    bench.wan = Some(network("link * * delay_ms=1"));
    match bench.run(stop).await {
        Err(RunError::Network(WanError::Missing(what))) => {
            // Nothing is started without the network, which `.ci/run` makes a must.
            assert!(std::env::var_os("DNODE_TEST_WAN").is_none(), "{what}");
            assert_eq!(bench.file(0, "log.txt"), None, "{what}");
        }
        result => {
            assert_eq!(result.unwrap().killed_at, vec![None; 3]);
            let log = bench.file(2, "log.txt").unwrap();
            assert!(log.contains("/ip4/10.77.0.3/udp/0") && log.contains("wan0"), "{log}");
            let counts = std::fs::read_to_string(bench.folder.path().join("wan.txt")).unwrap();
            assert!(counts.contains("under_way packets="), "{counts}");
        }
    }
}

#[tokio::test]
async fn a_failing_peer_fails_the_variant_with_the_end_of_its_log() {
    let bench = Bench::new("fail", 3);
    let (_ask, stop) = Stop::channel();
    let error = bench.run(stop).await.unwrap_err();
    assert!(matches!(error, RunError::Exited { peer: 1, .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("exit status: 3"), "{message}");
    assert!(message.contains("the data file is not there"), "{message}");
}

#[tokio::test]
async fn an_variant_that_takes_too_long_is_stopped() {
    let mut bench = Bench::new("hang", 2);
    bench.deadline = Duration::from_millis(300);
    let (_ask, stop) = Stop::channel();
    let error = bench.run(stop).await.unwrap_err();
    assert!(matches!(error, RunError::Deadline { .. }), "{error}");
}

#[tokio::test]
async fn a_request_to_stop_ends_all_peers() {
    let bench = Bench::new("hang", 3);
    let (ask, stop) = Stop::channel();
    let (result, ()) = tokio::join!(bench.run(stop), async {
        bench.all_up().await;
        ask.send_modify(|count| *count += 1);
    });
    assert!(matches!(result, Err(RunError::Interrupted)), "{result:?}");
}

#[tokio::test]
async fn a_second_request_kills_peers_that_ignore_the_first() {
    let bench = Bench::new("stubborn", 2);
    let (ask, stop) = Stop::channel();
    let (result, ()) = tokio::join!(bench.run(stop), async {
        bench.all_up().await;
        ask.send_modify(|count| *count += 2);
    });
    assert!(matches!(result, Err(RunError::Interrupted)), "{result:?}");
}

#[tokio::test]
async fn a_planned_kill_strikes_and_the_others_finish() {
    let mut bench = Bench::new("victim", 3);
    bench.variant.kills = vec!["0@30%".parse().unwrap()];
    let (_ask, stop) = Stop::channel();
    let run = bench.run(stop).await.unwrap();
    assert_eq!(run.killed_at[1..], [None, None]);
    assert_eq!(run.killed_at[0], Some(50), "30 % of 100 is reached at the report of step 50");
}

#[tokio::test]
async fn a_kill_that_never_strikes_is_an_error() {
    let mut bench = Bench::new("good", 2);
    bench.variant.kills = vec!["1@1000".parse().unwrap()];
    let (_ask, stop) = Stop::channel();
    let error = bench.run(stop).await.unwrap_err();
    assert!(matches!(error, RunError::KillMissed { peer: 1 }), "{error}");
}

#[tokio::test]
async fn success_without_all_steps_is_an_error() {
    for mode in ["forgetful", "interrupted"] {
        let bench = Bench::new(mode, 1);
        let (_ask, stop) = Stop::channel();
        let error = bench.run(stop).await.unwrap_err();
        assert!(matches!(error, RunError::Early { peer: 0, .. }), "{mode}: {error}");
    }
}

#[tokio::test]
async fn garbage_in_the_metrics_is_named() {
    let bench = Bench::new("garbage", 1);
    let (_ask, stop) = Stop::channel();
    let message = bench.run(stop).await.unwrap_err().to_string();
    assert!(message.contains("metrics.jsonl line 2"), "{message}");
}

#[tokio::test]
async fn a_program_that_cannot_start_is_named() {
    let bench = Bench::new("good", 1);
    let (_ask, mut stop) = Stop::channel();
    let plan = VariantPlan {
        program: Path::new("/nonexistent/dnode"),
        workload: &bench.workload,
        variant: &bench.variant,
        seed: 1,
        directory: bench.folder.path().to_path_buf(),
        deadline: DEADLINE,
        wan: None,
        shares: None,
        python: None,
    };
    let mut progress = Progress::new(Box::new(std::io::sink()), false);
    let error = variant::run(&plan, &mut progress, &mut stop).await.unwrap_err();
    assert!(matches!(error, RunError::Start { peer: 0, .. }), "{error}");
}
