//! The libp2p swarm of a dnode process: identity, discovery, handshake, frame streams.
//!
//! ```text
//!   owner                      network task                       one task per stream
//!   NetworkHandle ─ commands ─▶ Service ── Swarm (QUIC, TCP, identify, ping, Kademlia, mDNS)
//!        │                        │  sessions: Greeting → Up | Refusing
//!        │                        └─ streams::Behaviour ──▶ a control stream out and one in
//!        └─ frames ─ bounded queue ───────────────────────▶ writer ═▶ control stream
//!                                     ═▶ direct path, or bulk connection, or bulk stream
//!   NetworkEvent ◀─ bounded queue ◀─────────────────────── reader ◀═ (flow control when full)
//! ```
//!
//! A connection proves the identity of the peer, and in a closed run that it knows the secret of the
//! run; before that, nothing else of the swarm meets it. The first frame on each control stream, Hello, proves
//! that both peers are of the same run and that their settings are close enough. Only then is the peer
//! reported up. It stays up as long as one connection remains. No other crate uses libp2p, so that an
//! edit elsewhere does not rebuild it.

mod address;
mod admission;
mod config;
mod context;
mod copies;
mod discovery;
mod errors;
mod event;
mod handle;
mod io;
pub mod limits;
mod membership;
mod nat;
mod probe;
mod service;
mod sessions;
mod slots;
mod swarm;
mod until;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dnode_protocol::Message;
use dnode_protocol::frame::encode_control;
use tokio::sync::mpsc;
use tokio::time::Instant;

use admission::Admission;
use context::{Context, Greeting, Outbox};
use discovery::Discovery;
use nat::traversal::Traversal;
use service::{Inputs, Service};
use sessions::Sessions;

pub use address::{Subnet, is_loopback, subnet};
pub use admission::{INVITATION, InvitationUse, role_of};
pub use config::{NatConfig, NetworkConfig, NetworkError, RelayMode, default_listen, peer_id};
pub use copies::IDENTITY;
pub use dnode_direct::{Channel, Config as DirectConfig, Kind};
pub use dnode_protocol::membership::RunSecret;
pub use dnode_quic::Buffers;
pub use errors::with_causes;
pub use event::{Carrier, Connection, DownReason, Invited, NetworkEvent, NotLetIn, OffenceKind};
pub use handle::{ChannelError, CommandError, NetworkHandle, PeerStatus, SendError};
pub use io::report::Written;
pub use io::traffic::Bytes;
pub use libp2p::Multiaddr;
pub use probe::{Answer, Found, PROBED_MAX, Probe, Reach, Silence};
pub use swarm::ask::Skew;
pub use swarm::streams;

/// The wall clock: time since the year 1970 began (UTC).
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the wall clock is what is asked for")]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same in whole seconds, by which certificates end.
#[must_use]
pub fn unix_s() -> u64 {
    unix_time().as_secs()
}

/// The network of a process, which [`Network::start`] starts.
#[derive(Debug)]
pub struct Network;

impl Network {
    /// Listens, begins to look for peers, and runs until it is shut down or every handle is dropped.
    ///
    /// Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`NetworkError`]; nothing runs in that case.
    pub fn start(
        config: NetworkConfig,
    ) -> Result<(NetworkHandle, mpsc::Receiver<NetworkEvent>), NetworkError> {
        let key = config.check()?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| NetworkError::Runtime(std::io::Error::other(error)))?;
        let me = peer_id(&config.secret_key);
        let direct = io::direct::start(&key, &config)?;
        let known = (config.revocations.clone(), &config.uses[..]);
        let admission = Admission::new((me, config.pass.clone()), known, unix_s());
        let hello = Message::Hello {
            run: config.run.clone(),
            settings: config.settings.values().clone(),
            incarnation: config.incarnation,
            direct_port: direct.direct.port(),
            chain: admission.chain(),
        };
        let hello =
            encode_control(&hello).map_err(|error| NetworkError::Prepare(error.to_string()))?;
        let (swarm, bulk) = swarm::build(&config, &key)?;
        let (events, event_queue) = mpsc::channel(limits::EVENTS_MAX);
        let (commands, command_queue) = mpsc::channel(limits::COMMANDS_MAX);
        let (links, link_queue) = mpsc::channel(limits::SESSION_EVENTS_MAX);
        let is_bounded = config.upload_max > 0 || config.download_max > 0;
        let has_channels = config.direct != dnode_direct::Config::OFF && !is_bounded;
        let shared = Arc::new(handle::Shared::new(has_channels, config.peers_max));
        let rates = Arc::new(io::rate::Rates::new(config.upload_max, config.download_max));
        let total = Arc::clone(&shared.total);
        let buffers = shared.buffers.clone();
        let channels = sessions::Channels { events: events.clone(), links, total, rates, buffers };
        let mut outbox = Outbox::default();
        if let Some(buffers) = bulk.bulk.buffers() {
            outbox.report(NetworkEvent::SocketBuffers { buffers });
        }
        let external = swarm.external_addresses();
        let traversal = Traversal::new(*swarm.local_peer_id(), &config.nat, external);
        let discovery = Discovery::new(&config, Instant::now());
        let sessions = Sessions::new(channels, bulk.bulk, direct.direct);
        let greeting = Greeting::new(config.run, config.settings, hello, config.digest);
        let shown = Arc::clone(&shared);
        let context = Context::new((swarm, me), greeting, shown, outbox, traversal);
        let service = Service::new(context, sessions, discovery, admission);
        let inputs = Inputs {
            commands: command_queue,
            links: link_queue,
            bulk: bulk.arrivals,
            direct: direct.arrivals,
            events,
        };
        runtime.spawn(service.run(inputs));
        Ok((NetworkHandle { me, shared, commands }, event_queue))
    }
}
