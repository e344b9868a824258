//! Targets hold on inputs that are made from their corpus, the same ones at every run.

use dnode_fuzz::{Campaign, TARGETS};

/// Inputs for each target: some seconds for all.
const EXECUTIONS: u64 = 4000;
const SEED: u64 = 1;

#[test]
fn made_inputs_hold() {
    for target in TARGETS {
        let mut campaign = Campaign::new(target, SEED).expect("read the corpus");
        campaign.run(EXECUTIONS);
    }
}
