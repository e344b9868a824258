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
    json(address, "/api/state")
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
    named(root, ["first", "second", "third"])
}

/// Three peers that call themselves so.
fn named(root: &tempfile::TempDir, names: [&str; 3]) -> [Peer; 3] {
    let name = |index: usize| ["--name", names[index]];
    let mut first = Peer::start(root, "0", &flags(&[&ENDLESS, &UI, &name(0)]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let second = Peer::start(root, "1", &flags(&[&ENDLESS, &UI, &join, &name(1)]));
    let third = Peer::start(root, "2", &flags(&[&ENDLESS, &UI, &join, &name(2)]));
    [first, second, third]
}

fn json(address: SocketAddr, path: &str) -> Value {
    let text = answer(address, path, "localhost");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(body).unwrap()
}

/// Rows of the history in which every column that a swarm without evaluations has is known, by peer.
fn whole_rows(address: SocketAddr) -> Vec<usize> {
    let told = json(address, "/api/history");
    let columns = told["peer_columns"].as_array().unwrap();
    let is_whole = |row: &Value| {
        columns
            .iter()
            .zip(row.as_array().unwrap())
            .all(|(column, value)| value.is_f64() || column == "held_out" || column == "distance")
    };
    let peers = told["peers"].as_object().unwrap().values();
    peers.map(|rows| rows.as_array().unwrap().iter().filter(|row| is_whole(row)).count()).collect()
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
    for page in &pages {
        wait("every peer has a history of every chart", || {
            let rows = whole_rows(*page);
            (rows.len() == 3 && rows.iter().all(|count| *count >= 3)).then_some(())
        });
        let told = state(*page);
        let mut names: Vec<&str> =
            told["peers"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["first", "second", "third"]);
        for peer in told["peers"].as_array().unwrap() {
            assert!(peer["device"] != "" && peer["memory_bytes"].as_u64() > Some(0), "{peer}");
        }
    }
    wait("the log says who the neighbour is", || {
        peers[1].log().contains("name=\"first\"").then_some(())
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

/// An expression that is true when the page shows what a running swarm of three has.
const DRAWN: &str = "['loss', 'rate', 'bytes', 'waiting', 'distance'].every(
    id => document.querySelectorAll(`#${id} .curve`).length === 3)";
/// How many points the curves of two charts have together, one over steps and one over time.
const POINTS: &str = "Array.from(document.querySelectorAll('#loss .curve, #rate .curve'),
    curve => Number(curve.dataset.points)).reduce((a, b) => a + b, 0)";

#[test]
fn charts_are_there_again_after_a_reload_and_peers_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::start() else { return };
    let hostile = "<b>&\"x\"</b><img src=//x>";
    let peers = named(&root, ["twin", "twin", hostile]);
    let page = page_of(&peers[0]);
    wait("all three are shown", || (known(page, &LIVING) == 3).then_some(()));
    browser.looks((1280, 900), "light");
    let url = format!("http://{page}/");
    browser.open(&url);
    wait("all curves are drawn", || (browser.value(DRAWN) == true).then_some(()));
    let points = wait("the curves have points", || {
        browser.value(POINTS).as_u64().filter(|points| *points >= 40)
    });
    browser.open(&url);
    wait("all curves are drawn again", || {
        // Between two pages there is none.
        let drawn = format!("document.body?.dataset.live !== undefined && {DRAWN}");
        (browser.value(&drawn) == true).then_some(())
    });
    let again = browser.value(POINTS).as_u64().unwrap();
    assert!(again >= points, "{again} points of {points}");
    one_colour_each(&mut browser);
    // Names are texts, however they are written, and two peers of one name have different labels.
    let labels = browser
        .value("Array.from(document.querySelectorAll('#legend button'), chip => chip.textContent)");
    let labels: Vec<&str> =
        labels.as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    assert!(labels.contains(&hostile), "{labels:?}");
    assert!(labels.iter().filter(|label| label.starts_with("twin ")).count() == 2, "{labels:?}");
    assert_eq!(browser.value("document.querySelectorAll('#peers b, #legend b, img').length"), 0);
    numbers_and_ticks(&mut browser);
    assert_eq!(browser.errors, Vec::<String>::new());
    assert!(
        browser.requests.iter().all(|asked| asked.starts_with(&url) || asked.starts_with("data:"))
    );
}

/// Every peer has one entry of the legend, and its colour in legend, table, charts and graph.
fn one_colour_each(browser: &mut Browser) {
    let colours = browser.value(
        "Array.from(document.querySelectorAll('#legend button'), chip => {
            const paint = (it, what) => it ? getComputedStyle(it)[what] : null;
            const row = document.querySelector(`#peers tr[data-peer='${chip.dataset.peer}']`);
            const peer = document.querySelector(`#graph .node[data-peer='${chip.dataset.peer}'] circle`);
            const curve = Array.from(document.querySelectorAll('#loss .curve'))
                .find(one => one.dataset.name === chip.textContent);
            return [paint(chip.querySelector('path'), 'stroke'), paint(row.querySelector('path'), 'stroke'),
                paint(peer, 'fill'), paint(curve, 'stroke')];
        })",
    );
    let colours: Vec<&Vec<Value>> =
        colours.as_array().unwrap().iter().map(|c| c.as_array().unwrap()).collect();
    assert_eq!(colours.len(), 3);
    for one in &colours {
        assert!(one.iter().all(|colour| *colour == one[0] && colour.is_string()), "{colours:?}");
    }
    for (index, one) in colours.iter().enumerate() {
        assert!(colours[..index].iter().all(|other| other[0] != one[0]), "{colours:?}");
    }
}

