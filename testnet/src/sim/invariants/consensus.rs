//! After commits add nothing, replicas that can reach each other agree: every peer's work arrives.

use dnode_gossip::testing::Host;

use super::super::peer::index_of;
use super::{Moment, Property, Stage, View};

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
pub(in crate::sim) fn within_parts(view: &View<'_>) -> f64 {
    let mut part: Vec<usize> = (0..view.peers.len()).collect();
    for (index, host) in view.hosts() {
        for (other, _) in host.core.members() {
            if view.host(index_of(other)).is_none() {
                continue;
            }
            let (a, b) = (part[index as usize], part[index_of(other) as usize]);
            part.iter_mut().filter(|p| **p == b).for_each(|p| *p = a);
        }
    }
    let parts = 0..view.peers.len();
    parts
        .map(|name| {
            let hosts: Vec<&Host> = view
                .hosts()
                .filter(|(index, _)| part[*index as usize] == name)
                .map(|(_, host)| host)
                .collect();
            distance_squared(&hosts)
        })
        .sum()
}
