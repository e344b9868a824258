//! What can be learnt of the network before a run: who answers, over which transport, and how others see
//! this peer.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::frame::{CONTROL_HEADER_BYTES, decode_control};
use dnode_protocol::limits::IDENTIFY_PROTOCOL;
use dnode_protocol::membership::RunSecret;
use dnode_protocol::{Message, RunSpec};
use futures::StreamExt as _;
use libp2p::identity::Keypair;
use libp2p::request_response::{self, OutboundRequestId, ProtocolSupport};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, DialError, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, Swarm, autonat, identify, ping};
use tokio::time::{Instant, timeout_at};

use crate::config::NetworkError;
use crate::discovery::dial_cause;
use crate::event::NotLetIn;
use crate::limits::{ADDRESSES_PER_PEER_MAX, IDLE_CONNECTION};
use crate::membership::not_let_in;
use crate::nat::limited::Limited;
use crate::swarm::ask::{self, Skew, Told};
use crate::swarm::{listen_all, probe, transport};

/// Most addresses that are dialled in one call; further ones are left out.
pub const PROBED_MAX: usize = 16;

/// Most of the own listening addresses that are kept; a machine has as many as it has interfaces.
const LISTENING_MAX: usize = 64;

/// Time between two measurements of a round trip. It is short because the first ping of a connection
/// waits for its handshake.
const PROBE_PING_INTERVAL: Duration = Duration::from_millis(200);

/// Time before other peers are asked to dial this one, and between two of its addresses.
const REACH_INTERVAL: Duration = Duration::from_millis(200);

/// What a peer says that was dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The address that was dialled.
    pub address: Multiaddr,
    /// Name of the peer.
    pub peer: String,
    /// Whether it is a dnode of this protocol's version.
    pub speaks_dnode: bool,
    /// The address from which the peer sees this one come.
    pub observed: Multiaddr,
    /// The addresses at which the peer says that it listens, at most [`ADDRESSES_PER_PEER_MAX`].
    pub listens: Vec<Multiaddr>,
    /// Round trip of a ping.
    pub round_trip: Option<Duration>,
    /// Difference between the wall clock of the peer and that of this machine, if the peer tells its
    /// time.
    pub skew: Option<Skew>,
    /// The digest of the first step of the peer, if it tells one: up to 255 bytes of ASCII.
    pub digest: Option<String>,
    /// The peer's settings that peers of a run must agree on, and those that they should agree on, if it
    /// tells them.
    pub specs: Option<Box<[RunSpec; 2]>>,
}

/// An address that did not answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The address that was dialled.
    pub address: Multiaddr,
    /// The cause.
    pub cause: String,
    /// Why those there let nobody in who asks like this, where that is the cause.
    pub not_let_in: Option<NotLetIn>,
}

/// What was found by dialling one address.
pub type Found = Result<Answer, Silence>;

/// Whether other peers can dial this one at the address at which they see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A peer has dialled this address over a connection of its own.
    Reached(Multiaddr),
    /// Peers could not dial this peer; the last address that they tried.
    Unreached(Multiaddr),
    /// No peer that was asked has tried.
    Untried,
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    ping: crate::swarm::ping::Behaviour,
    ask: request_response::Behaviour<ask::Codec>,
    reach: Limited<autonat::v2::client::Behaviour>,
}

/// One dial that is under way.
#[derive(Debug)]
struct Dial {
    address: Multiaddr,
    /// Whether a connection is there.
    connected: bool,
    info: Option<identify::Info>,
    round_trip: Option<Duration>,
    question: Question,
    failed: Option<String>,
    not_let_in: Option<NotLetIn>,
}

/// The state of the question to one peer.
#[derive(Clone, Debug)]
enum Question {
    Unasked,
    /// The wall clock of this machine when it asked, in microseconds since 1970, and the same moment on
    /// the steady clock.
    Asked(OutboundRequestId, u64, Instant),
    Told(Skew, String, Option<Box<[RunSpec; 2]>>),
    Silent,
}

impl Dial {
    const fn is_over(&self) -> bool {
        self.failed.is_some()
            || (self.info.is_some()
                && self.round_trip.is_some()
                && matches!(self.question, Question::Told(..) | Question::Silent))
    }

