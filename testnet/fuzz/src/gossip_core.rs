//! The gossip core between an honest driver and dishonest neighbours.
//!
//! The bytes are a script: what arrives from whom, when the trainer answers, when time passes.
//! Names, sequence numbers and clocks come from small sets, so that messages often meet a state in
//! which they mean something. After every input the promises of the core are checked.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_gossip::testing::peer;
use dnode_gossip::{
    Config, Gossip, Input, Offence, Output, Reading, RefusedMix, Start, VIEW_MAX, Work,
};
use dnode_protocol::frame::{Codec, Leg};
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Heartbeat, Information, Message, Origin, PeerId,
    Phase, Stripe, Terms, Time, Versions,
};

/// The own index among the test peers: between its neighbours, so that crossings go both ways.
const ME: u32 = 1;
/// Neighbours that speak, the own name included (somebody may claim to be us).
const PEERS: u8 = 4;
const FRAGMENTS: u32 = 3;
const SEQUENCES: u8 = 8;
/// Seeds of a sixteenth with which the core only watches.
const OBSERVES: u8 = 15;
/// Most outputs that one input may cause: a round proposes and answers a handful per fragment.
const OUTPUTS_MAX: usize = 2048;
/// Most inputs of one script.
const INPUTS_MAX: usize = 4096;

/// Reads choices from bytes; zeros when they are used up.
struct Script<'a> {
    bytes: &'a [u8],
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    fn peer(&mut self) -> PeerId {
        peer(u32::from(self.below(PEERS)))
    }

    fn clock(&mut self) -> Clock {
        match self.byte() {
            255 => Clock(u64::MAX),
            254 => Clock(u64::MAX - 1),
            near => Clock(u64::from(near % 32)),
        }
    }

    fn fragment(&mut self) -> FragmentId {
        FragmentId(u32::from(self.below(4)))
    }

    fn exchange(&mut self) -> ExchangeId {
        ExchangeId {
            initiator: self.peer(),
            incarnation: u64::from(self.below(8) / 3),
            sequence: u64::from(self.below(SEQUENCES)),
        }
    }

    fn information(&mut self) -> Information {
        let mut entries = BTreeMap::new();
        for _ in 0..self.below(4) {
            entries.insert(self.peer(), self.clock());
        }
        Information { entries: entries.into_iter().collect() }
    }

    fn message(&mut self) -> Message {
        match self.below(16) {
            0 => Message::Heartbeat(Heartbeat {
                clock: self.clock(),
                samples: u64::from(self.byte()),
                step_micros: u32::from(self.byte()),
                batch: u32::from(self.byte()),
                phase: [Phase::Joining, Phase::Training, Phase::Finished]
                    [usize::from(self.below(3))],
            }),
            1 => Message::Goodbye,
            2 => Message::Propose {
                exchange: self.exchange(),
                fragment: self.fragment(),
                terms: self.terms(),
            },
            3 => Message::Accept { exchange: self.exchange(), terms: self.terms() },
            4 => Message::Busy { exchange: self.exchange() },
            5 => Message::Stale { exchange: self.exchange(), clock: self.clock() },
            6 => Message::Ack { exchange: self.exchange() },
            7 => Message::Abort { exchange: self.exchange() },
            8 => Message::Aborted { exchange: self.exchange() },
            9 => Message::Pull { exchange: self.exchange(), fragment: self.fragment() },
            10 => Message::Snapshot {
                exchange: self.exchange(),
                clock: self.clock(),
                hash: ContentHash::of(&[]),
                information: self.information(),
                versions: self.versions(),
            },
            11 => Message::Have {
                first: self.fragment(),
                count: 1 + u32::from(self.below(3)),
                versions: self.versions(),
            },
            12 => Message::Probe { number: u64::from(self.byte()), target: self.peer() },
            13 => Message::Alive { number: u64::from(self.byte()), target: self.peer() },
            14 => {
                let size = 1 + u16::from(self.below(4));
                let rank = u16::from(self.byte()) % size;
                let group = if size == 1 { 0 } else { 1 + u64::from(self.below(2)) };
                Message::Rack { name: 1, stripe: Stripe { group, rank, size } }
            }
            _ => Message::Fetch {
                exchange: self.exchange(),
                fragment: self.fragment(),
                origin: self.origin(),
                number: 1 + u64::from(self.below(8)),
            },
        }
    }

    fn terms(&mut self) -> Terms {
        Terms {
            clock: self.clock(),
            mass: 1 + u32::from(self.byte()),
            work: 1 + u32::from(self.byte()),
            merges: self.below(4) == 0,
            codec: [Codec::F32, Codec::Int4][usize::from(self.below(2))],
            information: self.information(),
        }
    }

    fn origin(&mut self) -> Origin {
        Origin { peer: self.peer(), incarnation: u64::from(self.below(3)) }
    }

    fn versions(&mut self) -> Versions {
        let mut entries = BTreeMap::new();
        for _ in 0..self.below(4) {
            entries.insert(self.origin(), u64::from(self.below(8)));
        }
        Versions { entries: entries.into_iter().collect() }
    }
}

