//! A run with owners: who is let in, and how others hear that somebody was removed.

use std::time::{SystemTime, UNIX_EPOCH};

use dnode_network::streams::StreamKind;
use dnode_network::{DownReason, INVITATION, NetworkConfig, NetworkEvent, SendError};
use dnode_protocol::frame::encode_control;
use dnode_protocol::invitation::{Chain, Grant, IssuerKey, Pass, Revocation, Role, Target};
use dnode_protocol::{Message, PeerId};

use crate::common::{Node, config, run_spec, start};
use crate::raw::{Raw, hello_of, listen};
use libp2p::futures::AsyncWriteExt as _;

/// The owner's key; peers have others.
const OWNER: u8 = 100;

fn key(byte: u8) -> IssuerKey {
    IssuerKey::from_seed(&[byte; 32])
}

/// The chain of the peer `holder`, which has an hour from now.
#[expect(clippy::disallowed_methods, reason = "certificates end by the wall clock")]
fn chain(holder: u8, role: Role) -> Chain {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let grant = Grant {
        holder: key(holder).peer(),
        role,
        further: 0,
        uses: 1,
        not_before_s: now_s - 3600,
        not_after_s: now_s + 3600,
        number: holder.into(),
    };
    Chain::default().extended(&key(OWNER), grant).unwrap()
}

fn member(holder: u8) -> NetworkConfig {
    member_as(holder, Role::Train)
}

fn member_as(holder: u8, role: Role) -> NetworkConfig {
    let pass = Pass::new(vec![key(OWNER).peer()], chain(holder, role));
    NetworkConfig { pass, ..config(holder) }
}

/// Waits until a relay and a member have greeted; what the other may do.
async fn relay_up(node: &mut Node, wanted: PeerId) -> Role {
    node.wait(|event| match event {
        NetworkEvent::RelayUp { peer, role, .. } => (*peer == wanted).then_some(*role),
        NetworkEvent::PeerUp { peer, .. } if *peer == wanted => panic!("a relay is no peer"),
        _ => None,
    })
    .await
}

fn removal(holder: u8) -> Revocation {
    let target = Target::Holder(key(holder).peer());
    Revocation::sign(&key(OWNER), target, u64::MAX, Chain::default())
}

