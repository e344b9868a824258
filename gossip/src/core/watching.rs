//! What is done for those that only watch.

use dnode_protocol::{Message, PeerId};

use super::Gossip;
use crate::context::Step;
use crate::membership::names_absurd_clock;
use crate::{Offence, Output};

impl Gossip {
    /// The peers that only watch this one.
    pub fn watchers(&self) -> impl Iterator<Item = &PeerId> {
        self.watchers.iter()
    }

    /// Whether `peer` only watches.
    #[must_use]
    pub fn is_watched_by(&self, peer: &PeerId) -> bool {
        self.watchers.contains(peer)
    }

    /// A peer that only watches has come.
    pub(super) fn on_watcher_up(&mut self, peer: PeerId) {
        if peer == self.context.me {
            return;
        }
        // It was a member in an earlier start.
        self.on_peer_down(peer);
        let context = &mut self.context;
        if !self.watchers.insert(peer) {
            let back_off = context.config.back_off_min;
            let reason = "as many observers as may be are here";
            return context.output(Output::Disconnect { peer, back_off, reason });
        }
        let now = context.now;
        context.outbox().open(peer, now);
        let heartbeat = context.progress.heartbeat();
        context.send(peer, Message::Heartbeat(heartbeat));
    }

    /// A watcher has gone; whether it was one.
    pub(super) fn on_watcher_down(&mut self, peer: &PeerId) -> bool {
        let watched = self.watchers.remove(peer);
        if watched {
            self.context.outbox().close(peer);
            self.transfer.donor().dismiss(peer);
        }
        watched
    }

    /// A watcher says something. It may ask for fragments and whether this peer lives; what it says of
    /// itself counts for nothing.
    pub(super) fn on_watcher(&mut self, from: PeerId, message: &Message) {
        if names_absurd_clock(message) {
            return self.offend(from, Offence::Garbage);
        }
        let context = &mut self.context;
        match message {
            Message::Pull { exchange, fragment } => {
                if exchange.initiator != from || fragment.0 >= context.fragments {
                    return self.offend(from, Offence::Garbage);
                }
                if !self.exchange.is_over(exchange) && !self.transfer.is_served(exchange) {
                    self.transfer.donor().on_watcher_pull(context, from, *exchange, *fragment);
                }
            }
            Message::Abort { exchange } if exchange.initiator == from => {
                self.transfer.donor().withdraw(exchange);
            }
            Message::Probe { number, target } if *target == context.me => {
                context.send(from, Message::Alive { number: *number, target: *target });
            }
            Message::Goodbye => {
                self.on_watcher_down(&from);
            }
            Message::Propose { .. }
            | Message::Accept { .. }
            | Message::Fetch { .. }
            | Message::Have { .. } => self.offend(from, Offence::Observer),
            Message::Hello { .. } | Message::Refuse { .. } => self.offend(from, Offence::Garbage),
            Message::Heartbeat(_)
            | Message::Busy { .. }
            | Message::LeftOut { .. }
            | Message::Stale { .. }
            | Message::Ack { .. }
            | Message::Abort { .. }
            | Message::Aborted { .. }
            | Message::Snapshot { .. }
            | Message::Probe { .. }
            | Message::Alive { .. }
            | Message::Rack { .. }
            | Message::Summaries { .. }
            | Message::Revocations { .. }
            | Message::Part(_) => {}
        }
    }

    fn offend(&mut self, from: PeerId, offence: Offence) {
        self.on_watcher_down(&from);
        self.context.then(Step::Offence(from, offence));
    }
}
