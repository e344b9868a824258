//! A hostile peer in the test process: real network, real handshake, and then an [`Attack`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use dnode_network::{Multiaddr, Network, NetworkConfig, NetworkEvent, NetworkHandle, RunSecret};
use dnode_protocol::frame::{Codec, Leg, TensorHeader, write_f32s};
use dnode_protocol::{
    Clock, ExchangeId, FragmentId, Fragments, Heartbeat, Information, Message, PeerId, Phase,
    RunField, RunSpec, Terms,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::process::SECRET;

/// Between two acts that nobody asked for.
const BEAT: Duration = Duration::from_millis(50);
/// The secret key of an attacker is this byte, repeated, and its index.
const KEY: u8 = 200;
/// The names of all attackers that there may be.
static NAMES: LazyLock<BTreeSet<PeerId>> =
    LazyLock::new(|| (0..=u8::MAX).map(|index| dnode_network::peer_id(&key(index))).collect());

/// What a hostile peer does after a faultless handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    /// Accepts proposals and replies with this number everywhere.
    Reply(f32),
    /// Proposes, and offers this number everywhere.
    Offer(f32),
    /// Accepts proposals and never replies.
    NeverReplies,
    /// Proposes, and never offers.
    NeverOffers,
    /// Accepts proposals and replies with one number too few.
    ShortReply,
    /// Says Hello a second time.
    HelloAgain,
    /// Names the largest number as its clock.
    LargestClock,
    /// Names a clock that is legal and impossible.
    ImpossibleClock,
    /// Proposes in the name of another.
    OthersName,
    /// Speaks of exchanges that do not exist, and sends tensors that nobody expects.
    Noise,
    /// Does nothing but to answer that it is busy.
    Busy,
}

/// A hostile peer; it stops when it is dropped.
pub(crate) struct Attacker {
    id: PeerId,
    heard: Arc<Mutex<Vec<(PeerId, Message)>>>,
    // Its threads end with the last attacker on it.
    _runtime: Arc<Runtime>,
}

impl Attacker {
    /// Joins the run of the peer with this data directory and address, as the `index`-th attacker.
    pub(crate) fn start(index: u8, attack: Attack, data: &Path, address: &str) -> Self {
        Self::start_on(&runtime(), index, attack, (data, address))
    }

    /// As many names that are always busy, all on one thread.
    pub(crate) fn crowd(names: u8, data: &Path, address: &str) -> Vec<Self> {
        let runtime = runtime();
        let start = |index| Self::start_on(&runtime, index, Attack::Busy, (data, address));
        (0..names).map(start).collect()
    }

    fn start_on(
        runtime: &Arc<Runtime>,
        index: u8,
        attack: Attack,
        (data, address): (&Path, &str),
    ) -> Self {
        let (run, fragments) = run_of(data);
        let key = key(index);
        let mut config = NetworkConfig::new(key, run.clone(), 1);
        if matches!(attack, Attack::Busy) {
            // It has no business with the others of its crowd.
            (config.peers_max, config.peers_target) = (8, 1);
        }
        config.secret = Some(RunSecret::from_bytes(SECRET));
        let parse = |text: &str| -> Multiaddr { text.parse().unwrap() };
        config.listen = vec![parse("/ip4/127.0.0.1/udp/0/quic-v1")];
        config.bootstrap = vec![parse(address)];
        let entered = runtime.enter();
        let (handle, events) = Network::start(config).unwrap();
        drop(entered);
        let heard: Arc<Mutex<Vec<_>>> = Arc::default();
        let acting = Acting {
            attack,
            run,
            fragments,
            handle,
            heard: Arc::clone(&heard),
            said: BTreeMap::new(),
            sequence: 0,
        };
        runtime.spawn(acting.run(events));
        Self { id: dnode_network::peer_id(&key), heard, _runtime: Arc::clone(runtime) }
    }

    pub(crate) const fn id(&self) -> PeerId {
        self.id
    }

    /// What a peer has said to it; heartbeats excluded.
    pub(crate) fn heard_from(&self, peer: PeerId) -> Vec<Message> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(from, _)| *from == peer).map(|(_, message)| message.clone()).collect()
    }
}

/// The run that a data directory is bound to, and the fragments of its model.
pub(crate) fn run_of(data: &Path) -> (RunSpec, Fragments) {
    let text = std::fs::read_to_string(data.join("run.json")).unwrap();
    let binding: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pairs: Vec<(String, String)> = serde_json::from_value(binding["fields"].clone()).unwrap();
    let number = |wanted: &str| -> usize {
        pairs.iter().find(|(name, _)| name == wanted).unwrap().1.parse().unwrap()
    };
    let fragments = Fragments::new(number("parameters.count"), number("gossip.fragments"));
    let fields = pairs.into_iter().map(|(name, value)| RunField { name, value }).collect();
    (RunSpec::new(fields).unwrap(), fragments.unwrap())
}

fn runtime() -> Arc<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Arc::new(builder.worker_threads(1).enable_all().build().unwrap())
}

