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
//! A connection proves the peer's identity; the first frame on each control stream, Hello, proves
//! that both are of the same run and agree well enough on what should agree. Only then is the peer reported up. It stays up as long as one
//! connection remains. Only this crate knows libp2p, so that an edit elsewhere does not rebuild it.

mod ask;
mod bulk;
mod candidates;
mod config;
mod connections;
mod copies;
mod dialer;
mod direct;
mod discovery;
mod doubles;
mod event;
mod guarded;
mod handle;
pub mod limits;
mod link;
mod nat;
mod outlet;
mod permits;
mod ping;
mod probe;
mod rate;
mod reachability;
mod relays;
mod reports;
mod service;
mod session;
pub mod streams;
mod swarm;
mod traversal;
mod turns;

use std::sync::Arc;

use dnode_protocol::Message;
use dnode_protocol::frame::encode_control;
use tokio::sync::mpsc;

pub use ask::Skew;
pub use config::{NatConfig, NetworkConfig, NetworkError, RelayMode, default_listen, peer_id};
pub use copies::IDENTITY;
pub use direct::with_causes;
pub use dnode_direct::{Channel, Config as DirectConfig, Kind};
pub use dnode_quic::Buffers;
pub use event::{Carrier, Connection, DownReason, NetworkEvent, OffenceKind};
pub use handle::{Bytes, ChannelError, CommandError, NetworkHandle, PeerStatus, SendError};
pub use libp2p::Multiaddr;
pub use link::Written;
pub use probe::{Answer, Found, PROBED_MAX, Probe, Reach, Silence};

/// A network that can be started.
#[derive(Debug)]
pub struct Network;

impl Network {
    /// Listens, begins to look for peers, and runs until it is shut down or every handle is dropped.
    ///
    /// Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`NetworkError`]; nothing runs then.
    pub fn start(
        config: NetworkConfig,
    ) -> Result<(NetworkHandle, mpsc::Receiver<NetworkEvent>), NetworkError> {
        let key = config.check()?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| NetworkError::Runtime(std::io::Error::other(error)))?;
        let me = peer_id(&config.secret_key);
        let direct = direct::start(&key, &config)?;
        let hello = Message::Hello {
            run: config.run.clone(),
            settings: config.settings.values().clone(),
            incarnation: config.incarnation,
            direct_port: direct.direct.port(),
        };
        let hello =
            encode_control(&hello).map_err(|error| NetworkError::Prepare(error.to_string()))?;
        let (swarm, bulk) = swarm::build(&config, &key)?;
        let (events, event_queue) = mpsc::channel(limits::EVENTS_MAX);
        let (commands, command_queue) = mpsc::channel(limits::COMMANDS_MAX);
        let (links, link_queue) = mpsc::channel(limits::LINK_EVENTS_MAX);
        let is_bounded = config.upload_max > 0 || config.download_max > 0;
        let has_channels = config.direct != dnode_direct::Config::OFF && !is_bounded;
        let shared = Arc::new(handle::Shared::new(has_channels));
        let rates = Arc::new(rate::Rates::new(config.upload_max, config.download_max));
        let total = Arc::clone(&shared.total);
        let channels = session::Channels { events, links, total, rates };
        let parts = service::Parts {
            swarm,
            bulk,
            direct,
            me,
            hello,
            shared: Arc::clone(&shared),
            channels,
        };
        let service = service::Service::new(config, parts);
        runtime.spawn(service.run(command_queue, link_queue));
        let handle = NetworkHandle { me, shared, commands };
        Ok((handle, event_queue))
    }
}