    fn found(self, limit: Duration) -> Found {
        let Self { address, connected, info, round_trip, question, failed, not_let_in } = self;
        let Some(info) = info else {
            let silent = || {
                let what = if connected { "it does not say what it is" } else { "no answer" };
                format!("{what} within {limit:?}")
            };
            let cause = failed.unwrap_or_else(silent);
            return Err(Silence { address, cause, not_let_in });
        };
        let mut listens = info.listen_addrs;
        listens.truncate(ADDRESSES_PER_PEER_MAX);
        let (skew, digest, specs) = match question {
            Question::Told(skew, digest, specs) => (Some(skew), Some(digest), specs),
            Question::Unasked | Question::Asked(..) | Question::Silent => (None, None, None),
        };
        Ok(Answer {
            address,
            peer: info.public_key.to_peer_id().to_string(),
            speaks_dnode: info.protocol_version == IDENTIFY_PROTOCOL,
            observed: info.observed_addr,
            listens,
            round_trip,
            skew,
            digest: digest.filter(|digest| !digest.is_empty()),
            specs,
        })
    }
}

/// A peer that trains nothing: it dials, asks and leaves. Members of a closed run answer it if it knows
/// their secret.
pub struct Probe {
    closed: bool,
    swarm: Swarm<Behaviour>,
    bulk: dnode_quic::Bulk,
    listening: Vec<Multiaddr>,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("listening", &self.listening).finish_non_exhaustive()
    }
}

impl Probe {
    /// Listens at the addresses `listen` under a fresh name, as a member of the closed run that has
    /// `secret`, or as one of no closed run. Waits, at most `limit`, until each of them
    /// is open.
    ///
    /// Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`NetworkError`] names the address that cannot be listened on.
    pub async fn start(
        listen: &[Multiaddr],
        secret: Option<&RunSecret>,
        limit: Duration,
    ) -> Result<Self, NetworkError> {
        let key = Keypair::generate_ed25519();
        let (transport, plane, _) = transport(false, &key, secret)?;
        let identify = identify::Config::new(IDENTIFY_PROTOCOL.to_owned(), key.public());
        let ping = ping::Config::new().with_interval(PROBE_PING_INTERVAL);
        let behaviour = Behaviour {
            identify: identify::Behaviour::new(identify),
            ping: crate::swarm::ping::Behaviour::new(ping),
            ask: ask::behaviour(ProtocolSupport::Outbound),
            reach: probe(REACH_INTERVAL),
        };
        let config = libp2p::swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(IDLE_CONNECTION);
        let mut swarm = Swarm::new(transport, behaviour, key.public().to_peer_id(), config);
        listen_all(&mut swarm, listen)?;
        let closed = secret.is_some();
        let mut made = Self { closed, swarm, bulk: plane.bulk, listening: Vec::new() };
        made.wait_until_listening(listen, limit).await?;
        Ok(made)
    }

