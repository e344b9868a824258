//! One listening socket's task: accepts connections, sorts them by purpose, and watches the
//! machine's addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::StreamExt;
use if_watch::IfEvent;
use if_watch::tokio::IfWatcher;
use libp2p_core::transport::ListenerId;
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connecting, Endpoint, Incoming};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::bulk::BulkConnection;
use crate::config::Purpose;
use crate::connection::identified;
use crate::endpoints::Listening;
use crate::error::Error;
use crate::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX};

/// What a listener tells the transport.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// The listener can be reached at this address.
    Up(ListenerId, SocketAddr),
    /// The listener can no longer be reached at this address.
    Down(ListenerId, SocketAddr),
    /// The machine's addresses cannot be watched.
    Blind(ListenerId, std::io::Error),
    /// A libp2p connection whose handshake goes on until `deadline`.
    Incoming(Incomer),
}

/// An inbound libp2p connection.
#[derive(Debug)]
pub(crate) struct Incomer {
    pub(crate) listener: ListenerId,
    pub(crate) endpoint: Endpoint,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) connecting: Connecting,
    pub(crate) deadline: Instant,
}

/// Where a listener's finds go.
#[derive(Clone, Debug)]
pub(crate) struct Outlets {
    pub(crate) arrivals: mpsc::Sender<Arrival>,
    pub(crate) bulk: mpsc::Sender<BulkConnection>,
}

/// Runs until the listener stops or nobody listens to it.
pub(crate) async fn run(listening: Listening, watcher: Option<IfWatcher>, outlets: Outlets) {
    tokio::join!(accept(&listening, &outlets), watch(&listening, watcher, &outlets.arrivals));
}

async fn accept(listening: &Listening, outlets: &Outlets) {
    // Dropping the set ends the handshakes.
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            incoming = listening.endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                if handshakes.len() >= HANDSHAKES_MAX {
                    incoming.refuse();
                } else if handshakes.len() >= HANDSHAKES_MAX / 2 && incoming.may_retry() {
                    // Who invents its address never answers this (RFC 9000 §8.1.2), and takes no
                    // place among the handshakes. It may be retried, so it is no error.
                    let _ = incoming.retry();
                } else {
                    handshakes.spawn(sort(incoming, listening.clone(), outlets.clone()));
                }
            }
            Some(_) = handshakes.join_next() => {}
        }
    }
}

/// Waits for the other end to name its purpose, and hands the connection on.
async fn sort(incoming: Incoming, listening: Listening, outlets: Outlets) {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let remote = incoming.remote_address();
    let sorted = timeout_at(deadline, async {
        let server = listening.servers.of(remote.ip());
        let mut connecting = incoming.accept_with(Arc::clone(server))?;
        let data = connecting.handshake_data().await?;
        let data = data.downcast::<HandshakeData>().map_err(|_| Error::NoIdentity)?;
        let name = data.protocol.as_deref().unwrap_or_default();
        match Purpose::of(name) {
            Some(Purpose::Libp2p | Purpose::Closed) => {
                let Listening { id: listener, local, endpoint, .. } = listening;
                let incomer = Incomer { listener, endpoint, local, remote, connecting, deadline };
                // A swarm that does not keep up takes no more connections.
                let _ = outlets.arrivals.try_send(Arrival::Incoming(incomer));
            }
            Some(Purpose::Bulk) => {
                let connection = connecting.await?;
                let peer = identified(&connection)?;
                let connection = BulkConnection::new(connection, peer);
                if let Err(error) = outlets.bulk.try_send(connection) {
                    error.into_inner().close();
                }
            }
            // TLS has refused it already.
            None => {}
        }
        Ok::<_, Error>(())
    });
    match sorted.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%remote, ?error, "inbound connection failed"),
        Err(_) => tracing::debug!(%remote, "inbound connection took too long"),
    }
}

async fn watch(
    listening: &Listening,
    watcher: Option<IfWatcher>,
    arrivals: &mpsc::Sender<Arrival>,
) {
    let (id, local) = (listening.id, listening.local);
    let Some(mut watcher) = watcher else {
        return;
    };
    let at =
        |ip: IpAddr| (ip.is_ipv4() == local.is_ipv4()).then(|| SocketAddr::new(ip, local.port()));
    while let Some(event) = watcher.next().await {
        let arrival = match event {
            Ok(IfEvent::Up(net)) => at(net.addr()).map(|address| Arrival::Up(id, address)),
            Ok(IfEvent::Down(net)) => at(net.addr()).map(|address| Arrival::Down(id, address)),
            Err(error) => Some(Arrival::Blind(id, error)),
        };
        let blind = matches!(arrival, Some(Arrival::Blind(..)));
        let Some(arrival) = arrival else { continue };
        if arrivals.send(arrival).await.is_err() || blind {
            return;
        }
    }
}
