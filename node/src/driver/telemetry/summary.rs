//! Converts between the summaries that peers send each other and the peers that are shown.

use std::time::Duration;

use dnode_gossip::{Heard, Member, Standing};
use dnode_protocol::limits::SUMMARY_LINKS_MAX;
use dnode_protocol::{
    About, PeerId, Phase, Real, SUMMARY_LAGS, SUMMARY_SKETCH_LEN, Summary, SummaryLink,
};

use crate::telemetry::metrics::STALENESS_BUCKETS;
use crate::telemetry::view::{Consensus, Link, Peer, State, Traffic};

/// The paths that [`SummaryLink::path`] numbers.
const PATHS: [&str; 7] = [
    "",
    "shared memory",
    "TCP with TLS",
    "TCP without TLS",
    "QUIC",
    "stream over QUIC",
    "stream over TCP",
];
const RELAYED: u32 = 256;
const SUSPECTED: u32 = 512;
/// Longest time between two summaries of a peer in a small swarm.
const FRESH_LEAST: Duration = Duration::from_secs(6);
/// How much this time grows with each known peer: measured in `gossip/src/membership/summaries.rs`,
/// with a margin.
const FRESH_EACH: Duration = Duration::from_millis(300);

/// Shortens a sketch to the 32 entries that are sent: sums of every 32nd entry are a sketch, too.
pub(super) fn folded(sketch: &[f32]) -> [Real; SUMMARY_SKETCH_LEN] {
    let mut sums = [0.0_f64; SUMMARY_SKETCH_LEN];
    for (index, value) in sketch.iter().enumerate() {
        sums[index % SUMMARY_SKETCH_LEN] += f64::from(*value);
    }
    sums.map(Real::new)
}

/// The summary of how this peer does, which others are sent.
pub(super) fn told(
    own: &Peer,
    about: &About,
    (me, incarnation, rack): (PeerId, u64, u64),
    (phase, open): (Phase, usize),
    sketch: [Real; SUMMARY_SKETCH_LEN],
) -> Summary {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut lags = [0; SUMMARY_LAGS];
    for (told, count) in lags.iter_mut().zip(&own.lags) {
        *told = small(*count);
    }
    Summary {
        peer: me,
        incarnation,
        number: 0,
        about: about.clone(),
        age_millis: 0,
        phase,
        open: u32::try_from(open).unwrap_or(u32::MAX),
        rack,
        step: own.step,
        position: own.position,
        commits: own.commits,
        samples: own.samples,
        loss: real(own.loss),
        held_out: real(own.held_out),
        samples_per_s: Real::new(own.samples_per_s),
        wait_s: real(own.wait_s),
        memory_bytes: own.memory_bytes,
        sent_bytes: own.sent_bytes,
        received_bytes: own.received_bytes,
        lags,
        sketch,
        links: busiest(&own.links).map(told_link).collect(),
    }
}

/// The same summary without what is measured on this peer's data, and has no noise.
pub(super) fn without_losses(summary: Summary) -> Summary {
    Summary { loss: Real::UNKNOWN, held_out: Real::UNKNOWN, ..summary }
}

fn real(value: Option<f64>) -> Real {
    value.map_or(Real::UNKNOWN, Real::new)
}

/// The links that carry most.
fn busiest(links: &[Link]) -> impl Iterator<Item = &Link> {
    let mut order: Vec<&Link> = links.iter().collect();
    order.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    order.into_iter().take(SUMMARY_LINKS_MAX)
}

fn rate(link: &Link) -> f64 {
    link.traffic.sent_bytes_per_s + link.traffic.received_bytes_per_s
}

fn told_link(link: &Link) -> SummaryLink {
    let path = PATHS.iter().position(|path| *path == link.path).unwrap_or(0);
    let marks = if link.relayed { RELAYED } else { 0 } + if link.suspected { SUSPECTED } else { 0 };
    SummaryLink {
        to: u64::from_str_radix(&link.to, 16).unwrap_or(0),
        bytes_per_s: whole(Some(rate(link))),
        rtt_micros: whole(link.rtt_s.map(|seconds| 1e6 * seconds)),
        exchange_millis: whole(link.exchange_age_s.map(|seconds| 1e3 * seconds)),
        path: u32::try_from(path).unwrap_or(0) + marks,
    }
}