/// The page writes numbers as the program does, and no two ticks of an axis are labelled alike.
fn numbers_and_ticks(browser: &mut Browser) {
    for value in [
        0.0, 7.4, 0.00048, 0.00424, 0.099_96, -0.52, 999.9, 12_345.0, 99_960.0, 3e-7, 3.2e-6, 5e15,
        1e30,
    ] {
        let span = f64::abs(value).min(1e9);
        assert_eq!(browser.value(&format!("figure({value:e})")), dnode::view::figure(value));
        assert_eq!(browser.value(&format!("count({value:e})")), dnode::view::count(value));
        assert_eq!(
            browser.value(&format!("measure({value:e}, 'B')")),
            dnode::view::measure(value, "B")
        );
        assert_eq!(browser.value(&format!("span({span:e})")), dnode::view::span(span));
    }
    let repeated = browser.value(
        "Array.from(document.querySelectorAll('svg.plot'), svg => ['x', 'y'].map(axis =>
            Array.from(svg.querySelectorAll('text.' + axis), text => text.textContent)))
            .flat().filter(labels => new Set(labels).size !== labels.length)",
    );
    assert_eq!(repeated, serde_json::json!([]));
    let ranges = "[[0, 1], [0.123401, 0.123409], [2.30258, 2.30261], [1000, 1002], [99990, 100010], [0, 3e-9],
        [1e-4, 50], [0.9, 1.1], [12345678, 12345999], [0, 60], [0, 86400], [7190, 7215], [3, 1e9]]";
    let repeated = browser.value(&format!(
        "{ranges}.filter(([low, high]) => {{
            const linear = tickLabels(ticks(low, high, 5));
            const time = timeLabels(timeTicks(low, high, 5));
            const log = tickLabels(logTicks(Math.max(low, 1e-9), high, 5));
            return !linear.length || (high - low > 5 && !time.length) || (high > 2e-6 && !log.length) ||
                [linear, time, log].some(all => all.length > 12 || new Set(all).size !== all.length);
        }})"
    ));
    assert_eq!(repeated, serde_json::json!([]));
    let exponents = browser.value("/\\de[-+]\\d/.test(document.body.textContent)");
    assert_eq!(exponents, false);
}

