//! S1: no exchange is applied between clocks that are further apart than the policy allows, but where
//! one of the two is ahead of all others, or both have finished and have mixed before.

use std::collections::BTreeSet;

use dnode_gossip::{Input, Policy, Work};

use super::super::names::index_of;
use super::super::view::View;
use super::property::{Moment, Property};

/// Compares the clocks in Propose and Accept of everything that is applied.
#[derive(Debug, Default)]
pub(super) struct Lag {
    /// Pairs that have mixed, the smaller index first.
    mixed: BTreeSet<(u32, u32)>,
}

impl Property for Lag {
    fn name(&self) -> &'static str {
        "lag"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Worked {
            peer,
            task: Work::Mix { exchange, .. },
            answer: Input::Mixed { .. },
            ..
        } = moment
        else {
            return Ok(());
        };
        let deal = view.ledger.get(exchange).copied().unwrap_or_default();
        let (Some(proposed), Some(accepted)) = (deal.proposed, deal.accepted) else {
            return Err(format!("{exchange} was applied and never proposed or accepted: {deal:?}"));
        };
        let bounds = &view.config.bounds;
        let most = match view.config.policy {
            Policy::DownWeight | Policy::Block => bounds.progress_gap,
            Policy::Drop => bounds.snapshot_age.max(1).min(bounds.progress_gap),
        };
        let finished = |index: u32| view.peers[index as usize].finished();
        let (responder, initiator) = (*peer, index_of(&exchange.initiator));
        if responder == initiator {
            // The other end has done its half before, at the same clocks.
            return Ok(());
        }
        let pair = (responder.min(initiator), responder.max(initiator));
        let have_mixed = !self.mixed.insert(pair);
        let settle = have_mixed && finished(responder) && finished(initiator);
        let lag = proposed.distance(accepted);
        if lag > most && !settle && !deal.ignores_clock {
            return Err(format!(
                "{exchange} was applied between clocks {proposed} and {accepted}, bound {most}"
            ));
        }
        Ok(())
    }
}
