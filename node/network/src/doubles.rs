//! What the service does about two processes with one identity.

use std::time::Duration;

use dnode_protocol::frame::encode_control;
use dnode_protocol::{Message, PeerId, RunDifference};
use libp2p::futures::AsyncWriteExt as _;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, Stream};
use tokio::time::Instant;

use crate::copies::{COPY, IDENTITY};
use crate::discovery::without_peer;
use crate::event::{DownReason, NetworkEvent};
use crate::limits::TICK;
use crate::link::Outgoing;
use crate::service::{Service, to_libp2p};
use crate::session::{Session, Stage};
use crate::streams::StreamKind;

/// How long the words to a copy may take.
const WORDS_MAX: Duration = Duration::from_secs(2);
/// How long a process that was refused as a copy leaves the peer alone.
const COPY_BACK_OFF: Duration = Duration::from_secs(60);

/// Where two processes of one identity differ, seen from who is refused by `field`.
fn difference(field: &str, refused: u64, kept: u64) -> RunDifference {
    let name = |start: u64| format!("of start {start:x}");
    RunDifference { field: field.to_owned(), ours: name(kept), theirs: name(refused) }
}

fn words(field: &str, refused: u64, kept: u64) -> Option<Vec<u8>> {
    let RunDifference { field, ours, theirs } = difference(field, refused, kept);
    encode_control(&Message::Refuse { field, ours, theirs }).ok()
}

impl Service {
    /// Tells the owner of another process with our key.
    pub(crate) fn look_for_copies(&mut self, now: Instant) {
        if let Some(how) = self.copies.met(now) {
            self.report(NetworkEvent::Copied { how });
        }
        for connection in self.copies.told(now) {
            self.swarm.close_connection(connection);
        }
    }

    /// A peer that has greeted, alone, is an older start than one that was here.
    pub(crate) fn refuse_older(&mut self, peer: PeerId, incarnation: u64) -> bool {
        let now = Instant::now();
        let Some(newest) = self.copies.newer(peer, incarnation, now) else { return false };
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.copy = true;
        }
        self.report(NetworkEvent::CopiedPeer { peer });
        self.refuse(peer, difference(IDENTITY, incarnation, newest));
        true
    }

    /// An older start than the one that is here has greeted on a connection of its own. It may be the
    /// last word of a process that has ended: whether it lives shows when it takes a stream.
    pub(crate) fn refuse_copy(&mut self, peer: PeerId, connection: ConnectionId, older: u64) {
        if self.copies.tell(connection, older, Instant::now())
            && let Some(id) = to_libp2p(peer)
        {
            let streams = &mut self.swarm.behaviour_mut().streams;
            streams.open_on(id, connection, StreamKind::Control);
            streams.forget(id, connection);
        }
    }

    /// The stream to a copy is open, so there are two: it is told, and who is here is told and goes on.
    pub(crate) fn tell_copy(&mut self, peer: PeerId, older: u64, mut stream: Stream) {
        let kept = self.sessions.get(&peer).map(|session| session.stage);
        let (Some(Stage::Up(kept)), hello) = (kept, self.hello.clone()) else { return };
        self.copies.restarted(peer, kept, Instant::now());
        self.report(NetworkEvent::CopiedPeer { peer });
        self.tell_kept(peer, older, kept);
        let Some(refuse) = words(IDENTITY, older, kept) else { return };
        tokio::spawn(async move {
            let say = async {
                stream.write_all(&hello).await?;
                stream.write_all(&refuse).await?;
                stream.close().await
            };
            // It has gone, or does not read: its connection closes.
            let _ = tokio::time::timeout(WORDS_MAX, say).await;
        });
    }

    /// The start of a peer that is here hears of the one that was refused.
    fn tell_kept(&self, peer: PeerId, older: u64, kept: u64) {
        if let Some(frame) = words(COPY, older, kept)
            && let Some(entry) = self.shared.peers().get(&peer)
        {
            // Full or gone: it is told the next time.
            let _ = entry.control.try_send(Outgoing::Control(frame));
        }
    }

    /// A peer has come up, perhaps after another process with its key was refused.
    pub(crate) fn tell_returned(&mut self, peer: PeerId, incarnation: u64) {
        if let Some(older) = self.copies.refused(peer, incarnation) {
            self.tell_kept(peer, older, incarnation);
        }
    }

    /// A peer keeps another process with our key: it is asked again later, as that one may have gone.
    pub(crate) async fn hang_up_as_copy(&mut self, peer: PeerId) {
        self.end_session(peer, DownReason::Refused).await;
        // Not before it is let in again.
        self.dialer.later(peer, Instant::now() + COPY_BACK_OFF + TICK * 2);
        self.block(peer, COPY_BACK_OFF);
    }

    /// A dial has led to our own key, or our own key has dialled us, at `address`.
    pub(crate) fn met_own_key(&mut self, address: &Multiaddr, came: bool) {
        let address = without_peer(address.clone());
        let mut own = self.swarm.listeners().chain(self.swarm.external_addresses());
        if own.any(|listens| without_peer(listens.clone()) == address) {
            if !came {
                tracing::info!(%address, "the address leads to this peer itself");
            }
            return;
        }
        if came {
            self.copies.came(address, Instant::now());
        } else {
            self.copies.answered(address, Instant::now());
        }
    }

    /// Whether the session of a peer ends because its process is an older copy.
    pub(crate) fn is_copy(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_some_and(|session: &Session| session.copy)
    }
}
