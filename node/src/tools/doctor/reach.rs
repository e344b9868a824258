//! The network: where this peer listens, which peers answer, over QUIC or TCP, and how they see it.

mod nat;

use std::net::SocketAddr;
use std::time::Duration;

use dnode_network::{Answer, Found, Multiaddr, Probe, Reach, RunSecret, Silence};
use libp2p::multiaddr::Protocol;

use super::finding::Finding;

/// Longest wait for the system to open the sockets that listen.
const LISTEN_MAX: Duration = Duration::from_secs(3);
/// Longest wait for answers: first the bootstrap addresses are asked, then other addresses of the same
/// peers.
const ANSWER_MAX: Duration = Duration::from_secs(6);
/// Longest wait until a member has dialled this machine, or could not. A member waits ten seconds for
/// its own dial to fail, and may let the dial wait for dials for others first.
const REACHED_MAX: Duration = Duration::from_secs(15);
/// How far apart the clocks of two machines may be, beyond the error of the measurement, before it is
/// reported.
const SKEW_MAX: Duration = Duration::from_secs(1);
/// Most other addresses of one peer that are tried.
const OTHERS_MAX: usize = 2;

/// Which kind of packets an address takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Quic,
    Tcp,
}

/// Listens, dials and asks. Returns the findings and the shortest round trip.
pub(super) async fn reach(
    listen: &[Multiaddr],
    bootstrap: &[Multiaddr],
    secret: Option<&RunSecret>,
) -> (Vec<Finding>, Option<Duration>) {
    let mut probe = match Probe::start(listen, secret, LISTEN_MAX).await {
        Ok(probe) => probe,
        Err(error) => {
            let advice =
                "stop what listens there (a peer that runs already?), or choose another --listen";
            return (vec![Finding::fail("listen", error.to_string(), advice)], None);
        }
    };
    let mut findings = vec![listening(probe.listening()), buffers(&probe)];
    if bootstrap.is_empty() {
        let advice = "ask again with --bootstrap and the addresses of one or two members";
        let found = "nobody to ask whether UDP passes and how others see this machine";
        findings.push(Finding::warn("bootstrap", found, advice));
        return (findings, None);
    }
    let found = probe.dial(bootstrap, ANSWER_MAX).await;
    let others = others(&found);
    let by_others = probe.dial(&others, ANSWER_MAX).await;
    let any = found.iter().any(Result::is_ok);
    findings.extend(found.iter().map(|found| judge_bootstrap(found, any)));
    let all: Vec<&Found> = found.iter().chain(&by_others).collect();
    findings.push(judge_udp(&all));
    findings.extend(judge_skew(&all));
    let observed = nat::observed(&all);
    findings.push(nat::judge(probe.listening(), &observed));
    let members: Vec<_> = found.iter().flatten().map(|it| it.address.clone()).collect();
    if !members.is_empty() {
        findings.push(judge_reach(&probe.reach(&members, REACHED_MAX).await));
    }
    let answers = all.iter().filter_map(|found| found.as_ref().ok());
    (findings, answers.filter_map(|answer| answer.round_trip).min())
}

fn listening(addresses: &[Multiaddr]) -> Finding {
    const CHECK: &str = "listen";
    let sockets: Vec<_> = addresses.iter().filter_map(socket).collect();
    let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let found = names.join(" ");
    if sockets.is_empty() {
        let advice = "no interface is up, or --listen names none of them: `ip address` shows them";
        return Finding::fail(CHECK, "nothing is listened on", advice);
    }
    if sockets.iter().all(|(_, socket)| socket.ip().is_loopback()) {
        let advice =
            "only processes of this machine can connect: --listen /ip4/0.0.0.0/udp/4001/quic-v1";
        return Finding::warn(CHECK, found, advice);
    }
    if !sockets.iter().any(|(by, _)| *by == By::Quic) {
        let advice = "TCP alone is slower: --listen /ip4/0.0.0.0/udp/4001/quic-v1 as well";
        return Finding::warn(CHECK, found, advice);
    }
    Finding::ok(CHECK, found)
}

fn buffers(probe: &Probe) -> Finding {
    const CHECK: &str = "buffers";
    let Some(buffers) = probe.buffers() else {
        return Finding::ok(CHECK, "no UDP socket");
    };
    let [receive, send] = [buffers.receive_bytes, buffers.send_bytes].map(|bytes| bytes >> 10);
    let found = format!("UDP receive {receive} KiB, send {send} KiB");
    let shortages = buffers.shortages();
    if shortages.is_empty() {
        Finding::ok(CHECK, found)
    } else {
        Finding::warn(CHECK, found, shortages.join("; "))
    }
}

