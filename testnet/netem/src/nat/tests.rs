//! The table against a log of everything that was sent.

use proptest::prelude::*;

use super::*;

const OUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const SECOND: Duration = Duration::from_secs(1);

fn end(host: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, host), port)
}

fn nat(kind: NatKind) -> Nat {
    Nat::new(kind, 30 * SECOND, OUTER)
}

#[test]
fn a_cone_keeps_its_port_for_every_remote_and_lets_only_those_answer() {
    let mut nat = nat(NatKind::Cone);
    let inner = end(1, 4001);
    let outer = nat.outbound(Transport::Udp, inner, end(2, 5), SECOND).unwrap();
    assert_eq!(outer, SocketAddrV4::new(OUTER, FIRST_PORT));
    assert_eq!(nat.outbound(Transport::Udp, inner, end(3, 5), SECOND), Ok(outer));
    let inbound = |nat: &Nat, from, now| nat.inbound(Transport::Udp, from, outer.port(), now);
    assert_eq!(inbound(&nat, end(2, 5), SECOND), Some(inner));
    assert_eq!(inbound(&nat, end(2, 6), SECOND), None, "another port of a known machine");
    assert_eq!(inbound(&nat, end(4, 5), SECOND), None, "a stranger");
    assert_eq!(nat.inbound(Transport::Tcp, end(2, 5), outer.port(), SECOND), None);
    nat.outbound(Transport::Udp, inner, end(4, 5), SECOND).unwrap();
    assert_eq!(inbound(&nat, end(4, 5), SECOND), Some(inner), "a punched hole");
}

#[test]
fn a_symmetric_nat_has_another_port_for_each_remote() {
    let mut nat = nat(NatKind::Symmetric);
    let inner = end(1, 4001);
    let first = nat.outbound(Transport::Udp, inner, end(2, 5), SECOND).unwrap();
    let second = nat.outbound(Transport::Udp, inner, end(3, 5), SECOND).unwrap();
    assert_ne!(first, second);
    assert_eq!(nat.outbound(Transport::Udp, inner, end(2, 5), SECOND), Ok(first));
    assert_eq!(nat.inbound(Transport::Udp, end(3, 5), second.port(), SECOND), Some(inner));
    assert_eq!(nat.inbound(Transport::Udp, end(3, 5), first.port(), SECOND), None);
}

#[test]
fn only_packets_from_inside_keep_a_mapping_alive() {
    let mut nat = nat(NatKind::Cone);
    let (inner, remote) = (end(1, 4001), end(2, 5));
    let outer = nat.outbound(Transport::Udp, inner, remote, Duration::ZERO).unwrap();
    for second in 1..30 {
        let now = SECOND * second;
        assert!(nat.inbound(Transport::Udp, remote, outer.port(), now).is_some());
    }
    assert_eq!(nat.inbound(Transport::Udp, remote, outer.port(), SECOND * 30), None);
    let next = nat.outbound(Transport::Udp, inner, remote, SECOND * 30).unwrap();
    assert_ne!(next, outer, "a mapping that has ended comes back with another port");
    assert_eq!(nat.len(), 1);
}

#[test]
fn a_full_table_refuses_until_something_is_idle() {
    let mut nat = nat(NatKind::Symmetric);
    let remote = |index: usize| end(2, u16::try_from(index).unwrap());
    for index in 0..MAPPINGS_MAX {
        nat.outbound(Transport::Udp, end(1, 1), remote(index), SECOND).unwrap();
    }
    let more = remote(MAPPINGS_MAX);
    assert_eq!(nat.outbound(Transport::Udp, end(1, 1), more, SECOND), Err(TableFull));
    assert!(nat.outbound(Transport::Udp, end(1, 1), more, 31 * SECOND).is_ok());
    assert_eq!(nat.len(), 1);
}

#[test]
fn a_cone_bounds_the_remotes_that_may_answer() {
    let mut nat = nat(NatKind::Cone);
    let remote = |index: usize| end(2, u16::try_from(index).unwrap());
    for index in 0..PERMISSIONS_MAX {
        nat.outbound(Transport::Udp, end(1, 1), remote(index), SECOND).unwrap();
    }
    let more = remote(PERMISSIONS_MAX);
    assert_eq!(nat.outbound(Transport::Udp, end(1, 1), more, SECOND), Err(TableFull));
    assert!(nat.outbound(Transport::Udp, end(1, 1), remote(3), SECOND).is_ok(), "a known one");
    assert!(nat.outbound(Transport::Udp, end(1, 1), more, 31 * SECOND).is_ok());
    assert_eq!(nat.permissions, 1);
}

/// Milliseconds before it, inner port, remote host, remote port, from outside.
type Event = (u64, u16, u8, u16, bool);

/// What was sent: when, to whom, and by which outer port.
type Log = Vec<(Duration, SocketAddrV4, SocketAddrV4, u16)>;

fn check(kind: NatKind, events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut nat = nat(kind);
    let idle = 30 * SECOND;
    let mut now = Duration::ZERO;
    let mut log: Log = Vec::new();
    for (gap_ms, inner_port, host, port, from_outside) in events {
        now += Duration::from_millis(gap_ms);
        let (inner, remote) = (end(1, inner_port), end(host, port));
        if from_outside {
            // Every outer port that was ever given out, and one that was not.
            let mut outer: Vec<u16> = log.iter().map(|(.., outer)| *outer).collect();
            outer.push(FIRST_PORT - 1);
            for outer in outer {
                let fresh = log
                    .iter()
                    .rev()
                    .find(|(at, _, to, by)| *by == outer && *to == remote && now - *at < idle);
                let want = fresh.map(|(_, inner, ..)| *inner);
                prop_assert_eq!(nat.inbound(Transport::Udp, remote, outer, now), want);
            }
        } else {
            let outer = nat.outbound(Transport::Udp, inner, remote, now);
            let outer = outer.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let same = |(_, from, to, _): &&(Duration, SocketAddrV4, SocketAddrV4, u16)| {
                *from == inner && (kind == NatKind::Cone || *to == remote)
            };
            let last = log.iter().rev().find(same);
            let kept = last.filter(|(at, ..)| now - *at < idle).map(|(.., outer)| *outer);
            match kept {
                Some(kept) => prop_assert_eq!(outer.port(), kept, "a live mapping is stable"),
                None => prop_assert!(
                    log.iter().all(|(.., used)| *used != outer.port()),
                    "a new mapping has a new port"
                ),
            }
            log.push((now, inner, remote, outer.port()));
        }
        let counted: usize = nat.mappings.values().map(|mapping| mapping.permitted.len()).sum();
        prop_assert_eq!(counted, nat.permissions);
        prop_assert_eq!(nat.ports.len(), nat.mappings.len());
        prop_assert!(nat.len() <= MAPPINGS_MAX && nat.permissions <= PERMISSIONS_MAX);
    }
    Ok(())
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec((0..20_000u64, 1..4u16, 2..5u8, 5..7u16, any::<bool>()), 1..80)
}

proptest! {
    #[test]
    fn a_cone_does_what_the_log_says(events in events()) {
        check(NatKind::Cone, events)?;
    }

    #[test]
    fn a_symmetric_nat_does_what_the_log_says(events in events()) {
        check(NatKind::Symmetric, events)?;
    }
}
