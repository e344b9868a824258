//! What a bound refuses names the bound and the peer, under every policy.

use std::time::Duration;

use dnode_gossip::testing::{Effect, Pair, peer};
use dnode_gossip::{Bounds, Config, Event, Failure, Input, Policy};
use dnode_protocol::{Clock, ExchangeId, Message};

const SECOND: Duration = Duration::from_secs(1);

fn config(policy: Policy, progress_gap: u64, snapshot_age: u64) -> Config {
    let bounds = Bounds { progress_gap, snapshot_age, information_age: None };
    Config { policy, bounds, ..Config::default() }
}

/// Peer 0 proposes to peer 1, and `ahead` is `lag` commits ahead, which the other has not heard of.
fn proposed(config: &Config, lag: u64, ahead: usize) -> Pair {
    let mut pair = Pair::new(config, 1);
    // Peer 1 has heard nothing, so no bound holds it.
    pair.deliver = |effect| {
        let exchanges = |message: &Message| message.exchange().is_some();
        matches!(effect, Effect::Message { message, .. } if exchanges(message))
    };
    let heard = heartbeat(if ahead == 0 { lag } else { 0 });
    pair.input(0, Input::Received { from: peer(1), message: heard });
    for _ in 0..lag {
        assert!(pair.hosts[ahead].commit(0.0, pair.now));
    }
    pair.input(0, Input::RoundDue);
    pair.run_until(SECOND, |_| false);
    pair
}

fn heartbeat(clock: u64) -> Message {
    let phase = dnode_protocol::Phase::Training;
    let (clock, samples, step_micros, batch) = (Clock(clock), 0, 0, 0);
    Message::Heartbeat(dnode_protocol::Heartbeat {
        clock,
        samples,
        position: 0,
        step_micros,
        batch,
        phase,
    })
}

fn refusals(pair: &Pair) -> Vec<(usize, Event)> {
    let is = |event: &Event| matches!(event, Event::Refused { .. } | Event::Failed { .. });
    pair.events.iter().filter(|(_, event)| is(event)).cloned().collect()
}

/// Up to `most` commits apart the two exchange. Beyond it the end that is behind refuses, and who has
/// proposed names `bound` and the other peer; who is ahead cannot know whether the other doubts it.
fn check(config: &Config, most: u64, bound: &'static str) {
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    let failure = Failure::Stale { bound };
    assert_eq!(failure.bound(), Some(bound));
    let failed = (0, Event::Failed { exchange, peer: peer(1), failure });
    let refused = (1, Event::Refused { exchange, peer: peer(0), bound });
    for (ahead, said) in [(0, vec![refused, failed.clone()]), (1, vec![failed])] {
        assert_eq!(refusals(&proposed(config, most, ahead)), []);
        assert_eq!(refusals(&proposed(config, most + 1, ahead)), said);
    }
}

#[test]
fn the_down_weighting_policy_refuses_by_the_progress_gap() {
    check(&config(Policy::DownWeight, 3, 1), 3, "progress gap");
}

#[test]
fn the_blocking_policy_refuses_by_the_progress_gap() {
    check(&config(Policy::Block, 3, 1), 3, "progress gap");
}

#[test]
fn the_dropping_policy_refuses_by_the_narrower_of_snapshot_age_and_progress_gap() {
    check(&config(Policy::Drop, 4, 2), 2, "snapshot age");
    check(&config(Policy::Drop, 4, 0), 1, "snapshot age");
    check(&config(Policy::Drop, 2, 5), 2, "progress gap");
}

#[test]
fn a_snapshot_that_is_too_old_names_its_bound_and_what_no_bound_refuses_names_none() {
    assert_eq!(Failure::TooOld.bound(), Some("snapshot age"));
    assert_eq!(Failure::Busy.bound(), None);
}
