//! Follows open exchanges through the messages and events that the driver sees, and makes spans of them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "of all that is said, only what is of exchanges is followed"
)]

use std::collections::BTreeMap;
use std::time::Instant;

use dnode_gossip::{Event, Failure, Output};
use dnode_network::{NetworkHandle, Written};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{ExchangeId, FragmentId, Message, PeerId};
use opentelemetry::KeyValue;
use opentelemetry::trace::Status;

use super::tracer::{Span, Tracer};
use crate::driver::path;

/// Most exchanges that are followed at a time. The core has fewer open, but the end of some exchanges
/// that are begun here is never reported.
const OPEN_MAX: usize = 256;

/// The exchanges that are open at this peer.
#[derive(Debug)]
pub(crate) struct ExchangeTraces {
    tracer: Tracer,
    open: BTreeMap<ExchangeId, Open>,
}

/// What is known of an open exchange.
#[derive(Debug)]
struct Open {
    /// The name of its span.
    name: &'static str,
    partner: PeerId,
    fragment: FragmentId,
    began: Instant,
    /// Whether the core has taken it up; the core may ignore a repeated proposal.
    taken: bool,
    codec: Option<Codec>,
    accepted: bool,
    /// Payload bytes of tensors sent for it.
    sent: usize,
    received: usize,
    /// When the first frame of the tensor that is arriving came.
    arrives: Option<Instant>,
    /// When this end was applied.
    applied: Option<Instant>,
    weight: Option<f32>,
    lag: Option<u64>,
    outcome: Option<&'static str>,
    reason: Option<&'static str>,
    over: bool,
}

impl Open {
    fn new(name: &'static str, partner: PeerId, fragment: FragmentId) -> Self {
        Self {
            name,
            partner,
            fragment,
            began: Instant::now(),
            taken: true,
            codec: None,
            accepted: false,
            sent: 0,
            received: 0,
            arrives: None,
            applied: None,
            weight: None,
            lag: None,
            outcome: None,
            reason: None,
            over: false,
        }
    }

    /// Ends it although the core will not report its end: the core has never known it, or no longer
    /// names it.
    const fn end(&mut self, outcome: &'static str, reason: Option<&'static str>) {
        (self.outcome, self.reason) = (Some(outcome), reason);
        (self.taken, self.over) = (true, true);
    }
}

impl ExchangeTraces {
    pub(crate) const fn new(tracer: Tracer) -> Self {
        Self { tracer, open: BTreeMap::new() }
    }

    /// Notes a message that has come and is about to enter the core.
    pub(crate) fn received(&mut self, from: PeerId, message: &Message) {
        let Some(exchange) = message.exchange().filter(|_| self.tracer.wanted().is_some()) else {
            return;
        };
        match message {
            Message::Propose { fragment, .. } => {
                self.begin(exchange, Open { taken: false, ..Open::new("answer", from, *fragment) });
            }
            Message::Pull { fragment, .. } | Message::Fetch { fragment, .. } => {
                self.begin(exchange, Open::new("serve", from, *fragment));
            }
            Message::Accept { terms, .. } => {
                let open = self.open.get_mut(&exchange);
                if let Some(open) = open.filter(|open| open.partner == from && !open.accepted) {
                    (open.accepted, open.codec) = (true, Some(terms.codec));
                    let (name, attributes) = ("propose", Vec::new());
                    let (from, to) = (open.began, Instant::now());
                    self.tracer.part(Span { exchange, name, from, to, attributes });
                }
            }
            Message::Abort { .. } => {
                if let Some(open) = self.open.get_mut(&exchange).filter(|open| open.partner == from)
                {
                    (open.outcome, open.reason) = (Some("aborted"), Some("initiator"));
                }
            }
            _ => {}
        }
    }

    /// Notes a frame of an expected tensor. `whole`: whether it completes the tensor.
    pub(crate) fn arrived(&mut self, header: &TensorHeader, bytes: usize, whole: bool) {
        let exchange = header.exchange;
        let Some(open) = self.open.get_mut(&exchange) else { return };
        let now = Instant::now();
        let from = *open.arrives.get_or_insert(now);
        open.received += bytes;
        open.codec = open.codec.or(Some(header.codec));
        if whole {
            open.arrives = None;
            let attributes = tensor(header.leg, open.received);
            self.tracer.part(Span { exchange, name: "receive", from, to: now, attributes });
        }
    }

    /// Notes a tensor that is about to be handed to the network. Returns what to call when the network
    /// has written it.
    pub(crate) fn sends(&mut self, header: &TensorHeader, bytes: usize) -> Option<Written> {
        let TensorHeader { exchange, leg, codec, .. } = *header;
        let open = self.open.get_mut(&exchange)?;
        open.sent += bytes;
        open.codec = open.codec.or(Some(codec));
        let (tracer, from) = (self.tracer.clone(), Instant::now());
        Some(Written::new(move || {
            let attributes = tensor(leg, bytes);
            tracer.part(Span { exchange, name: "send", from, to: Instant::now(), attributes });
        }))
    }

    /// Notes an output of the core that is about to be carried out.
    pub(crate) fn output(&mut self, output: &Output) {
        if self.tracer.wanted().is_none() {
            return;
        }
        match output {
            Output::Send { to, message } => self.said(*to, message),
            Output::SendContribution { exchange, .. } => self.end(*exchange, "served", None),
            Output::Forget { exchange } => {
                if let Some(open) = self.open.get_mut(exchange) {
                    open.over = true;
                }
            }
            Output::Event(event) => self.event(event),
            _ => {}
        }
    }

