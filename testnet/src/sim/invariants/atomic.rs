//! I9: no exchange is applied twice at an end, none after it was given up, none overlaps another.

use dnode_gossip::{Input, Role, Work};

use super::super::view::View;
use super::property::{Moment, Property};

/// Judges each apply and undo by the journal.
#[derive(Debug)]
pub(super) struct Atomic;

impl Property for Atomic {
    fn name(&self) -> &'static str {
        "atomic"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Worked { task, answer, .. } = moment else {
            return Ok(());
        };
        match (task, answer) {
            (Work::Mix { exchange, role, .. }, Input::Mixed { .. }) => {
                let Some(record) = view.journal.get(exchange) else {
                    return Ok(());
                };
                let end = match role {
                    Role::Initiator => record.initiator,
                    Role::Responder => record.responder,
                };
                if end.applied > 1 {
                    return Err(format!("{exchange} was applied {} times: {role:?}", end.applied));
                }
                if end.gave_up {
                    return Err(format!("{exchange} was applied after it was given up: {role:?}"));
                }
                if *role == Role::Initiator && record.overlapped {
                    return Err(format!(
                        "{exchange} overlapped another exchange of the initiator's {}",
                        record.fragment
                    ));
                }
            }
            (Work::Undo { exchange, .. }, Input::Undone { .. }) => {
                let Some(record) = view.journal.get(exchange) else {
                    return Err(format!("{exchange} was undone and is unknown"));
                };
                if record.responder.undone > record.responder.applied {
                    return Err(format!("{exchange} was undone and not applied"));
                }
                if record.initiator.holds() {
                    return Err(format!("{exchange} was undone though the initiator applied it"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
