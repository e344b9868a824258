//! Exchanges that end half way, a thousand of them: memory stays what it was.

#![expect(clippy::wildcard_enum_match_arm, reason = "most of what is heard is of no interest")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dnode_network::{Multiaddr, Network, NetworkConfig, NetworkEvent, NetworkHandle, RunSecret};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Fragments, Message, PeerId, RunSpec};

use crate::attacker::{run_of, terms};
use crate::process::{Peer, SECRET};

/// Exchanges that end half way before memory is measured, and between the two measurements.
const WARM: usize = 500;
const ABORTED: usize = 1000;
/// Exchanges of one life: what a peer answers at a time.
const AT_ONCE: u64 = 16;
/// Bytes per second that are offered, so that the middle of it can be met.
const UPLOAD: u64 = 16_000_000;
/// Most such measurements: a higher peak than ever before, which the allocator keeps, comes once, and what
/// is forgotten comes every time.
const SPANS: usize = 3;
/// How far memory may grow.
const GROWTH_MAX: f64 = 1.05;
/// Longest life: on a busy machine, too, most of it is over before.
const LIFE_MAX: Duration = Duration::from_secs(10);

/// A peer that dies in the middle of what it does, again and again.
struct Dying {
    victim: PeerId,
    address: Multiaddr,
    run: RunSpec,
    fragments: Fragments,
    /// Which life it is.
    incarnation: u64,
    /// Exchanges that both ends had agreed on when a life ended.
    aborted: usize,
}

/// One of its lives.
struct Life {
    victim: PeerId,
    fragments: Fragments,
    handle: NetworkHandle,
    /// Exchanges that were proposed and not yet answered.
    waiting: BTreeSet<ExchangeId>,
    /// Bytes.
    offered: u64,
    /// Exchanges that both ends agree on.
    agreed: usize,
}

impl Dying {
    /// Connects, has as many exchanges agreed on as it can, and is gone when half of what it
    /// offered is written.
    async fn live(&mut self) {
        self.incarnation += 1;
        let mut config = NetworkConfig::new([77; 32], self.run.clone(), self.incarnation);
        config.secret = Some(RunSecret::from_bytes(SECRET));
        config.listen = vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()];
        config.bootstrap = vec![self.address.clone()];
        config.upload_max = UPLOAD;
        let (handle, mut events) = Network::start(config).unwrap();
        while !matches!(events.recv().await.unwrap(), NetworkEvent::PeerUp { .. }) {}
        let Self { victim, fragments, .. } = *self;
        let waiting = BTreeSet::new();
        let mut life = Life { victim, fragments, handle, waiting, offered: 0, agreed: 0 };
        life.propose(self.incarnation);
        let until = Instant::now() + LIFE_MAX;
        let mut look = tokio::time::interval(Duration::from_millis(2));
        while !life.is_half_done() && Instant::now() < until {
            tokio::select! {
                event = events.recv() => match event.unwrap() {
                    NetworkEvent::Message { message, .. } => life.heard(message),
                    NetworkEvent::PeerDown { .. } => break,
                    _ => {}
                },
                _ = look.tick() => {}
            }
        }
        self.aborted += life.agreed;
        // What waits to be written is dropped with the connection.
        life.handle.disconnect(victim, Duration::ZERO).unwrap();
        life.handle.shutdown().await;
    }
}

impl Life {
    fn propose(&mut self, incarnation: u64) {
        let initiator = self.handle.peer_id();
        for sequence in 0..AT_ONCE {
            let exchange = ExchangeId { initiator, incarnation, sequence };
            let fragment = self.fragment(exchange);
            self.say(&Message::Propose { exchange, fragment, terms: terms(Clock(0)) });
            self.waiting.insert(exchange);
        }
    }

    fn is_half_done(&self) -> bool {
        self.waiting.is_empty() && self.handle.bytes().sent * 2 >= self.offered
    }

    fn heard(&mut self, message: Message) {
        match message {
            Message::Accept { exchange, terms } if self.waiting.remove(&exchange) => {
                self.offer(exchange, terms.clock);
                self.agreed += 1;
            }
            Message::Busy { exchange } => {
                self.waiting.remove(&exchange);
            }
            Message::Propose { exchange, terms, .. } => {
                self.say(&Message::Accept { exchange, terms });
                self.agreed += 1;
            }
            _ => {}
        }
    }

    fn fragment(&self, exchange: ExchangeId) -> FragmentId {
        FragmentId(u32::try_from(exchange.sequence % self.fragments.count() as u64).unwrap())
    }

    /// Queues a whole offer.
    fn offer(&mut self, exchange: ExchangeId, clock: Clock) {
        let (leg, codec, fragment) = (Leg::Offer, Codec::F32, self.fragment(exchange));
        let elements = u32::try_from(self.fragments.range(fragment).unwrap().len()).unwrap();
        let header =
            TensorHeader { exchange, leg, codec, fragment, clock, elements, offset: 0, count: 0 };
        let payload = vec![0; codec.payload_bytes(elements as usize)];
        self.offered += payload.len() as u64;
        self.handle.send_tensor(self.victim, header, payload.into()).unwrap();
    }

    /// What does not arrive belongs to a life that has ended.
    fn say(&self, message: &Message) {
        let _ = self.handle.send(self.victim, message);
    }
}

/// Resident memory, bytes.
fn resident(peer: &Peer) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", peer.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024.0 * line.trim().trim_end_matches(" kB").parse::<f64>().unwrap()
}

#[test]
fn a_thousand_exchanges_that_end_half_way_leave_no_memory_behind() {
    let root = tempfile::tempdir().unwrap();
    let flags = [
        ["--steps", "100000000"],
        ["--set", "run.batch=1"],
        ["--set", "node.evaluate_every=0"],
        // Fragments of two frames each, and a clock that stays.
        ["--set", "model.hidden=[1000, 1000]"],
        ["--set", "gossip.fragments=16"],
        ["--set", "gossip.local_steps=1000000"],
        ["--set", "gossip.codecs=[\"f32\"]"],
        ["--set", "gossip.balance=off"],
    ];
    let mut victim = Peer::start(&root, "victim", &flags.concat());
    let address = victim.address();
    let (run, fragments) = run_of(&victim.data());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut dying = Dying {
        victim: victim.id(),
        address: address.parse().unwrap(),
        run,
        fragments,
        incarnation: 0,
        aborted: 0,
    };
    let mut until = |count: usize| {
        while dying.aborted < count {
            runtime.block_on(dying.live());
        }
    };
    until(WARM);
    let mut before = resident(&victim);
    let grew = (1..=SPANS).all(|span| {
        until(WARM + span * ABORTED);
        let after = resident(&victim);
        println!("resident: {before} bytes, then {after}");
        let grew = after > GROWTH_MAX * before;
        before = after;
        grew
    });
    assert!(!grew, "memory grows with every {ABORTED} exchanges that end half way");
}