fn key(index: u8) -> [u8; 32] {
    let mut key = [KEY; 32];
    key[31] = index;
    key
}

fn is_attacker(peer: PeerId) -> bool {
    NAMES.contains(&peer)
}

struct Acting {
    attack: Attack,
    run: RunSpec,
    fragments: Fragments,
    handle: NetworkHandle,
    heard: Arc<Mutex<Vec<(PeerId, Message)>>>,
    /// The last heartbeat of each honest peer: what this one says of itself.
    said: BTreeMap<PeerId, Heartbeat>,
    sequence: u64,
}

impl Acting {
    async fn run(mut self, mut events: mpsc::Receiver<NetworkEvent>) {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.event(event),
                    None => return,
                },
                _ = beat.tick() => self.beat(),
            }
        }
    }

    fn event(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Message { from, message } if !is_attacker(from) => {
                self.message(from, &message);
                if !matches!(message, Message::Heartbeat(_)) {
                    self.heard.lock().unwrap().push((from, message));
                }
            }
            NetworkEvent::PeerDown { peer, .. } => {
                self.said.remove(&peer);
            }
            NetworkEvent::Tensor { from, header, .. } => self.tensor(from, &header),
            NetworkEvent::Message { .. }
            | NetworkEvent::PeerUp { .. }
            | NetworkEvent::Listening { .. }
            | NetworkEvent::NotListening { .. }
            | NetworkEvent::SocketBuffers { .. }
            | NetworkEvent::Channel { .. }
            | NetworkEvent::Found { .. }
            | NetworkEvent::Uses { .. }
            | NetworkEvent::Offence { .. }
            | NetworkEvent::Refused { .. }
            | NetworkEvent::BootstrapReached { .. }
            | NetworkEvent::BootstrapUnreachable { .. }
            | NetworkEvent::PathLost { .. }
            | NetworkEvent::Revocations { .. }
            | NetworkEvent::NoMember { .. }
            | NetworkEvent::Copied { .. }
            | NetworkEvent::CopiedPeer { .. }
            | NetworkEvent::NotLetIn { .. }
            | NetworkEvent::RelayUp { .. }
            | NetworkEvent::RelayDown { .. }
            | NetworkEvent::RoundTrip { .. } => {}
        }
    }

    fn message(&mut self, from: PeerId, message: &Message) {
        match message {
            Message::Heartbeat(heartbeat) => {
                let first = self.said.insert(from, *heartbeat).is_none();
                // A faithful copy: near enough to be a partner, and finished when the other is.
                self.say(from, &Message::Heartbeat(self.disguise(*heartbeat)));
                if first {
                    self.strike(from);
                }
            }
            Message::Propose { exchange, terms, .. } => match self.attack {
                Attack::Reply(_) | Attack::ShortReply | Attack::NeverReplies => {
                    let terms = Terms { information: Information::default(), ..terms.clone() };
                    self.say(from, &Message::Accept { exchange: *exchange, terms });
                }
                Attack::Offer(_)
                | Attack::NeverOffers
                | Attack::HelloAgain
                | Attack::LargestClock
                | Attack::ImpossibleClock
                | Attack::OthersName
                | Attack::Noise
                | Attack::Busy => self.say(from, &Message::Busy { exchange: *exchange }),
            },
            // It lives, and says so.
            Message::Probe { number, target } => {
                self.say(from, &Message::Alive { number: *number, target: *target });
            }
            Message::Accept { exchange, terms } => {
                if let Attack::Offer(value) = self.attack {
                    let fragment = self.fragment_of(exchange.sequence);
                    self.send(from, (*exchange, Leg::Offer, fragment, terms.clock), (value, 0));
                }
            }
            Message::Hello { .. }
            | Message::Refuse { .. }
            | Message::Goodbye
            | Message::Busy { .. }
            | Message::LeftOut { .. }
            | Message::Stale { .. }
            | Message::Ack { .. }
            | Message::Abort { .. }
            | Message::Aborted { .. }
            | Message::Pull { .. }
            | Message::Snapshot { .. }
            | Message::Have { .. }
            | Message::Fetch { .. }
            | Message::Alive { .. }
            | Message::Rack { .. }
            | Message::Summaries { .. }
            | Message::Revocations { .. }
            | Message::Part(_) => {}
        }
    }

    /// The end of an offer is the time to reply.
    fn tensor(&self, from: PeerId, header: &TensorHeader) {
        let end = header.offset + header.count;
        if header.leg != Leg::Offer || end < header.elements {
            return;
        }
        let tensor = (header.exchange, Leg::Reply, header.fragment, header.clock);
        match self.attack {
            Attack::Reply(value) => self.send(from, tensor, (value, 0)),
            Attack::ShortReply => self.send(from, tensor, (0.0, 1)),
            Attack::Offer(_)
            | Attack::NeverReplies
            | Attack::NeverOffers
            | Attack::HelloAgain
            | Attack::LargestClock
            | Attack::ImpossibleClock
            | Attack::OthersName
            | Attack::Noise
            | Attack::Busy => {}
        }
    }

    const fn disguise(&self, heartbeat: Heartbeat) -> Heartbeat {
        match self.attack {
            Attack::ImpossibleClock => Heartbeat { clock: Clock(1 << 47), ..heartbeat },
            Attack::LargestClock => Heartbeat { clock: Clock(u64::MAX), ..heartbeat },
            Attack::Reply(_)
            | Attack::Offer(_)
            | Attack::NeverReplies
            | Attack::NeverOffers
            | Attack::ShortReply
            | Attack::HelloAgain
            | Attack::OthersName
            | Attack::Noise
            | Attack::Busy => heartbeat,
        }
    }

    /// What is done once to each peer.
    fn strike(&mut self, victim: PeerId) {
        match self.attack {
            Attack::HelloAgain => {
                let run = self.run.clone();
                let (settings, direct_port) = (RunSpec::default(), 0);
                let (incarnation, chain) = (1, Vec::new());
                let hello = Message::Hello { run, settings, incarnation, direct_port, chain };
                self.say(victim, &hello);
            }
            Attack::OthersName => {
                let initiator = PeerId::from_public_key([7; 32]);
                self.propose(victim, initiator);
            }
            Attack::Reply(_)
            | Attack::Offer(_)
            | Attack::NeverReplies
            | Attack::NeverOffers
            | Attack::ShortReply
            | Attack::LargestClock
            | Attack::ImpossibleClock
            | Attack::Noise
            | Attack::Busy => {}
        }
    }

    /// What is done again and again.
    fn beat(&mut self) {
        let victims: Vec<PeerId> = self.said.keys().copied().collect();
        for victim in victims {
            match self.attack {
                Attack::Offer(_) | Attack::NeverOffers => {
                    self.propose(victim, self.handle.peer_id());
                }
                Attack::Noise => self.noise(victim),
                Attack::Reply(_)
                | Attack::NeverReplies
                | Attack::ShortReply
                | Attack::HelloAgain
                | Attack::LargestClock
                | Attack::ImpossibleClock
                | Attack::OthersName
                | Attack::Busy => {}
            }
        }
    }

    fn fragment_of(&self, sequence: u64) -> FragmentId {
        let fragments = self.fragments.iter().len() as u64;
        FragmentId(u32::try_from(sequence % fragments).unwrap())
    }

    fn propose(&mut self, victim: PeerId, initiator: PeerId) {
        let Some(heartbeat) = self.said.get(&victim) else { return };
        if heartbeat.phase == Phase::Joining {
            return;
        }
        let (sequence, clock) = (self.sequence, heartbeat.clock);
        self.sequence += 1;
        let exchange = ExchangeId { initiator, incarnation: 1, sequence };
        let fragment = self.fragment_of(sequence);
        self.say(victim, &Message::Propose { exchange, fragment, terms: terms(clock) });
    }

    fn noise(&mut self, victim: PeerId) {
        self.sequence += 1;
        let sequence = 1_000_000 + self.sequence;
        let clock = self.said.get(&victim).map_or(Clock(0), |heartbeat| heartbeat.clock);
        let stranger = PeerId::from_public_key([7; 32]);
        for initiator in [victim, self.handle.peer_id(), stranger] {
            let exchange = ExchangeId { initiator, incarnation: 1, sequence };
            for message in [
                Message::Accept { exchange, terms: terms(clock) },
                Message::Busy { exchange },
                Message::LeftOut { exchange },
                Message::Stale { exchange, clock },
                Message::Ack { exchange },
                Message::Abort { exchange },
                Message::Aborted { exchange },
            ] {
                self.say(victim, &message);
            }
            for leg in [Leg::Offer, Leg::Reply, Leg::Snapshot, Leg::Ring] {
                self.send(victim, (exchange, leg, FragmentId(0), clock), (1e30, 0));
            }
        }
    }

    /// What does not arrive is said again by the next attack.
    fn say(&self, to: PeerId, message: &Message) {
        let _ = self.handle.send(to, message);
    }

    fn send(
        &self,
        to: PeerId,
        (exchange, leg, fragment, clock): (ExchangeId, Leg, FragmentId, Clock),
        (value, missing): (f32, usize),
    ) {
        let elements = self.fragments.range(fragment).unwrap().len() - missing;
        let header = TensorHeader {
            exchange,
            leg,
            codec: Codec::F32,
            fragment,
            clock,
            elements: u32::try_from(elements).unwrap(),
            offset: 0,
            count: 0,
        };
        let mut payload = Vec::new();
        write_f32s(&vec![value; elements], &mut payload);
        let _ = self.handle.send_tensor(to, header, payload.into());
    }
}

/// Terms of a peer at this clock that knows nobody.
pub(crate) fn terms(clock: Clock) -> Terms {
    let information = Information::default();
    Terms { clock, mass: 1, work: 1, merges: false, codec: Codec::F32, information }
}
