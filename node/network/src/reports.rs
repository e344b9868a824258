//! What the tasks of a session report: the handshake, and the ends of readers and writers.

use dnode_protocol::frame::encode_control;
use dnode_protocol::{Message, PeerId, RunDifference, RunSpec};
use tokio::time::Instant;

use crate::copies::IDENTITY;
use crate::event::{Connection, DownReason, NetworkEvent};
use crate::handle::Entry;
use crate::limits::{FULL_BACK_OFF, MOVE_MAX, PUNCHING_MAX, REFUSE_LINGER};
use crate::link::{LinkEvent, Origin, Outgoing, ReaderEnd};
use crate::service::Service;
use crate::session::{Stage, Via};
use crate::streams::{Path, StreamKind};

impl Service {
    pub(crate) async fn handle_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Hello { origin, specs, incarnation, direct_port } => {
                if self.is_current(origin.peer, origin.session) {
                    if let Some(session) = self.sessions.get_mut(&origin.peer) {
                        session.search.port = direct_port;
                    }
                    self.greeted(&origin, &specs, incarnation).await;
                }
            }
            LinkEvent::ReaderEnded { origin, end } => {
                if self.is_current(origin.peer, origin.session) {
                    self.reader_ended(&origin, end).await;
                }
            }
            LinkEvent::BulkOpened { peer, session, result } => {
                if self.is_current(peer, session) {
                    self.bulk_opened(peer, result);
                }
            }
            LinkEvent::DirectOpened { peer, session, result } => {
                if self.is_current(peer, session) {
                    self.direct_opened(peer, result);
                }
            }
            LinkEvent::WriterEnded { origin, queue, left } => {
                if self.is_current(origin.peer, origin.session) {
                    self.writer_ended(&origin, queue, left);
                }
            }
        }
    }

    fn is_current(&self, peer: PeerId, number: u64) -> bool {
        self.sessions.get(&peer).is_some_and(|session| session.number == number)
    }

    async fn greeted(&mut self, origin: &Origin, [run, settings]: &[RunSpec; 2], incarnation: u64) {
        let peer = origin.peer;
        let other_run = self.run.difference(run).map_or(Ok(()), Err);
        let differences = match other_run.and_then(|()| self.settings.compare(settings)) {
            Ok(differences) => differences,
            Err(difference) => return self.refuse(peer, difference),
        };
        let (Some(session), Some(connection)) = (self.sessions.get_mut(&peer), origin.connection())
        else {
            return;
        };
        match session.stage {
            Stage::Greeting(_) => {
                if self.refuse_older(peer, incarnation) {
                    return;
                }
                let Some(session) = self.sessions.get_mut(&peer) else { return };
                session.hello = Some((incarnation, connection));
                session.differences = differences;
                self.complete(peer);
            }
            Stage::Relayed(known, _) if known == incarnation => {
                session.hello = Some((incarnation, connection));
                self.complete(peer);
            }
            Stage::Up(known) if known == incarnation => {
                let releases = session.releases(connection);
                self.release(releases);
            }
            Stage::Up(known) | Stage::Relayed(known, _) if known > incarnation => {
                self.refuse_copy(peer, connection, incarnation);
            }
            Stage::Up(_) | Stage::Relayed(..) => {
                self.copies.restarted(peer, incarnation, Instant::now());
                self.restarted(peer).await;
            }
            Stage::Refusing(_) => {}
        }
    }

    /// Another start of the peer's process took over: everything of the earlier one ends. The new
    /// connection is closed as well; one of the two dials again and the peer is greeted as new.
    async fn restarted(&mut self, peer: PeerId) {
        self.hang_up(peer, DownReason::Restarted).await;
    }

    pub(crate) fn refuse(&mut self, peer: PeerId, difference: RunDifference) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        if matches!(session.stage, Stage::Refusing(_)) {
            return;
        }
        let message = Message::Refuse {
            field: difference.field.clone(),
            ours: difference.ours.clone(),
            theirs: difference.theirs.clone(),
        };
        if let (Some([control, _]), Ok(frame)) = (&session.senders, encode_control(&message)) {
            // Full or gone: the peer finds the difference by itself.
            let _ = control.try_send(Outgoing::Control(frame));
        }
        session.stage = Stage::Refusing(Instant::now() + REFUSE_LINGER);
        session.withhold();
        tracing::debug!(%peer, %difference, "peer of another run or with other settings");
        self.report(NetworkEvent::Refused { peer, difference, by_us: true });
    }

    /// Reports the peer up once its hello matched, ours is on its way, and tensors can be exchanged.
    pub(crate) fn complete(&mut self, peer: PeerId) {
        let up = self.shared.peers().len();
        let Some(session) = self.sessions.get(&peer) else {
            return;
        };
        let (Stage::Greeting(_) | Stage::Relayed(..), Some((incarnation, connection)), true) =
            (session.stage, session.hello, session.can_speak())
        else {
            return;
        };
        if self.is_stopping() {
            return;
        }
        let carries = self.carries_tensors(peer);
        let greeting = matches!(session.stage, Stage::Greeting(_));
        if greeting {
            self.allow_punch(peer, true);
        }
        let session = self.sessions.get_mut(&peer);
        let Some(session) = session else { return };
        if !carries {
            if greeting {
                tracing::info!(%peer, "reached through a relay; seeking a direct path");
                session.stage = Stage::Relayed(incarnation, Instant::now() + PUNCHING_MAX);
            }
            return;
        }
        if up >= self.peers_max {
            tracing::debug!(%peer, up, "no room for another peer");
            self.block(peer, FULL_BACK_OFF);
            return;
        }
        let (Some([control, bulk]), Some(address)) = (session.senders.take(), &session.address)
        else {
            return;
        };
        let address = address.clone();
        session.stage = Stage::Up(incarnation);
        let kind = Connection::of(Path::of(&address));
        let entry = Entry {
            control,
            bulk,
            traffic: session.traffic.clone(),
            address: address.clone(),
            incarnation,
            connection: kind,
            carrier: None,
            rtt: session.round_trip.map(|least| (least, least)),
        };
        let releases = session.releases(connection);
        let differences = std::mem::take(&mut session.differences);
        self.shared.peers().insert(peer, entry);
        self.dialer.up(peer);
        tracing::debug!(%peer, %address, "peer up");
        let connection = kind;
        self.report(NetworkEvent::PeerUp { peer, address, incarnation, connection, differences });
        self.release(releases);
        self.tell_returned(peer, incarnation);
        self.open(peer, StreamKind::Bulk);
    }

    async fn reader_ended(&mut self, origin: &Origin, end: ReaderEnd) {
        let (peer, stopping) = (origin.peer, self.is_stopping());
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        session.read(origin.stream);
        if origin.via == Via::Direct && session.is_up() && !matches!(end, ReaderEnd::Offence(..)) {
            self.report(NetworkEvent::PathLost { peer });
        }
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        let refusing = matches!(session.stage, Stage::Refusing(_));
        match end {
            ReaderEnd::Offence(..) | ReaderEnd::Finished { .. } | ReaderEnd::Refused(_)
                if refusing =>
            {
                self.hang_up_refused(peer).await;
            }
            ReaderEnd::Offence(kind, detail) => self.offend(peer, kind, detail).await,
            ReaderEnd::Refused(difference) => {
                tracing::debug!(%peer, %difference, "refused by a peer of another run or with other settings");
                let copy = difference.field == IDENTITY;
                self.report(NetworkEvent::Refused { peer, difference, by_us: false });
                if copy {
                    self.hang_up_as_copy(peer).await;
                } else {
                    self.hang_up_refused(peer).await;
                }
            }
            ReaderEnd::Finished { goodbye } if origin.kind == StreamKind::Control => {
                if goodbye {
                    self.hang_up(peer, DownReason::Left).await;
                    self.dialer.left(peer);
                } else if stopping {
                    self.hang_up(peer, hung_up()).await;
                } else {
                    // It may move to a connection that is not known here yet.
                    session.unheard.get_or_insert_with(|| Instant::now() + MOVE_MAX);
                }
            }
            ReaderEnd::Failed(error) => {
                tracing::debug!(%peer, kind = %origin.kind, %error, "read failed");
                if let Some(connection) = origin.connection() {
                    self.swarm.close_connection(connection);
                }
            }
            ReaderEnd::Finished { .. } | ReaderEnd::Ignored => {}
        }
    }

    fn writer_ended(
        &mut self,
        origin: &Origin,
        queue: tokio::sync::mpsc::Receiver<Outgoing>,
        left: bool,
    ) {
        let Some(session) = self.sessions.get_mut(&origin.peer) else {
            return;
        };
        session.written(origin.kind, queue);
        if self.is_stopping() {
            // Drained; the peer hangs up when it has read to the end.
            return;
        }
        // A stream that failed alone takes its connection with it; what remains opens it again.
        let connection = origin.connection().filter(|_| !left);
        let closing = connection.is_some_and(|id| self.swarm.close_connection(id));
        if !closing {
            self.open(origin.peer, origin.kind);
        }
    }

    /// Ends handshakes, refusals and searches for a direct path that took too long, and sessions of peers
    /// that ended their control stream and opened no other.
    pub(crate) async fn check_handshakes(&mut self, now: Instant) {
        let mut unheard = Vec::new();
        for (peer, session) in &mut self.sessions {
            if session.is_read(StreamKind::Control) {
                session.unheard = None;
            }
            unheard.extend(session.unheard.filter(|until| *until <= now).map(|_| *peer));
        }
        for peer in unheard {
            self.hang_up(peer, hung_up()).await;
        }
        let late: Vec<_> = self
            .sessions
            .iter()
            .map(|(peer, session)| (*peer, session.stage))
            .filter(|(_, stage)| match stage {
                Stage::Greeting(until) | Stage::Refusing(until) | Stage::Relayed(_, until) => {
                    *until <= now
                }
                Stage::Up(_) => false,
            })
            .collect();
        for (peer, stage) in late {
            match stage {
                Stage::Greeting(_) => self.hang_up_silent(peer).await,
                Stage::Refusing(_) => self.hang_up_refused(peer).await,
                Stage::Relayed(..) => self.hang_up_relayed(peer).await,
                Stage::Up(_) => {}
            }
        }
    }
}

fn hung_up() -> DownReason {
    DownReason::Lost("it hung up".to_owned())
}
