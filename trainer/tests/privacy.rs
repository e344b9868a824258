//! docs/privacy.md has the numbers of the accountant.

use std::path::Path;

use dnode_trainer::privacy::{Adjacency, PrivacyLoss};

const DELTA: f64 = 1e-5;
const COMMITS: [u64; 4] = [1, 20, 100, 500];
const NOISE: [f64; 8] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// Three digits, or as many as there are before the point.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e5 => format!("{value:.1e}"),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn table() -> String {
    let head: Vec<_> = COMMITS.iter().map(|commits| format!(" {commits} |")).collect();
    let rule = "---|".repeat(COMMITS.len() + 1);
    let mut table = format!("| `privacy_noise` (z) \\ commits |{}\n|{rule}\n", head.concat());
    for noise in NOISE {
        let cell = |commits: &u64| {
            let loss = PrivacyLoss::default().after(*commits, noise);
            let [zeroed_out, replaced] = [Adjacency::ZeroedOut, Adjacency::Replaced]
                .map(|adjacency| short(loss.epsilon(DELTA, adjacency)));
            format!(" {zeroed_out} / {replaced} |")
        };
        let cells: Vec<_> = COMMITS.iter().map(cell).collect();
        table += &format!("| {noise} |{}\n", cells.concat());
    }
    table
}

#[test]
fn the_table_of_the_page_is_that_of_the_accountant() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/privacy.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table()), "docs/privacy.md is to have this table:\n\n{}", table());
}
