//! Handles what the tasks of a session report: the handshake, and the ends of readers and writers.

use dnode_protocol::frame::encode_control;
use dnode_protocol::invitation::Role;
use dnode_protocol::{Message, PeerId, RunDifference, RunSpec};
use libp2p::Stream;
use libp2p::futures::AsyncWriteExt as _;
use libp2p::swarm::ConnectionId;
use tokio::time::{Duration, Instant};

use super::Service;
use crate::address::{ip, to_libp2p};
use crate::copies::{COPY, IDENTITY, difference, words};
use crate::event::{DownReason, NetworkEvent};
use crate::io::report::{Origin, Outgoing, ReaderEnd, SessionEvent, Via};
use crate::limits::{FULL_BACK_OFF, HELLO_TIMEOUT, PUT_OUT_BACK_OFF};
use crate::sessions::{Completion, Late, Part, Stage};
use crate::swarm::streams::StreamKind;
use crate::unix_s;

/// How long it may take to tell a process that it is a copy.
const WORDS_MAX: Duration = Duration::from_secs(2);

impl Service {
    pub(super) async fn on_session_event(&mut self, event: SessionEvent) {
        let (sessions, context) = (&mut self.sessions, &mut self.context);
        match event {
            SessionEvent::Hello { origin, specs, incarnation, direct_port, chain } => {
                if sessions.is_current(origin.peer, origin.session) {
                    sessions.set_direct_port(origin.peer, direct_port);
                    self.on_hello(&origin, (&*specs, chain.as_slice()), incarnation).await;
                }
            }
            SessionEvent::Revocations { origin, statements } => {
                if sessions.is_current(origin.peer, origin.session) {
                    self.on_revocations(Some(origin.peer), statements).await;
                }
            }
            SessionEvent::ReaderEnded { origin, end } => {
                if sessions.is_current(origin.peer, origin.session) {
                    self.on_reader_ended(&origin, end).await;
                }
            }
            SessionEvent::BulkOpened { peer, session, result } => {
                if sessions.is_current(peer, session) {
                    sessions.on_bulk_opened(peer, result, context);
                }
            }
            SessionEvent::DirectOpened { peer, session, result } => {
                if sessions.is_current(peer, session) {
                    sessions.on_direct_opened(peer, result, context);
                }
            }
            SessionEvent::ProcessEnded { peer, session } => {
                if sessions.is_current(peer, session) {
                    let reason = DownReason::Lost("its process has ended".to_owned());
                    self.hang_up(peer, reason).await;
                }
            }
            SessionEvent::WriterEnded { origin, queue, left } => {
                if sessions.is_current(origin.peer, origin.session) {
                    sessions.on_writer_ended(&origin, queue, left, context);
                }
            }
        }
    }

    async fn on_hello(
        &mut self,
        origin: &Origin,
        (specs, chain): (&[RunSpec; 2], &[u8]),
        incarnation: u64,
    ) {
        let peer = origin.peer;
        // Whoever is not invited is not told how the run is set up either. Who is refused for its settings
        // has not used its invitation.
        let (own, now_s) = (self.admission.own_role(), unix_s());
        let judged = self.admission.judge(peer, chain, now_s);
        let judged = judged.and_then(|judged| {
            let trains = judged.role.min(own) == Role::Train;
            let differences = self.context.greeting.compare(specs, trains)?;
            Ok((self.admission.let_in(peer, judged, now_s)?, differences))
        });
        let (role, differences) = match judged {
            Ok(judged) => judged,
            Err(difference) => {
                self.on_unfit(origin, difference, (chain, incarnation)).await;
                return;
            }
        };
        let (Some(stage), Some(connection)) = (self.sessions.stage(peer), origin.connection())
        else {
            return;
        };
        let hello = (incarnation, connection);
        let invitation = self.admission.invitation(peer);
        let part = Part { invitation, role, aside: role.min(own) == Role::Relay };
        match stage {
            Stage::Greeting(_) => {
                if !self.refuse_older(peer, connection, incarnation) {
                    self.sessions.on_hello(peer, hello, Some(differences), part);
                    self.complete(peer).await;
                }
            }
            Stage::Relayed(known, _) if known == incarnation => {
                self.sessions.on_hello(peer, hello, None, part);
                self.complete(peer).await;
            }
            Stage::Up(known) if known == incarnation => {
                self.sessions.release(peer, hello, &mut self.context);
            }
            Stage::Up(known) | Stage::Relayed(known, _) if known > incarnation => {
                self.refuse_copy(peer, connection, incarnation);
            }
            Stage::Up(_) | Stage::Relayed(..) => {
                // Another start of the peer's process has taken over: everything of the earlier one
                // ends. The new connection is closed as well. One of the two peers dials again, and the
                // other is greeted as a new one.
                self.copies.restarted(peer, incarnation, Instant::now());
                self.hang_up(peer, DownReason::Restarted).await;
            }
            Stage::Refusing(_) => {}
        }
    }

