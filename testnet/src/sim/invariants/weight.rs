//! Mixing weights lie in `[0, 0.5]`, those of samples and mergings in `[0, 1]`, and both ends of an exchange use the same one.

use dnode_gossip::{Event, Weighting, Work};

use super::super::view::View;
use super::property::{Moment, Property};

/// Looks at every weight that is ordered or reported.
#[derive(Debug)]
pub(super) struct Weight;

impl Property for Weight {
    fn name(&self) -> &'static str {
        "weight"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let (exchange, weight) = match moment {
            Moment::Worked {
                task: Work::Mix { exchange, weight, .. } | Work::Undo { exchange, weight, .. },
                ..
            } => (exchange, weight),
            Moment::Said { event: Event::Applied { exchange, weight, .. }, .. } => {
                (exchange, weight)
            }
            Moment::Worked { .. }
            | Moment::Said { .. }
            | Moment::Joined { .. }
            | Moment::Gone { .. }
            | Moment::Committed { .. }
            | Moment::Handled { .. }
            | Moment::Reached(_) => return Ok(()),
        };
        let deal = view.ledger.get(exchange);
        let merges = deal.is_none_or(|deal| deal.merges.contains(&true));
        let most = match view.config.weighting {
            Weighting::Equal if !merges => 0.5,
            Weighting::Equal | Weighting::Samples => 1.0,
        };
        if (0.0..=most).contains(weight) {
            Ok(())
        } else {
            Err(format!("{exchange} mixes with weight {weight}"))
        }
    }
}
