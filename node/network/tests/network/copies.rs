//! Two processes with one identity: each hears of the other, and a third peer keeps the later start.

use dnode_network::streams::StreamKind;
use dnode_network::{DownReason, IDENTITY, NetworkConfig, NetworkEvent};
use dnode_protocol::Message;

use crate::common::{Node, config, run_spec, start};
use crate::raw::{Raw, hello, listen};

fn started(incarnation: u64) -> NetworkConfig {
    let mut config = config(9);
    config.incarnation = incarnation;
    config
}

async fn wait_copied(node: &mut Node) -> String {
    node.wait(|event| match event {
        NetworkEvent::Copied { how } => Some(how.clone()),
        _ => None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dials_its_own_key_and_the_one_that_answers_both_know() {
    let mut first = start(started(1)).await;
    for named in [true, false] {
        let mut config = started(2);
        let mut address = first.addresses[0].clone();
        if !named {
            address.pop();
        }
        config.bootstrap = vec![address];
        let mut second = start(config).await;
        assert!(wait_copied(&mut second).await.starts_with("it answers at /ip4/127.0.0.1/"));
        assert!(wait_copied(&mut first).await.starts_with("it has dialled from /ip4/127.0.0.1/"));
        second.handle.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_peer_keeps_the_later_of_two_processes_and_tells_both() {
    let mut third = start(config(1)).await;
    let mut later = started(5);
    later.bootstrap = vec![third.addresses[0].clone()];
    let mut earlier = started(4);
    earlier.bootstrap.clone_from(&later.bootstrap);
    let mut later = start(later).await;
    third.wait_up(later.id()).await;
    let mut earlier = start(earlier).await;
    let refused = |event: &NetworkEvent| match event {
        NetworkEvent::Refused { difference, by_us: false, .. } => Some(difference.clone()),
        _ => None,
    };
    let difference = earlier.wait(refused).await;
    assert_eq!(difference.field, IDENTITY);
    assert_eq!((&*difference.theirs, &*difference.ours), ("of start 5", "of start 4"));
    assert!(wait_copied(&mut later).await.ends_with("meets both"));
    let copied = |event: &NetworkEvent| match event {
        NetworkEvent::CopiedPeer { peer } => Some(*peer),
        NetworkEvent::PeerDown { .. } => panic!("{event:?}"),
        _ => None,
    };
    assert_eq!(third.wait(copied).await, later.id());
    assert_eq!(third.handle.peers()[0].incarnation, 5);
}

/// Says hello to `node`; the stream must live as long as the session.
async fn greet(raw: &mut Raw, node: &Node, incarnation: u64) -> libp2p::Stream {
    raw.say(node.id(), StreamKind::Control, &hello(run_spec("1"), incarnation)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_start_that_comes_while_the_later_is_away_is_refused_and_told_of() {
    let mut a = start(config(1)).await;
    let mut raw = Raw::new(9);
    raw.connect(&a.addresses[0]).await;
    let _first = greet(&mut raw, &a, 1).await;
    raw.during(a.wait_up(raw.id)).await;
    let _second = greet(&mut raw, &a, 2).await;
    assert_eq!(raw.during(a.wait_down(raw.id)).await, DownReason::Restarted);

    let mut old = Raw::new(9);
    let connection = old.connect(&a.addresses[0]).await;
    let mut heard = old.control_on(connection).await;
    let _third = greet(&mut old, &a, 1).await;
    assert!(matches!(old.during(listen(&mut heard)).await, Message::Hello { .. }));
    let told = old.during(listen(&mut heard)).await;
    assert!(matches!(&told, Message::Refuse { field, .. } if field == IDENTITY), "{told:?}");
    old.closed(connection).await;

    let mut new = Raw::new(9);
    let connection = new.connect(&a.addresses[0]).await;
    let mut heard = new.control_on(connection).await;
    // The older one greets while the newer is connected, and has not greeted.
    let mut old = Raw::new(9);
    let other = old.connect(&a.addresses[0]).await;
    let _fourth = greet(&mut old, &a, 1).await;
    new.during(old.closed(other)).await;
    let _fifth = greet(&mut new, &a, 2).await;
    new.during(a.wait_up(new.id)).await;
    assert!(matches!(new.during(listen(&mut heard)).await, Message::Hello { .. }));
    let told = new.during(listen(&mut heard)).await;
    assert!(matches!(&told, Message::Refuse { field, .. } if field == "identity.copy"), "{told:?}");
}
