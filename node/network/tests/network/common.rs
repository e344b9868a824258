//! What the tests with real sockets share: nodes on loopback and waiting for events.

use std::fmt::Debug;
use std::time::Duration;

use dnode_network::{DirectConfig, Multiaddr, Network, NetworkConfig, NetworkEvent, NetworkHandle};
use dnode_protocol::{PeerId, RunField, RunSpec};
use libp2p::Transport as _;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::identity::Keypair;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longest wait for anything; the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) handle: NetworkHandle,
    pub(crate) events: mpsc::Receiver<NetworkEvent>,
    /// Listening addresses, complete, in the order of the configuration.
    pub(crate) addresses: Vec<Multiaddr>,
}

pub(crate) fn run_spec(seed: &str) -> RunSpec {
    let field =
        |name: &str, value: &str| RunField { name: name.to_owned(), value: value.to_owned() };
    RunSpec::new(vec![field("rule", "pairwise"), field("seed", seed)]).unwrap()
}

pub(crate) fn address(text: &str) -> Multiaddr {
    text.parse().unwrap()
}

/// A node on loopback, QUIC only, named by `key`.
pub(crate) fn config(key: u8) -> NetworkConfig {
    let mut config = NetworkConfig::new([key; 32], run_spec("1"), 1);
    config.listen = vec![address("/ip4/127.0.0.1/udp/0/quic-v1")];
    config.direct = DirectConfig::OFF;
    config
}

pub(crate) async fn start(config: NetworkConfig) -> Node {
    let wanted = config.listen.len();
    let (handle, events) = Network::start(config).unwrap();
    let mut node = Node { handle, events, addresses: Vec::new() };
    while node.addresses.len() < wanted {
        if let NetworkEvent::Listening { address } = node.next().await {
            node.addresses.push(address);
        }
    }
    node
}

impl Node {
    pub(crate) fn id(&self) -> PeerId {
        self.handle.peer_id()
    }

    pub(crate) async fn next(&mut self) -> NetworkEvent {
        let event = timeout(DEADLINE, self.events.recv()).await;
        event.expect("an event in time").expect("a running network")
    }

    /// Waits for the event that `pick` takes; returns what it makes of it. Others are dropped.
    pub(crate) async fn wait<T: Debug>(
        &mut self,
        mut pick: impl FnMut(&NetworkEvent) -> Option<T>,
    ) -> T {
        let mut seen = Vec::new();
        let found = timeout(DEADLINE, async {
            loop {
                let event = self.events.recv().await.expect("a running network");
                if let Some(found) = pick(&event) {
                    return found;
                }
                seen.push(format!("{event:?}").chars().take(200).collect::<String>());
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain; saw {seen:#?}"),
        }
    }

    pub(crate) async fn wait_up(&mut self, wanted: PeerId) {
        self.wait(|event| match event {
            NetworkEvent::PeerUp { peer, .. } => (*peer == wanted).then_some(()),
            _ => None,
        })
        .await;
    }

    pub(crate) async fn wait_down(&mut self, wanted: PeerId) -> dnode_network::DownReason {
        self.wait(|event| match event {
            NetworkEvent::PeerDown { peer, reason } => (*peer == wanted).then(|| reason.clone()),
            _ => None,
        })
        .await
    }
}

/// The QUIC transport of other libp2p nodes, which judges ours.
pub(crate) fn stock_quic(key: &Keypair) -> Boxed<(libp2p::PeerId, StreamMuxerBox)> {
    let transport = libp2p_quic::tokio::Transport::new(libp2p_quic::Config::new(key));
    transport.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection))).boxed()
}

/// Two nodes that are connected; the second dialled the first.
pub(crate) async fn pair(first: NetworkConfig, mut second: NetworkConfig) -> (Node, Node) {
    let mut a = start(first).await;
    second.bootstrap = vec![a.addresses[0].clone()];
    let mut b = start(second).await;
    a.wait_up(b.id()).await;
    b.wait_up(a.id()).await;
    (a, b)
}
