//! Listening addresses, the port that dials leave from, and holes through NATs.

use dnode_quic::Error;
use libp2p_core::Multiaddr;
use libp2p_core::multiaddr::Protocol;
use libp2p_core::transport::{DialOpts, ListenerId, PortUse};
use libp2p_identity::PeerId;

use crate::common::{DIAL, PUNCH, Said, cause, ours, soon};

const LOOPBACK: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

fn port(address: &Multiaddr) -> u16 {
    let port = address.iter().find_map(|part| match part {
        Protocol::Udp(port) => Some(port),
        _ => None,
    });
    port.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unspecified_address_becomes_one_for_each_interface() {
    let mut node = ours();
    let first = node.listen("/ip4/0.0.0.0/udp/0/quic-v1").await;
    let loopback: Multiaddr =
        format!("/ip4/127.0.0.1/udp/{}/quic-v1", port(&first)).parse().unwrap();
    let mut address = first.clone();
    while address != loopback {
        assert_eq!(port(&address), port(&first));
        let Said::Up(next) = node.said().await else { panic!("an address") };
        address = next;
    }
    let mut other = ours();
    other.listen(LOOPBACK).await;
    let (dialled, (_, accepted)) = tokio::join!(other.dial(&loopback), node.accept());
    assert_eq!(dialled.unwrap().0, node.id);
    accepted.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_transport_listens_at_several_addresses() {
    let mut node = ours();
    let mut addresses = vec![node.listen(LOOPBACK).await, node.listen(LOOPBACK).await];
    // A machine may have no IPv6.
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        addresses.push(node.listen("/ip6/::1/udp/0/quic-v1").await);
    }
    let from = ours();
    for address in addresses {
        let (dialled, (_, accepted)) = tokio::join!(from.dial(&address), node.accept());
        assert_eq!(dialled.unwrap().0, node.id);
        accepted.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_listener_accepts_no_more_and_leaves_connections_alone() {
    let (mut from, mut to) = (ours(), ours());
    let id = ListenerId::next();
    let address = to.listen_as(id, LOOPBACK).await;
    let (dialled, (_, accepted)) = tokio::join!(from.dial(&address), to.accept());
    let (mut here, mut there) = (dialled.unwrap().1, accepted.unwrap().1);
    to.remove(id).await;
    let bytes = crate::common::pattern(1000, 1);
    let mut stream = crate::common::open(&mut here).await;
    tokio::join!(crate::common::ask(&mut stream, &bytes), async {
        crate::common::echo(crate::common::accept(&mut there).await).await;
    });
    // The port is not listened on: another transport may take it once the connection is gone.
    from.listen(LOOPBACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dials_leave_from_the_listening_port() {
    let (mut from, mut to) = (ours(), ours());
    let mine = from.listen(LOOPBACK).await;
    let address = to.listen(LOOPBACK).await;
    let (dialled, (seen, accepted)) = tokio::join!(from.dial(&address), to.accept());
    let _held = (dialled.unwrap(), accepted.unwrap());
    assert_eq!(seen, mine);
    let new = DialOpts { port_use: PortUse::New, ..DIAL };
    let dialled = from.dialing(&address, new).await;
    let (seen, accepted) = to.accept().await;
    let _held = (soon(dialled).await.unwrap().unwrap(), accepted.unwrap());
    assert_ne!(port(&seen), port(&mine));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dials_without_a_listener_share_a_port() {
    let (from, mut to) = (ours(), ours());
    let address = to.listen(LOOPBACK).await;
    let mut seen = Vec::new();
    let mut held = Vec::new();
    for _ in 0..2 {
        let (dialled, (from, accepted)) = tokio::join!(from.dial(&address), to.accept());
        held.push((dialled.unwrap(), accepted.unwrap()));
        seen.push(from);
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hole_is_punched_from_the_listening_socket() {
    let (mut a, mut b) = (ours(), ours());
    let at_a = a.listen(LOOPBACK).await;
    let at_b = b.listen(LOOPBACK).await.with_p2p(b.id).unwrap();
    // The first waits for the second, and keeps the way through its NAT open meanwhile.
    let punching = a.dialing(&at_b, PUNCH).await;
    let again = soon(a.dialing(&at_b, PUNCH).await).await.unwrap().unwrap_err();
    assert!(matches!(cause(&again), Error::PunchInProgress(_)), "{again}");
    let dialled = b.dial(&at_a).await.unwrap();
    let punched = soon(punching).await.unwrap().unwrap();
    assert_eq!((dialled.0, punched.0), (a.id, b.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hole_punch_says_what_it_lacks() {
    let mut a = ours();
    let peer = PeerId::random();
    let unnamed: Multiaddr = "/ip4/127.0.0.1/udp/9/quic-v1".parse().unwrap();
    let named = unnamed.clone().with_p2p(peer).unwrap();
    let error = soon(a.dialing(&named, PUNCH).await).await.unwrap().unwrap_err();
    assert!(matches!(cause(&error), Error::NoListener), "{error}");
    a.listen(LOOPBACK).await;
    let error = soon(a.dialing(&unnamed, PUNCH).await).await.unwrap().unwrap_err();
    assert!(matches!(cause(&error), Error::NoPeer), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_peer_that_comes_through_the_hole_is_not_taken() {
    let (mut a, mut b) = (ours(), ours());
    let at_a = a.listen(LOOPBACK).await;
    let at_b = b.listen(LOOPBACK).await.with_p2p(PeerId::random()).unwrap();
    let punching = a.dialing(&at_b, PUNCH).await;
    let _dialled = b.dial(&at_a).await;
    let error = soon(punching).await.unwrap().unwrap_err();
    assert!(matches!(cause(&error), Error::WrongPeer { obtained } if *obtained == b.id));
}
