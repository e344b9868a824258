//! What the service does about two processes with one identity.

use std::time::Duration;

use dnode_protocol::frame::encode_control;
use dnode_protocol::{Message, PeerId, RunDifference};
use libp2p::Stream;
use libp2p::futures::AsyncWriteExt as _;
use libp2p::swarm::ConnectionId;
use tokio::time::Instant;

use crate::copies::{COPY, IDENTITY};
use crate::event::NetworkEvent;
use crate::link::Outgoing;
use crate::service::{Service, to_libp2p};
use crate::session::{Session, Stage};
use crate::streams::StreamKind;

/// How long the words to a copy may take.
const WORDS_MAX: Duration = Duration::from_secs(2);

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

    /// An older start than the one that is here has greeted on a connection of its own: it is told, and
    /// who is here, too, and goes on.
    pub(crate) fn refuse_copy(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        starts: (u64, u64),
    ) {
        let (older, kept) = starts;
        let now = Instant::now();
        self.copies.restarted(peer, kept, now);
        if !self.copies.tell(connection, now) {
            return;
        }
        self.report(NetworkEvent::CopiedPeer { peer });
        if let Some(frame) = words(COPY, older, kept)
            && let Some(entry) = self.shared.peers().get(&peer)
        {
            // Full or gone: it is told the next time.
            let _ = entry.control.try_send(Outgoing::Control(frame));
        }
        if let Some(id) = to_libp2p(peer) {
            let streams = &mut self.swarm.behaviour_mut().streams;
            streams.open_on(id, connection, StreamKind::Control);
            streams.forget(id, connection);
        }
    }

    /// The stream to a copy that is to be told is open.
    pub(crate) fn tell_copy(&self, peer: PeerId, mut stream: Stream) {
        let kept = self.sessions.get(&peer).map(|session| session.stage);
        let (Some(Stage::Up(kept)), hello) = (kept, self.hello.clone()) else { return };
        let Some(refuse) = words(IDENTITY, 0, kept) else { return };
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

    /// Whether the session of a peer ends because its process is an older copy.
    pub(crate) fn is_copy(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_some_and(|session: &Session| session.copy)
    }
}