#[test]
fn the_page_is_used_by_keyboard_and_on_a_phone() {
    let root = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::start() else { return };
    let peers = three(&root);
    let page = page_of(&peers[0]);
    wait("all three are shown", || (known(page, &LIVING) == 3).then_some(()));
    browser.looks((1280, 900), "dark");
    browser.open(&format!("http://{page}/"));
    wait("all curves are drawn", || (browser.value(DRAWN) == true).then_some(()));
    let on = |browser: &mut Browser, selector: &str| {
        browser.value(&format!("Boolean(document.activeElement.closest(\"{selector}\"))")) == true
    };
    let tab_to = |browser: &mut Browser, selector: &str| {
        for _ in 0..20 {
            browser.press("Tab");
            if on(browser, selector) {
                return;
            }
        }
        panic!("the keyboard does not reach {selector}");
    };
    tab_to(&mut browser, "tr[data-peer]");
    let ring = browser.value("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(ring, "solid");
    browser.press("ArrowDown");
    browser.press("Enter");
    let second = browser.value("document.querySelectorAll('#peers tr')[1].className");
    assert_eq!(second, "picked");
    let pressed = browser.value("document.activeElement.getAttribute('aria-pressed')");
    assert_eq!(pressed, "true");
    // The keyboard stays where it is when the page shows something new.
    let live = "document.body.dataset.live";
    let before = browser.value(live);
    wait("it goes on", || (browser.value(live) != before).then_some(()));
    assert!(on(&mut browser, "#peers tr:nth-child(2)"));
    tab_to(&mut browser, "#legend button");
    browser.press("Enter");
    let curves = "document.querySelectorAll('#loss .curve').length";
    assert_eq!(browser.value(curves), 2);
    browser.press("Enter");
    assert_eq!(browser.value(curves), 3);
    tab_to(&mut browser, "#loss");
    browser.press("ArrowLeft");
    let read = browser.value("document.getElementById('loss-at').textContent");
    assert!(
        read.as_str().unwrap().starts_with("step ") && read.as_str().unwrap().contains("second"),
        "{read}"
    );
    tab_to(&mut browser, "#graph");
    browser.press("ArrowRight");
    let unnamed = browser.value(
        "Array.from(document.querySelectorAll('[tabindex], button')).filter(
            it => !(it.getAttribute('aria-label') || it.getAttribute('aria-labelledby') || it.textContent)).length",
    );
    assert_eq!(unnamed, 0);
    let told = browser.value("document.getElementById('loss').getAttribute('aria-label')");
    assert!(told.as_str().unwrap().contains("now"), "{told}");
    on_a_phone(&mut browser);
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Nothing is cut: what is too wide for the screen moves below the column of names.
fn on_a_phone(browser: &mut Browser) {
    browser.looks((390, 844), "light");
    let live = "document.body.dataset.live";
    let before = browser.value(live);
    wait("it goes on", || (browser.value(live) != before).then_some(()));
    let fits = "document.scrollingElement.scrollWidth <= innerWidth";
    assert_eq!(browser.value(fits), true);
    let places = browser.value(
        "(() => {
            const box = document.querySelector('.scroll');
            const name = document.querySelector('#peers th');
            const last = document.querySelector('#peers tr').lastChild;
            const before = name.getBoundingClientRect().left;
            box.scrollLeft = 1e6;
            const [a, b] = [name.getBoundingClientRect(), last.getBoundingClientRect()];
            return [before === a.left, b.right <= innerWidth, b.left >= a.right];
        })()",
    );
    assert_eq!(places, serde_json::json!([true, true, true]));
    // Numbers and peers come before pictures.
    let order = browser.value(
        "['tiles', 'peers', 'loss', 'graph'].map(id => document.getElementById(id).getBoundingClientRect().top)",
    );
    let order: Vec<f64> =
        order.as_array().unwrap().iter().map(|top| top.as_f64().unwrap()).collect();
    assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
}