/// `any`: whether another address answers, so that this one is not needed.
fn judge_bootstrap(found: &Found, any: bool) -> Finding {
    const CHECK: &str = "bootstrap";
    match found {
        Ok(Answer { address, speaks_dnode: false, .. }) => Finding::fail(
            CHECK,
            format!("what answers at {address} is no dnode, or one of another version"),
            "take the line that a member prints, and the same version of dnode",
        ),
        Ok(Answer { address, round_trip, .. }) => {
            let trip = round_trip.map_or_else(|| "unknown".to_owned(), |it| format!("{it:.1?}"));
            Finding::ok(CHECK, format!("{address} answers, round trip {trip}"))
        }
        Err(Silence { address, cause, .. }) => {
            let found = format!("{address}: {cause}");
            let advice = "is that peer running, the address the one that it prints, and its port open in its firewall?";
            if any {
                Finding::warn(CHECK, found, advice)
            } else {
                Finding::fail(CHECK, found, advice)
            }
        }
    }
}

/// Whether UDP packets pass where TCP does.
fn judge_udp(all: &[&Found]) -> Finding {
    const CHECK: &str = "udp";
    let answered = |by: By| {
        all.iter().any(|found| found.as_ref().is_ok_and(|it| way(&it.address) == Some(by)))
    };
    let tried = all.iter().any(|found| {
        let (Ok(Answer { address, .. }) | Err(Silence { address, .. })) = found;
        way(address) == Some(By::Quic)
    });
    match (answered(By::Quic), answered(By::Tcp)) {
        (true, true) => Finding::ok(CHECK, "QUIC passes, and TCP as the fall-back"),
        (true, false) => Finding::ok(CHECK, "QUIC passes; TCP was not offered or does not"),
        (false, true) if tried => Finding::warn(
            CHECK,
            "TCP passes and QUIC does not: a firewall drops UDP",
            "it works by TCP, slower: open UDP in the firewall here, or there",
        ),
        (false, true) => Finding::warn(
            CHECK,
            "TCP passes; no QUIC address is known there",
            "start the other peer with a QUIC address among its --listen",
        ),
        (false, false) => {
            Finding::warn(CHECK, "not known: nobody answers", "see what was found of bootstrap")
        }
    }
}

/// The clock difference to the member whose clock is furthest from that of this machine; `None` when no
/// member tells its clock.
fn judge_skew(all: &[&Found]) -> Option<Finding> {
    const CHECK: &str = "skew";
    let answers = all.iter().filter_map(|found| found.as_ref().ok());
    let told = answers.filter_map(|answer| Some((answer, answer.skew?)));
    let (answer, skew) = told.max_by_key(|(_, skew)| skew.ahead_micros.unsigned_abs())?;
    let apart = Duration::from_micros(skew.ahead_micros.unsigned_abs());
    let side = if skew.ahead_micros < 0 { "ahead of" } else { "behind" };
    let found = format!(
        "the clock is {apart:.1?} {side} that of {}, give or take {:.1?}",
        answer.address, skew.within
    );
    Some(if apart > SKEW_MAX + skew.within {
        let advice = "nothing in a run depends on it, but the logs of both machines cannot be read side by side: `timedatectl set-ntp true` here and there";
        Finding::warn(CHECK, found, advice)
    } else {
        Finding::ok(CHECK, found)
    })
}

/// Whether members can dial this machine (AutoNAT v2).
fn judge_reach(reach: &Reach) -> Finding {
    const CHECK: &str = "reachable";
    match reach {
        Reach::Reached(at) => {
            Finding::ok(CHECK, format!("a member has dialled this machine at {at}"))
        }
        Reach::Unreached(at) => Finding::warn(
            CHECK,
            format!("no member that was asked can dial this machine at {at}"),
            "open or forward the UDP port of a fixed --listen, and name it with --set network.external; else others reach this peer through a punched hole or a relay, which takes a member that can be dialled and network.nat=auto here and there",
        ),
        Reach::Untried => Finding::warn(
            CHECK,
            "not known: no member tried to dial this machine",
            "members try for others unless they have network.nat=off; ask again, or give --bootstrap another member",
        ),
    }
}

/// Other addresses of the same peers, for the other kind of packets. Of a peer that answers they are
/// those that it tells; of a silent one it is the same port.
fn others(found: &[Found]) -> Vec<Multiaddr> {
    let mut others = Vec::new();
    for found in found {
        match found {
            Ok(Answer { address, listens, .. }) => {
                let host = address.iter().next();
                let other =
                    listens.iter().filter(|it| way(it).is_some() && way(it) != way(address));
                let mut ports: Vec<_> = other.filter_map(port).collect();
                ports.sort_unstable();
                ports.dedup();
                for port in ports.into_iter().take(OTHERS_MAX) {
                    others.extend(host.clone().map(|host| at(host, way(address), port)));
                }
            }
            Err(Silence { address, .. }) if way(address) == Some(By::Quic) => {
                let host = address.iter().next();
                others.extend(
                    host.zip(port(address)).map(|(host, port)| at(host, way(address), port)),
                );
            }
            Err(_) => {}
        }
    }
    others
}

/// An address for the other kind of packets than `by`.
fn at(host: Protocol<'_>, by: Option<By>, port: u16) -> Multiaddr {
    let address = Multiaddr::empty().with(host);
    match by {
        Some(By::Quic) | None => address.with(Protocol::Tcp(port)),
        Some(By::Tcp) => address.with(Protocol::Udp(port)).with(Protocol::QuicV1),
    }
}

