//! The page in a real browser, beside a real swarm; and clients that mean no good.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::browser::Browser;
use crate::process::{Peer, wait};
use crate::{ENDLESS, flags};

const UI: [&str; 2] = ["--ui", "127.0.0.1:0"];

/// Where the page of a peer is.
fn page_of(peer: &Peer) -> SocketAddr {
    let file = peer.data().join("ui");
    wait("the page is served", || std::fs::read_to_string(&file).ok()?.trim().parse().ok())
}

/// The answer to a request for `path` that names `host`.
fn answer(address: SocketAddr, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn state(address: SocketAddr) -> Value {
    let text = answer(address, "/api/state", "localhost");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(body).unwrap()
}

/// How many peers a peer knows to be in one of `states`, and what they say of themselves.
fn known(address: SocketAddr, states: &[&str]) -> usize {
    let state = state(address);
    let peers = state["peers"].as_array().unwrap();
    let is = |peer: &&Value| states.contains(&peer["state"].as_str().unwrap());
    peers.iter().filter(is).filter(|peer| peer["loss"].is_f64()).count()
}

const LIVING: [&str; 2] = ["training", "exchanging"];

fn three(root: &tempfile::TempDir) -> [Peer; 3] {
    let mut first = Peer::start(root, "0", &flags(&[&ENDLESS, &UI]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let others = ["1", "2"].map(|name| Peer::start(root, name, &flags(&[&ENDLESS, &UI, &join])));
    let [second, third] = others;
    [first, second, third]
}

#[test]
fn every_peer_shows_all_peers_and_one_that_dies_as_lost() {
    let root = tempfile::tempdir().unwrap();
    let mut peers = three(&root);
    let pages: Vec<SocketAddr> = peers.iter().map(page_of).collect();
    for page in &pages {
        wait("all three are shown", || (known(*page, &LIVING) == 3).then_some(()));
    }
    wait("the distance of the replicas is estimated", || {
        state(pages[0])["consensus"]["distance"].as_f64().filter(|distance| *distance > 0.0)
    });
    peers[2].kill();
    for page in &pages[..2] {
        wait("two are left", || {
            (known(*page, &LIVING) == 2 && known(*page, &["suspected", "gone"]) == 1).then_some(())
        });
    }
}

#[test]
fn slow_rude_and_strange_clients_hold_nobody() {
    let root = tempfile::tempdir().unwrap();
    let metrics = ["--metrics", "127.0.0.1:0"];
    let mut peer = Peer::start(&root, "0", &flags(&[&ENDLESS, &UI, &metrics]));
    let page = page_of(&peer);
    // All places are taken by who says nothing; the next ones are turned away, or served when the
    // silent ones have been cut off.
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(page).unwrap()).collect();
    peer.wait_step(200);
    wait("those who are silent lose their places", || {
        let mut stream = TcpStream::connect(page).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.contains("dnode_build_info").then_some(())
    });
    drop(silent);
    assert!(answer(page, "/api/state", "evil.example").starts_with("HTTP/1.1 421"));
    for rubbish in [&b"\x16\x03\x01\x02\x00"[..], b"GET / HTTP/1.1\r\n\r\n\r\n", &[b'a'; 100_000]] {
        let mut stream = TcpStream::connect(page).unwrap();
        // It may hang up before it has read all.
        let _ = stream.write_all(rubbish);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        assert!(!String::from_utf8_lossy(&bytes).contains("200 OK"));
    }
    assert_eq!(known(page, &LIVING), 1);
    peer.signal("INT");
    assert_eq!(peer.finish()["reason"], "interrupted");
}

#[test]
fn the_page_shows_a_swarm_in_a_browser_and_outlives_a_peer() {
    let root = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::start() else { return };
    let mut peers = three(&root);
    let page = page_of(&peers[0]);
    wait("all three are shown", || (known(page, &LIVING) == 3).then_some(()));
    browser.looks((1280, 900), "light");
    browser.open(&format!("http://{page}/"));
    let drawn = "document.querySelectorAll('#graph .node').length";
    wait("three peers are drawn", || (browser.value(drawn) == 3).then_some(()));
    let curves = "document.querySelectorAll('#loss .curve').length";
    wait("three curves are drawn", || (browser.value(curves) == 3).then_some(()));
    let lines = "document.querySelectorAll('#graph .link').length";
    wait("three links are drawn", || (browser.value(lines) == 3).then_some(()));
    let live = "document.body.dataset.live";
    let before = browser.value(live);
    wait("it goes on", || (browser.value(live) != before).then_some(()));
    peers[1].kill();
    let lost = "document.querySelectorAll('#graph [data-state=suspected],#graph [data-state=gone]').length";
    wait("the dead one is marked", || (browser.value(lost) == 1).then_some(()));
    browser.value("document.querySelector('#graph .node').dispatchEvent(new MouseEvent('click'))");
    let picked = browser.value("document.getElementById('picked').textContent");
    assert!(picked.as_str().unwrap().contains("commits"), "{picked}");
    // On a phone, in the dark.
    browser.looks((360, 740), "dark");
    let wide = browser.value("document.documentElement.scrollWidth");
    assert!(wide.as_u64().unwrap() <= 360, "{wide}");
    let back = browser.value("getComputedStyle(document.body).backgroundColor");
    assert_eq!(back, "rgb(18, 22, 28)");
    let before = browser.value(live);
    wait("it goes on", || (browser.value(live) != before).then_some(()));
    assert_eq!(browser.errors, Vec::<String>::new());
    let own = format!("http://{page}/");
    let foreign = browser.requests.iter().filter(|url| !url.starts_with(&own));
    let foreign: Vec<&String> = foreign.filter(|url| !url.starts_with("data:")).collect();
    assert_eq!(foreign, Vec::<&String>::new());
}
