//! A crowd of names that do nothing but to take places, among real processes: training goes on, and who
//! comes to train gets a place.

use std::time::{Duration, Instant};

use crate::attacker::Attacker;
use crate::process::{Peer, wait};

/// Names of the crowd, more than a peer has places for. To measure others, set this variable.
const NAMES: u8 = 40;
const NAMES_VARIABLE: &str = "DNODE_TEST_NAMES";
/// Places of a peer, by default.
const PLACES: u64 = 32;
/// For how long the rate of steps is measured.
const MEASURED: Duration = Duration::from_secs(4);

fn step(peer: &Peer) -> u64 {
    peer.metrics().iter().rev().find_map(|line| line["step"].as_u64()).unwrap_or(0)
}

/// Steps per second in the next seconds.
fn rate(peer: &Peer) -> f64 {
    let (began, before) = (Instant::now(), step(peer));
    wait("the rate is measured", || (began.elapsed() >= MEASURED).then_some(()));
    let steps = u32::try_from(step(peer) - before).unwrap();
    f64::from(steps) / began.elapsed().as_secs_f64()
}

#[test]
fn names_that_are_always_busy_keep_no_newcomer_out_and_put_out_nobody_who_works() {
    let names = std::env::var(NAMES_VARIABLE).ok().and_then(|text| text.parse().ok());
    let root = tempfile::tempdir().unwrap();
    let common = [
        ["--set", "run.steps=100000000"],
        ["--set", "run.batch=16"],
        ["--set", "optimizer.learning_rate=0.0003"],
        ["--set", "gossip.codecs=[\"f32\"]"],
    ]
    .concat();
    let mut victim =
        Peer::start_debugging(&root, "victim", &[&common[..], &["--require-peers", "1"]].concat());
    let address = victim.address();
    let join = [&common[..], &["--require-peers", "1", "--bootstrap", &address]].concat();
    let mut honest = Peer::start_debugging(&root, "honest", &join);
    let friend = honest.id();
    victim.wait_step(100);
    let undisturbed = rate(&victim);
    let crowd = Attacker::crowd(names.unwrap_or(NAMES), &victim.data(), &address);
    victim.wait_line("the crowd has all places", |line| {
        line["peers"].as_u64().is_some_and(|peers| peers >= PLACES - 2)
    });
    let began = Instant::now();
    let mut newcomer = Peer::start_debugging(&root, "newcomer", &join);
    let id = newcomer.id();
    let with = format!("peer={} ", id.short());
    wait("the newcomer mixes", || {
        let log = victim.log();
        log.lines().any(|line| line.contains("mixed") && line.contains(&with)).then_some(())
    });
    let joined = began.elapsed();
    let disturbed = rate(&victim);
    assert!(disturbed > 0.0, "it trains on");
    let count = crowd.len();
    eprintln!(
        "{count} names: {undisturbed:.0} steps/s before, {disturbed:.0} after, joined in {joined:.1?}"
    );
    let lost = victim.metrics().into_iter().find(|line| {
        let about =
            || line["detail"].as_str().is_some_and(|it| it.starts_with(&friend.to_string()));
        line["name"] == "peer-down" && about()
    });
    assert_eq!(lost, None, "who works keeps its place");
    for peer in [&mut victim, &mut honest, &mut newcomer] {
        peer.signal("INT");
        peer.finish();
    }
}
