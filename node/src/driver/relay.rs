//! The loop of a peer that only relays: it has a network and no model, and stays until it is stopped.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dnode_network::{IDENTITY, NetworkEvent, NetworkHandle};
use dnode_protocol::{PeerId, RunDifference, RunSpec};
use tokio::sync::{mpsc, watch};

use super::bootstrap::Bootstrap;
use super::error::DriveError;
use super::refusal;
use super::removals::{Removals, words};
use super::telemetry::{ADDRESS_FILE, write_addresses};
use crate::storage::peer_store::PeerStore;
use crate::telemetry::caused::{CAUSED_EVERY, Caused};

/// How often files are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Addresses come one by one; they are told when none has come for this long.
const QUIET: Duration = Duration::from_millis(300);

/// A peer that only relays.
#[derive(Debug)]
pub(crate) struct Relay {
    network: NetworkHandle,
    run: RunSpec,
    folder: PathBuf,
    removals: Removals,
    peer_store: PeerStore,
    bootstrap: Bootstrap,
    addresses: Vec<String>,
    /// When the last address came of those that have not been told.
    untold: Option<Instant>,
    over: Option<DriveError>,
    /// What others cause in the log.
    caused: Caused,
}

impl Relay {
    /// A relay of `run`, whose data directory is `folder`. `bootstrap`: addresses of members.
    pub(crate) fn new(
        (network, run): (NetworkHandle, RunSpec),
        folder: PathBuf,
        (removals, peer_store): (Removals, PeerStore),
        bootstrap: Vec<String>,
    ) -> Self {
        let bootstrap = Bootstrap::new(bootstrap);
        let (addresses, untold, over) = (Vec::new(), None, None);
        // Those of an earlier start no longer hold.
        let _ = std::fs::remove_file(folder.join(ADDRESS_FILE));
        let caused = Caused::new(Instant::now());
        Self {
            network,
            run,
            folder,
            removals,
            peer_store,
            bootstrap,
            addresses,
            untold,
            over,
            caused,
        }
    }

    /// Relays until `stop` says so, or until this peer is no member any more.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<NetworkEvent>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), DriveError> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.over.is_none() {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                event = events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => self.over = Some(DriveError::NetworkStopped),
                },
                _ = tick.tick() => self.on_tick(),
            }
        }
        self.peer_store.tick(None);
        self.network.say_goodbye();
        self.network.shutdown().await;
        self.over.map_or(Ok(()), Err)
    }

    fn on_tick(&mut self) {
        self.removals.tick(&self.network);
        self.peer_store.tick(Some(Instant::now()));
        if self.untold.is_some_and(|last| last.elapsed() >= QUIET) {
            self.untold = None;
            let (run, addresses) = (self.run.id(), self.addresses.join(" "));
            tracing::info!("this peer is a relay of run {run} at {addresses}");
        }
        if let Some(count @ 1..) = self.caused.end(Instant::now()) {
            tracing::warn!("{count} more of what others cause in {CAUSED_EVERY:?} are not told");
        }
        if let Some(addresses) = self.bootstrap.silent() {
            tracing::warn!("no answer yet from {addresses}");
        }
    }

    fn on_event(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Listening { address } => self.on_listening(address.to_string()),
            NetworkEvent::NotListening { address } => self.on_not_listening(&address.to_string()),
            NetworkEvent::RelayUp { peer, address, role } => {
                self.bootstrap.on_met();
                self.removals.on_met();
                if self.caused.one_more() {
                    tracing::info!(peer = %peer.short(), %address, %role, "member connected");
                }
            }
            NetworkEvent::RelayDown { peer, reason } => {
                if self.caused.one_more() {
                    tracing::info!(peer = %peer.short(), %reason, "member gone");
                }
            }
            NetworkEvent::Found { peer, addresses, at } => {
                self.peer_store.found(peer, (&addresses, at), Instant::now());
            }
            NetworkEvent::Offence { peer, kind, detail } if self.caused.one_more() => {
                tracing::warn!(peer = %peer.short(), %kind, detail, "peer broke the protocol and was disconnected; is it the same version of dnode?");
            }
            NetworkEvent::Refused { peer, difference, by_us } => {
                self.on_refused(peer, difference, by_us);
            }
            NetworkEvent::BootstrapReached { address, peer } => {
                self.bootstrap.reached(&address.to_string(), &peer);
            }
            NetworkEvent::BootstrapUnreachable { address, error, retry_in } => {
                self.bootstrap.unreachable(&address.to_string());
                tracing::warn!(%address, %error, "bootstrap peer not reached; trying again in {retry_in:.1?}");
            }
            NetworkEvent::NotLetIn { address, why } => {
                let address = address.to_string();
                if self.bootstrap.not_let_in(&address) && !self.bootstrap.has_met() {
                    self.over = Some(DriveError::NotLetIn { address, why });
                }
            }
            NetworkEvent::Uses { known } => self.removals.keep_uses(&known, Instant::now()),
            NetworkEvent::Revocations { new, known, owners } => {
                self.removals.keep(known, Instant::now());
                new.iter().for_each(|it| tracing::warn!("{}", words(it, &owners)));
            }
            NetworkEvent::NoMember { why } => {
                tracing::warn!("this peer leaves the run: {why}");
                self.over = Some(DriveError::NoMember(why));
            }
            NetworkEvent::Copied { how } if self.caused.one_more() => {
                tracing::warn!("another process has the identity of this one: {how}");
            }
            // The network passes on nothing else between a relay and a member.
            NetworkEvent::SocketBuffers { .. }
            | NetworkEvent::Channel { .. }
            | NetworkEvent::Copied { .. }
            | NetworkEvent::PeerUp { .. }
            | NetworkEvent::PeerDown { .. }
            | NetworkEvent::Message { .. }
            | NetworkEvent::Tensor { .. }
            | NetworkEvent::CopiedPeer { .. }
            | NetworkEvent::PathLost { .. }
            | NetworkEvent::Offence { .. }
            | NetworkEvent::RoundTrip { .. } => {}
        }
    }

    /// Notes where this peer listens, in the file that members have, too.
    fn on_listening(&mut self, address: String) {
        if self.addresses.contains(&address) {
            return;
        }
        self.addresses.push(address);
        self.tell_addresses();
    }

    fn on_not_listening(&mut self, address: &str) {
        self.addresses.retain(|other| other != address);
        self.tell_addresses();
    }

    fn tell_addresses(&mut self) {
        self.untold = Some(Instant::now());
        write_addresses(&self.folder.join(ADDRESS_FILE), &self.addresses);
    }

    fn on_refused(&mut self, peer: PeerId, difference: RunDifference, by_us: bool) {
        if difference.field == IDENTITY {
            return;
        }
        if self.caused.one_more() {
            refusal::warn(peer, &difference, by_us);
        }
        if self.bootstrap.refused(&peer) && !self.bootstrap.has_met() {
            self.over = Some(DriveError::OtherRun(difference));
        }
    }
}
