//! Tensors on direct paths, inside this host and in local networks; inside this host messages of exchanges, too.

use std::net::IpAddr;

use dnode_direct::{Arrival, Direct, Kind, Receiver, is_near};
use libp2p::identity::Keypair;
use tokio::sync::{mpsc, oneshot};

use super::buffers::Assembly;
use super::reader::{message_or_tensor, tensor};
use super::report::{Origin, ReaderEnd, SessionEvent};
use crate::address::ip;
use crate::config::{NetworkConfig, NetworkError};
use crate::event::NetworkEvent;

/// The direct paths of this peer: those that it opens, and those that others open.
#[derive(Debug)]
pub(crate) struct DirectPlane {
    pub(crate) direct: Direct,
    pub(crate) arrivals: mpsc::Receiver<Arrival>,
}

/// Begins to accept direct paths at the addresses that the swarm listens on.
pub(crate) fn start(key: &Keypair, config: &NetworkConfig) -> Result<DirectPlane, NetworkError> {
    let mut ips: Vec<IpAddr> = config.listen.iter().filter_map(ip).collect();
    ips.sort_unstable();
    ips.dedup();
    // A socket on all addresses of a family leaves no room for one on a single address of it.
    let any =
        |ip: IpAddr| ips.iter().any(|other| other.is_unspecified() && same_family(*other, ip));
    let ips: Vec<_> = ips
        .iter()
        .copied()
        .filter(|ip| ip.is_unspecified() || (is_near(*ip) && !any(*ip)))
        .collect();
    let (direct, arrivals) = Direct::start((key, config.incarnation), &ips, config.direct)
        .map_err(|error| NetworkError::Prepare(error.to_string()))?;
    Ok(DirectPlane { direct, arrivals })
}

const fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// Reads one direct path to its end, and reports the end.
pub(crate) async fn read(
    mut path: Receiver,
    origin: Origin,
    release: oneshot::Receiver<()>,
    events: mpsc::Sender<NetworkEvent>,
    links: mpsc::Sender<SessionEvent>,
) {
    let read = async {
        // Until the handshake is done, flow control keeps the bytes at the sender.
        release.await.map_err(|_| ReaderEnd::Ignored)?;
        let mut assembly = Assembly::new(&origin.buffers);
        if path.kind() == Kind::Memory {
            while message_or_tensor(&mut path, &origin, &mut assembly, &events).await? {}
        } else {
            while tensor(&mut path, &origin, &mut assembly, &events).await? {}
        }
        Ok(ReaderEnd::Finished { goodbye: false })
    };
    let (Ok(end) | Err(end)) = read.await;
    drop(path);
    // An error means that the network has stopped.
    let _ = links.send(SessionEvent::ReaderEnded { origin, end }).await;
}
