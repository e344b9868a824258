//! Faults that a person can make, told by the real program in one line.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

use std::path::Path;
use std::process::{Command, Output};

use dnode::data_dir::DataDir;

fn dnode(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dnode"))
        .args(words)
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

/// The one line on standard error of a program that ends with `status`.
fn fault(folder: &Path, words: &[&str], status: i32) -> String {
    let output = dnode(folder, words);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty());
    text.trim_end().to_owned()
}

#[test]
fn a_configuration_is_made_checked_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let ok = |words: &[&str]| {
        let output = dnode(folder.path(), words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{words:?}");
        text
    };
    ok(&["config", "init", "run.toml"]);
    let exists =
        "error: cannot write run.toml: it exists already; choose another name, or remove it";
    assert_eq!(fault(folder.path(), &["config", "init", "run.toml"], 2), exists);
    assert_eq!(fault(folder.path(), &["ticket", "run.toml"], 2), exists);
    ok(&["config", "check", "--config", "run.toml"]);
    let shown = ok(&["config", "show", "--config", "run.toml", "--steps", "7"]);
    let steps = shown.lines().find(|line| line.starts_with("steps = 7")).unwrap();
    assert!(steps.ends_with("# in --steps"), "{steps}");
    let wrong = fault(folder.path(), &["config", "check", "--set", "run.batch=0"], 2);
    assert!(wrong.starts_with("error: run.batch = 0 in --set is not legal"), "{wrong}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(ok(&["completions", shell]).contains("dnode"), "{shell}");
    }
    assert!(ok(&["man"]).contains(".TH dnode"));
    ok(&["man", "pages"]);
    assert!(folder.path().join("pages/dnode-join.1").exists());
}

#[test]
fn what_is_legal_and_unlikely_to_be_meant_is_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let words = "join --rule none --steps 1 --no-mdns --listen /ip4/127.0.0.1/udp/0/quic-v1 --set optimizer.kind=adamw --set optimizer.learning_rate=0.1";
    let output = dnode(folder.path(), &words.split(' ').collect::<Vec<_>>());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    let told = "WARN optimizer.learning_rate = 0.1 is 25 times the default of adamw, 0.004";
    assert!(text.contains(told), "{text}");
}

#[test]
fn a_wrong_configuration_is_told_in_one_line_and_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file("key.toml", "[run]\nseed = 1\n\n[gossip]\n\n\nlocal_step = 25\n");
    file("range.toml", "[run]\nbatch = 0\n");
    file("syntax.toml", "[run\n");
    for (words, want) in [
        (
            &["--config", "key.toml"][..],
            "error: unknown key `gossip.local_step` in key.toml line 7: did you mean `gossip.local_steps`?",
        ),
        (
            &["--config", "range.toml"],
            "error: run.batch = 0 in range.toml line 2 is not legal: must be an integer, 1 to 65536 samples",
        ),
        (&["--config", "syntax.toml"], "error: syntax.toml line 1 is not valid TOML: "),
        (
            &["--config", "none.toml"],
            "error: cannot read configuration file none.toml: No such file",
        ),
        (
            &["--bootstrap", "192.0.2.1:4001"],
            "error: network.bootstrap = \"192.0.2.1:4001\" in --bootstrap is not legal: must be a list of at most 64 addresses such as \"/ip4/192.0.2.1/udp/4001/quic-v1\"",
        ),
        (
            &["--set", "run.steps"],
            "error: --set run.steps is not legal: must be section.key=value, for example gossip.local_steps=50",
        ),
        (
            &["--set", "gosip.rule=none"],
            "error: unknown key `gosip.rule` in --set: did you mean `gossip.rule`?",
        ),
        (
            &["--threads", "0"],
            "error: node.threads = 0 in --threads is not legal: must be an integer, 1 to 1024 threads",
        ),
        (
            &["--device", "gpu"],
            "error: node.device = \"gpu\" in --device is not legal: must be \"cpu\", \"cuda:0\" (or another number) or \"auto\"",
        ),
        (
            &["--device", "cuda:1", "--set", "node.backend=embedded"],
            "error: node.device = \"cuda:1\" in --device does not go with node.backend = \"embedded\": the embedded engine computes in f32 on the CPU",
        ),
        (&["--data", "mnist", "--data-path", "nowhere"], "error: open data "),
        (&["--model", "./nowhere"], "error: the model ./nowhere: cannot be read: "),
        (
            &["--model", "llama", "--set", "model.vocabulary=3"],
            "error: model.vocabulary = 3 is out of range: expected 0 or at least ",
        ),
        (&["--stepz", "3"], "error: unexpected argument '--stepz' found"),
    ] {
        let words: Vec<&str> = ["join"].iter().chain(words).copied().collect();
        let text = fault(folder.path(), &words, 2);
        assert!(text.starts_with(want), "{text}");
    }
    assert!(!folder.path().join("dnode-data").exists(), "a refused start leaves nothing behind");
}

