//! docs/errors.md lists every error that a person can meet, in the words of the sources.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of sources whose texts a person can meet.
const SOURCES: [&str; 6] = [
    "node/src",
    "node/network/src",
    "node/quic/src",
    "trainer/src",
    "trainer/torch/src",
    "gossip/src",
];
/// Where each error is told to a person as it is; elsewhere errors are causes of these.
const TOLD: [&str; 9] = [
    "node/src",
    "node/network/src/config.rs",
    "trainer/src/config.rs",
    "trainer/src/data/error.rs",
    "trainer/src/checkpoint/error.rs",
    "trainer/src/generate.rs",
    "trainer/src/seam.rs",
    "trainer/src/tokenizer/error.rs",
    "trainer/torch/src/lib.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The texts of all Rust files at or below `path`.
fn sources(path: &Path) -> Vec<String> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        return entries.flat_map(|entry| sources(&entry.unwrap().path())).collect();
    }
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    if is_rust { vec![fs::read_to_string(path).unwrap()] } else { Vec::new() }
}

/// The literal that `text` begins with after a quotation mark, `…` for each placeholder.
fn literal(text: &str) -> String {
    let (mut plain, mut depth, mut characters) = (String::new(), 0, text.chars());
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => plain.extend(characters.next()),
            '{' => {
                depth += 1;
                plain.push('…');
            }
            '}' => depth -= 1,
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain
}

/// Every text of `#[error("…")]` in `source`, those that only pass on another left out.
fn errors(source: &str) -> impl Iterator<Item = String> {
    let attributes = source.split("#[error(").skip(1);
    let quoted = attributes.filter_map(|rest| rest.trim_start().strip_prefix('"'));
    quoted.map(literal).filter(|text| text.chars().any(|it| it != '…'))
}

/// First cells of the tables of the page, without their outer backticks.
fn entries() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split_once("` |").unwrap().0.to_owned()).collect()
}

#[test]
fn every_entry_is_in_the_words_of_the_sources() {
    let all: Vec<_> = SOURCES.iter().flat_map(|path| sources(&root().join(path))).collect();
    let plain: Vec<_> = all.iter().map(|text| text.replace("\\\"", "\"")).collect();
    for entry in entries() {
        let parts: Vec<_> = entry.split('…').filter(|part| part.trim().len() > 2).collect();
        let found = plain.iter().any(|text| parts.iter().all(|part| text.contains(part)));
        assert!(found, "no source says: {entry}");
    }
}

#[test]
fn every_error_that_is_told_has_an_entry() {
    let entries: BTreeSet<_> = entries().into_iter().collect();
    let all = TOLD.iter().flat_map(|path| sources(&root().join(path)));
    let told: BTreeSet<_> = all.flat_map(|text| errors(&text).collect::<Vec<_>>()).collect();
    assert!(told.len() > 50, "they are found: {told:?}");
    let missing: Vec<_> = told.difference(&entries).collect();
    assert!(missing.is_empty(), "docs/errors.md lacks: {missing:#?}");
}
