//! The repository's rules that no compiler checks: each test reads the tree and names what breaks one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "tidy/words.rs"]
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names under which nothing is written by hand.
const SKIPPED: [&str; 8] =
    [".git", "target", "corpus", "artifacts", "regressions", "dist", "dnode-data", "runs"];
/// Most lines of one file, its inline tests not counted.
const LINES_MAX: usize = 500;

/// Each crate: its folder, and the crates of this workspace that it may depend on.
const CRATES: [(&str, &[&str]); 16] = [
    ("protocol", &[]),
    ("gossip", &["dnode-protocol"]),
    ("trainer", &["dnode-mutate", "dnode-protocol"]),
    ("trainer/cuda", &["dnode-protocol", "dnode-trainer"]),
    ("trainer/torch", &["dnode-cuda", "dnode-protocol", "dnode-trainer"]),
    ("node/network", &["dnode-direct", "dnode-mutate", "dnode-protocol", "dnode-quic"]),
    ("node/direct", &["dnode-mutate", "dnode-quic"]),
    ("node/collective", &["dnode-cuda", "dnode-direct", "dnode-mutate"]),
    ("node/quic", &[]),
    ("node/metrics", &[]),
    ("node/audit", &["dnode-protocol"]),
    (
        "node",
        &[
            "dnode-audit",
            "dnode-collective",
            "dnode-cuda",
            "dnode-gossip",
            "dnode-metrics",
            "dnode-mutate",
            "dnode-network",
            "dnode-protocol",
            "dnode-torch",
            "dnode-trainer",
        ],
    ),
    ("node/python", &["dnode", "dnode-cuda"]),
    (
        "testnet",
        &[
            "dnode",
            "dnode-gossip",
            "dnode-metrics",
            "dnode-netem",
            "dnode-network",
            "dnode-protocol",
            "dnode-quic",
            "dnode-trainer",
        ],
    ),
    ("testnet/mutate", &[]),
    ("testnet/netem", &[]),
];