    async fn wait_until_listening(
        &mut self,
        listen: &[Multiaddr],
        limit: Duration,
    ) -> Result<(), NetworkError> {
        let end = Instant::now() + limit;
        let same =
            |a: &Multiaddr, b: &Multiaddr| a.iter().map(|p| p.tag()).eq(b.iter().map(|p| p.tag()));
        let is_missing = |probe: &Self, wanted: &Multiaddr| {
            !probe.listening.iter().any(|address| same(address, wanted))
        };
        while listen.iter().any(|wanted| is_missing(self, wanted)) {
            match timeout_at(end, self.swarm.select_next_some()).await {
                Ok(SwarmEvent::NewListenAddr { address, .. }) => self.heard(address),
                Ok(SwarmEvent::ListenerClosed { addresses, reason: Err(error), .. }) => {
                    let address = addresses.into_iter().next().unwrap_or_else(Multiaddr::empty);
                    let reason = error.to_string();
                    return Err(NetworkError::Listen { address, reason });
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn heard(&mut self, address: Multiaddr) {
        if self.listening.len() < LISTENING_MAX {
            self.listening.push(address);
        }
    }

    /// The addresses that it listens on, one for each interface.
    #[must_use]
    pub fn listening(&self) -> &[Multiaddr] {
        &self.listening
    }

    /// The real buffer sizes of its UDP sockets; `None` where it has no such socket.
    #[must_use]
    pub fn buffers(&self) -> Option<dnode_quic::Buffers> {
        self.bulk.buffers()
    }

    /// Dials the first [`PROBED_MAX`] of `addresses` at the same time, from the sockets that it listens
    /// on, and asks who answers. Ends after `limit` at the latest.
    pub async fn dial(&mut self, addresses: &[Multiaddr], limit: Duration) -> Vec<Found> {
        let mut dials = self.begin(addresses);
        let end = Instant::now() + limit;
        while !dials.values().all(Dial::is_over) {
            let Ok(event) = timeout_at(end, self.swarm.select_next_some()).await else { break };
            self.handle(event, &mut dials);
        }
        self.hang_up(&dials);
        dials.into_values().map(|dial| dial.found(limit)).collect()
    }

    /// Dials peers at `addresses`, and has those that answer dial this one at the address at which they
    /// see it (AutoNAT v2). Ends as soon as one of them succeeds, when no address is left to try, or
    /// after `limit`.
    pub async fn reach(&mut self, addresses: &[Multiaddr], limit: Duration) -> Reach {
        let mut dials = self.begin(addresses);
        let end = Instant::now() + limit;
        // The addresses at which others see this peer, and whether they could dial it there.
        let mut tried: BTreeMap<Multiaddr, Option<bool>> = BTreeMap::new();
        let with = |tried: &BTreeMap<Multiaddr, Option<bool>>, result: bool| {
            let mut of = tried.iter().rev().filter(|(_, could)| **could == Some(result));
            of.next().map(|(address, _)| address.clone())
        };
        loop {
            let known = dials.values().all(|dial| dial.failed.is_some() || dial.info.is_some());
            if known && tried.values().all(Option::is_some) || with(&tried, true).is_some() {
                break;
            }
            let Ok(event) = timeout_at(end, self.swarm.select_next_some()).await else { break };
            if let SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                info,
                ..
            })) = &event
                && tried.len() < PROBED_MAX
            {
                let seen = &info.observed_addr;
                tried.entry(seen.clone()).or_default();
                self.swarm.behaviour_mut().reach.candidate(seen, Instant::now());
            }
            if let SwarmEvent::Behaviour(BehaviourEvent::Reach(tested)) = &event {
                let could = tested.result.is_ok();
                tried.entry(tested.tested_addr.clone()).and_modify(|it| *it = Some(could));
            }
            self.handle(event, &mut dials);
        }
        self.hang_up(&dials);
        let failed = || with(&tried, false).map(Reach::Unreached);
        with(&tried, true).map(Reach::Reached).or_else(failed).unwrap_or(Reach::Untried)
    }

    fn begin(&mut self, addresses: &[Multiaddr]) -> BTreeMap<ConnectionId, Dial> {
        let mut dials = BTreeMap::new();
        for address in addresses.iter().take(PROBED_MAX) {
            let options = DialOpts::unknown_peer_id().address(address.clone()).build();
            let connection = options.connection_id();
            let failed = self.swarm.dial(options).err().map(|error| self.cause(&error));
            let (address, connected) = (address.clone(), false);
            let (info, round_trip, question) = (None, None, Question::Unasked);
            let not_let_in = None;
            let dial = Dial { address, connected, info, round_trip, question, failed, not_let_in };
            dials.insert(connection, dial);
        }
        dials
    }

    /// Why a dial failed, in a few words.
    fn cause(&self, error: &DialError) -> String {
        let told = |why: NotLetIn| match why {
            NotLetIn::Closed => "its run is closed, and needs a ticket or secret",
            NotLetIn::Open => "it is of no closed run, or no dnode of this version",
            NotLetIn::OtherSecret => "its run has another secret",
        };
        not_let_in(error, self.closed).map_or_else(|| dial_cause(error), |why| told(why).to_owned())
    }

    fn hang_up(&mut self, dials: &BTreeMap<ConnectionId, Dial>) {
        for connection in dials.keys() {
            self.swarm.close_connection(*connection);
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "libp2p's events are an open list")]
    fn handle(
        &mut self,
        event: SwarmEvent<BehaviourEvent>,
        dials: &mut BTreeMap<ConnectionId, Dial>,
    ) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } => self.heard(address),
            SwarmEvent::ConnectionEstablished { connection_id, .. } => {
                dials.entry(connection_id).and_modify(|dial| dial.connected = true);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                let (cause, why) = (self.cause(&error), not_let_in(&error, self.closed));
                dials.entry(connection_id).and_modify(|dial| {
                    (dial.failed, dial.not_let_in) = (Some(cause), why);
                });
            }
            SwarmEvent::ConnectionClosed { connection_id, cause, .. } => {
                let cause = cause.map_or_else(|| "it hung up".to_owned(), |it| it.to_string());
                dials.entry(connection_id).and_modify(|dial| dial.failed = Some(cause));
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                connection_id,
                peer_id,
                info,
            })) => {
                let Some(dial) = dials.get_mut(&connection_id) else { return };
                if matches!(dial.question, Question::Unasked) {
                    dial.question = if info.protocol_version == IDENTIFY_PROTOCOL {
                        let question = self.swarm.behaviour_mut().ask.send_request(&peer_id, ());
                        Question::Asked(question, ask::now(), Instant::now())
                    } else {
                        Question::Silent
                    };
                }
                dial.info = Some(info);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ask(request_response::Event::Message {
                message: request_response::Message::Response { request_id, response },
                ..
            })) => told(dials, request_id, Some(response)),
            SwarmEvent::Behaviour(BehaviourEvent::Ask(
                request_response::Event::OutboundFailure { request_id, .. },
            )) => told(dials, request_id, None),
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping)) => {
                let round_trip = ping.result.ok();
                dials.entry(ping.connection).and_modify(|dial| dial.round_trip = round_trip);
            }
            _ => {}
        }
    }
}

