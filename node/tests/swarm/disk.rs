//! A disk that is full: the checkpoint before is kept, training goes on to its end, and what is lost is
//! said.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Peer, checkpoints, wait};

/// Long enough that the disk is full before the end.
const RUN: [&str; 6] =
    ["--steps", "40000", "--set", "run.batch=16", "--set", "node.checkpoint_every=1000"];
const KEPT: &str = "the earlier checkpoint is untouched and training goes on";
const NO_METRICS: &str = "cannot write metrics; training goes on without them";

/// Set where a file system can be mounted; elsewhere another test stands in for this one.
const MOUNT: &str = "DNODE_TEST_MOUNT";

/// A small file system of its own, until it is dropped.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// `None` where the system does not let this process mount one.
    fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"]).arg(path);
        let output = mount.output();
        let mounted = output.as_ref().is_ok_and(|output| output.status.success());
        if !mounted {
            assert!(std::env::var_os(MOUNT).is_none(), "{MOUNT} is set, and {output:?}");
            // Not by the macro, whose words a test that passes keeps for itself.
            let told = "no file system can be mounted: a disk that is full is NOT TESTED";
            let _ = writeln!(std::io::stderr(), "{told}");
            return None;
        }
        Some(Self { path: path.to_owned() })
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Takes every byte that is left.
    fn fill(&self) {
        let mut file =
            std::fs::File::options().append(true).create(true).open(self.filler()).unwrap();
        let mut bytes = 1 << 20;
        while bytes > 0 {
            if file.write_all(&vec![0; bytes]).is_err() {
                bytes /= 2;
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// The peer trains to its end although it can write nothing, and says that the end is not kept: what
/// came after the checkpoint of `step`.
fn ends_unsaved(peer: &mut Peer, step: u64) {
    let status = peer.wait_exit();
    let log = peer.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let lost = format!("training since the checkpoint at step {step} (");
    for wanted in [KEPT, NO_METRICS, "all steps done", "error: save the end of the run: ", &lost] {
        assert!(log.contains(wanted), "{wanted}\n{log}");
    }
}

/// The step of its newest checkpoint.
fn newest(peer: &Peer) -> u64 {
    let names = checkpoints(&peer.data());
    assert!(!names.iter().any(|name| name.starts_with('.')), "{names:?}");
    names.last().unwrap().parse().unwrap()
}

/// The next start in the same data directory goes on from `step`, the newest checkpoint.
fn resumes(root: &TempDir, name: &str, incarnation: u64, step: u64) {
    let mut again = Peer::start(root, name, &[&RUN[..], &["--resume"]].concat());
    let line = again
        .wait_line("start", |line| line["kind"] == "start" && line["incarnation"] == incarnation);
    assert_eq!(line["step"].as_u64(), Some(step), "{line}");
    assert!(!again.log().contains("using the checkpoint before it"), "{}", again.log());
    assert_eq!(again.finish()["reason"], "steps done");
}

#[test]
fn a_full_disk_costs_checkpoints_and_metrics_but_not_the_run() {
    let root = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&root.path().join("peer/data")) else {
        // Without the right to mount, the limit on file sizes is the real thing there is.
        return limited_file_size(&root);
    };
    let mut peer = Peer::start(&root, "peer", &RUN);
    peer.wait_event("checkpoint");
    wait("a checkpoint fails", || {
        disk.fill();
        peer.log().contains(KEPT).then_some(())
    });
    let newest = newest(&peer);
    ends_unsaved(&mut peer, newest);
    std::fs::remove_file(disk.filler()).unwrap();
    resumes(&root, "peer", 2, newest);
}

#[test]
fn files_that_may_not_grow_cost_checkpoints_and_metrics_but_not_the_run() {
    limited_file_size(&tempfile::tempdir().unwrap());
}

fn limited_file_size(root: &TempDir) {
    let mut first = Peer::start(root, "limited", &RUN);
    first.wait_step(100);
    first.signal("INT");
    let step = first.finish()["step"].as_u64().unwrap();
    // In KiB: room for the parameters, not for the rest of the state, and for a while of metrics.
    let before = "trap '' XFSZ && ulimit -f 64";
    let flags = [&RUN[..], &["--resume"]].concat();
    let mut limited = Peer::start_after(root, "limited", before, &flags);
    ends_unsaved(&mut limited, step);
    assert_eq!(newest(&limited), step);
    resumes(root, "limited", 3, step);
}
