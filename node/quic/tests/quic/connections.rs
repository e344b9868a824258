//! Identity, concurrency and the end of connections and substreams.

use dnode_quic::Error;
use futures::future::{join_all, poll_fn};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p_core::muxing::StreamMuxerExt;
use libp2p_identity::PeerId;

use crate::common::{accept, ask, cause, connect, echo, open, ours, pattern, soon, stock};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_peer_is_refused_inside_the_handshake() {
    for (from, mut to) in [(ours(), ours()), (ours(), stock())] {
        let address = to.listen("/ip4/127.0.0.1/udp/0/quic-v1").await;
        let wrong = address.with_p2p(PeerId::random()).unwrap();
        let (dialled, (_, accepted)) = tokio::join!(from.dial(&wrong), to.accept());
        let error = dialled.unwrap_err();
        assert!(matches!(cause(&error), Error::WrongPeer { obtained } if *obtained == to.id));
        // The other end has seen no connection either.
        accepted.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_answers_is_known_when_nobody_is_expected() {
    let (from, mut to) = (ours(), ours());
    let address = to.listen("/ip4/127.0.0.1/udp/0/quic-v1").await;
    let (dialled, (_, accepted)) = tokio::join!(from.dial(&address), to.accept());
    assert_eq!((dialled.unwrap().0, accepted.unwrap().0), (to.id, from.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_other_kinds_are_left_to_other_transports() {
    let node = ours();
    for text in
        ["/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/udp/1/quic-v1", "/ip4/127.0.0.1/udp/0/quic-v1"]
    {
        let error = node.dial(&text.parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("not supported"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_substreams_at_once_each_keep_their_bytes() {
    let (mut from, mut to) = (ours(), ours());
    let (mut here, mut there) = connect(&mut from, &mut to).await;
    let mut asking = Vec::new();
    for seed in 0..200 {
        asking.push((seed, open(&mut here).await));
    }
    let asked = join_all(asking.into_iter().map(async |(seed, mut stream)| {
        ask(&mut stream, &pattern(20_000, seed)).await;
    }));
    let echoed = async {
        let mut echoes = Vec::new();
        for _ in 0..200 {
            echoes.push(tokio::spawn(echo(accept(&mut there).await)));
        }
        join_all(echoes).await.into_iter().for_each(Result::unwrap);
    };
    tokio::join!(asked, echoed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_closed_for_writing_can_still_be_read() {
    let (mut from, mut to) = (ours(), ours());
    let (mut here, mut there) = connect(&mut from, &mut to).await;
    let mut question = open(&mut here).await;
    question.write_all(b"question").await.unwrap();
    question.close().await.unwrap();
    question.close().await.unwrap();
    let mut answer = accept(&mut there).await;
    let mut got = Vec::new();
    soon(answer.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got, b"question");
    answer.write_all(b"answer").await.unwrap();
    drop(answer);
    got.clear();
    soon(question.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got, b"answer");
    assert!(question.write_all(b"more").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_dropped_stops_its_writer() {
    let (mut from, mut to) = (ours(), ours());
    let (mut here, mut there) = connect(&mut from, &mut to).await;
    let mut stream = open(&mut here).await;
    stream.write_all(b"begin").await.unwrap();
    drop(accept(&mut there).await);
    let bytes = pattern(1 << 16, 3);
    let stopped = soon(async {
        loop {
            if let Err(error) = stream.write_all(&bytes).await {
                return error;
            }
        }
    });
    assert_eq!(stopped.await.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_ends_its_streams_at_both_ends() {
    let (mut from, mut to) = (ours(), ours());
    let (mut here, mut there) = connect(&mut from, &mut to).await;
    let mut ours = open(&mut here).await;
    ours.write_all(b"hold").await.unwrap();
    let mut theirs = accept(&mut there).await;
    let mut bytes = [0; 4];
    soon(theirs.read_exact(&mut bytes)).await.unwrap();
    soon(poll_fn(|context| here.poll_close_unpin(context))).await.unwrap();
    assert!(soon(theirs.read(&mut bytes)).await.is_err());
    assert!(ours.write_all(b"more").await.is_err());
    assert!(soon(poll_fn(|context| there.poll_inbound_unpin(context))).await.is_err());
    assert!(soon(poll_fn(|context| there.poll_outbound_unpin(context))).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_connection_is_closed() {
    let (mut from, mut to) = (ours(), ours());
    let (here, mut there) = connect(&mut from, &mut to).await;
    drop(here);
    assert!(soon(poll_fn(|context| there.poll_inbound_unpin(context))).await.is_err());
}

/// The variable is set for a second run of this test in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_keys_are_never_logged_to_a_file() {
    if std::env::var_os("SSLKEYLOGFILE").is_some() {
        let (mut from, mut to) = (ours(), ours());
        let (mut here, mut there) = connect(&mut from, &mut to).await;
        let mut stream = open(&mut here).await;
        tokio::join!(ask(&mut stream, b"secret"), async { echo(accept(&mut there).await).await });
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["connections::session_keys_are_never_logged_to_a_file", "--exact"])
        .env("SSLKEYLOGFILE", &file)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(!file.exists());
}
