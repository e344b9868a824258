//! Events, and releases of readers, that wait for room in the queue of events.

use std::collections::VecDeque;

use tokio::sync::{mpsc, oneshot};

use crate::event::NetworkEvent;
use crate::limits::OUTBOX_MAX;

/// One item that waits.
#[derive(Debug)]
enum Pending {
    Event(NetworkEvent),
    /// A reader that may deliver once everything before it was delivered.
    Release(oneshot::Sender<()>),
}

/// Events and releases of readers, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox(VecDeque<Pending>);

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is full, so that some of it must be delivered before anything else happens.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= OUTBOX_MAX
    }

    pub(crate) fn report(&mut self, event: NetworkEvent) {
        self.0.push_back(Pending::Event(event));
    }

    pub(crate) fn release(&mut self, releases: impl IntoIterator<Item = oneshot::Sender<()>>) {
        self.0.extend(releases.into_iter().map(Pending::Release));
    }

    /// Hands on the oldest event, and the releases that follow it.
    pub(crate) fn deliver(&mut self, permit: mpsc::Permit<'_, NetworkEvent>) {
        let mut permit = Some(permit);
        while let Some(pending) = self.0.pop_front() {
            match (pending, permit.take()) {
                (Pending::Event(event), Some(permit)) => permit.send(event),
                (event @ Pending::Event(_), None) => {
                    self.0.push_front(event);
                    break;
                }
                (Pending::Release(release), unused) => {
                    permit = unused;
                    // An error means that the reader has ended.
                    let _ = release.send(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::PeerId;

    use super::*;

    #[tokio::test]
    async fn a_reader_is_released_after_the_events_before_it() {
        let peer = PeerId::from_public_key([1; 32]);
        let (events, mut heard) = mpsc::channel(2);
        let mut outbox = Outbox::default();
        let (release, mut released) = oneshot::channel();
        outbox.report(NetworkEvent::PathLost { peer });
        outbox.report(NetworkEvent::CopiedPeer { peer });
        outbox.release([release]);
        outbox.deliver(events.reserve().await.unwrap());
        assert!(matches!(heard.try_recv(), Ok(NetworkEvent::PathLost { .. })));
        assert!(released.try_recv().is_err() && !outbox.is_empty());
        outbox.deliver(events.reserve().await.unwrap());
        assert!(matches!(heard.try_recv(), Ok(NetworkEvent::CopiedPeer { .. })));
        assert!(released.try_recv().is_ok() && outbox.is_empty());
    }
}
