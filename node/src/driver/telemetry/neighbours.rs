//! Reports peers that come, go, are refused and break rules; no more of it than is bounded, as it is theirs to cause.

use std::time::Instant;

use dnode_network::{Connection, DownReason, NetworkEvent};
use dnode_protocol::invitation::Role as Grade;
use dnode_protocol::{PeerId, RunDifference};

use super::Telemetry;
use crate::driver::refusal;

impl Telemetry {
    /// A peer comes, goes or breaks rules.
    pub(super) fn neighbour(&mut self, event: &NetworkEvent) {
        if let NetworkEvent::PeerUp { role, .. } = event {
            self.met |= *role != Grade::Observe;
        }
        if let NetworkEvent::PeerDown { peer, reason: DownReason::Left } = event {
            self.viewing.left(peer);
        }
        if !self.caused.one_more() {
            return;
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are of no neighbour")]
        match event {
            NetworkEvent::PeerUp { peer, address, role: Grade::Observe, .. } => {
                tracing::info!(peer = %peer.short(), %address, "an observer is connected");
                self.event("observer-up", &peer.to_string());
            }
            NetworkEvent::PeerUp { peer, address, connection, .. } => {
                tracing::info!(peer = %peer.short(), %address, "peer up");
                if *connection == Connection::Tcp {
                    tracing::info!(peer = %peer.short(), "connected by TCP, not by QUIC (UDP)");
                }
                self.event("peer-up", &peer.to_string());
            }
            NetworkEvent::RelayUp { peer, address, .. } => {
                tracing::info!(peer = %peer.short(), %address, "a relay of the run is connected");
                self.event("relay-up", &peer.to_string());
            }
            NetworkEvent::RelayDown { peer, reason } => {
                tracing::info!(peer = %peer.short(), %reason, "a relay of the run is gone");
                self.event("relay-down", &format!("{peer}: {reason}"));
            }
            NetworkEvent::PeerDown { peer, reason } => {
                tracing::info!(peer = %peer.short(), name = self.viewing.name(peer), %reason, "peer down");
                self.event("peer-down", &format!("{peer}: {reason}"));
            }
            NetworkEvent::Offence { peer, kind, detail } => {
                tracing::warn!(peer = %peer.short(), name = self.viewing.name(peer), %kind, detail, "peer broke the protocol and was disconnected; is it the same version of dnode?");
                self.event("offence", &format!("{peer}: {kind}: {detail}"));
            }
            _ => {}
        }
    }

    /// A peer and this one refuse each other.
    pub(in crate::driver) fn turned_away(
        &mut self,
        peer: PeerId,
        difference: &RunDifference,
        by_us: bool,
    ) {
        if !self.caused.one_more() {
            return;
        }
        refusal::warn(peer, difference, by_us);
        self.event("refused", &format!("{peer}: {difference}"));
    }

    /// Says how much was not told.
    pub(super) fn tell_left_out(&mut self) {
        if let Some(count @ 1..) = self.caused.end(Instant::now()) {
            tracing::warn!(
                count,
                "peers come, go or are refused so often that most of it is not told"
            );
            self.event("not-told", &count.to_string());
        }
    }
}