/// The answer to `question`; `None` when there will be none.
fn told(
    dials: &mut BTreeMap<ConnectionId, Dial>,
    question: OutboundRequestId,
    theirs: Option<Told>,
) {
    let of_it = dials.values_mut().find_map(|dial| match dial.question {
        Question::Asked(asked, at, since) => (asked == question).then_some((dial, at, since)),
        Question::Unasked | Question::Told(..) | Question::Silent => None,
    });
    if let Some((dial, at, since)) = of_it {
        let told = |Told { micros, digest, hello }: Told| {
            let specs = match decode_control(hello.get(CONTROL_HEADER_BYTES..).unwrap_or(&[])) {
                Ok(Message::Hello { run, settings, .. }) => Some(Box::new([run, settings])),
                Ok(_) | Err(_) => None,
            };
            Question::Told(Skew::new(micros, at, since.elapsed()), digest, specs)
        };
        dial.question = theirs.map_or(Question::Silent, told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn local(text: &str) -> Vec<Multiaddr> {
        vec![text.parse().unwrap()]
    }

    #[tokio::test]
    async fn one_that_answers_says_how_it_sees_us_and_a_closed_port_is_silent() {
        let quic = local("/ip4/127.0.0.1/udp/0/quic-v1");
        let mut other = Probe::start(&quic, None, LIMIT).await.unwrap();
        let there = other.listening()[0].clone();
        let answering = tokio::spawn(async move {
            loop {
                other.swarm.select_next_some().await;
            }
        });
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let closed: Multiaddr = format!("/ip4/127.0.0.1/udp/{free}/quic-v1").parse().unwrap();
        let mut probe = Probe::start(&quic, None, LIMIT).await.unwrap();
        let found = probe.dial(&[there.clone(), closed.clone()], LIMIT).await;
        answering.abort();
        let answer = found[0].as_ref().unwrap();
        assert_eq!((&answer.address, answer.speaks_dnode), (&there, true));
        assert!(probe.listening().contains(&answer.observed), "{answer:?}");
        assert!(answer.round_trip.is_some() && answer.listens.contains(&there), "{answer:?}");
        assert_eq!(found[1].as_ref().unwrap_err().address, closed);
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let taken = local(&format!("/ip4/127.0.0.1/udp/{port}/quic-v1"));
        let error = Probe::start(&taken, None, LIMIT).await.unwrap_err();
        assert!(matches!(error, NetworkError::ListenInUse { .. }), "{error}");
    }
}