fn way(address: &Multiaddr) -> Option<By> {
    address.iter().find_map(|protocol| {
        if matches!(protocol, Protocol::Tcp(_)) {
            Some(By::Tcp)
        } else {
            matches!(protocol, Protocol::QuicV1).then_some(By::Quic)
        }
    })
}

fn port(address: &Multiaddr) -> Option<u16> {
    address.iter().find_map(|protocol| {
        if let Protocol::Tcp(port) | Protocol::Udp(port) = protocol { Some(port) } else { None }
    })
}

/// The socket of an address that begins with an IP address.
fn socket(address: &Multiaddr) -> Option<(By, SocketAddr)> {
    let ip = address.iter().next().and_then(|protocol| {
        if let Protocol::Ip4(ip) = protocol {
            Some(ip.into())
        } else if let Protocol::Ip6(ip) = protocol {
            Some(ip.into())
        } else {
            None
        }
    })?;
    Some((way(address)?, SocketAddr::new(ip, port(address)?)))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn answer(at: &str, listens: &[&str]) -> Found {
        Ok(Answer {
            address: address(at),
            peer: "12D3".to_owned(),
            speaks_dnode: true,
            observed: address("/ip4/198.51.100.1/udp/1/quic-v1"),
            listens: listens.iter().copied().map(address).collect(),
            round_trip: None,
            skew: None,
            digest: None,
            specs: None,
        })
    }

    fn silence(at: &str) -> Found {
        Err(Silence { address: address(at), cause: "no answer".to_owned(), not_let_in: None })
    }

    #[test]
    fn the_other_kind_of_packets_is_tried_at_the_host_that_was_dialled() {
        let found = [
            answer(
                "/ip4/192.0.2.1/udp/7/quic-v1",
                &["/ip4/10.0.0.1/tcp/8", "/ip4/10.0.0.1/udp/7/quic-v1"],
            ),
            answer("/dns4/example.org/tcp/9", &["/ip4/10.0.0.1/udp/7/quic-v1"]),
            silence("/ip4/192.0.2.2/udp/5/quic-v1"),
            silence("/ip4/192.0.2.2/tcp/5"),
        ];
        let want =
            ["/ip4/192.0.2.1/tcp/8", "/dns4/example.org/udp/7/quic-v1", "/ip4/192.0.2.2/tcp/5"];
        assert_eq!(others(&found), want.map(address));
    }

    #[test]
    fn udp_is_blocked_where_only_tcp_answers() {
        let (quic, tcp) = ("/ip4/192.0.2.1/udp/7/quic-v1", "/ip4/192.0.2.1/tcp/8");
        let verdict = |all: &[Found]| judge_udp(&all.iter().collect::<Vec<_>>());
        assert_eq!(verdict(&[answer(quic, &[]), silence(tcp)]).verdict, Verdict::Ok);
        assert!(verdict(&[silence(quic), answer(tcp, &[])]).found.contains("drops UDP"));
        assert!(verdict(&[answer(tcp, &[])]).found.contains("no QUIC address"));
        assert!(verdict(&[silence(quic)]).found.contains("not known"));
    }

    #[test]
    fn a_silent_bootstrap_matters_less_where_another_answers() {
        let found = silence("/ip4/192.0.2.2/udp/5/quic-v1");
        assert_eq!(judge_bootstrap(&found, false).verdict, Verdict::Fail);
        assert_eq!(judge_bootstrap(&found, true).verdict, Verdict::Warn);
    }

    #[test]
    fn listening_at_home_only_is_told() {
        let verdict = |texts: &[&str]| {
            listening(&texts.iter().copied().map(address).collect::<Vec<_>>()).verdict
        };
        assert_eq!(verdict(&[]), Verdict::Fail);
        assert_eq!(verdict(&["/ip4/127.0.0.1/udp/1/quic-v1"]), Verdict::Warn);
        assert_eq!(verdict(&["/ip4/10.0.0.1/tcp/1"]), Verdict::Warn);
        assert_eq!(verdict(&["/ip4/10.0.0.1/udp/1/quic-v1"]), Verdict::Ok);
    }

    #[test]
    fn clocks_further_apart_than_a_second_and_what_is_not_known_are_told() {
        let silent = || answer("/ip4/10.0.0.1/udp/1/quic-v1", &[]);
        let told = |ahead_micros| {
            let within = Duration::from_millis(100);
            let skew = Some(dnode_network::Skew { ahead_micros, within });
            silent().map(|answer| Answer { skew, ..answer })
        };
        let judge = |all: &[Found]| judge_skew(&all.iter().collect::<Vec<_>>());
        assert!(judge(&[silent()]).is_none());
        let near = judge(&[told(5_000), told(-1_100_000)]).unwrap();
        assert_eq!(near.verdict, Verdict::Ok, "{near:?}");
        assert!(near.found.starts_with("the clock is 1.1s ahead of that of"), "{near:?}");
        let far = judge(&[told(1_100_001)]).unwrap();
        assert_eq!(far.verdict, Verdict::Warn, "{far:?}");
        assert!(far.found.starts_with("the clock is 1.1s behind that of"), "{far:?}");
    }
}
