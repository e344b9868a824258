//! Rule delta-set: replicas that contain the same contributions are equal bit by bit.

use dnode_gossip::testing::Host;
use dnode_protocol::FragmentId;

use super::consensus::parts;
use super::{Moment, Property, Stage, View};

/// Compares replicas with equal versions.
#[derive(Debug)]
pub(super) struct SameSet {
    /// Whether to compare after every piece of work, and not at rest alone.
    pub(super) often: bool,
}

impl Property for SameSet {
    fn name(&self) -> &'static str {
        "same set"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Joined { peer }
            | Moment::Committed { peer, .. }
            | Moment::Worked { peer, .. } => {
                if self.often {
                    compare(*peer, view)
                } else {
                    Ok(())
                }
            }
            Moment::Reached(Stage::Rest) => {
                let differs = |part: &Vec<&Host>| {
                    part.windows(2).any(|pair| bits(&pair[0].values()) != bits(&pair[1].values()))
                };
                match parts(view).iter().position(differs) {
                    Some(part) => Err(format!("replicas of connected part {part} differ at rest")),
                    None => Ok(()),
                }
            }
            Moment::Reached(_)
            | Moment::Gone { .. }
            | Moment::Said { .. }
            | Moment::Handled { .. } => Ok(()),
        }
    }
}

fn compare(peer: u32, view: &View<'_>) -> Result<(), String> {
    let Some(host) = view.host(peer) else {
        return Ok(());
    };
    for fragment in (0..view.scenario.fragments).map(FragmentId) {
        let (versions, values) = (host.core.versions(fragment), host.replica.values(fragment));
        for (other, theirs) in view.hosts().filter(|(other, _)| *other != peer) {
            if theirs.core.versions(fragment) == versions
                && bits(&theirs.replica.values(fragment)) != bits(&values)
            {
                return Err(format!(
                    "{fragment} of p{peer} and p{other} contains the same and differs"
                ));
            }
        }
    }
    Ok(())
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}
