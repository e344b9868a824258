//! MixingRule delta-set: replicas that contain the same contributions are equal bit by bit.

use dnode_gossip::testing::Host;
use dnode_protocol::{FragmentId, Origin};

use super::super::names::index_of;
use super::super::view::View;
use super::consensus::parts;
use super::property::{Moment, Property, Stage};

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
            Moment::Reached(Stage::Rest) => parts(view).iter().try_for_each(|part| {
                part.windows(2).try_for_each(|pair| compare_at_rest(pair[0], pair[1]))
            }),
            Moment::Reached(_)
            | Moment::Gone { .. }
            | Moment::Said { .. }
            | Moment::Handled { .. } => Ok(()),
        }
    }
}

/// Two connected replicas must be equal at rest, whatever they say that they contain.
fn compare_at_rest(one: &Host, other: &Host) -> Result<(), String> {
    let fragments = (0..one.core.fragments()).map(FragmentId);
    let mut different = fragments.filter(|fragment| {
        bits(&one.replica.values(*fragment)) != bits(&other.replica.values(*fragment))
    });
    let Some(fragment) = different.next() else {
        return Ok(());
    };
    let [ours, theirs] = [one, other].map(|host| host.core.versions(fragment).entries);
    let lack = |of: &[(Origin, u64)], than: &[(Origin, u64)]| -> Vec<String> {
        let more = than.iter().filter(|(origin, number)| {
            of.iter().find(|(known, _)| known == origin).is_none_or(|(_, has)| has < number)
        });
        let name = |origin: &Origin| index_of(&origin.peer);
        more.map(|(origin, number)| format!("p{}:{number}", name(origin))).collect()
    };
    let (first, second) = (lack(&ours, &theirs), lack(&theirs, &ours));
    Err(format!("{fragment} differs at rest: one peer lacks {first:?}, another {second:?}"))
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