/// Rounded down, and the largest for what is not known.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn whole(value: Option<f64>) -> u32 {
    value.map_or(u32::MAX, |value| value as u32)
}

/// A peer that was heard of, as it is shown.
pub(super) fn shown(
    (peer, heard): (&PeerId, &Heard),
    member: Option<&Member>,
    age: Duration,
    known: usize,
) -> Peer {
    let Heard { summary, left, .. } = heard;
    let fresh = fresh(known);
    let silent = member.is_some_and(|member| member.standing == Standing::Suspected);
    let lost = member.is_none() && age > fresh;
    let done = summary.phase == Phase::Finished;
    let state = if *left || age > 3 * fresh || lost && done {
        State::Gone
    } else if silent || lost {
        State::Suspected
    } else {
        match summary.phase {
            Phase::Joining => State::Joining,
            Phase::Finished => State::Finished,
            Phase::Training if summary.open > 0 => State::Exchanging,
            Phase::Training => State::Training,
        }
    };
    let About { name, host, device } = summary.about.clone();
    let notes = if *left { vec!["said goodbye".to_owned()] } else { Vec::new() };
    Peer {
        id: id(peer),
        short: peer.short(),
        name,
        host,
        device,
        memory_bytes: summary.memory_bytes,
        notes,
        state,
        age_s: age.as_secs_f64(),
        rack: rack(summary.rack),
        step: summary.step,
        position: summary.position,
        commits: summary.commits,
        samples: summary.samples,
        loss: summary.loss.get(),
        held_out: summary.held_out.get(),
        samples_per_s: summary.samples_per_s.get().unwrap_or(0.0),
        wait_s: summary.wait_s.get(),
        sent_bytes: summary.sent_bytes,
        received_bytes: summary.received_bytes,
        lags: summary.lags.iter().map(|count| u64::from(*count)).collect(),
        distance: None,
        links: summary.links.iter().map(shown_link).collect(),
        ..Peer::default()
    }
}

/// Largest age of the newest summary of a living peer.
pub(super) fn fresh(known: usize) -> Duration {
    FRESH_LEAST + FRESH_EACH * u32::try_from(known).unwrap_or(u32::MAX)
}

fn shown_link(link: &SummaryLink) -> Link {
    let known = |value: u32| (value != u32::MAX).then_some(f64::from(value));
    let path = usize::try_from(link.path % RELAYED).unwrap_or(0);
    // The summary has one rate for both directions.
    let traffic = Traffic { sent_bytes_per_s: f64::from(link.bytes_per_s), ..Traffic::default() };
    Link {
        to: format!("{:016x}", link.to),
        path: PATHS.get(path).copied().unwrap_or_default().to_owned(),
        relayed: link.path & RELAYED != 0,
        rtt_s: known(link.rtt_micros).map(|micros| micros / 1e6),
        traffic,
        exchange_age_s: known(link.exchange_millis).map(|millis| millis / 1e3),
        suspected: link.path & SUSPECTED != 0,
        // Others do not tell whom they trust.
        trust: String::new(),
    }
}

/// What the core knows of a neighbour that has sent no summary yet.
pub(super) fn neighbour((peer, member): (&PeerId, &Member)) -> Peer {
    let state = match (member.standing, member.phase) {
        (Standing::Suspected, _) => State::Suspected,
        (_, Phase::Joining) => State::Joining,
        (_, Phase::Finished) => State::Finished,
        (Standing::Active | Standing::Lagging | Standing::Idle, Phase::Training) => State::Training,
    };
    let step_s = member.step_time.as_secs_f64();
    Peer {
        id: id(peer),
        short: peer.short(),
        state,
        rack: rack(member.rack),
        commits: member.clock.map_or(0, |clock| clock.0),
        samples: member.samples,
        samples_per_s: if step_s > 0.0 { f64::from(member.batch) / step_s } else { 0.0 },
        ..Peer::default()
    }
}