    /// Closes the exchanges that are over, after all outputs of the core have been noted.
    pub(crate) fn settle(&mut self, network: &NetworkHandle) {
        if self.open.values().all(|open| open.taken && !open.over) {
            return;
        }
        self.open.retain(|_, open| open.taken);
        let over: Vec<ExchangeId> =
            self.open.iter().filter(|(_, open)| open.over).map(|(exchange, _)| *exchange).collect();
        let links = if over.is_empty() { Vec::new() } else { network.peers() };
        for exchange in over {
            let Some(open) = self.open.remove(&exchange) else { continue };
            let link = links.iter().find(|link| link.peer == open.partner);
            let carried = link.map_or("", |link| path(link.carrier, link.connection));
            self.close(exchange, &open, carried);
        }
    }

    fn begin(&mut self, exchange: ExchangeId, open: Open) {
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&exchange) {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.began);
            if let Some(oldest) = oldest.map(|(exchange, _)| *exchange) {
                self.open.remove(&oldest);
            }
        }
        self.open.entry(exchange).or_insert(open);
    }

    fn end(&mut self, exchange: ExchangeId, outcome: &'static str, reason: Option<&'static str>) {
        if let Some(open) = self.open.get_mut(&exchange) {
            open.end(outcome, reason);
        }
    }

    fn said(&mut self, to: PeerId, message: &Message) {
        match message {
            Message::Propose { exchange, fragment, .. } => {
                self.begin(*exchange, Open::new("exchange", to, *fragment));
            }
            Message::Pull { exchange, fragment } => {
                self.begin(*exchange, Open::new("pull", to, *fragment));
            }
            Message::Fetch { exchange, fragment, .. } => {
                self.begin(*exchange, Open::new("fetch", to, *fragment));
            }
            Message::Accept { exchange, terms } => {
                if let Some(open) = self.open.get_mut(exchange) {
                    (open.taken, open.codec) = (true, Some(terms.codec));
                }
            }
            Message::Busy { exchange } => self.end(*exchange, "refused", Some("busy")),
            Message::LeftOut { exchange } => self.end(*exchange, "refused", Some("left out")),
            Message::Stale { exchange, .. } => self.end(*exchange, "refused", Some("stale")),
            _ => {}
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Applied { exchange, weight, lag, .. } => {
                if let Some(open) = self.open.get_mut(exchange) {
                    (open.weight, open.lag) = (Some(*weight), Some(*lag));
                    (open.outcome, open.applied) = (Some("applied"), Some(Instant::now()));
                }
            }
            Event::Failed { exchange, failure, .. } => {
                if let Some(open) = self.open.get_mut(exchange) {
                    let (outcome, reason) = words(*failure);
                    (open.outcome, open.reason) = (Some(outcome), Some(reason));
                }
            }
            Event::Undone { exchange } => self.end(*exchange, "undone", Some("initiator")),
            Event::Undecided { exchange } => self.end(*exchange, "undecided", None),
            _ => {}
        }
    }

    fn close(&self, exchange: ExchangeId, open: &Open, path: &'static str) {
        let Some((me, rule)) = self.tracer.wanted() else { return };
        let to = Instant::now();
        let initiates = exchange.initiator == me;
        if let Some(from) = open.applied.filter(|_| !initiates) {
            // The other end has reported that it has applied its half.
            self.tracer.part(Span { exchange, name: "commit", from, to, attributes: Vec::new() });
        }
        let outcome = open.outcome.unwrap_or("done");
        let mut attributes = vec![
            KeyValue::new("dnode.exchange", exchange.to_string()),
            KeyValue::new("dnode.role", if initiates { "initiator" } else { "responder" }),
            KeyValue::new("dnode.partner", open.partner.to_string()),
            KeyValue::new("dnode.rule", rule.to_owned()),
            KeyValue::new("dnode.fragment", i64::from(open.fragment.0)),
            KeyValue::new("dnode.bytes.sent", count(open.sent)),
            KeyValue::new("dnode.bytes.received", count(open.received)),
            KeyValue::new("dnode.path", path),
            KeyValue::new("dnode.outcome", outcome),
        ];
        attributes.extend(open.codec.map(|codec| KeyValue::new("dnode.codec", codec.name())));
        attributes.extend(open.reason.map(|reason| KeyValue::new("dnode.reason", reason)));
        attributes.extend(open.weight.map(|it| KeyValue::new("dnode.weight", f64::from(it))));
        attributes.extend(
            open.lag.map(|it| KeyValue::new("dnode.lag", i64::try_from(it).unwrap_or(i64::MAX))),
        );
        let wrong = matches!(outcome, "failed" | "undone" | "undecided" | "aborted");
        let status =
            if wrong { Status::error(open.reason.unwrap_or(outcome)) } else { Status::Unset };
        let (name, from) = (open.name, open.began);
        self.tracer.whole(Span { exchange, name, from, to, attributes }, status);
    }
}

/// The attributes of a span of a tensor.
fn tensor(leg: Leg, bytes: usize) -> Vec<KeyValue> {
    let name = match leg {
        Leg::Offer => "offer",
        Leg::Reply => "reply",
        Leg::Snapshot => "snapshot",
        Leg::Ring => "ring",
        Leg::Contribution => "contribution",
    };
    vec![KeyValue::new("dnode.leg", name), KeyValue::new("dnode.bytes", count(bytes))]
}

fn count(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The words for outcome and reason.
const fn words(failure: Failure) -> (&'static str, &'static str) {
    match failure {
        Failure::Busy => ("refused", "busy"),
        Failure::Stale { .. } => ("refused", "stale"),
        Failure::TooOld => ("refused", "too old"),
        Failure::Expired => ("failed", "lease expired"),
        Failure::BadParameters => ("failed", "bad parameters"),
        Failure::Outlier => ("failed", "outlier"),
        Failure::Lost => ("failed", "lost"),
    }
}
