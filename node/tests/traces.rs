//! Two real programs send traces of their exchanges: one trace holds the spans of both.
//!
//! `cargo test --release -p dnode --features otel --test traces`.
#![cfg(feature = "otel")]
#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// What has come: spans, and the `service.instance.id` of who sent each.
type Arrived = Arc<Mutex<Vec<(String, Span)>>>;

/// Takes traces until the test ends, on threads of its own.
fn collector() -> (String, Arrived) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let arrived = Arrived::default();
    let taken = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let spans = take(stream.unwrap());
            taken.lock().unwrap().extend(spans);
        }
    });
    (address, arrived)
}

/// The spans of one request.
fn take(stream: TcpStream) -> Vec<(String, Span)> {
    let mut reader = BufReader::new(stream);
    let (mut lines, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        lines.push(line);
    }
    assert_eq!(lines[0].trim(), "post /v1/traces http/1.1");
    assert!(lines.iter().any(|line| line.trim() == "content-type: application/x-protobuf"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
    let mut spans = Vec::new();
    for group in request.resource_spans {
        let resource = group.resource.unwrap();
        assert_eq!(text(&resource.attributes, "service.name").unwrap(), "dnode");
        assert!(text(&resource.attributes, "service.version").is_some());
        let sender = text(&resource.attributes, "service.instance.id").unwrap();
        let found = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.extend(found.map(|span| (sender.clone(), span)));
    }
    spans
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let Value::StringValue(text) = value(attributes, key)? else { return None };
    Some(text.clone())
}

fn number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    let Value::IntValue(number) = value(attributes, key)? else { return None };
    Some(*number)
}

/// A peer that ends with the test.
struct Peer(Child);

impl Peer {
    fn start(folder: &Path, traces: &str, more: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_dnode"))
            .args(["join", "--open", "--no-mdns", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"])
            .args(["--steps", "200", "--require-peers", "1", "--traces", traces])
            .args([
                "--data",
                "digits",
                "--set",
                "run.batch=8",
                "--set",
                "model.hidden=[16]",
                "--threads",
                "1",
            ])
            .arg("--data-dir")
            .arg(folder)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Reads its log up to the line with which others join; the rest is read away.
    fn address(&mut self) -> String {
        let mut log = BufReader::new(self.0.stderr.take().unwrap()).lines();
        let mut said = String::new();
        for line in log.by_ref() {
            let line = line.unwrap();
            if let Some((_, rest)) = line.split_once("--bootstrap ") {
                let address = rest.split_whitespace().next().unwrap().to_owned();
                std::thread::spawn(move || log.for_each(drop));
                return address;
            }
            said += &line;
            said += "\n";
        }
        panic!("it ended before it listened:\n{said}")
    }

    /// Waits for its end; what it said that nobody has read yet.
    fn end(mut self) -> String {
        let mut said = String::new();
        if let Some(mut log) = self.0.stderr.take() {
            log.read_to_string(&mut said).unwrap();
        }
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs two peers to their end.
fn pair(traces: &str) -> String {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut first = Peer::start(folders[0].path(), traces, &[]);
    let address = first.address();
    let second = Peer::start(folders[1].path(), traces, &["--bootstrap", &address]);
    let said = second.end();
    first.end();
    said
}

#[test]
fn one_trace_holds_the_spans_of_both_ends() {
    let (traces, arrived) = collector();
    pair(&traces);
    let mut by_trace: BTreeMap<Vec<u8>, Vec<(String, Span)>> = BTreeMap::new();
    for (sender, span) in arrived.lock().unwrap().drain(..) {
        by_trace.entry(span.trace_id.clone()).or_default().push((sender, span));
    }
    let mut whole = 0;
    for spans in by_trace.values() {
        let named = |name: &str| spans.iter().find(|(_, span)| span.name == name);
        let (Some((initiator, root)), Some((responder, answer))) =
            (named("exchange"), named("answer"))
        else {
            continue;
        };
        assert_ne!(initiator, responder);
        assert!(root.parent_span_id.is_empty(), "{root:?}");
        assert_eq!(answer.parent_span_id, root.span_id);
        assert_eq!(text(&root.attributes, "dnode.partner").as_ref(), Some(responder));
        assert_eq!(text(&answer.attributes, "dnode.partner").as_ref(), Some(initiator));
        for (sender, span) in spans {
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
            if !["exchange", "answer"].contains(&span.name.as_str()) {
                let parent = if sender == initiator { root } else { answer };
                assert_eq!(span.parent_span_id, parent.span_id, "{span:?}");
            }
        }
        let outcome = |span: &Span| text(&span.attributes, "dnode.outcome").unwrap();
        if outcome(root) != "applied" || outcome(answer) != "applied" {
            continue;
        }
        whole += 1;
        let of = |who: &String| {
            let mut names: Vec<&str> = spans
                .iter()
                .filter(|(sender, _)| sender == who)
                .map(|(_, span)| span.name.as_str())
                .collect();
            names.sort_unstable();
            names
        };
        assert_eq!(of(initiator), ["encode", "exchange", "mix", "propose", "receive", "send"]);
        assert_eq!(of(responder), ["answer", "commit", "mix", "receive", "send"]);
        let codec = |span: &Span| text(&span.attributes, "dnode.codec").unwrap();
        assert_eq!(codec(root), codec(answer));
        // Two that have done their last step exchange in int8.
        assert!(["int4", "int8"].contains(&codec(root).as_str()), "{root:?}");
        for span in [root, answer] {
            assert_eq!(text(&span.attributes, "dnode.rule").unwrap(), "pairwise");
            assert!(text(&span.attributes, "dnode.path").is_some());
            assert!(number(&span.attributes, "dnode.fragment").is_some());
        }
        let bytes = |span: &Span, key: &str| number(&span.attributes, key).unwrap();
        assert!(bytes(root, "dnode.bytes.sent") > 0);
        assert_eq!(bytes(root, "dnode.bytes.sent"), bytes(answer, "dnode.bytes.received"));
        assert_eq!(bytes(root, "dnode.bytes.received"), bytes(answer, "dnode.bytes.sent"));
    }
    assert!(whole > 0, "{by_trace:#?}");
}

#[test]
fn a_collector_that_is_not_there_stops_nobody_and_is_told_once() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let said = pair(&format!("http://{closed}"));
    assert_eq!(said.matches("traces are not taken").count(), 1, "{said}");
}
