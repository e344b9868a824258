//! Peers of a run find each other, and other libp2p nodes are served and left in peace.

use std::net::UdpSocket;
use std::time::Duration;

use dnode_network::{Multiaddr, NetworkEvent};
use futures::StreamExt;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Swarm, SwarmBuilder, identify, noise, ping, tcp, yamux};
use tokio::time::timeout;

use crate::common::{DEADLINE, address, config, run_spec, start, stock_quic};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_peers_find_each_other_through_one_of_them() {
    let mut first = start(config(1)).await;
    let mut second = config(2);
    second.bootstrap = vec![first.addresses[0].clone()];
    let mut third = config(3);
    third.bootstrap = second.bootstrap.clone();
    let (mut second, mut third) = (start(second).await, start(third).await);
    let ids = [first.id(), second.id(), third.id()];
    for node in [&mut first, &mut second, &mut third] {
        let mut missing: Vec<_> = ids.into_iter().filter(|id| *id != node.id()).collect();
        node.wait(|event| {
            if let NetworkEvent::PeerUp { peer, .. } = event {
                missing.retain(|id| id != peer);
            }
            missing.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_swarms_meet_when_the_bootstrap_peer_of_both_comes_up() {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let place =
        address(&format!("/ip4/127.0.0.1/udp/{}/quic-v1", free.local_addr().unwrap().port()));
    drop(free);
    let mut swarms = Vec::new();
    for key in [1, 3] {
        let (mut one, mut other) = (config(key), config(key + 1));
        one.bootstrap = vec![place.clone()];
        let mut one = start(one).await;
        other.bootstrap = vec![place.clone(), one.addresses[0].clone()];
        let mut other = start(other).await;
        one.wait_up(other.id()).await;
        other.wait_up(one.id()).await;
        swarms.push([one, other]);
    }
    let ids: Vec<_> = swarms.iter().map(|[one, other]| [one.id(), other.id()]).collect();
    let mut late = config(5);
    late.listen = vec![place];
    let _late = start(late).await;
    for (swarm, theirs) in swarms.iter_mut().zip([ids[1], ids[0]]) {
        for node in swarm {
            let mut missing = theirs.to_vec();
            node.wait(|event| {
                if let NetworkEvent::PeerUp { peer, .. } = event {
                    missing.retain(|id| id != peer);
                }
                missing.is_empty().then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_address_of_another_run_does_not_hide_the_right_one() {
    let mut other = config(1);
    other.run = run_spec("other");
    let first = start(other).await;
    let second = start(config(2)).await;
    let mut third = config(3);
    third.bootstrap = vec![first.addresses[0].clone(), second.addresses[0].clone()];
    let mut third = start(third).await;
    third.wait_up(second.id()).await;
    assert!(first.handle.peers().is_empty());
}

#[derive(NetworkBehaviour)]
struct Stock {
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

fn stock() -> Swarm<Stock> {
    SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_other_transport(stock_quic)
        .unwrap()
        .with_behaviour(|key| Stock {
            identify: identify::Behaviour::new(identify::Config::new(
                "/other/1".to_owned(),
                key.public(),
            )),
            ping: ping::Behaviour::new(
                ping::Config::new().with_interval(Duration::from_millis(50)),
            ),
        })
        .unwrap()
        .build()
}

/// A plain libp2p node identifies the node at `listen` and pings it ten times.
async fn visit(listen: &str) {
    let mut host = config(1);
    host.listen = vec![address(listen)];
    let mut node = start(host).await;
    let mut guest = stock();
    let place: Multiaddr = node.addresses[0].clone();
    guest.dial(place).unwrap();
    let (mut pings, mut info) = (0, None);
    let visited = timeout(DEADLINE, async {
        while pings < 10 || info.is_none() {
            match guest.select_next_some().await {
                SwarmEvent::Behaviour(StockEvent::Ping(event)) => {
                    event.result.unwrap();
                    pings += 1;
                }
                SwarmEvent::Behaviour(StockEvent::Identify(identify::Event::Received {
                    info: received,
                    ..
                })) => info = Some(received),
                SwarmEvent::ConnectionClosed { cause, .. } => panic!("disturbed: {cause:?}"),
                _ => {}
            }
        }
    });
    visited.await.expect("ten pings in time");
    let info = info.unwrap();
    assert_eq!(info.protocol_version, "/dnode/id/13");
    let offers = |name: &str| info.protocols.iter().any(|p| p.as_ref() == name);
    for name in ["/dnode/kad/13", "/dnode/control/13", "/dnode/bulk/13"] {
        assert!(offers(name), "{name} is not among {:?}", info.protocols);
    }
    assert!(node.handle.peers().is_empty());
    while let Ok(event) = node.events.try_recv() {
        assert!(
            matches!(event, NetworkEvent::Listening { .. } | NetworkEvent::SocketBuffers { .. }),
            "{event:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_libp2p_node_is_served_over_quic() {
    visit("/ip4/127.0.0.1/udp/0/quic-v1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_libp2p_node_is_served_over_tcp() {
    visit("/ip4/127.0.0.1/tcp/0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_address_of_a_stranger_is_reported() {
    let mut other = stock();
    other.listen_on(address("/ip4/127.0.0.1/udp/0/quic-v1")).unwrap();
    let place = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = other.select_next_some().await {
            break address;
        }
    };
    let mut lost = config(1);
    lost.bootstrap = vec![place.clone()];
    let mut node = start(lost).await;
    let told = node.wait(|event| match event {
        NetworkEvent::BootstrapUnreachable { address, error, .. } => {
            Some((address.clone(), error.clone()))
        }
        _ => None,
    });
    tokio::pin!(told);
    let told = loop {
        tokio::select! {
            told = &mut told => break told,
            _ = other.select_next_some() => {}
        }
    };
    assert_eq!(told, (place, "the node there is no dnode peer".to_owned()));
}
