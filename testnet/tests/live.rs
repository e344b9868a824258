//! Scenario runs of real processes through scenarios, against a stand-in for `dnode`.

use std::path::Path;
use std::time::Duration;

use dnode_testnet::live::{self, Account, Lines, Plan};
use dnode_testnet::local::Stop;
use dnode_testnet::scenario::Scenario;

/// Runs a scenario of stand-ins of this mode; asserts that no process is left.
async fn scenario_run(mode: &str, scenario: &str) -> Account {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = Plan {
        program: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-dnode.sh"),
        scenario: Scenario::parse(scenario).expect("a scenario"),
        seed: 1,
        settings: vec![format!("fake.mode={mode}")],
        directory: folder.path().to_path_buf(),
        // Generous, because the machine may be busy.
        stall: Duration::from_secs(60),
        warm_up: Duration::ZERO,
        keep_going: false,
    };
    let lines = Lines::loopback();
    let (_ask, mut stop) = Stop::channel();
    let account =
        live::run(&plan, lines, &mut std::io::sink(), &mut stop).await.expect("a scenario run");
    for peer in std::fs::read_dir(folder.path()).expect("a folder") {
        let Ok(id) = std::fs::read_to_string(peer.expect("an entry").path().join("pid")) else {
            continue;
        };
        let status = std::fs::read_to_string(format!("/proc/{}/status", id.trim()));
        let status = status.unwrap_or_default();
        assert!(status.is_empty() || status.contains("State:\tZ"), "process {id} was left behind");
    }
    account
}

#[tokio::test]
async fn every_fault_strikes_and_what_cannot_is_said() {
    let account = scenario_run(
        "endless",
        r#"
        peers = 5
        faults_for = "1s"
        settle = "0s"
        script = [
            { at = "0ms", kind = "crash", peer = 0 },
            { at = "0ms", kind = "leave", peer = 1 },
            { at = "0ms", kind = "pause", peer = 2, time = "200ms" },
            { at = "0ms", kind = "slow", peer = 3, factor = 2.0 },
            { at = "100ms", kind = "join", peer = 4 },
            { at = "0ms", kind = "cut", side = [0], both = true },
            { at = "0ms", kind = "restart", peer = 3 },
            { at = "0ms", kind = "crash", peer = 3 },
            { at = "2s", kind = "restart", peer = 0, with = "nothing" },
        ]
        "#,
    )
    .await;
    assert_eq!(account.findings, [], "{account}");
    let struck: Vec<&str> = account.faults.keys().map(String::as_str).collect();
    assert_eq!(struck, ["join", "kill", "leave", "pause", "slow", "start as a stranger"]);
    let skipped: Vec<(&str, u64)> =
        account.skipped.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    assert_eq!(skipped, [("it lives", 1), ("no emulated network", 1), ("two live", 1)]);
    assert_eq!(account.starts, 6);
}

#[tokio::test]
async fn what_no_fault_excuses_is_found() {
    let calm = "peers = 2\nfaults_for = \"60s\"\nsettle = \"60s\"";
    for (mode, what) in [("broken", "ERROR the disk is gone"), ("fail", "ended by itself")] {
        let account = scenario_run(mode, calm).await;
        assert_eq!(account.findings[0].peer, 1, "{mode}: {account}");
        assert!(account.findings[0].what.contains(what), "{mode}: {account}");
    }
}
