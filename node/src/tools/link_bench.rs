//! `dnode bench link`: measures a real link with tensors that one peer sends and another sends back.
//!
//! The two peers are a network of their own, with fresh names and a run made for this purpose, so nobody
//! else takes part. They use what a swarm would use: the same paths, frames and checksums.

mod answer;
mod ask;
mod batch;

use std::time::Duration;

use dnode_network::{DirectConfig, Multiaddr, Network, NetworkConfig, NetworkError};
use dnode_network::{NetworkEvent, NetworkHandle};
use dnode_protocol::{RunField, RunSpec};
use rand::Rng as _;
use tokio::sync::mpsc;

pub use answer::answer;
pub use ask::{Speed, ask, best};
pub(super) use ask::{config, up};
pub(super) use batch::{CARRIERS, LAST, TENSOR_BYTES, cpu_seconds, send, send_batch};

/// Most bytes that are sent in each direction on one kind of path; the end that answers closes when
/// there are more.
pub const BYTES_MAX: u64 = 1 << 30;

/// Longest life of one connection at the end that answers: enough for a batch of 4 MiB and one of 1 GiB
/// at the rate of a slow link.
pub const CONNECTION_MAX: Duration = Duration::from_secs(120);

/// How long a measured batch shall take.
const BATCH: Duration = Duration::from_secs(2);

/// Longest wait for the other end to say anything.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Threads for the network, as in a peer that trains.
const NETWORK_THREADS: usize = 2;

/// How soon a peer that was answered may connect again.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Why a link cannot be measured.
#[derive(thiserror::Error)]
pub enum LinkError {
    /// The address to measure is not a multiaddress with the name of a peer.
    #[error("{0} is no address of a peer, for example /ip4/192.0.2.1/udp/4001/quic-v1/p2p/12D3…")]
    Address(String),
    /// The network cannot start.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The system refused something, such as a thread.
    #[error("start the runtime: {0}; allow this user more threads (`ulimit -u`)")]
    Io(#[from] std::io::Error),
    /// Nobody answers there, or not as `dnode bench link --listen` does.
    #[error("nobody answers at {0}: `dnode bench link --listen` must run there")]
    Silent(Multiaddr),
    /// The other end has stopped, or answers somebody else now.
    #[error(
        "measure the link: nothing came for long, or the other end has gone: it measures with one machine at a time; try again"
    )]
    Lost,
    /// The network stopped, which is a defect.
    #[error("measure the link: the network stopped, a defect; try again")]
    Stopped,
}

/// Starts a network for measurements, with a fresh name.
pub(super) fn start(
    listen: Vec<Multiaddr>,
    bootstrap: Vec<Multiaddr>,
    direct: DirectConfig,
) -> Result<(NetworkHandle, mpsc::Receiver<NetworkEvent>), LinkError> {
    let field =
        |name: &str, value: &str| RunField { name: name.to_owned(), value: value.to_owned() };
    let fields = vec![field("purpose", "link measurement"), field("version", "1")];
    let run = RunSpec::new(fields).map_err(|error| NetworkError::Prepare(error.to_string()))?;
    let mut key = [0; 32];
    rand::rng().fill_bytes(&mut key);
    let mut config = NetworkConfig::new(key, run, 1);
    if !listen.is_empty() {
        config.listen = listen;
    }
    config.bootstrap = bootstrap;
    config.direct = direct;
    // One peer is measured at a time; the others are about to leave.
    (config.peers_max, config.peers_target) = (4, 1);
    Ok(Network::start(config)?)
}

/// Runs one side of a measurement to its end.
///
/// # Errors
/// [`LinkError`].
pub fn block_on<T>(side: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(NETWORK_THREADS).enable_all().build()?;
    let result = runtime.block_on(side);
    runtime.shutdown_background();
    result
}
