//! Handles that members are removed, or that their time is over.

use dnode_protocol::frame::encode_control;
use dnode_protocol::invitation::Revocation;
use dnode_protocol::{Message, PeerId};

use super::Service;
use crate::admission::{Source, parts};
use crate::event::{DownReason, NetworkEvent, OffenceKind};
use crate::io::report::Outgoing;
use crate::unix_s;

impl Service {
    /// Handles statements that a peer has sent, or the owner of this network (`None`). What is new is
    /// passed on before anybody is hung up on, so that who was removed hears of it, too.
    pub(super) async fn on_revocations(
        &mut self,
        from: Option<PeerId>,
        statements: Vec<Revocation>,
    ) {
        let source = if from.is_some() { Source::Peer } else { Source::Own };
        let learnt = self.admission.learn(statements, source, unix_s());
        if !learnt.new.is_empty() {
            self.pass_on(from, learnt.new).await;
        }
        match (learnt.refused, from) {
            (Some(error), Some(peer)) if error.is_forged() => {
                self.offend(peer, OffenceKind::Garbage, error.to_string()).await;
            }
            // Not an offence: the two clocks may differ, or this peer may know of more removals.
            (Some(error), _) => tracing::debug!(?from, %error, "a revocation that does not count"),
            (None, _) => {}
        }
    }

    async fn pass_on(&mut self, from: Option<PeerId>, new: Vec<Revocation>) {
        let others = self.context.shared.peers().keys().copied().collect::<Vec<_>>();
        for peer in others.into_iter().filter(|peer| Some(*peer) != from) {
            self.tell(peer, parts(&new));
        }
        let known = self.admission.known();
        let owners = self.admission.owners();
        self.context.outbox.report(NetworkEvent::Revocations { new, known, owners });
        self.hang_up_gone().await;
    }

    /// Tells a peer that has come up who was removed.
    pub(super) fn tell_revocations(&self, peer: PeerId) {
        self.tell(peer, self.admission.statements());
    }

    fn tell(&self, peer: PeerId, parts: Vec<Vec<u8>>) {
        let peers = self.context.shared.peers();
        let Some(entry) = peers.get(&peer) else { return };
        for statements in parts {
            if let Ok(frame) = encode_control(&Message::Revocations { statements }) {
                // The queue is full or gone: the peer hears of it from others, or when it comes again.
                let _ = entry.control.try_send(Outgoing::Control(frame));
            }
        }
    }

    /// Tells which invitations were used, if some were since the last time.
    pub(super) fn tell_uses(&mut self) {
        if let Some(known) = self.admission.take_new_uses() {
            self.context.outbox.report(NetworkEvent::Uses { known });
        }
    }

    /// Hangs up on members whose invitation has ended.
    pub(super) async fn look_at_expiry(&mut self) {
        let now_s = unix_s();
        if self.admission.has_ended(now_s) || self.admission.is_over(now_s) {
            self.hang_up_gone().await;
        }
    }

    async fn hang_up_gone(&mut self) {
        let now_s = unix_s();
        if let Some(why) = self.admission.own_end(now_s) {
            self.context.outbox.report(NetworkEvent::NoMember { why });
        }
        for (peer, difference) in self.admission.gone(now_s) {
            tracing::debug!(%peer, %difference, "no member any more");
            let event = NetworkEvent::Refused { peer, difference, by_us: true };
            self.context.outbox.report(event);
            self.discovery.on_refused(peer);
            self.hang_up(peer, DownReason::Refused).await;
        }
    }
}
