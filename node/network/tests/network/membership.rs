//! Closed runs: members meet, and strangers learn nothing.

use std::task::Poll;

use dnode_network::{Multiaddr, NetworkConfig, NetworkEvent, NotLetIn, RunSecret};
use dnode_protocol::PeerId;
use dnode_protocol::membership::{ANSWER_BYTES, Ends, Opening};
use futures::future::poll_fn;
use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt as _, SubstreamBox};
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::core::{Endpoint, Transport as _};
use libp2p::identity::Keypair;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{SwarmBuilder, identify, noise, tcp, yamux};
use tokio::time::timeout;

use crate::common::{DEADLINE, Node, address, config, start, stock_quic};

const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
const TCP: &str = "/ip4/127.0.0.1/tcp/0";

fn secret(byte: u8) -> RunSecret {
    RunSecret::from_bytes([byte; 32])
}

fn closed(key: u8, listen: &str, by: Option<u8>) -> NetworkConfig {
    let mut config = config(key);
    config.listen = vec![address(listen)];
    config.secret = by.map(secret);
    config
}

/// A peer that waits, and one that dials it.
async fn two(listen: &str, first: Option<u8>, second: Option<u8>) -> (Node, Node) {
    let a = start(closed(1, listen, first)).await;
    let mut other = closed(2, listen, second);
    other.bootstrap = vec![a.addresses[0].clone()];
    (a, start(other).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_closed_run_meet_over_each_transport() {
    for listen in [QUIC, TCP] {
        let (mut a, mut b) = two(listen, Some(7), Some(7)).await;
        a.wait_up(b.id()).await;
        b.wait_up(a.id()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_member_is_told_why_and_meets_nobody() {
    for listen in [QUIC, TCP] {
        for (first, second, want) in [
            (Some(7), None, NotLetIn::Closed),
            (None, Some(7), NotLetIn::Open),
            (Some(7), Some(8), NotLetIn::OtherSecret),
        ] {
            let (mut a, mut b) = two(listen, first, second).await;
            let there = a.addresses[0].clone();
            let why = b.wait(|event| match event {
                NetworkEvent::NotLetIn { address, why } => {
                    assert_eq!(*address, there);
                    Some(*why)
                }
                NetworkEvent::PeerUp { .. }
                | NetworkEvent::Found { .. }
                | NetworkEvent::Message { .. }
                | NetworkEvent::Tensor { .. } => panic!("{event:?}"),
                _ => None,
            });
            assert_eq!(why.await, want, "{listen}");
            while let Ok(event) = a.events.try_recv() {
                let quiet =
                    !matches!(event, NetworkEvent::PeerUp { .. } | NetworkEvent::Found { .. });
                assert!(quiet, "{event:?}");
            }
        }
    }
}

#[derive(NetworkBehaviour)]
struct Spy {
    identify: identify::Behaviour,
    ping: libp2p::ping::Behaviour,
}

/// What a libp2p node that knows one address hears there.
async fn spied(there: &Multiaddr) -> Result<identify::Info, String> {
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_other_transport(stock_quic)
        .unwrap()
        .with_behaviour(|key| Spy {
            identify: identify::Behaviour::new(identify::Config::new(
                "/spy/1".into(),
                key.public(),
            )),
            ping: libp2p::ping::Behaviour::default(),
        })
        .unwrap()
        .build();
    swarm.dial(there.clone()).unwrap();
    let heard = timeout(DEADLINE, async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(SpyEvent::Identify(identify::Event::Received {
                    info,
                    ..
                })) => return Ok(info),
                SwarmEvent::OutgoingConnectionError { error, .. } => return Err(error.to_string()),
                SwarmEvent::ConnectionClosed { cause, .. } => return Err(format!("{cause:?}")),
                _ => {}
            }
        }
    });
    heard.await.expect("an end in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_libp2p_node_that_knows_an_address_hears_nothing_there() {
    for listen in [QUIC, TCP] {
        let open = start(closed(1, listen, None)).await;
        assert!(spied(&open.addresses[0]).await.is_ok(), "an open run hides nothing");
        let closed = start(closed(2, listen, Some(7))).await;
        let heard = spied(&closed.addresses[0]).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

/// A stranger's connection to `there`, past the encryption, and the names of both ends; `None` where it is
/// refused.
async fn dialled(there: &Multiaddr) -> Option<(StreamMuxerBox, Ends)> {
    let key = Keypair::generate_ed25519();
    let (mut transport, _bulk, _arrivals) = dnode_quic::Transport::closed(&key).unwrap();
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let (peer, muxer) = transport.dial(there.clone(), options).unwrap().await.ok()?;
    let name = |id: libp2p::PeerId| PeerId::from_libp2p_bytes(&id.to_bytes()).unwrap();
    let ends = Ends { dialer: name(key.public().to_peer_id()), listener: name(peer) };
    Some((StreamMuxerBox::new(muxer), ends))
}

async fn connected(there: &Multiaddr) -> (StreamMuxerBox, Ends) {
    dialled(there).await.unwrap()
}

async fn open(muxer: &mut StreamMuxerBox) -> Option<SubstreamBox> {
    poll_fn(|context| muxer.poll_outbound_unpin(context)).await.ok()
}

/// All that comes back on a stream on which `words` are said.
async fn answered(stream: &mut SubstreamBox, words: &[u8]) -> Vec<u8> {
    let mut heard = Vec::new();
    let talk = async {
        stream.write_all(words).await?;
        stream.close().await?;
        stream.read_to_end(&mut heard).await
    };
    // However it ended, what was heard counts.
    let _ = timeout(DEADLINE, talk).await.expect("an end in time");
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_who_knows_the_protocol_gets_one_keyed_hash() {
    let node = start(closed(1, QUIC, Some(7))).await;
    let there = &node.addresses[0];
    // What every libp2p node begins with, asking for identify, is no first word of a member.
    let (mut muxer, _) = connected(there).await;
    let mut stream = open(&mut muxer).await.unwrap();
    let words = b"\x13/multistream/1.0.0\n\x0f/ipfs/id/1.0.0\n\x13/multistream/1.0.0\n";
    assert_eq!(answered(&mut stream, words).await, b"");
    // A right first word, and a guess.
    for secrets in [8, 9] {
        let (mut muxer, ends) = connected(there).await;
        let mut stream = open(&mut muxer).await.unwrap();
        let opening = Opening::new(&secret(secrets), ends, [3; 32]);
        stream.write_all(&opening.hello()).await.unwrap();
        let mut answer = [0; ANSWER_BYTES];
        timeout(DEADLINE, stream.read_exact(&mut answer)).await.expect("in time").unwrap();
        assert!(opening.prove(&answer).is_err());
        assert_eq!(answered(&mut stream, &[secrets; 32]).await, b"");
        // No other stream is answered, neither before nor after.
        if let Some(mut other) = open(&mut muxer).await {
            assert_eq!(answered(&mut other, b"\x13/multistream/1.0.0\n").await, b"");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_waits_once_before_it_is_spoken_with() {
    let node = start(closed(1, QUIC, Some(7))).await;
    let (mut muxer, ends) = connected(&node.addresses[0]).await;
    let mut stream = open(&mut muxer).await.unwrap();
    let opening = Opening::new(&secret(7), ends, [3; 32]);
    stream.write_all(&opening.hello()).await.unwrap();
    let mut answer = [0; ANSWER_BYTES];
    // The one wait, which is the one round trip that the proof takes.
    stream.read_exact(&mut answer).await.unwrap();
    stream.write_all(&opening.prove(&answer).unwrap()).await.unwrap();
    stream.close().await.unwrap();
    let mut other = open(&mut muxer).await.unwrap();
    other.write_all(b"\x13/multistream/1.0.0\n").await.unwrap();
    let mut spoken = [0; 20];
    timeout(DEADLINE, other.read_exact(&mut spoken)).await.expect("an answer in time").unwrap();
    assert_eq!(&spoken, b"\x13/multistream/1.0.0\n");
}

/// More than there are places for connections that are being established.
const SILENT: usize = 80;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_say_nothing_are_hung_up_on_and_keep_nobody_out() {
    let mut a = start(closed(1, QUIC, Some(7))).await;
    let silent = (0..SILENT).map(|_| dialled(&a.addresses[0]));
    let mut silent: Vec<_> =
        futures::future::join_all(silent).await.into_iter().flatten().collect();
    // From another network than theirs.
    let mut member = closed(2, "/ip4/127.0.1.2/udp/0/quic-v1", Some(7));
    member.bootstrap = vec![a.addresses[0].clone()];
    let mut b = start(member).await;
    a.wait_up(b.id()).await;
    b.wait_up(a.id()).await;
    let mut held = 0;
    for (muxer, _) in &mut silent {
        let open = poll_fn(|context| Poll::Ready(muxer.poll_inbound_unpin(context).is_pending()));
        held += usize::from(open.await);
    }
    assert!(held > 0, "the member came in only when they had been hung up on");
    for (muxer, _) in &mut silent {
        // The connection ends by itself, so nothing can be accepted on it.
        let end = timeout(DEADLINE, poll_fn(|context| muxer.poll_inbound_unpin(context))).await;
        assert!(end.expect("an end in time").is_err());
    }
}
