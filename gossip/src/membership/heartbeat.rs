//! When neighbours are told the own clock: after commits, and when they were told nothing for long.

use dnode_protocol::{Message, Time};

use crate::context::Context;

/// The times of heartbeats and announcements.
#[derive(Clone, Debug)]
pub(crate) struct Announcer {
    heartbeat_at: Time,
    /// An announcement waits for this time.
    announce_at: Option<Time>,
    announced: Time,
}

impl Announcer {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            heartbeat_at: context.now + context.config.heartbeat,
            announce_at: None,
            announced: context.now,
        }
    }

    pub(crate) const fn heartbeat_at(&self) -> Time {
        self.heartbeat_at
    }

    pub(crate) const fn announce_at(&self) -> Option<Time> {
        self.announce_at
    }

    /// Tells all neighbours the own clock, at most once per `announce_min`.
    pub(crate) fn announce(&mut self, context: &mut Context) {
        let next = self.announced + context.config.announce_min;
        if context.now < next {
            self.announce_at = Some(next);
            return;
        }
        self.announced = context.now;
        self.announce_at = None;
        context.tell_all(&Message::Heartbeat(context.progress.heartbeat()));
    }

    /// Announces what waits, when its time has come.
    pub(super) fn on_deadline(&mut self, context: &mut Context) {
        if self.announce_at.is_some_and(|time| context.now >= time) {
            self.announce_at = None;
            self.announce(context);
        }
    }

    /// The next heartbeat is due a period from now.
    pub(super) fn beat(&mut self, context: &Context) {
        self.heartbeat_at = context.now + context.config.heartbeat;
    }

    /// Speaks to neighbours that have not heard of us for one heartbeat.
    pub(super) fn send_heartbeats(context: &mut Context) {
        let (silence, now) = (context.config.heartbeat / 2, context.now);
        let heartbeat = context.progress.heartbeat();
        for peer in context.outbox().untold_for(silence, now) {
            context.send(peer, Message::Heartbeat(heartbeat));
        }
    }
}
