//! S2: no exchange applies a snapshot that is older than bound B2.

use dnode_gossip::{Event, Input, Role, Work};

use super::super::view::View;
use super::property::{Moment, Property};

/// Compares commits and clocks at the snapshot with those at the mix, at both ends, by the world's
/// own book.
#[derive(Debug)]
pub(super) struct SnapshotAge;

impl Property for SnapshotAge {
    fn name(&self) -> &'static str {
        "snapshot age"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let bound = view.config.bounds.snapshot_age;
        match moment {
            Moment::Worked {
                peer,
                task: Work::Mix { exchange, role: Role::Initiator, .. },
                answer: Input::Mixed { clock, .. },
                ..
            } => {
                let read = view.journal.get(exchange).and_then(|record| record.read_clock);
                let Some(read) = read else {
                    return Err(format!("{exchange} was applied and its fragment never read"));
                };
                // The clock jumps when a replica is replaced; commits are counted by the world.
                let Some(since) = view.ledger.get(exchange).and_then(|deal| deal.read_at) else {
                    return Err(format!("{exchange} was applied and its reading is not booked"));
                };
                let counted = view.peers[*peer as usize].counts().commits.saturating_sub(since);
                let age = clock.ahead_of(read).max(counted);
                if age > bound {
                    return Err(format!(
                        "{exchange} applied a snapshot {age} commits old, bound {bound}"
                    ));
                }
            }
            Moment::Worked {
                task: Work::Mix { exchange, .. },
                answer: Input::Mixed { .. },
                ..
            } => {
                let deal = view.ledger.get(exchange).copied().unwrap_or_default();
                let (Some(read), Some(known)) = (deal.read_clock, deal.known) else {
                    return Err(format!("{exchange} gave what was never read or never arrived"));
                };
                let age = known.ahead_of(read);
                if age > bound {
                    return Err(format!(
                        "{exchange} gave a snapshot that was known to be {age} commits old, bound {bound}"
                    ));
                }
            }
            Moment::Said { event: Event::Applied { exchange, age, .. }, .. } if *age > bound => {
                return Err(format!(
                    "{exchange} reports a snapshot {age} commits old, bound {bound}"
                ));
            }
            Moment::Worked { .. }
            | Moment::Said { .. }
            | Moment::Joined { .. }
            | Moment::Gone { .. }
            | Moment::Committed { .. }
            | Moment::Handled { .. }
            | Moment::Reached(_) => {}
        }
        Ok(())
    }
}
