//! The snapshot in Prometheus' text format, with names and units by its conventions.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::{Link, PeerStaleness, Snapshot, State};
use crate::telemetry::metrics::Exchanges;

/// Media type of [`exposition`].
pub(super) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of `snapshot`.
#[must_use]
pub fn exposition(snapshot: &Snapshot) -> String {
    let mut page = Page::default();
    facts(&mut page, snapshot);
    training(&mut page, snapshot);
    exchanges(&mut page, snapshot);
    staleness(&mut page, snapshot);
    swarm(&mut page, snapshot);
    links(&mut page, snapshot);
    process(&mut page, snapshot);
    page.text
}

/// The text under construction. Help and type of a metric precede its first sample.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP dnode_{name} {help}\n# TYPE dnode_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "dnode_{name}");
        for (index, (label, text)) in labels.iter().enumerate() {
            let open = if index == 0 { "{" } else { "," };
            let _ = write!(self.text, "{open}{label}=\"{}\"", escaped(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// Writes a histogram. `counts` are for the values 0, 1, 2 …; the last one has no upper bound.
    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], counts: &[u64], sum: u64) {
        let mut below = 0;
        for (value, count) in counts.iter().enumerate() {
            below += count;
            let last = value + 1 == counts.len();
            let bound = if last { "+Inf".to_owned() } else { value.to_string() };
            let labels = [labels, &[("le", &bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, below);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, below);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn optional(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.gauge(name, help, value);
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn facts(page: &mut Page, snapshot: &Snapshot) {
    let node = &snapshot.node;
    page.head("build_info", "gauge", "The program.");
    page.sample("build_info", &[("version", &node.version)], 1);
    page.head("run_info", "gauge", "The run and the peer.");
    let labels = [
        ("run", node.run.as_str()),
        ("peer", &node.peer),
        ("rule", &node.rule),
        ("model", &node.model),
        ("rack", &node.rack),
        ("name", &node.name),
        ("host", &node.host),
        ("device", &node.device),
    ];
    page.sample("run_info", &labels, 1);
    page.gauge("model_parameters", "Parameters of the model.", node.parameters);
    page.gauge("run_steps", "Steps of the run.", node.steps);
}

fn training(page: &mut Page, snapshot: &Snapshot) {
    let progress = &snapshot.progress;
    page.gauge(
        "run_position_steps",
        "Where the swarm stands in the run, steps of the run.",
        progress.position,
    );
    page.counter("steps_total", "Local steps, those before a resume included.", progress.step);
    page.counter("samples_total", "Samples trained on.", progress.samples);
    page.counter("commits_total", "Commits: this peer's clock.", progress.commits);
    page.optional("training_loss", "Mean training loss of late, nats.", progress.loss);
    page.gauge("learning_rate", "Learning rate of the last step.", progress.learning_rate);
    page.counter(
        "bound_wait_seconds_total",
        "Time that training has waited for others: at a staleness bound, or for the other ranks.",
        progress.wait_s,
    );
    if let Some(evaluated) = progress.evaluated {
        page.optional("evaluation_loss", "Loss on held-out data, nats.", evaluated.loss);
        page.optional(
            "evaluation_accuracy_ratio",
            "Share of right answers on held-out data.",
            evaluated.accuracy,
        );
    }
    page.head("state", "gauge", "1 for what this peer is doing, 0 for the rest.");
    for state in State::ALL {
        let is = u8::from(state == snapshot.state);
        page.sample("state", &[("state", state.name())], is);
    }
}

fn exchanges(page: &mut Page, snapshot: &Snapshot) {
    page.head("exchanges_total", "counter", "Exchanges by how they ended.");
    for (outcome, count) in snapshot.exchanges.named() {
        page.sample("exchanges_total", &[("outcome", outcome)], count);
    }
    let Exchanges { offer_blocks, offer_blocks_unread, .. } = snapshot.exchanges;
    let help = "Blocks of others' offers that were written for replicas that are near.";
    page.counter("offer_blocks_total", help, offer_blocks);
    let help = "Those of them that could not be read, and so were not mixed.";
    page.counter("offer_blocks_unread_total", help, offer_blocks_unread);
    page.gauge("open_exchanges", "Exchanges that have not ended.", snapshot.open);
    page.gauge(
        "staleness_commits",
        "Largest clock distance to a neighbour that counts.",
        snapshot.progress.staleness,
    );
    let help = "Clock distance of the two ends of applied exchanges, commits.";
    page.head("exchange_lag_commits", "histogram", help);
    page.histogram("exchange_lag_commits", &[], &snapshot.lags, snapshot.lag_sum);
    page.head("events_total", "counter", "Events by name, as in metrics.jsonl.");
    for (event, count) in &snapshot.event_counts {
        page.sample("events_total", &[("event", event)], count);
    }
}

/// Writes each neighbour's staleness, and how often each bound refused or held something.
fn staleness(page: &mut Page, snapshot: &Snapshot) {
    let help = "Clock distance of the two ends of exchanges with a neighbour, commits.";
    page.head("peer_lag_commits", "histogram", help);
    for of in &snapshot.staleness {
        page.histogram("peer_lag_commits", &[("peer", &of.peer)], &of.lags, of.sums[0]);
    }
    let help = "Age of the snapshots and contributions of a neighbour when applied, commits.";
    page.head("peer_snapshot_age_commits", "histogram", help);
    for of in &snapshot.staleness {
        page.histogram("peer_snapshot_age_commits", &[("peer", &of.peer)], &of.ages, of.sums[1]);
    }
    let help = "Commits of a neighbour that the least informed fragment lacks.";
    page.head("peer_information_age_commits", "gauge", help);
    for of in &snapshot.staleness {
        if let Some(age) = of.information_age {
            page.sample("peer_information_age_commits", &[("peer", &of.peer)], age);
        }
    }
    type Counts = fn(&PeerStaleness) -> &BTreeMap<String, u64>;
    let done: [(&str, &str, Counts); 2] = [
        ("peer_refused_total", "Exchanges with a neighbour that a bound refused.", |of| {
            &of.refused
        }),
        ("peer_held_total", "Commits that a bound held back because of a neighbour.", |of| {
            &of.held
        }),
    ];
    for (name, help, counts) in done {
        page.head(name, "counter", help);
        for of in &snapshot.staleness {
            for (bound, count) in counts(of) {
                page.sample(name, &[("peer", &of.peer), ("bound", bound)], count);
            }
        }
    }
}

fn swarm(page: &mut Page, snapshot: &Snapshot) {
    page.head("swarm_peers", "gauge", "Peers that are known, this one included, by state.");
    for state in State::ALL {
        let count = snapshot.peers.iter().filter(|peer| peer.state == state).count();
        page.sample("swarm_peers", &[("state", state.name())], count);
    }
    let consensus = snapshot.consensus;
    page.optional(
        "consensus_distance",
        "Root mean square distance of a replica from the mean of all, L2 norm, estimated.",
        consensus.map(|consensus| consensus.distance),
    );
    page.optional(
        "consensus_distance_ratio",
        "The same over the L2 norm of the mean.",
        consensus.map(|consensus| consensus.relative),
    );
}

fn links(page: &mut Page, snapshot: &Snapshot) {
    let traffic = &snapshot.traffic;
    page.counter("network_sent_bytes_total", "Bytes sent to all peers.", traffic.sent_bytes);
    page.counter(
        "network_received_bytes_total",
        "Bytes received from all peers.",
        traffic.received_bytes,
    );
    page.gauge("connected_peers", "Connected peers of the run.", snapshot.links.len());
    let name = |link: &Link| {
        let peer = snapshot.peers.iter().find(|peer| peer.id == link.to && !peer.short.is_empty());
        peer.map_or_else(|| link.to.clone(), |peer| peer.short.clone())
    };
    page.head("link_info", "gauge", "What carries tensors to a neighbour.");
    for link in &snapshot.links {
        page.sample("link_info", &[("peer", &name(link)), ("path", &link.path)], 1);
    }
    let each = |page: &mut Page, (metric, kind, help): (&str, &str, &str), value: Value<'_>| {
        page.head(metric, kind, help);
        for link in &snapshot.links {
            if let Some(value) = value(link) {
                page.sample(metric, &[("peer", &name(link))], value);
            }
        }
    };
    let help = "Bytes sent to a neighbour since it is connected.";
    let sent = |link: &Link| Some(link.traffic.sent_bytes as f64);
    each(page, ("link_sent_bytes_total", "counter", help), &sent);
    let help = "Bytes received from a neighbour since it is connected.";
    let received = |link: &Link| Some(link.traffic.received_bytes as f64);
    each(page, ("link_received_bytes_total", "counter", help), &received);
    let help = "Round-trip time to a neighbour.";
    each(page, ("link_round_trip_seconds", "gauge", help), &|link| link.rtt_s);
    let help = "Time since the last exchange with a neighbour was applied.";
    each(page, ("link_exchange_age_seconds", "gauge", help), &|link| link.exchange_age_s);
    let help = "How much a neighbour's numbers count here: 1, less when the guard weighs it down, 0 when it is left out.";
    each(page, ("peer_trust", "gauge", help), &|link| match link.trust.as_str() {
        "trusted" => Some(1.0),
        "weighed-down" => Some(0.5),
        "left-out" => Some(0.0),
        _ => None,
    });
}

type Value<'a> = &'a dyn Fn(&Link) -> Option<f64>;

fn process(page: &mut Page, snapshot: &Snapshot) {
    page.gauge(
        "start_time_seconds",
        "When the process started, seconds since 1970.",
        snapshot.node.started_unix_s,
    );
    let memory = snapshot.peers.first().map_or(0, |own| own.memory_bytes);
    page.gauge("resident_memory_bytes", "Memory that the process holds.", memory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::view::{Consensus, Evaluated, NodeFacts, Peer};

    fn snapshot() -> Snapshot {
        let rack = "a \"quoted\\\nrack".to_owned();
        let link = Link { to: "00ff".to_owned(), rtt_s: Some(0.002), ..Link::default() };
        Snapshot {
            node: NodeFacts { rack, ..NodeFacts::default() },
            lags: vec![3, 0, 2, 1],
            lag_sum: 9,
            links: vec![link],
            peers: vec![Peer { state: State::Training, ..Peer::default() }],
            consensus: Some(Consensus { distance: 0.5, relative: 0.1, peers: 2 }),
            event_counts: [("peer-up".to_owned(), 2)].into(),
            staleness: vec![PeerStaleness {
                peer: "abc123".to_owned(),
                lags: vec![2, 1],
                ages: vec![0, 3],
                sums: [5, 7],
                information_age: Some(4),
                refused: [("snapshot age".to_owned(), 2)].into(),
                held: [("progress gap".to_owned(), 6)].into(),
            }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_in_infinity() {
        let text = exposition(&snapshot());
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("dnode_exchange_lag")).collect();
        let want = [
            "dnode_exchange_lag_commits_bucket{le=\"0\"} 3",
            "dnode_exchange_lag_commits_bucket{le=\"1\"} 3",
            "dnode_exchange_lag_commits_bucket{le=\"2\"} 5",
            "dnode_exchange_lag_commits_bucket{le=\"+Inf\"} 6",
            "dnode_exchange_lag_commits_sum 9",
            "dnode_exchange_lag_commits_count 6",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn staleness_is_told_by_neighbour_and_bound() {
        let text = exposition(&snapshot());
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("dnode_peer_")).collect();
        let want = [
            "dnode_peer_lag_commits_bucket{peer=\"abc123\",le=\"0\"} 2",
            "dnode_peer_lag_commits_bucket{peer=\"abc123\",le=\"+Inf\"} 3",
            "dnode_peer_lag_commits_sum{peer=\"abc123\"} 5",
            "dnode_peer_lag_commits_count{peer=\"abc123\"} 3",
            "dnode_peer_snapshot_age_commits_bucket{peer=\"abc123\",le=\"0\"} 0",
            "dnode_peer_snapshot_age_commits_bucket{peer=\"abc123\",le=\"+Inf\"} 3",
            "dnode_peer_snapshot_age_commits_sum{peer=\"abc123\"} 7",
            "dnode_peer_snapshot_age_commits_count{peer=\"abc123\"} 3",
            "dnode_peer_information_age_commits{peer=\"abc123\"} 4",
            "dnode_peer_refused_total{peer=\"abc123\",bound=\"snapshot age\"} 2",
            "dnode_peer_held_total{peer=\"abc123\",bound=\"progress gap\"} 6",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn the_dashboard_asks_for_nothing_else() {
        let mut snapshot = snapshot();
        snapshot.progress.loss = Some(1.0);
        let evaluated = Evaluated { step: 1, loss: Some(1.0), accuracy: Some(0.5) };
        snapshot.progress.evaluated = Some(evaluated);
        let text = exposition(&snapshot);
        let dashboard = include_str!("../../../../docs/grafana/dnode.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let named = dashboard.split("dnode_").skip(1);
        let names = named.map(|rest| rest.split(|letter| !is_name(letter)).next().unwrap());
        let mut count = 0;
        for name in names {
            let told = ["{", " "].iter().any(|end| text.contains(&format!("\ndnode_{name}{end}")));
            assert!(told || text.starts_with(name), "dnode_{name}");
            count += 1;
        }
        assert!(count > 15);
    }

    #[test]
    fn every_sample_has_help_and_type_and_labels_are_escaped() {
        let text = exposition(&snapshot());
        let mut known = String::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                known = head.split(' ').next().unwrap().to_owned();
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(name.starts_with(&known) && !known.is_empty(), "{line} after {known}");
            }
        }
        assert!(text.contains("rack=\"a \\\"quoted\\\\\\nrack\""), "{text}");
        assert!(text.contains("dnode_swarm_peers{state=\"training\"} 1"));
        assert!(text.contains("dnode_link_round_trip_seconds{peer=\"00ff\"} 0.002"));
        // Unknown values are left out, not reported as zero.
        assert!(!text.contains("training_loss") && !text.contains("exchange_age_seconds{"));
    }
}
