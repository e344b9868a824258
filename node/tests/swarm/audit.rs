//! The audit log of real peers: it holds, says who took part, and shows a change.

use std::path::Path;
use std::process::Command;

use crate::process::{PROGRAM, Peer, wait};
use crate::{ENDLESS, RUN, flags};

/// What `dnode audit` prints and how it ends.
pub(crate) fn audit(what: &str, path: &Path) -> (String, Option<i32>) {
    let output = Command::new(PROGRAM).args(["audit", what]).arg(path).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

#[test]
fn the_audit_log_of_a_run_holds_and_says_who_took_part() {
    let root = tempfile::tempdir().unwrap();
    let together = ["--require-peers", "1"];
    let named = |name| ["--name", name];
    let mut first = Peer::start(&root, "0", &flags(&[&ENDLESS, &together, &named("anna")]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let mut second = Peer::start(&root, "1", &flags(&[&ENDLESS, &together, &named("bert"), &join]));
    let ids = [first.id(), second.id()];
    for (peer, name) in [(&mut first, "bert"), (&mut second, "anna")] {
        peer.wait_line("a mix", |line| line["kind"] == "staleness");
        let log = peer.data().join("audit.jsonl");
        let told = format!("\"name\":\"{name}\"");
        wait("the other says who it is", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains(&told)).then_some(())
        });
    }
    for peer in [&mut first, &mut second] {
        peer.signal("INT");
        peer.finish();
    }
    for (peer, other, name) in [(&first, ids[1], "bert"), (&second, ids[0], "anna")] {
        let (text, status) = audit("verify", &peer.data());
        assert_eq!(status, Some(0), "{text}");
        assert!(text.starts_with("lines 1 to ") && text.lines().count() == 1, "{text}");
        for remark in ["without", "missing", "left out", "cut off"] {
            assert!(!text.contains(remark), "{text}");
        }
        let (text, status) = audit("show", &peer.data());
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains(", a closed run\n"), "{text}");
        let row = text.lines().find(|line| line.starts_with(&other.short())).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let [_, told, way, _, _, samples, _, _, mixed, influence, ..] = cells[..] else {
            panic!("{text}")
        };
        assert_eq!((told, way, influence), (name, "secret", "100.0"), "{text}");
        let [samples, mixed] = [samples, mixed].map(|cell| cell.parse::<u64>().unwrap());
        assert!(samples > 0 && mixed > 0, "{text}");
    }
    changed_and_missing(&first);
}

/// Who changes a number is found out; where nothing is, that is a fault of the person who asks.
fn changed_and_missing(peer: &Peer) {
    let file = peer.data().join("audit.jsonl");
    let sound = std::fs::read_to_string(&file).unwrap();
    let changed = sound.replace("\"moved\":", "\"moved\":1");
    assert_ne!(changed, sound);
    std::fs::write(&file, changed).unwrap();
    for what in ["verify", "show"] {
        let (text, status) = audit(what, &file);
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains("error: the audit log does not hold: line "), "{text}");
    }
    // The metrics are no audit log, and no line at all is none.
    for what in ["metrics.jsonl", "address", "run.json"] {
        let (text, status) = audit("verify", &peer.data().join(what));
        assert_eq!((text.lines().count(), status), (1, Some(2)), "{what}: {text}");
    }
    std::fs::remove_file(&file).unwrap();
    for place in [&file, &peer.data()] {
        let (text, status) = audit("verify", place);
        assert_eq!((text.lines().count(), status), (1, Some(2)), "{text}");
    }
}

#[test]
fn a_peer_that_was_killed_goes_on_with_its_audit_log_and_one_without_has_none() {
    let root = tempfile::tempdir().unwrap();
    let alone = ["--rule", "none"];
    let mut peer = Peer::start(&root, "0", &flags(&[&ENDLESS, &alone]));
    peer.wait_step(100);
    peer.signal("KILL");
    peer.wait_exit();
    let mut again = Peer::start(&root, "0", &flags(&[&RUN, &alone]));
    let started = |line: &serde_json::Value| line["kind"] == "start" && line["incarnation"] == 2;
    again.wait_line("the second start", started);
    assert!(again.wait_exit().success(), "{}", again.log());
    let (text, status) = audit("verify", &again.data());
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("; 1 start without an end before"), "{text}");
    let mut without =
        Peer::start(&root, "1", &flags(&[&RUN, &alone, &["--set", "node.audit=false"]]));
    without.finish();
    assert!(!without.data().join("audit.jsonl").exists());
}
