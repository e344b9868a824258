//! Runs targets on inputs that are made from their corpus, for so many seconds each:
//!
//! `cargo run --release --manifest-path testnet/fuzz/Cargo.toml --example campaign -- SECONDS [SEED] [TARGET ...]`

use std::time::{Duration, Instant};

use dnode_fuzz::{Campaign, TARGETS};

/// Executions between two looks at the clock.
const ROUND: u64 = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let seconds: u64 = words.next().ok_or("how many seconds for each target?")?.parse()?;
    let seed: u64 = words.next().map_or(Ok(1), |text| text.parse())?;
    let wanted: Vec<String> = words.collect();
    for target in TARGETS
        .into_iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|it| it == name))
    {
        let mut campaign = Campaign::new(target, seed)?;
        let (began, mut executions) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(seconds) {
            campaign.run(ROUND);
            executions += ROUND;
        }
        println!("{} seed {seed}: {executions} executions in {seconds} s, none fails", target.0);
    }
    Ok(())
}
