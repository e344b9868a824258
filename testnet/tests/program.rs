//! The program `dnode-testnet` as a user meets it: exit codes, messages, folders, no orphans.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{interval, timeout};

/// Generous, because the machine may be busy; nothing waits that long unless it is broken.
const DEADLINE: Duration = Duration::from_secs(60);

fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dnode-testnet"));
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-dnode.sh");
    command.args(arguments).arg("--out").arg(folder).arg("--dnode").arg(fake);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        program(folder, arguments).output().expect("the program runs");
    let text = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    (status.code(), text.into_owned())
}

fn is_alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let mut ticks = interval(Duration::from_millis(10));
    let reached = async {
        while !condition() {
            ticks.tick().await;
        }
    };
    timeout(DEADLINE, reached).await.expect(what);
}

/// Starts a run whose peers never end, waits until all are up, and gives their process ids.
async fn hanging(folder: &Path) -> (Child, Vec<String>) {
    let child = program(folder, &["run", "-n", "3", "--set", "fake.mode=hang"])
        .spawn()
        .expect("the program starts");
    let home = |peer: u32| folder.join(format!("pairwise/1/peer-{peer}"));
    until("all peers start", || (0..3).all(|peer| home(peer).join("metrics.jsonl").exists())).await;
    let pid = |peer| std::fs::read_to_string(home(peer).join("pid")).expect("a process id");
    let pids: Vec<String> = (0..3).map(|peer| pid(peer).trim().to_owned()).collect();
    assert!(pids.iter().all(|pid| is_alive(pid)));
    (child, pids)
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
}

#[test]
fn the_main_job_ends_with_a_table_and_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = finish(folder.path(), &["run", "-n", "3", "--single"]);
    assert_eq!(code, Some(0), "{text}");
    let words = "pairwise: after the same number of samples the worst of 3 peers";
    for part in ["| pairwise", "| all-reduce", "| single", "97.00", words, "Report: ", "report.md"]
    {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    for file in ["report.md", "metrics.csv", "loss-samples.svg", "experiment.json"] {
        assert!(folder.path().join(file).is_file(), "{file} is missing");
    }
    let single = folder.path().join("single/1");
    assert!(single.join("peer-0").is_dir() && !single.join("peer-1").exists());
}

#[test]
fn a_report_can_be_written_again() {
    let folder = tempfile::tempdir().unwrap();
    finish(folder.path(), &["run", "-n", "2", "--no-baseline", "--seeds", "4,5"]);
    let report = folder.path().join("report.md");
    let first = std::fs::read_to_string(&report).unwrap();
    std::fs::remove_file(&report).unwrap();
    let again = Command::new(env!("CARGO_BIN_EXE_dnode-testnet"))
        .arg("report")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(again.status.success());
    assert_eq!(std::fs::read_to_string(&report).unwrap(), first);
    assert!(first.contains("over the seeds [4, 5]"), "{first}");
}

#[test]
fn a_kill_adds_an_variant_beside_the_undisturbed_one() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["run", "-n", "3", "--kill", "0@30%", "--set", "fake.mode=victim"];
    let (code, text) = finish(folder.path(), &[&arguments[..], &["--no-baseline"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let report = std::fs::read_to_string(folder.path().join("report.md")).unwrap();
    assert!(report.contains("killed at step 50"), "{report}");
    assert!(!folder.path().join("pairwise").exists());
}

#[test]
fn a_failing_peer_gives_code_1_and_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = finish(folder.path(), &["run", "-n", "3", "--set", "fake.mode=fail"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: variant pairwise, seed 1: peer 1 failed"), "{text}");
    assert!(text.contains("the data file is not there"), "{text}");
}

#[test]
fn bad_usage_gives_code_2_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["run", "-n", "1"], "2..=256"),
        (&["run", "--kill", "9@30%"], "there are peers 0 to 3 only"),
        (&["run", "--kill", "soon"], "0@30%"),
        (&["run", "--set", "steps=3"], "SECTION.KEY=VALUE"),
        (&["run", "--variant-set", "other:run.batch=3"], "there are pairwise, all-reduce"),
        (&["run", "--rule", "pairwise", "--rule", "pairwise"], "given twice"),
        (&["run", "--seed", "1", "--seeds", "2"], "cannot be used with"),
        (&["run", "--timeout", "soon"], "timeout"),
    ];
    for (arguments, want) in cases {
        let (code, text) = finish(&folder.path().join("out"), arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(want), "{arguments:?}: `{want}` is missing in {text}");
    }
    // It has no folder.
    let attacks: [(&[&str], &str); 2] = [
        (&["attack", "--rule", "nobody"], "--rule nobody: no such rule; there are gossip-outer, "),
        (&["attack", "--attack", "nobody"], "--attack nobody: no such attack"),
    ];
    for (arguments, want) in attacks {
        let output = Command::new(env!("CARGO_BIN_EXE_dnode-testnet")).args(arguments).output();
        let Output { status, stderr, .. } = output.expect("the program runs");
        let text = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(2) && text.contains(want), "{arguments:?}: {text}");
    }
}

#[test]
fn a_used_folder_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("precious"), "x").unwrap();
    let (code, text) = finish(folder.path(), &["run"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is not empty"), "{text}");
}

#[tokio::test]
async fn ctrl_c_and_sigterm_end_all_peers_and_give_code_1() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, pids) = hanging(folder.path()).await;
        send(&child, signal);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(1));
        assert!(!pids.iter().any(|pid| is_alive(pid)), "peers were left behind");
    }
}

#[tokio::test]
async fn peers_end_when_the_program_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, pids) = hanging(folder.path()).await;
    send(&child, Signal::KILL);
    child.wait().unwrap();
    until("peers hear that their input ended", || !pids.iter().any(|pid| is_alive(pid))).await;
}
