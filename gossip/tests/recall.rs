//! A joiner that died in the middle of a pull goes on where it was: what it had taken over and kept is
//! not pulled again, if it is whole and recent enough.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for a few of many kinds")]

use std::collections::BTreeSet;

use dnode_gossip::testing::{Bytes, Effect, Host, Toy, ToyRule, numbers, peer, snapshot};
use dnode_gossip::{Config, Event, Input, SnapshotContents, Start};
use dnode_protocol::frame::Leg;
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Information, Message, Phase, Time, Versions,
};

const FRAGMENTS: u32 = 16;
/// Where the donor stands, and stays.
const CLOCK: Clock = Clock(40);

fn kept(bytes: &Bytes, clock: u64) -> SnapshotContents {
    SnapshotContents {
        clock: Clock(clock),
        hash: ContentHash::of(bytes),
        information: Information::default(),
        versions: Versions::default(),
    }
}

/// What a joiner pulls that has kept snapshots of its first fragments at these clocks.
fn pulled(clocks: &[u64], damage: impl FnOnce(&mut Host)) -> BTreeSet<u32> {
    let (clock, seed) = (Clock(0), [0; 32]);
    let start = Start { me: peer(0), incarnation: 2, fragments: FRAGMENTS, clock, seed };
    let replica = Toy::new(ToyRule::Exchange, vec![vec![0.0]; FRAGMENTS as usize]);
    let mut host = Host::new(start, Config::default(), replica, Time::ZERO);
    let bytes = numbers(&[7.0]);
    let fragments = || (0..).map(FragmentId);
    host.on_disk = fragments().zip(clocks).map(|(it, _)| (it, bytes.clone())).collect();
    let of = clocks.iter().map(|clock| kept(&bytes, *clock));
    host.core = host.core.keeping(fragments().zip(of).collect());
    damage(&mut host);
    let (donor, now) = (peer(1), Time::ZERO);
    host.handle(Input::PeerUp { peer: donor, incarnation: 1 }, now);
    let phase = Phase::Training;
    let heartbeat = dnode_gossip::testing::heartbeat(CLOCK, phase);
    host.handle(Input::Received { from: donor, message: Message::Heartbeat(heartbeat) }, now);
    let (mut pulled, mut done) = (BTreeSet::new(), false);
    while !done {
        while host.has_work() {
            host.work(now);
        }
        for effect in host.take_effects() {
            match effect {
                Effect::Message { message: Message::Pull { exchange, fragment }, .. } => {
                    assert!(pulled.insert(fragment.0), "{fragment} is pulled twice");
                    give(&mut host, exchange, &bytes, now);
                }
                Effect::Event(Event::CatchUpDone { clock }) => {
                    assert_eq!(clock, CLOCK);
                    done = true;
                }
                Effect::Event(Event::Offended { .. }) => panic!("nobody is to blame"),
                _ => {}
            }
        }
    }
    assert!(host.training);
    pulled
}

fn give(host: &mut Host, exchange: ExchangeId, bytes: &Bytes, now: Time) {
    let (from, message) = (peer(1), snapshot(exchange, CLOCK, bytes));
    host.handle(Input::Received { from, message }, now);
    host.tensor(from, (exchange, Leg::Snapshot, CLOCK, bytes.clone()), now);
}

fn all_but(kept: std::ops::Range<u32>) -> BTreeSet<u32> {
    (0..FRAGMENTS).filter(|fragment| !kept.contains(fragment)).collect()
}

#[test]
fn what_was_kept_is_not_pulled_again() {
    let clocks = [36, 37, 37, 38, 38, 39, 40, 40];
    assert_eq!(pulled(&clocks, |_| {}), all_but(0..8));
    assert_eq!(pulled(&[], |_| {}), all_but(0..0));
    assert_eq!(pulled(&[40; FRAGMENTS as usize], |_| {}), all_but(0..16));
}

#[test]
fn what_is_too_old_is_pulled_again() {
    let gap = Config::default().bounds.progress_gap;
    let at = |age: u64| CLOCK.0 - age;
    // The earlier pull had lasted six commits, and the peer was gone for the gap.
    let clocks = [at(gap + 6), at(gap + 3), at(gap)];
    assert_eq!(pulled(&clocks, |_| {}), all_but(0..3));
    // Two commits longer: what was pulled first is too old.
    let clocks = [at(gap + 8), at(gap + 5), at(gap + 2)];
    assert_eq!(pulled(&clocks, |_| {}), all_but(1..3));
    let clocks = [at(gap + 16), at(gap + 13), at(gap + 10)];
    assert_eq!(pulled(&clocks, |_| {}), all_but(0..0));
}

#[test]
fn what_is_damaged_is_pulled_again() {
    let pulled = pulled(&[40, 40, 40], |host| {
        host.on_disk.remove(&FragmentId(0));
        host.on_disk.insert(FragmentId(2), numbers(&[8.0]));
    });
    assert_eq!(pulled, all_but(1..2));
}