/// How far the replicas are apart, and each from the mean, for sketches that are known.
///
/// With `m` sketches `s_i` and their mean `s̄`, the distance is `√(Σ‖s_i − s̄‖² / m)`, which estimates
/// the same of the parameters: the sketch is linear (`trainer/src/sketch.rs`). With 32 entries the
/// relative standard deviation of one squared distance is at most `√(2 / 32)` = 25 %.
pub(super) fn consensus(
    peers: &mut [Peer],
    sketches: &[(usize, [Real; SUMMARY_SKETCH_LEN])],
) -> Option<Consensus> {
    let known: Vec<(usize, [f64; SUMMARY_SKETCH_LEN])> = sketches
        .iter()
        .filter(|(_, sketch)| sketch.iter().all(|value| value.get().is_some()))
        .map(|(index, sketch)| (*index, sketch.map(|value| value.get().unwrap_or(0.0))))
        .collect();
    if known.len() < 2 {
        return None;
    }
    let count = known.len() as f64;
    let mut mean = [0.0; SUMMARY_SKETCH_LEN];
    for (_, sketch) in &known {
        for (sum, value) in mean.iter_mut().zip(sketch) {
            *sum += value / count;
        }
    }
    let mut total = 0.0;
    for (index, sketch) in &known {
        let squared: f64 = sketch.iter().zip(&mean).map(|(a, b)| (a - b) * (a - b)).sum();
        total += squared;
        if let Some(peer) = peers.get_mut(*index) {
            peer.distance = Some(squared.sqrt());
        }
    }
    let norm = mean.iter().map(|value| value * value).sum::<f64>().sqrt();
    let distance = (total / count).sqrt();
    let relative = if norm > 0.0 { distance / norm } else { 0.0 };
    Some(Consensus { distance, relative, peers: known.len() })
}

/// The first eight bytes of the public key, in hexadecimal.
pub(super) fn id(peer: &PeerId) -> String {
    peer.public_key()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn rack(name: u64) -> String {
    if name == 0 { String::new() } else { format!("{name:016x}") }
}

/// The histogram with its long tail as one entry.
pub(super) fn few(lags: &[u64; STALENESS_BUCKETS]) -> Vec<u64> {
    let (head, tail) = lags.split_at(SUMMARY_LAGS - 1);
    head.iter().copied().chain([tail.iter().sum()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(value: f64) -> [Real; SUMMARY_SKETCH_LEN] {
        [Real::new(value); SUMMARY_SKETCH_LEN]
    }

    #[test]
    fn equal_replicas_are_at_no_distance_and_unknown_ones_do_not_count() {
        let mut peers = vec![Peer::default(), Peer::default(), Peer::default()];
        let equal = [(0, sketch(2.0)), (1, sketch(2.0)), (2, sketch(f64::NAN))];
        let found = consensus(&mut peers, &equal).unwrap();
        assert!((found.distance, found.relative, found.peers) == (0.0, 0.0, 2));
        assert_eq!(peers[2].distance, None);
        assert_eq!(consensus(&mut peers, &equal[1..]), None);
        let apart = [(0, sketch(1.0)), (1, sketch(3.0))];
        let found = consensus(&mut peers, &apart).unwrap();
        assert!(
            (found.distance - 32.0_f64.sqrt()).abs() < 1e-6 && (found.relative - 0.5).abs() < 1e-6
        );
        assert!(
            peers[0].distance.is_some_and(|distance| (distance - 32.0_f64.sqrt()).abs() < 1e-6)
        );
    }

    #[test]
    fn losses_are_kept_from_others_and_the_rest_is_told() {
        let own = Peer { loss: Some(1.0), held_out: Some(2.0), step: 7, ..Peer::default() };
        let peer = PeerId::from_public_key([1; 32]);
        let summary =
            told(&own, &About::default(), (peer, 1, 0), (Phase::Training, 0), sketch(3.0));
        assert_eq!((summary.loss.get(), summary.held_out.get()), (Some(1.0), Some(2.0)));
        let kept = without_losses(summary.clone());
        assert_eq!((kept.loss.get(), kept.held_out.get()), (None, None));
        let (loss, held_out) = (summary.loss, summary.held_out);
        assert_eq!(Summary { loss, held_out, ..kept }, summary);
    }

    #[test]
    fn a_link_is_shown_as_it_was_told() {
        let traffic = Traffic { sent_bytes_per_s: 1500.0, ..Traffic::default() };
        let link = Link {
            to: "00000000000000ff".to_owned(),
            path: "QUIC".to_owned(),
            relayed: true,
            rtt_s: Some(0.002),
            traffic,
            exchange_age_s: None,
            suspected: true,
            trust: String::new(),
        };
        assert_eq!(shown_link(&told_link(&link)), link);
        let strange = SummaryLink { path: 77, ..told_link(&link) };
        assert_eq!(shown_link(&strange).path, "");
    }
}