async fn hears_of(node: &mut Node, statement: &Revocation) {
    let new = node.wait(|event| match event {
        NetworkEvent::Revocations { new, known, .. } => Some((new.clone(), known.clone())),
        _ => None,
    });
    let (new, known) = new.await;
    assert_eq!(new, std::slice::from_ref(statement));
    assert_eq!(Revocation::from_bytes(&known).unwrap(), new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_chain_or_a_wrong_one_is_refused_by_name() {
    let mut a = start(member(1)).await;
    let mut changed = chain(9, Role::Train).to_bytes();
    changed[150] ^= 1;
    let cases = [
        (Vec::new(), "there is no invitation"),
        (chain(8, Role::Train).to_bytes(), "that of another peer"),
        (changed, "not signed by the one before it"),
    ];
    for (chain, wanted) in cases {
        let mut raw = Raw::new(9);
        let connection = raw.connect(&a.addresses[0]).await;
        let mut heard = raw.control_on(connection).await;
        let hello = hello_of(run_spec("1"), 1, 0, chain);
        let stream = raw.say(a.id(), StreamKind::Control, &hello).await;
        let refused = a.wait(|event| match event {
            NetworkEvent::Refused { difference, by_us: true, .. } => Some(difference.clone()),
            _ => None,
        });
        let refused = raw.during(refused).await;
        assert_eq!(refused.field, INVITATION);
        assert!(refused.theirs.contains(wanted), "{refused}");
        let told = async {
            assert!(matches!(listen(&mut heard).await, Message::Hello { .. }));
            listen(&mut heard).await
        };
        let told = raw.during(told).await;
        assert!(
            matches!(&told, Message::Refuse { theirs, .. } if theirs.contains(wanted)),
            "{told:?}"
        );
        raw.closed(connection).await;
        drop(stream);
        // The first one does not let a refused peer come again at once.
        a = start(member(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_is_met_and_takes_no_place_and_gets_nothing_but_who_was_removed() {
    // It has room for one peer, and other settings than the relay.
    let mut a = start(NetworkConfig { peers_max: 1, peers_target: 1, ..member(1) }).await;
    let mut relay = member_as(9, Role::Relay);
    relay.bootstrap = vec![a.addresses[0].clone()];
    let mut relay = start(relay).await;
    assert_eq!(relay_up(&mut a, relay.id()).await, Role::Relay);
    assert_eq!(relay_up(&mut relay, a.id()).await, Role::Train);
    assert!(a.handle.peers().is_empty() && relay.handle.peers().is_empty());
    let heartbeat = Message::Probe { number: 1, target: relay.id() };
    assert!(matches!(a.handle.send(relay.id(), &heartbeat), Err(SendError::NotConnected(_))));
    assert!(matches!(relay.handle.send(a.id(), &heartbeat), Err(SendError::NotConnected(_))));

    // A newcomer that knows the relay alone finds the other by it, and has the one place.
    let mut second = member(2);
    second.bootstrap = vec![relay.addresses[0].clone()];
    let mut b = start(second).await;
    assert_eq!(relay_up(&mut b, relay.id()).await, Role::Relay);
    b.wait_up(a.id()).await;
    a.wait_up(b.id()).await;

    // Its removal reaches it, and nobody keeps it.
    let statement = removal(9);
    a.handle.revoke(vec![statement.clone()]).unwrap();
    hears_of(&mut relay, &statement).await;
    let left = relay.wait(|event| match event {
        NetworkEvent::NoMember { why } => Some(why.clone()),
        _ => None,
    });
    assert!(left.await.contains("was removed by"));
    for node in [&mut a, &mut b] {
        let down = node.wait(|event| match event {
            NetworkEvent::RelayDown { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        down.await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_relay_says_is_not_heard() {
    let mut a = start(member(1)).await;
    let mut raw = Raw::new(9);
    let connection = raw.connect(&a.addresses[0]).await;
    let heard = raw.control_on(connection).await;
    let hello = hello_of(run_spec("1"), 1, 0, chain(9, Role::Relay).to_bytes());
    let probe = Message::Probe { number: 7, target: a.id() };
    let words =
        [hello, encode_control(&probe).unwrap(), encode_control(&Message::Goodbye).unwrap()];
    let mut stream = raw.say(a.id(), StreamKind::Control, &words.concat()).await;
    let down = async {
        stream.close().await.unwrap();
        a.wait(|event| match event {
            NetworkEvent::RelayDown { reason, .. } => Some(reason.clone()),
            NetworkEvent::Message { message, .. } => panic!("{message:?}"),
            NetworkEvent::Offence { detail, .. } => panic!("{detail}"),
            _ => None,
        })
        .await
    };
    assert_eq!(raw.during(down).await, DownReason::Left);
    drop(heard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_peer_is_told_and_hung_up_on_by_all_and_newcomers_hear_of_it() {
    let mut a = start(member(1)).await;
    let mut second = member(2);
    second.bootstrap = vec![a.addresses[0].clone()];
    let mut b = start(second).await;
    a.wait_up(b.id()).await;
    b.wait_up(a.id()).await;
    let mut raw = Raw::new(9);
    let connection = raw.connect(&a.addresses[0]).await;
    let mut heard = raw.control_on(connection).await;
    let hello = hello_of(run_spec("1"), 1, 0, chain(9, Role::Train).to_bytes());
    let stream = raw.say(a.id(), StreamKind::Control, &hello).await;
    raw.during(a.wait_up(raw.id)).await;
    assert!(matches!(raw.during(listen(&mut heard)).await, Message::Hello { .. }));

    let statement = removal(9);
    // One that nobody may say comes with it, and changes nothing.
    let target = Target::Holder(b.id());
    let forged = Revocation::sign(&key(9), target, u64::MAX, Chain::default());
    a.handle.revoke(vec![forged, statement.clone()]).unwrap();
    raw.during(hears_of(&mut a, &statement)).await;
    let down = raw.during(a.wait_down(raw.id)).await;
    assert_eq!(down, DownReason::Refused);
    raw.closed(connection).await;
    drop((stream, heard));
    hears_of(&mut b, &statement).await;

    // When it comes again it is shown what was signed.
    let mut again = Raw::new(9);
    let connection = again.connect(&a.addresses[0]).await;
    let mut heard = again.control_on(connection).await;
    let stream = again.say(a.id(), StreamKind::Control, &hello).await;
    let told = async {
        assert!(matches!(listen(&mut heard).await, Message::Hello { .. }));
        [listen(&mut heard).await, listen(&mut heard).await]
    };
    let [signed, refused] = again.during(told).await;
    let bytes = Revocation::to_bytes([&statement]);
    assert_eq!(signed, Message::Revocations { statements: bytes });
    assert!(
        matches!(&refused, Message::Refuse { field, .. } if field == INVITATION),
        "{refused:?}"
    );
    drop(stream);

    let mut third = member(3);
    third.bootstrap = vec![b.addresses[0].clone()];
    let mut c = start(third).await;
    hears_of(&mut c, &statement).await;
    assert!(a.handle.peers().iter().any(|status| status.peer == b.id()), "the others stay");
    let own = removal(3);
    b.handle.revoke(vec![own]).unwrap();
    let end = c.wait(|event| match event {
        NetworkEvent::NoMember { why } => Some(why.clone()),
        _ => None,
    });
    let end = end.await;
    assert!(end.contains("was removed by"), "{end}");
    b.wait_down(c.id()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_removal_is_an_offence_and_what_comes_before_it_counts() {
    let mut a = start(member(1)).await;
    let mut raw = Raw::new(9);
    raw.connect(&a.addresses[0]).await;
    let hello = hello_of(run_spec("1"), 1, 0, chain(9, Role::Train).to_bytes());
    let mut stream = raw.say(a.id(), StreamKind::Control, &hello).await;
    raw.during(a.wait_up(raw.id)).await;
    let (before, behind) = (removal(7), removal(8));
    let mut bytes = Revocation::to_bytes([&before, &removal(6), &behind]);
    let length = bytes.len() / 3;
    // The last byte before the empty chain is one of the signature.
    bytes[2 * length - 2] ^= 1;
    let frame = encode_control(&Message::Revocations { statements: bytes }).unwrap();
    let heard = async {
        stream.write_all(&frame).await.unwrap();
        stream.flush().await.unwrap();
        hears_of(&mut a, &before).await;
        a.wait_down(key(9).peer()).await
    };
    assert_eq!(raw.during(heard).await, DownReason::Offence);
    // It was not looked at.
    a.handle.revoke(vec![behind.clone()]).unwrap();
    let new = a.wait(|event| match event {
        NetworkEvent::Revocations { new, .. } => Some(new.clone()),
        _ => None,
    });
    assert_eq!(new.await, [behind]);
}
