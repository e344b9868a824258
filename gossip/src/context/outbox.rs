//! The outputs that wait to be carried out, and the connections by which messages go out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dnode_protocol::{Message, PeerId, Time};

use crate::Output;

/// What the core says, in order. The caller drains it after every input, so it needs no bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    outputs: VecDeque<Output>,
    /// When each neighbour was last told the own clock; bounded by the view.
    told: BTreeMap<PeerId, Time>,
}

impl Outbox {
    pub(crate) fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(crate) fn pop(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Messages to `peer` go out from now on.
    pub(crate) fn open(&mut self, peer: PeerId, now: Time) {
        self.told.insert(peer, now);
    }

    /// Messages to `peer` are dropped from now on.
    pub(crate) fn close(&mut self, peer: &PeerId) {
        self.told.remove(peer);
    }

    /// Says `message` to `to`, if that is a neighbour.
    pub(crate) fn send(&mut self, to: PeerId, message: Message, now: Time) {
        // A probe and its answer name no clock, and heartbeats have to.
        let says_clock = !matches!(message, Message::Probe { .. } | Message::Alive { .. });
        if let Some(told) = self.told.get_mut(&to) {
            *told = if says_clock { now } else { *told };
            self.push(Output::Send { to, message });
        }
    }

    pub(crate) fn neighbours(&self) -> Vec<PeerId> {
        self.told.keys().copied().collect()
    }

    /// Neighbours that were told nothing for this long.
    pub(crate) fn untold_for(&self, silence: Duration, now: Time) -> Vec<PeerId> {
        let quiet = self.told.iter().filter(|(_, told)| now.since(**told) >= silence);
        quiet.map(|(peer, _)| *peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;

    #[test]
    fn a_probe_does_not_stand_for_a_heartbeat_and_strangers_are_told_nothing() {
        let mut outbox = Outbox::default();
        outbox.open(peer(1), Time::ZERO);
        let later = Time::from_millis(700);
        outbox.send(peer(1), Message::Probe { number: 1, target: peer(1) }, later);
        outbox.send(peer(2), Message::Goodbye, later);
        assert_eq!(outbox.untold_for(Duration::from_millis(500), later), [peer(1)]);
        outbox.send(peer(1), Message::Goodbye, later);
        assert!(outbox.untold_for(Duration::from_millis(500), later).is_empty());
        let said = std::iter::from_fn(|| outbox.pop()).count();
        assert_eq!(said, 2);
    }
}