/// Crates that decide or compute, and neither wait, connect nor read a clock.
const PURE: [&str; 6] =
    ["protocol", "gossip", "trainer", "trainer/cuda", "trainer/torch", "node/audit"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every file of the tree by its path from the root, sorted.
fn files() -> BTreeSet<String> {
    let root = root();
    let mut found = BTreeSet::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // In a second work tree `.git` is a file.
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                let relative = path.strip_prefix(&root).unwrap();
                found.insert(relative.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    assert!(found.contains("Cargo.toml") && found.len() > 50, "the tree is there");
    found
}

/// The text of a file, `None` when it is not text.
fn text(path: &str) -> Option<String> {
    String::from_utf8(fs::read(root().join(path)).unwrap()).ok()
}

fn manifest(folder: &str) -> toml::Table {
    let path = format!("{folder}/Cargo.toml");
    text(&path).unwrap().parse().unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// Names under the dependency tables `kinds` of a manifest, those for single targets included.
fn dependencies(manifest: &toml::Table, kinds: &[&str]) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let single = targets.into_iter().flatten().filter_map(|(_, table)| table.as_table());
    let tables = std::iter::once(manifest).chain(single);
    let names = tables.flat_map(|table| {
        kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()).flat_map(|found| found.keys())
    });
    names.cloned().collect()
}

fn report(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// The lines of `source` before its inline tests.
fn without_tests(source: &str) -> impl Iterator<Item = &str> {
    source.lines().take_while(|line| line.trim() != "#[cfg(test)]")
}

#[test]
fn crates_depend_only_in_the_direction_of_the_design() {
    let mut broken = Vec::new();
    for (folder, allowed) in CRATES {
        let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
        for name in dependencies(&manifest(folder), &kinds) {
            if name.starts_with("dnode") && !allowed.contains(&name.as_str()) {
                broken.push(format!("{folder} depends on {name}"));
            }
        }
    }
    report("dependency direction (docs/architecture.md)", &broken);
    let members = manifest(".")["workspace"]["members"].as_array().unwrap().clone();
    let members: BTreeSet<&str> = members.iter().filter_map(toml::Value::as_str).collect();
    let known: BTreeSet<&str> = CRATES.iter().map(|(folder, _)| *folder).collect();
    assert_eq!(members, known, "every member of the workspace has a place in the direction");
}

#[test]
fn pure_crates_have_no_runtime_socket_clock_or_thread() {
    let runtimes = ["tokio", "futures", "libp2p", "quinn", "socket2", "mio", "async-std", "smol"];
    let calls = ["std::net", "Instant::now", "SystemTime::now", "thread::sleep", "rand::rng()"];
    let mut broken = Vec::new();
    for folder in PURE {
        for name in dependencies(&manifest(folder), &["dependencies"]) {
            if runtimes.contains(&name.as_str()) {
                broken.push(format!("{folder} depends on {name}"));
            }
        }
        for path in files().iter().filter(|path| path.starts_with(&format!("{folder}/src/"))) {
            let source = text(path).unwrap();
            let code = without_tests(&source).filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                if let Some(call) = calls.iter().find(|call| line.contains(**call)) {
                    broken.push(format!("{path} uses {call}"));
                }
            }
        }
    }
    report("time, randomness and connections are arguments of the pure crates", &broken);
}

#[test]
fn source_files_begin_with_their_purpose_and_stay_short() {
    let mut broken = Vec::new();
    for path in files().iter().filter(|path| path.ends_with(".rs")) {
        let source = text(path).unwrap();
        if !source.starts_with("//! ") {
            broken.push(format!("{path} does not begin with a //! sentence"));
        }
        let lines = without_tests(&source).count();
        if lines > LINES_MAX {
            broken.push(format!("{path} has {lines} lines, at most {LINES_MAX}"));
        }
    }
    report("one concept per file", &broken);
}

#[test]
fn a_module_with_parts_is_a_file_beside_their_folder() {
    let files = files();
    // Files beside the crates' roots only: cargo makes a test of each file in `tests/`.
    let modules = files.iter().filter(|path| path.ends_with("/mod.rs") && path.contains("/src/"));
    let broken = modules.map(|path| format!("{path} is not a file beside its folder"));
    let broken: Vec<String> = broken.collect();
    report("`part.rs` beside the folder `part/`", &broken);
}

#[test]
fn pictures_are_shown_by_a_page_and_scripts_lie_together() {
    let files = files();
    let pages = files.iter().filter(|path| path.ends_with(".md"));
    let pages: String = pages.map(|path| text(path).unwrap()).collect();
    let mut broken = Vec::new();
    for path in &files {
        let name = path.rsplit('/').next().unwrap();
        let picture =
            path.starts_with("docs/") && (name.ends_with(".svg") || name.ends_with(".png"));
        if picture && !pages.contains(&format!("/{name})")) {
            broken.push(format!("{path}: no page shows it"));
        }
        let script = path.starts_with("testnet/") && path.ends_with(".sh");
        if script && !path.starts_with("testnet/scripts/") && !path.starts_with("testnet/tests/") {
            broken.push(format!("{path} is not in testnet/scripts"));
        }
    }
    report("generated plots stay out of the repository", &broken);
}

#[test]
fn no_test_is_switched_off_or_content_with_a_panic() {
    let mut broken = Vec::new();
    for path in files().iter().filter(|path| path.ends_with(".rs")) {
        for line in text(path).unwrap().lines().map(str::trim) {
            if line.starts_with("#[ignore") || line.starts_with("#[should_panic") {
                broken.push(format!("{path}: {line}"));
            }
        }
    }
    report("a test runs, and asserts what happens", &broken);
}

#[test]
fn every_word_of_the_glossary_is_used_elsewhere() {
    let glossary = text("docs/glossary.md").unwrap();
    let words: BTreeSet<String> = glossary
        .lines()
        .filter_map(|line| Some(line.strip_prefix("- **")?.split_once("**")?.0.to_lowercase()))
        .collect();
    assert!(words.len() > 30, "the glossary is a list of `- **word** meaning`");
    let mut elsewhere = String::new();
    for path in files() {
        let read = path.ends_with(".rs") || path.ends_with(".md");
        if read && path != "docs/glossary.md" && !path.starts_with("testnet/tests/tidy") {
            elsewhere.push_str(&text(&path).unwrap().to_lowercase().replace('_', " "));
        }
    }
    let unused = words.into_iter().filter(|word| !elsewhere.contains(word.as_str()));
    report("docs/glossary.md explains what nobody says", &unused.collect::<Vec<_>>());
}

#[test]
fn dependencies_come_from_the_registry() {
    let mut broken = Vec::new();
    for path in files() {
        let text = || text(&path).unwrap();
        if path.ends_with("Cargo.lock") {
            let sources = text();
            let foreign = sources.lines().filter(|line| {
                line.starts_with("source = ")
                    && !line.contains("registry+https://github.com/rust-lang/crates.io-index")
            });
            broken.extend(foreign.map(|line| format!("{path}: {line}")));
        } else if path.ends_with("Cargo.toml") {
            let manifest = text();
            let lines = manifest.lines().filter(|line| {
                let line = line.replace(' ', "");
                line.contains("git=\"")
                    || line.starts_with("[patch")
                    || line.contains("registry=\"")
            });
            broken.extend(lines.map(|line| format!("{path}: {line}")));
        }
    }
    report("no git dependency, no patch, no other registry", &broken);
}

#[test]
fn every_crate_obeys_the_workspace_lints_and_is_not_published() {
    let mut broken = Vec::new();
    for (folder, _) in CRATES {
        let manifest = manifest(folder);
        let inherits = |table: Option<&toml::Value>| {
            table.and_then(|table| table.get("workspace")) == Some(&toml::Value::Boolean(true))
        };
        if !inherits(manifest.get("lints")) {
            broken.push(format!("{folder} does not inherit [workspace.lints]"));
        }
        if !inherits(manifest["package"].get("publish")) {
            broken.push(format!("{folder} does not inherit publish"));
        }
    }
    report("one set of rules for all crates", &broken);
}

#[test]
fn no_file_names_a_place_on_somebodys_machine() {
    let places = [
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("C:", "\\Users"),
    ];
    let mut broken = Vec::new();
    for path in files() {
        let Some(text) = text(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            if let Some(place) = places.iter().find(|place| line.contains(**place)) {
                broken.push(format!("{path}:{} names {place}", number + 1));
            }
        }
    }
    report("paths are relative to the repository", &broken);
}

#[test]
fn every_scenario_is_run_by_a_test() {
    let files = files();
    let is_test = |path: &&String| path.starts_with("testnet/tests/") && path.ends_with(".rs");
    let tests = files.iter().filter(is_test).filter(|path| !path.contains("/tidy"));
    let tests: String = tests.map(|path| text(path).unwrap()).collect();
    // A test may run all that is in the folder.
    let all = tests.contains("\"scenarios\"");
    let scenarios = files.iter().filter_map(|path| path.strip_prefix("testnet/scenarios/"));
    let unused =
        scenarios.filter(|name| !name.ends_with(".toml") || !(all || tests.contains(*name)));
    report("a scenario that no test runs", &unused.map(str::to_owned).collect::<Vec<_>>());
}
