//! What must hold after every event: one file per property, and the table of all of them.

mod atomic;
mod consensus;
mod gate;
mod information;
mod information_age;
pub(super) mod kept;
mod lag;
mod lease;
mod limits;
mod liveness;
mod mean;
mod progress_gap;
pub(super) mod property;
mod same_set;
mod snapshot_age;
mod traffic;
mod weight;

use dnode_gossip::{Balance, Weighting};

pub use self::consensus::{distance_squared, within_parts};
use self::property::Property;
use crate::scenario::{MixingRule, Scenario};

/// Every property; `small` worlds get the expensive ones too.
#[must_use]
pub fn table(scenario: &Scenario, small: bool) -> Vec<Box<dyn Property>> {
    let mut table: Vec<Box<dyn Property>> = vec![
        Box::new(atomic::Atomic),
        Box::new(lease::OneLease),
        Box::new(progress_gap::ProgressGap),
        Box::new(lag::Lag::default()),
        Box::new(snapshot_age::SnapshotAge),
        Box::new(gate::Gate::default()),
        Box::new(weight::Weight),
        Box::new(limits::Limits),
        Box::new(traffic::Traffic),
        Box::new(liveness::Liveness::default()),
        Box::new(information_age::InformationAge),
        Box::new(consensus::Consensus::default()),
    ];
    // What weighs as samples keeps no sum while the samples of a commit follow measured speeds.
    let weighs_as_measured = scenario.rule.weighting == Weighting::Samples
        && scenario.gossip.pace.balance != Balance::Off;
    let of_the_rule: Option<Box<dyn Property>> = match scenario.rule.kind {
        MixingRule::Exchange if weighs_as_measured => None,
        MixingRule::Exchange => Some(Box::new(mean::MeanKept::new(small, scenario.rule.weighting))),
        MixingRule::DeltaSet => Some(Box::new(same_set::SameSet { often: small })),
    };
    table.extend(of_the_rule);
    if small {
        table.push(Box::new(information::InformationTrue::default()));
    }
    table
}