    /// Handles a hello with which a peer is not let in. One that is up is not merely refused: its session
    /// ends, with the place that it has.
    async fn on_unfit(
        &mut self,
        origin: &Origin,
        difference: RunDifference,
        (chain, incarnation): (&[u8], u64),
    ) {
        let peer = origin.peer;
        match (self.sessions.stage(peer), origin.connection()) {
            (Some(Stage::Up(known) | Stage::Relayed(known, _)), Some(connection))
                if known > incarnation =>
            {
                // What an earlier start has said comes late; the present one is fit.
                self.refuse_copy(peer, connection, incarnation);
            }
            (Some(Stage::Up(known) | Stage::Relayed(known, _)), _) if known < incarnation => {
                // Another start has taken over. It is told why it is refused when it greets anew.
                self.copies.restarted(peer, incarnation, Instant::now());
                self.hang_up(peer, DownReason::Restarted).await;
            }
            (Some(Stage::Up(_)), _) => {
                tracing::debug!(%peer, %difference, "a connected peer greets as one that is refused");
                let event = NetworkEvent::Refused { peer, difference, by_us: true };
                self.context.outbox.report(event);
                self.hang_up_refused(peer).await;
            }
            (Some(Stage::Greeting(_) | Stage::Relayed(..) | Stage::Refusing(_)) | None, _) => {
                // An honest peer that was removed leaves when it sees who has signed that.
                if let Some(statements) = self.admission.against(&peer, chain)
                    && let Ok(frame) = encode_control(&Message::Revocations { statements })
                {
                    self.sessions.say(peer, frame);
                }
                self.sessions.refuse(peer, difference, &mut self.context);
            }
        }
    }

    /// Lets a peer count as connected, if nothing is missing for that.
    pub(super) async fn complete(&mut self, peer: PeerId) {
        let mut completion = self.sessions.complete(peer, &mut self.context);
        if let Completion::InsteadOf(other) = completion {
            tracing::debug!(peer = %other, guest = %peer, "put out for another peer: it did no work");
            self.end_session(other, DownReason::PutOut).await;
            self.context.block(other, PUT_OUT_BACK_OFF);
            completion = self.sessions.complete(peer, &mut self.context);
        }
        match completion {
            Completion::Waits => {}
            Completion::InsteadOf(_) | Completion::Full => self.context.block(peer, FULL_BACK_OFF),
            Completion::Up(incarnation) => {
                let at = self.sessions.address(peer).and_then(ip);
                self.discovery.on_up(peer, at);
                self.tell_revocations(peer);
                // Another process with its key may have been refused before.
                if let Some(older) = self.copies.refused(peer, incarnation) {
                    self.tell_kept(peer, older, incarnation);
                }
                self.sessions.open(peer, StreamKind::Bulk, &mut self.context);
            }
        }
    }

    /// Refuses a peer that has greeted if it is an older start than one that was here, although that one
    /// is not connected now. Returns whether it did.
    fn refuse_older(&mut self, peer: PeerId, connection: ConnectionId, incarnation: u64) -> bool {
        let now = Instant::now();
        let Some(newest) = self.copies.newer(peer, incarnation, now) else { return false };
        if self.sessions.speaks_elsewhere(peer, connection) {
            // The newer start may be the one that would hear the refusal. If it is not, the older one
            // greets again on the connection that stays.
            self.context.swarm.close_connection(connection);
            return true;
        }
        self.sessions.mark_copy(peer);
        self.context.outbox.report(NetworkEvent::CopiedPeer { peer });
        let difference = difference(IDENTITY, incarnation, newest);
        self.sessions.refuse(peer, difference, &mut self.context);
        true
    }

