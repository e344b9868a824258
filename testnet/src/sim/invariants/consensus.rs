//! After commits add nothing, replicas that can reach each other agree: every peer's work arrives.

use dnode_gossip::testing::Host;

use super::super::names::index_of;
use super::super::view::View;
use super::property::{Moment, Property, Stage};

/// What must be left of the squared consensus distance.
const LEFT: f64 = 1e-6;
/// Squared distances below this are rounding.
const ROUNDING: f64 = 1e-18;

/// `Σ |x_i − x̄|²` over these replicas, all fragments.
#[must_use]
pub fn distance_squared(hosts: &[&Host]) -> f64 {
    let rows: Vec<Vec<f64>> = hosts.iter().map(|host| host.values()).collect();
    let elements = rows.first().map_or(0, Vec::len);
    let mut total = 0.0;
    for element in 0..elements {
        let column = || rows.iter().map(|row| row[element]);
        let mean = column().sum::<f64>() / rows.len() as f64;
        total += column().map(|value| (value - mean).powi(2)).sum::<f64>();
    }
    total
}

/// Compares the distance within each connected part before and after the still stage.
#[derive(Debug, Default)]
pub(super) struct Consensus {
    before: f64,
}

impl Property for Consensus {
    fn name(&self) -> &'static str {
        "consensus"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Reached(Stage::Still) => self.before = within_parts(view),
            Moment::Reached(Stage::Agreed) => {
                let after = within_parts(view);
                if after > LEFT * self.before + ROUNDING {
                    return Err(format!(
                        "the squared consensus distance fell from {:e} to {after:e} only",
                        self.before
                    ));
                }
            }
            Moment::Reached(_)
            | Moment::Joined { .. }
            | Moment::Gone { .. }
            | Moment::Committed { .. }
            | Moment::Worked { .. }
            | Moment::Said { .. }
            | Moment::Handled { .. } => {}
        }
        Ok(())
    }
}

/// Sum of the squared distances within each part of peers that are connected through living ones.
pub fn within_parts(view: &View<'_>) -> f64 {
    parts(view).iter().map(|part| distance_squared(part)).sum()
}

/// The parts of peers that are connected through living ones.
pub(super) fn parts<'a>(view: &View<'a>) -> Vec<Vec<&'a Host>> {
    let mut seen = vec![false; view.peers.len()];
    let mut all = Vec::new();
    for index in 0..u32::try_from(view.peers.len()).unwrap_or(u32::MAX) {
        let mut part = Vec::new();
        let mut waiting = vec![index];
        while let Some(peer) = waiting.pop() {
            let host = view.peers[peer as usize].host();
            let Some(host) = host.filter(|_| !seen[peer as usize]) else {
                continue;
            };
            seen[peer as usize] = true;
            part.push(host);
            // Either end may still miss that the connection is up; both ways count.
            let knows = |other: &u32| {
                let mut members = view.host(*other).into_iter().flat_map(|h| h.core.members());
                members.any(|(name, _)| index_of(name) == peer)
            };
            let known = host.core.members().map(|(name, _)| index_of(name));
            waiting.extend(known);
            waiting.extend(view.neighbours(peer).filter(knows));
        }
        if !part.is_empty() {
            all.push(part);
        }
    }
    all
}
