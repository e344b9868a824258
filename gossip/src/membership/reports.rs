//! Which deadlines were reported, so that one is reported again only when it has changed much.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::PeerId;

use crate::Event;
use crate::context::Context;

/// A deadline that has changed by less than this factor is not reported again.
const REPORTED_CHANGE: f64 = 1.5;

/// Deadlines as they were last reported, by name and neighbour.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reports {
    reported: BTreeMap<(&'static str, Option<PeerId>), Duration>,
}

impl Reports {
    /// Reports a deadline and where it comes from, if it has changed much.
    pub(super) fn report(
        &mut self,
        context: &mut Context,
        key: (&'static str, Option<PeerId>),
        (value, why): (Duration, &'static str),
    ) {
        let before = self.reported.get(&key).map_or(0.0, Duration::as_secs_f64);
        let ratio = value.as_secs_f64() / before;
        if before > 0.0 && ratio < REPORTED_CHANGE && ratio > 1.0 / REPORTED_CHANGE {
            return;
        }
        self.reported.insert(key, value);
        let (name, peer) = key;
        context.event(Event::Deadline { name, peer, value, why });
    }

    /// Forgets the deadlines of neighbours that are gone.
    pub(super) fn retain(&mut self, known: impl Fn(&PeerId) -> bool) {
        self.reported.retain(|(_, peer), _| peer.as_ref().is_none_or(&known));
    }
}