    /// Handles the hello of an older start than the connected one, on another connection. It may be the
    /// last message of a process that has ended. If it accepts a stream, it lives.
    fn refuse_copy(&mut self, peer: PeerId, connection: ConnectionId, older: u64) {
        if self.copies.tell(connection, older, Instant::now())
            && let Some(id) = to_libp2p(peer)
        {
            let streams = &mut self.context.swarm.behaviour_mut().streams;
            streams.open_on(id, connection, StreamKind::Control);
            streams.forget(id, connection);
        }
    }

    /// Handles that the stream to a copy is open, so two processes live: both are told, and the
    /// connected one stays.
    pub(super) fn tell_copy(&mut self, peer: PeerId, older: u64, mut stream: Stream) {
        let Some(Stage::Up(kept)) = self.sessions.stage(peer) else { return };
        let hello = self.context.greeting.hello();
        self.copies.restarted(peer, kept, Instant::now());
        self.context.outbox.report(NetworkEvent::CopiedPeer { peer });
        self.tell_kept(peer, older, kept);
        let Some(refuse) = words(IDENTITY, older, kept) else { return };
        tokio::spawn(async move {
            let say = async {
                stream.write_all(&hello).await?;
                stream.write_all(&refuse).await?;
                stream.close().await
            };
            // The copy has gone, or does not read: its connection closes.
            let _ = tokio::time::timeout(WORDS_MAX, say).await;
        });
    }

    /// Tells the connected start of a peer that another one was refused.
    fn tell_kept(&self, peer: PeerId, older: u64, kept: u64) {
        if let Some(frame) = words(COPY, older, kept)
            && let Some(entry) = self.context.shared.peers().get(&peer)
        {
            // The queue is full or gone: the peer is told the next time.
            let _ = entry.control.try_send(Outgoing::Control(frame));
        }
    }

    async fn on_reader_ended(&mut self, origin: &Origin, end: ReaderEnd) {
        let (peer, stopping) = (origin.peer, self.context.is_stopping());
        let Some(stage) = self.sessions.on_reader_ended(origin) else {
            return;
        };
        let up = matches!(stage, Stage::Up(_));
        if origin.via == Via::Direct && up && !matches!(end, ReaderEnd::Offence(..)) {
            self.context.outbox.report(NetworkEvent::PathLost { peer });
            self.sessions.ask_host(peer);
        }
        let refusing = matches!(stage, Stage::Refusing(_));
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
                let event = NetworkEvent::Refused { peer, difference, by_us: false };
                self.context.outbox.report(event);
                if copy {
                    self.hang_up_as_copy(peer).await;
                } else {
                    self.hang_up_refused(peer).await;
                }
            }
            ReaderEnd::Finished { goodbye } if origin.kind == StreamKind::Control => {
                if goodbye {
                    self.hang_up(peer, DownReason::Left).await;
                    self.discovery.on_left(peer);
                } else if stopping {
                    self.hang_up(peer, hung_up()).await;
                } else {
                    self.sessions.on_unheard(peer);
                }
            }
            ReaderEnd::Failed(error) => {
                tracing::debug!(%peer, kind = %origin.kind, %error, "read failed");
                if let Some(connection) = origin.connection() {
                    self.context.swarm.close_connection(connection);
                }
            }
            ReaderEnd::Finished { .. } | ReaderEnd::Ignored => {}
        }
    }

    /// Ends handshakes, refusals and searches for a direct path that took too long. Ends sessions of
    /// peers that ended their control stream and opened no other one.
    pub(super) async fn check_handshakes(&mut self, now: Instant) {
        for peer in self.sessions.unheard(now) {
            self.hang_up(peer, hung_up()).await;
        }
        for (peer, late) in self.sessions.late(now) {
            match late {
                Late::Silent => {
                    // The peer may have been stopped or cut off since it connected, so it may connect
                    // again at once.
                    tracing::debug!(%peer, within = ?HELLO_TIMEOUT, "no hello");
                    let reason = DownReason::Lost("it did not greet".to_owned());
                    self.hang_up(peer, reason).await;
                }
                Late::Refused => self.hang_up_refused(peer).await,
                Late::Relayed => {
                    // Its connection through a relay serves nobody.
                    self.hang_up(peer, DownReason::Lost("no direct path".to_owned())).await;
                }
            }
        }
    }
}

fn hung_up() -> DownReason {
    DownReason::Lost("it hung up".to_owned())
}
