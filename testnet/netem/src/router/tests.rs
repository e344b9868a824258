//! Small networks, packet by packet, in virtual time.

use proptest::prelude::*;

use super::super::packet::testing::{datagram, sums_are_right};
use super::*;

const MS: Duration = Duration::from_millis(1);

fn end(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}

/// A datagram from machine to machine, between the ports 1000 and 2000.
fn packet(from: usize, to: usize, body: &[u8]) -> Vec<u8> {
    datagram(end(address(from), 1000), end(address(to), 2000), body)
}

fn router(nodes: usize, lines: &[&str]) -> Router {
    let mut router = Router::new(nodes, 1);
    for line in lines {
        router.apply(&line.parse().unwrap(), Duration::ZERO).unwrap();
    }
    router
}

/// Everything that is due up to `now`: who gets which packet.
fn due(router: &mut Router, now: Duration) -> Vec<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(due) = router.next(now) {
        if let Due::Packet { to, packet } = due {
            assert!(sums_are_right(&packet));
            found.push((to, packet));
        }
    }
    found
}

#[test]
fn a_packet_takes_the_ways_up_across_and_down() {
    let lines = ["up 0 delay_ms=1", "link 0 1 delay_ms=20", "down 1 delay_ms=3"];
    let mut router = router(3, &lines);
    router.accept(0, packet(0, 1, b"x"), MS);
    assert_eq!(router.deadline(), Some(22 * MS));
    assert_eq!(due(&mut router, 24 * MS), []);
    assert_eq!(router.deadline(), Some(25 * MS));
    assert_eq!(due(&mut router, 25 * MS), [(1, packet(0, 1, b"x"))]);
    assert_eq!(router.deadline(), None);
    let counts = router.stats().line(0, 1).link;
    assert_eq!((counts.packets, counts.bytes), (1, 29));
}

#[test]
fn the_way_up_is_shared_and_the_lines_are_not() {
    // 1,000 bytes at 8 Mbit/s are 1 ms.
    let body = [0; 972];
    let mut shared = router(3, &["up 0 rate_mbit=8"]);
    let mut own = router(3, &["link 0 * rate_mbit=8"]);
    for router in [&mut shared, &mut own] {
        router.accept(0, packet(0, 1, &body), Duration::ZERO);
        router.accept(0, packet(0, 2, &body), Duration::ZERO);
    }
    assert_eq!(due(&mut shared, MS).len(), 1);
    assert_eq!(due(&mut shared, 2 * MS).len(), 1);
    assert_eq!(due(&mut own, MS).len(), 2);
}

#[test]
fn the_way_down_is_shared_by_all_senders() {
    let mut router = router(3, &["down 2 rate_mbit=8", "link 0 2 delay_ms=5"]);
    let body = [0; 972];
    router.accept(0, packet(0, 2, &body), Duration::ZERO);
    router.accept(1, packet(1, 2, &body), 5 * MS);
    assert_eq!(due(&mut router, 6 * MS).len(), 1);
    assert_eq!(due(&mut router, 7 * MS).len(), 1);
}

#[test]
fn a_partition_cuts_its_sides_only_and_heals() {
    let mut router = router(4, &["part 0|1,2"]);
    let arrives = |router: &mut Router, from, to| {
        router.accept(from, packet(from, to, b""), MS);
        due(router, MS).len() == 1
    };
    for (from, to, want) in [(0, 1, false), (2, 0, false), (1, 2, true), (3, 0, true), (2, 3, true)]
    {
        assert_eq!(arrives(&mut router, from, to), want, "{from} to {to}");
    }
    assert_eq!(router.stats().line(0, 1).cut, 1);
    router.apply(&"part 0|*".parse().unwrap(), MS).unwrap();
    assert!(!arrives(&mut router, 3, 0) && arrives(&mut router, 3, 2));
    router.apply(&Command::Heal, MS).unwrap();
    assert!(arrives(&mut router, 0, 1));
}

#[test]
fn scheduled_commands_come_at_their_moment_before_packets() {
    let mut router = router(2, &["link 0 1 delay_ms=10"]);
    router.schedule(5 * MS, "part 0|1".parse().unwrap()).unwrap();
    router.schedule(5 * MS, Command::Stats).unwrap();
    router.schedule(3 * MS, "link 0 1 delay_ms=0".parse().unwrap()).unwrap();
    router.accept(0, packet(0, 1, b"before"), Duration::ZERO);
    assert_eq!(router.deadline(), Some(3 * MS));
    assert_eq!(router.next(5 * MS), Some(Due::Report));
    assert_eq!(router.next(5 * MS), None);
    router.accept(0, packet(0, 1, b"after"), 5 * MS);
    assert_eq!(due(&mut router, 20 * MS), [(1, packet(0, 1, b"before"))], "what is under way");
    let error = router.schedule(MS, "nat 2 cone".parse().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "there is no machine 2; there are 0 to 1");
}

#[test]
fn multicast_reaches_all_in_the_open_or_nobody() {
    let mut router = router(4, &["nat 3 cone"]);
    let group =
        datagram(end(address(0), 5353), end(Ipv4Addr::new(224, 0, 0, 251), 5353), b"who is there");
    router.accept(0, group.clone(), MS);
    assert_eq!(due(&mut router, MS), [(1, group.clone()), (2, group.clone())]);
    router.apply(&Command::Multicast(false), MS).unwrap();
    router.accept(0, group, MS);
    assert_eq!(due(&mut router, MS), []);
}

