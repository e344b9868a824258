//! At most one lease per peer and fragment, and every lease belongs to an open exchange.

use super::super::view::View;
use super::property::{Moment, Property, Stage};

/// Looks at the leases of the peer that was called.
#[derive(Debug)]
pub(super) struct OneLease;

impl Property for OneLease {
    fn name(&self) -> &'static str {
        "lease"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Handled { peer } => {
                let Some(host) = view.host(*peer) else {
                    return Ok(());
                };
                for (fragment, exchange) in host.core.leases() {
                    if fragment.0 >= view.scenario.fragments {
                        return Err(format!("p{peer} has leased {fragment}, which does not exist"));
                    }
                    if !host.core.is_open(*exchange) {
                        return Err(format!(
                            "p{peer} leases {fragment} to {exchange}, which is over"
                        ));
                    }
                }
            }
            Moment::Reached(Stage::Rest) => {
                for (peer, host) in view.hosts() {
                    if let Some((fragment, exchange)) = host.core.leases().first_key_value() {
                        return Err(format!("p{peer} leases {fragment} to {exchange} at rest"));
                    }
                }
            }
            Moment::Joined { .. }
            | Moment::Gone { .. }
            | Moment::Committed { .. }
            | Moment::Worked { .. }
            | Moment::Said { .. }
            | Moment::Reached(_) => {}
        }
        Ok(())
    }
}
