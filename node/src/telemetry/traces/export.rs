//! Sends spans to a collector: OTLP in protocol buffers over HTTP, from a thread of the SDK.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dnode_protocol::PeerId;
use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanProcessor as _};

use super::{Collector, TracesError};

/// Most spans that wait to be sent, those of about 400 exchanges; further ones are dropped.
const QUEUE_MAX: usize = 4096;
/// Most spans in one request.
const BATCH_MAX: usize = 512;
/// Time between two requests that are not full.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a connection, and for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Longest head of an answer, bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
/// Time between two warnings that the collector does not take the traces.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Path under which a collector takes traces (OTLP specification, "OTLP/HTTP Request").
const PATH: &str = "/v1/traces";

/// The queue and the thread that send the spans of `me` to `collector`.
///
/// # Errors
/// [`TracesError::Export`].
pub(super) fn processor(
    collector: &Collector,
    me: PeerId,
) -> Result<BatchSpanProcessor, TracesError> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Post::new(collector.clone()))
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{collector}{PATH}"))
        .with_timeout(ANSWER_MAX)
        // There are no retries: the next batch is sent anyway, and the queue is bounded.
        .with_retry_policy(RetryPolicy::default().with_max_retries(0))
        .build()
        .map_err(|error| TracesError::Export {
            collector: collector.clone(),
            reason: error.to_string(),
        })?;
    let bounds = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(EVERY)
        .build();
    let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(bounds).build();
    processor.set_resource(&resource(me));
    Ok(processor)
}

/// Describes the peer that makes the spans, in the words of the semantic conventions for services.
fn resource(me: PeerId) -> Resource {
    Resource::builder_empty()
        .with_service_name("dnode")
        .with_attribute(KeyValue::new("service.instance.id", me.to_string()))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Posts to one collector. Each request has a connection of its own; there is about one a second. It
/// blocks, so only the thread that sends spans calls it.
#[derive(Debug)]
struct Post {
    collector: Collector,
    warned: Mutex<Option<Instant>>,
}

impl Post {
    const fn new(collector: Collector) -> Self {
        Self { collector, warned: Mutex::new(None) }
    }

    /// Sends a request and returns the status of the answer.
    fn send(&self, request: &Request<Bytes>) -> io::Result<u16> {
        let mut failure = io::Error::other("the name has no address");
        for address in self.collector.authority().to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, ANSWER_MAX) {
                Ok(stream) => return exchange(stream, self.collector.authority(), request),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Warns that the traces of one batch are lost, but not too often.
    fn warn(&self, reason: &dyn std::fmt::Display) {
        let Ok(mut warned) = self.warned.lock() else { return };
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(collector = %self.collector, %reason, "traces are not taken; training goes on without them");
        }
    }
}

impl HttpClient for Post {
    fn send_bytes<'client, 'sent>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'client: 'sent,
        Self: 'sent,
    {
        Box::pin(async move {
            let status = self.send(&request).inspect_err(|error| self.warn(error))?;
            if !(200..300).contains(&status) {
                self.warn(&format_args!("it answers with status {status}"));
            }
            // Only the status of the answer matters.
            Ok(Response::builder().status(status).body(Bytes::new())?)
        })
    }
}

/// Sends one request and returns the status of its answer.
fn exchange(mut stream: TcpStream, host: &str, request: &Request<Bytes>) -> io::Result<u16> {
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let body = request.body();
    let mut head =
        format!("POST {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n").into_bytes();
    for (name, value) in request.headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    stream.write_all(&head)?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    let mut stream = stream.take(HEAD_BYTES_MAX);
    let asked = Instant::now();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") && asked.elapsed() < ANSWER_MAX {
        match stream.read(&mut piece)? {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    status(&answer).ok_or_else(|| io::Error::other("it does not speak HTTP/1.1"))
}

/// Reads the status in the first line of an answer.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let text = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/1.")?;
    let status = text.get(2..5)?.parse().ok()?;
    (100..600).contains(&status).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_read_and_nothing_else_is_taken_for_one() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\nDate: x\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503\r\n\r\n"), Some(503));
        for answer in
            [&b""[..], b"SSH-2.0-x\r\n", b"HTTP/1.1 2\r\n", b"HTTP/1.1 999 x\r\n", b"\xff"]
        {
            assert_eq!(status(answer), None, "{answer:?}");
        }
    }

    #[test]
    fn a_collector_that_is_not_there_is_told_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let post = Post::new(format!("http://{address}").parse().unwrap());
        let request = || Request::post("/").body(Bytes::new()).unwrap();
        assert!(post.send(&request()).is_err());
        post.warn(&"refused");
        let first = *post.warned.lock().unwrap();
        post.warn(&"refused");
        assert_eq!(*post.warned.lock().unwrap(), first);
    }
}
