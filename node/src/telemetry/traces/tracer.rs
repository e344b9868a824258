//! Makes finished spans and hands them to the thread that sends them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dnode_gossip::Work;
use dnode_protocol::{ExchangeId, PeerId};
use opentelemetry::trace::{SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, SpanId};
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor as _,
};

use super::{TracesError, export, ids::Ids};
use crate::config::Config;

/// Makes spans; makes none when the configuration does not ask for them. Clones share one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracer(Option<Arc<Sink>>);

/// What all spans of this process share.
#[derive(Debug)]
struct Sink {
    me: PeerId,
    rule: String,
    scope: InstrumentationScope,
    /// One moment on both clocks, to convert between them.
    began: (Instant, SystemTime),
    processor: BatchSpanProcessor,
}

/// The beginning of a piece of work on the replica.
#[derive(Debug)]
pub(crate) struct Mark(Option<(ExchangeId, &'static str, Instant)>);

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) exchange: ExchangeId,
    pub(super) name: &'static str,
    pub(super) from: Instant,
    pub(super) to: Instant,
    pub(super) attributes: Vec<KeyValue>,
}

impl Tracer {
    /// The tracer of this peer.
    ///
    /// # Errors
    /// [`TracesError::Export`] when nothing can send its spans.
    pub(crate) fn start(config: &Config, me: PeerId) -> Result<Self, TracesError> {
        let Some(collector) = &config.node.traces else { return Ok(Self(None)) };
        let processor = export::processor(collector, me)?;
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let rule = toml::Value::try_from(config.gossip.rule).ok();
        let rule = rule.as_ref().and_then(toml::Value::as_str).unwrap_or_default().to_owned();
        let began = (Instant::now(), SystemTime::now());
        Ok(Self(Some(Arc::new(Sink { me, rule, scope, began, processor }))))
    }

    /// This peer and its rule, if spans are wanted.
    pub(super) fn wanted(&self) -> Option<(PeerId, &str)> {
        self.0.as_ref().map(|sink| (sink.me, sink.rule.as_str()))
    }

    /// Notes that work of the mixing thread begins.
    pub(crate) fn begins(&self, work: &Work, now: Instant) -> Mark {
        Mark(self.0.as_ref().map(|_| (work.exchange(), name(work), now)))
    }

    /// Notes that the work is done, and makes its span.
    pub(crate) fn ends(&self, mark: Mark, now: Instant) {
        if let Mark(Some((exchange, name, from))) = mark {
            self.part(Span { exchange, name, from, to: now, attributes: Vec::new() });
        }
    }

    /// Makes a span below this peer's span of the exchange.
    pub(super) fn part(&self, span: Span) {
        let Some(sink) = &self.0 else { return };
        let ids = Ids::of(span.exchange);
        let (parent, own) =
            (ids.span_of(span.exchange, sink.me), SpanId::from(rand::random::<u64>()));
        sink.end(&ids, (own, parent), (SpanKind::Internal, Status::Unset), span);
    }

    /// Makes this peer's span of the whole exchange.
    pub(super) fn whole(&self, span: Span, status: Status) {
        let Some(sink) = &self.0 else { return };
        let ids = Ids::of(span.exchange);
        let (kind, parent) = if span.exchange.initiator == sink.me {
            (SpanKind::Client, SpanId::INVALID)
        } else {
            (SpanKind::Server, ids.initiator)
        };
        let own = ids.span_of(span.exchange, sink.me);
        sink.end(&ids, (own, parent), (kind, status), span);
    }

    /// Sends the spans that are left, for at most `limit`.
    pub(crate) fn close(&self, limit: Duration) {
        let Some(sink) = &self.0 else { return };
        if let Err(error) = sink.processor.shutdown_with_timeout(limit) {
            tracing::debug!(%error, "the last traces were not sent");
        }
    }
}

impl Sink {
    fn end(
        &self,
        ids: &Ids,
        (own, parent): (SpanId, SpanId),
        (span_kind, status): (SpanKind, Status),
        span: Span,
    ) {
        let flags = TraceFlags::SAMPLED;
        self.processor.on_end(SpanData {
            span_context: SpanContext::new(ids.trace, own, flags, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: span_kind == SpanKind::Server,
            span_kind,
            name: span.name.into(),
            start_time: self.time_of_day(span.from),
            end_time: self.time_of_day(span.to),
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: self.scope.clone(),
        });
    }

    /// The wall-clock time of `at`. Durations are measured by the steady clock.
    fn time_of_day(&self, at: Instant) -> SystemTime {
        self.began.1 + at.saturating_duration_since(self.began.0)
    }
}

/// The name of the span of a piece of work.
const fn name(work: &Work) -> &'static str {
    match work {
        Work::Read { .. } => "encode",
        Work::Mix { .. } | Work::Include { .. } => "mix",
        Work::Undo { .. } => "undo",
        Work::Adopt { .. } | Work::Recall { .. } => "adopt",
    }
}