/// The core, a twin that must do the same, and what an honest driver knows.
struct World {
    core: Gossip,
    twin: Gossip,
    config: Config,
    now: Time,
    clock: Clock,
    samples: u64,
    limit: Clock,
    training: bool,
    expected: BTreeMap<ExchangeId, (PeerId, Leg)>,
    tasks: Vec<Work>,
}

/// Runs the script of `data` and checks the core after every input.
pub fn gossip_core(data: &[u8]) {
    let mut script = Script { bytes: data };
    let mut world = World::new(script.byte());
    for _ in 0..INPUTS_MAX {
        if script.bytes.is_empty() {
            return;
        }
        world.step(&mut script);
        world.check();
    }
}

impl World {
    fn new(seed: u8) -> Self {
        let config = Config::default();
        let start = Start {
            me: peer(ME),
            incarnation: 1,
            fragments: FRAGMENTS,
            clock: Clock(u64::from(seed % 16)),
            seed: [seed; 32],
        };
        let mut core = Gossip::new(start, config.clone(), Time::ZERO);
        if seed / 16 == OBSERVES {
            core = core.observing(2);
        }
        Self {
            twin: core.clone(),
            core,
            config,
            now: Time::ZERO,
            clock: start.clock,
            samples: 0,
            limit: Clock(u64::MAX),
            training: true,
            expected: BTreeMap::new(),
            tasks: Vec::new(),
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(16) {
            0 => self.handle(Input::PeerUp {
                peer: script.peer(),
                incarnation: u64::from(script.below(3)),
            }),
            1 => self.handle(Input::PeerDown { peer: script.peer() }),
            2..=6 => {
                let from = script.peer();
                self.handle(Input::Received { from, message: script.message() });
            }
            7 => self.tensor(script),
            8 | 9 => self.answer(script),
            10 => self.handle(Input::RoundDue),
            11 => self.commit(),
            12 => match script.below(8) {
                0 => self.handle(Input::Leave),
                1 => self.handle(Input::Finished),
                2 => {
                    let offence =
                        [Offence::Garbage, Offence::BadParameters][usize::from(script.below(2))];
                    self.handle(Input::Offence { peer: script.peer(), offence });
                }
                3 => self.handle(Input::WatcherUp { peer: script.peer() }),
                4 => self.handle(Input::Wait),
                5 => self.handle(Input::Begin),
                6 => self.handle(Input::Untrained),
                _ => {}
            },
            13 => {
                self.now = self.now + Duration::from_millis(u64::from(script.byte()) * 20);
                self.handle(Input::Deadline);
            }
            _ => self.wait(),
        }
    }

    /// Time passes until the core wants to be called.
    fn wait(&mut self) {
        let (deadline, why) = self.core.poll_deadline();
        self.now = self.now.max(deadline);
        self.handle(Input::Deadline);
        let (next, _) = self.core.poll_deadline();
        assert!(next > self.now, "{why} asks again for the moment it was called: a busy loop");
    }

    /// A whole tensor that the core expects arrives.
    fn tensor(&mut self, script: &mut Script<'_>) {
        let index = usize::from(script.byte()) % self.expected.len().max(1);
        let Some((exchange, (from, leg))) = self.expected.iter().nth(index) else { return };
        let (exchange, from, leg) = (*exchange, *from, *leg);
        self.expected.remove(&exchange);
        let clock = script.clock();
        if leg == Leg::Snapshot {
            self.handle(Input::SnapshotProgress { from });
        }
        self.handle(Input::TensorReceived { from, exchange, leg, clock });
    }

    /// The trainer does a piece of work, in any order.
    fn answer(&mut self, script: &mut Script<'_>) {
        if self.tasks.is_empty() {
            return;
        }
        let task = self.tasks.remove(usize::from(script.byte()) % self.tasks.len());
        let refused = script.below(4) == 0;
        let clock = self.clock;
        match task {
            Work::Read { exchange, what: Reading::Snapshot, .. } => {
                self.handle(Input::SnapshotRead { exchange, clock, hash: ContentHash::of(&[]) });
            }
            Work::Read { exchange, .. } => self.handle(Input::FragmentRead { exchange, clock }),
            Work::Mix { exchange, clock_max, .. } if clock > clock_max => {
                self.handle(Input::MixRefused { exchange, reason: RefusedMix::TooOld });
            }
            Work::Mix { exchange, .. }
            | Work::Include { exchange, .. }
            | Work::Adopt { exchange, .. }
            | Work::Recall { exchange, .. }
                if refused =>
            {
                self.handle(Input::MixRefused { exchange, reason: RefusedMix::BadParameters });
            }
            Work::Mix { exchange, .. } | Work::Include { exchange, .. } => {
                self.handle(Input::Mixed { exchange, clock });
            }
            Work::Undo { exchange, .. } => self.handle(Input::Undone { exchange }),
            Work::Adopt { exchange, .. } | Work::Recall { exchange, .. } => {
                self.handle(Input::Adopted { exchange })
            }
        }
    }

    fn commit(&mut self) {
        if !self.training || self.clock.0 > u64::MAX - 4 {
            return;
        }
        if self.clock >= self.limit {
            return self.handle(Input::CommitHeld);
        }
        self.clock = self.clock.next();
        self.samples += 1;
        self.handle(Input::Committed {
            clock: self.clock,
            samples: self.samples,
            step_time: Duration::from_millis(1),
            batch: 1,
        });
    }

    fn handle(&mut self, input: Input) {
        self.core.handle(input.clone(), self.now);
        self.twin.handle(input, self.now);
        let mut outputs = 0;
        while let Some(output) = self.core.poll_output() {
            assert_eq!(self.twin.poll_output().as_ref(), Some(&output), "same seed, same trace");
            outputs += 1;
            assert!(outputs <= OUTPUTS_MAX, "outputs of one input are bounded");
            self.carry_out(output);
        }
        assert_eq!(self.twin.poll_output(), None, "same seed, same trace");
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { to, message } => {
                assert_ne!(to, peer(ME), "nobody speaks to itself");
                if let Message::Propose { fragment, .. } | Message::Pull { fragment, .. } = message
                {
                    assert!(fragment.0 < FRAGMENTS, "a fragment of the model");
                }
            }
            Output::Expect { exchange, from, leg, .. } => {
                self.expected.insert(exchange, (from, leg));
            }
            Output::Forget { exchange } => {
                self.expected.remove(&exchange);
            }
            Output::Work(work) => {
                assert!(work.fragment().0 < FRAGMENTS, "a fragment of the model");
                if let Work::Mix { weight, .. } | Work::Undo { weight, .. } = work {
                    assert!((0.0..1.0).contains(&weight), "weight {weight}");
                }
                self.tasks.push(work);
            }
            Output::CommitLimit(limit) => self.limit = limit,
            Output::Training { allowed } => self.training = allowed,
            Output::AdoptClock { clock, .. } => {
                assert!(clock >= self.clock, "clocks never go back");
                self.clock = clock;
            }
            Output::SendTensor { .. }
            | Output::SendContribution { .. }
            | Output::Publish { .. }
            | Output::Drop { .. }
            | Output::Pace { .. }
            | Output::RoundEvery(_)
            | Output::Peers(_)
            | Output::Lacking(_)
            | Output::RoundDone
            | Output::Disconnect { .. }
            | Output::Event(_) => {}
        }
    }

    fn check(&self) {
        let core = &self.core;
        assert!(core.open() <= Gossip::open_max(&self.config), "open exchanges are bounded");
        assert!(core.members().len() <= VIEW_MAX, "the view is bounded");
        assert!(core.leases().len() <= FRAGMENTS as usize, "one lease for each fragment at most");
        assert!(
            self.expected.len() <= Gossip::open_max(&self.config),
            "expected tensors are bounded"
        );
        assert!(self.tasks.len() <= 2 * Gossip::open_max(&self.config), "trainer work is bounded");
    }
}
