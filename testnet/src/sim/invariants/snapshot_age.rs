//! S2: no exchange applies a snapshot that is older than bound B2.

use dnode_gossip::{Event, Input, Output, Role};

use super::{Moment, Property, View};

/// Compares the clocks at the snapshot and at the mix, and what the core says about them.
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
                task: Output::Mix { exchange, role: Role::Initiator, .. },
                answer: Input::Mixed { clock, .. },
                ..
            } => {
                let read = view.journal.get(exchange).and_then(|record| record.read_clock);
                let Some(read) = read else {
                    return Err(format!("{exchange} was applied and its fragment never read"));
                };
                let age = clock.ahead_of(read);
                if age > bound {
                    return Err(format!(
                        "{exchange} applied a snapshot {age} commits old, bound {bound}"
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