#[test]
fn what_is_no_packet_for_a_machine_is_counted_and_dropped() {
    let mut router = router(2, &[]);
    router.accept(0, vec![0x60; 40], MS);
    router.accept(0, packet(1, 0, b"forged"), MS);
    router.accept(0, packet(0, 5, b"nobody"), MS);
    router.accept(0, datagram(end(address(0), 1), end(Ipv4Addr::LOCALHOST, 1), b""), MS);
    router.accept(9, packet(0, 1, b""), MS);
    assert_eq!(due(&mut router, MS), []);
    let counts = router.stats().nodes[0];
    assert_eq!((counts.not_ipv4, counts.no_route), (1, 3));
}

/// Two machines behind NATs of kinds `a` and `b` learn each other's address from machine 2 and
/// write to each other: whether either hears the other.
fn punch(a: &str, b: &str) -> (bool, bool) {
    let lines = [format!("nat 0 {a}"), format!("nat 1 {b}"), "link * * delay_ms=10".to_owned()];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut router = router(3, &lines);
    let inner = |index| end(address(index), 4001);
    let meeting = end(address(2), 9000);
    let mut seen = Vec::new();
    for index in 0..2 {
        router.accept(index, datagram(inner(index), meeting, b"hello"), MS);
        let [(2, packet)] = &due(&mut router, 20 * MS)[..] else { panic!("the meeting is open") };
        let header = Header::read(packet).unwrap();
        assert_eq!(header.source, outer_address(index));
        seen.push(end(header.source, header.ports.unwrap().1));
    }
    let mut heard = [false; 2];
    for now in [30 * MS, 35 * MS, 60 * MS, 65 * MS] {
        for index in 0..2 {
            router.accept(index, datagram(inner(index), seen[1 - index], b"punch"), now);
        }
        for (to, packet) in due(&mut router, now + 20 * MS) {
            let header = Header::read(&packet).unwrap();
            assert_eq!((header.target, header.ports.unwrap().2), (address(to), 4001));
            heard[to] = true;
        }
    }
    (heard[0], heard[1])
}

#[test]
fn holes_are_punched_through_cones_but_not_with_a_symmetric_nat() {
    assert_eq!(punch("cone", "cone"), (true, true));
    assert_eq!(punch("cone", "symmetric"), (false, false));
    assert_eq!(punch("symmetric", "symmetric"), (false, false));
}

#[test]
fn a_machine_behind_a_nat_has_no_other_address_and_hears_no_stranger() {
    let mut router = router(2, &["nat 1 cone"]);
    router.accept(0, packet(0, 1, b"inner address"), MS);
    assert_eq!(router.stats().nodes[0].no_route, 1);
    let stranger = datagram(end(address(0), 1), end(outer_address(1), 40_000), b"");
    router.accept(0, stranger, MS);
    assert_eq!(due(&mut router, MS), []);
    assert_eq!(router.stats().nodes[1].nat_filtered, 1);
    router.apply(&"nat 1 none".parse().unwrap(), MS).unwrap();
    router.accept(0, packet(0, 1, b"in the open"), MS);
    assert_eq!(due(&mut router, MS).len(), 1);
}

#[test]
fn memory_is_bounded_whatever_the_delay() {
    let mut router = router(2, &["link 0 1 delay_ms=60000"]);
    let packet = packet(0, 1, &[0; 60_000]);
    for _ in 0..UNDER_WAY_BYTES_MAX / 60_000 + 10 {
        router.accept(0, packet.clone(), MS);
    }
    assert!(router.under_way_bytes <= UNDER_WAY_BYTES_MAX);
    assert!(router.stats().nodes[1].no_room > 0);
}

proptest! {
    #[test]
    fn every_packet_arrives_once_or_is_counted(
        seed in any::<u64>(),
        packets in prop::collection::vec((0..4usize, 0..4usize, 0..2000u64, 0..1400usize), 1..150),
    ) {
        let lines = [
            "link * * delay_ms=7 jitter_ms=5 rate_mbit=3 loss=0.1 queue_kb=4",
            "up 1 rate_mbit=2 queue_kb=3",
            "down 2 rate_mbit=2 queue_kb=3 loss=0.2",
            "nat 3 symmetric",
            "part 0|1",
        ];
        let run = || {
            let mut router = Router::new(4, seed);
            for line in lines {
                router.apply(&line.parse().unwrap(), Duration::ZERO).unwrap();
            }
            let (mut now, mut arrived) = (Duration::ZERO, Vec::new());
            for (from, to, gap_us, bytes) in &packets {
                now += Duration::from_micros(*gap_us);
                router.accept(*from, packet(*from, *to, &vec![0; *bytes]), now);
                arrived.extend(due(&mut router, now));
            }
            arrived.extend(due(&mut router, now + Duration::from_secs(60)));
            (arrived, router.stats())
        };
        let (arrived, stats) = run();
        let ends = |counts: &NodeCounts| {
            counts.up.lost + counts.up.full + counts.down.lost + counts.down.full
                + counts.nat_refused + counts.nat_filtered + counts.no_route + counts.no_room
        };
        let dropped: u64 = stats.nodes.iter().map(ends).sum::<u64>()
            + stats.lines.iter().map(|line| line.link.lost + line.link.full + line.cut).sum::<u64>();
        prop_assert_eq!(arrived.len() as u64 + dropped, packets.len() as u64);
        prop_assert_eq!(stats.under_way, 0);
        prop_assert_eq!(run(), (arrived, stats), "the same seed gives the same course");
    }
}