#[test]
fn every_fault_of_a_configuration_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let text = "seed = 3\n[gosip]\nx = 1\n[run]\nbatch = 0\nbatches = 1\n[data]\nkind = \"text\"\n\
                [gossip]\nrul = \"none\"\nrule = \"none\"\ncodecs = [\"int4\"]\n";
    std::fs::write(folder.path().join("run.toml"), text).unwrap();
    let flags = ["--config", "run.toml", "--set", "model.kind", "--threads", "0", "--shard", "3/2"];
    let words: Vec<&str> = ["config", "check"].iter().chain(&flags).copied().collect();
    let output = dnode(folder.path(), &words);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    let wants = [
        "unknown key `seed` in run.toml line 1: did you mean `run.seed`?",
        "unknown section `gosip` in run.toml line 2: did you mean `gossip`?",
        "run.batch = 0 in run.toml line 5 is not legal",
        "unknown key `run.batches` in run.toml line 6: did you mean `run.batch`?",
        "unknown key `gossip.rul` in run.toml line 10: did you mean `gossip.rule`?",
        "--set model.kind is not legal",
        "node.threads = 0 in --threads is not legal",
        "data.shard = 3 in --shard does not go with data.shards = 2",
        "data.path = unset by default does not go with data.kind",
        "gossip.codecs = [\"int4\"] in run.toml line 12 does not go with gossip.rule",
    ];
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), wants.len(), "{told}");
    for (line, want) in lines.iter().zip(wants) {
        assert!(line.starts_with(&format!("error: {want}")), "{line}: {want}");
    }
    // What follows from a value that is refused anyway is not told.
    let follows = ["config", "check", "--set", "data.kind=txt", "--set", "model.kind=gpt"];
    let text = fault(folder.path(), &follows, 2);
    assert!(text.starts_with("error: data.kind = \"txt\" in --set is not legal"), "{text}");
}

#[test]
fn what_a_backend_lacks_is_told_in_one_line_and_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let lacking = if cfg!(feature = "torch") {
        "error: no CUDA device 900: "
    } else {
        "error: this dnode was built without libtorch: `testnet/scripts/torch.sh build` fetches libtorch 2.11"
    };
    let mut requests = vec![vec!["--device", "cuda:900"]];
    if !cfg!(feature = "torch") {
        requests.push(vec!["--set", "node.backend=libtorch"]);
        requests.push(vec!["--set", "node.precision=bf16"]);
    }
    for request in requests {
        let words: Vec<&str> = ["join"].into_iter().chain(request).collect();
        let text = fault(folder.path(), &words, 2);
        assert!(text.starts_with(lacking), "{text}");
    }
    assert!(!folder.path().join("dnode-data").exists(), "a refused start leaves nothing behind");
}

#[test]
#[cfg(not(feature = "otel"))]
fn traces_that_are_not_built_in_are_told_in_one_line_and_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let text = fault(folder.path(), &["join", "--traces", "http://127.0.0.1:4318"], 2);
    assert!(
        text.starts_with("error: this dnode was built without traces; build with --features otel"),
        "{text}"
    );
    assert!(!folder.path().join("dnode-data").exists());
}

#[test]
fn a_data_directory_in_use_is_refused_with_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let _first = DataDir::open(&folder.path().join("data")).unwrap();
    let text = fault(folder.path(), &["join", "--data-dir", "data"], 2);
    let want = format!(
        "error: data directory data is in use by process {}: stop that, or choose another with --data-dir",
        std::process::id()
    );
    assert_eq!(text, want);
}

#[test]
fn the_printed_reference_is_a_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let output = dnode(folder.path(), &["config"]);
    assert!(output.status.success());
    std::fs::write(folder.path().join("run.toml"), output.stdout).unwrap();
    let mut settings = dnode::config::Settings::new();
    settings.file(&folder.path().join("run.toml")).unwrap();
    assert_eq!(settings.resolve().unwrap(), dnode::config::Config::default());
}

#[test]
fn the_peer_id_stays_and_is_known_while_the_peer_runs() {
    let folder = tempfile::tempdir().unwrap();
    let id =
        || String::from_utf8(dnode(folder.path(), &["id", "--data-dir", "data"]).stdout).unwrap();
    let first = id();
    assert!(first.trim().parse::<dnode_protocol::PeerId>().is_ok(), "{first}");
    let _running = DataDir::open(&folder.path().join("data")).unwrap();
    assert_eq!(id(), first);
}
