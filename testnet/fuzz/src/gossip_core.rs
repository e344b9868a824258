//! The gossip core between an honest driver and dishonest neighbours.
//!
//! The bytes are a script: what arrives from whom, when the trainer answers, when time passes.
//! The first byte is the configuration and the seed.
//! Names, sequence numbers and clocks come from small sets, so that messages often meet a state in
//! which they mean something. After every input the promises of the core are checked.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dnode_gossip::testing::peer;
use dnode_gossip::{
    Config, ContributionId, Evidence, Gossip, Input, Mixing, Offence, Output, Policy, Reading,
    RefusedMix, Start, VIEW_MAX, Weighting, Work,
};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ContentHash, ExchangeId, FragmentId, Message, Origin, PeerId, Time};

use script::Script;

/// The own index among the test peers: between its neighbours, so that crossings go both ways.
const ME: u32 = 1;
/// Neighbours that speak, the own name included (somebody may claim to be us).
const PEERS: u8 = 4;
const FRAGMENTS: u32 = 3;
const SEQUENCES: u8 = 8;
/// Seeds of a sixteenth with which the core only watches.
const OBSERVES: u8 = 15;
/// The first sixteenth of seeds with which replicas are sums of contributions; the next ones are, too.
const SUMS: u8 = 8;
/// The first sixteenth of seeds with which the core is of a rack, where numbers are exchanged.
const RACK: u8 = 6;
/// Incarnation of the own process.
const INCARNATION: u64 = 1;
/// The incarnation of the own name as an author: the process, and the lives of the author in 24 bits.
const OWN_AUTHOR: u64 = INCARNATION << 24;
/// How far apart replicas may be seen to be, in own norms.
const DISTANCES: [f64; 8] = [0.0, 1e-6, 0.01, 0.1, 1.0, 10.0, 1e6, 1e30];
/// Most outputs that one input may cause: a round proposes and answers a handful per fragment.
const OUTPUTS_MAX: usize = 2048;
/// Most inputs of one script.
const INPUTS_MAX: usize = 4096;

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
    /// Exchanges under which a contribution has arrived.
    arrived: BTreeSet<ExchangeId>,
    /// Contributions that are kept for others.
    contributions: BTreeSet<ContributionId>,
    /// Of each fragment, which contributions the replica is the sum of.
    replica: Vec<BTreeMap<Origin, u64>>,
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

/// What a sixteenth of the seeds configures: the lowest, and those that observe, the defaults.
fn configuration(sixteenth: u8) -> Config {
    let (mixing, kind) = match sixteenth {
        OBSERVES => (Mixing::Exchange, 0),
        SUMS.. => (Mixing::Set, sixteenth - SUMS),
        _ => (Mixing::Exchange, sixteenth),
    };
    let policy = [Policy::DownWeight, Policy::Block, Policy::Drop][usize::from(kind % 3)];
    let weighting = [Weighting::Equal, Weighting::Samples][usize::from(kind / 3 % 2)];
    let rack = u64::from(mixing == Mixing::Exchange && kind >= RACK);
    Config { mixing, policy, weighting, rack, ..Config::default() }
}

/// What a trainer has seen of the other replica; nothing where `seen` is zero.
fn evidence(seen: u8, refused: bool) -> Option<Evidence> {
    let difference = DISTANCES[usize::from(seen) % DISTANCES.len()];
    (seen > 0).then_some(Evidence { difference, own: 1.0, len: 1 << 16, refused })
}

impl World {
    fn new(seed: u8) -> Self {
        let config = configuration(seed / 16);
        assert_eq!(config.check(), Ok(()), "a legal configuration");
        let start = Start {
            me: peer(ME),
            incarnation: INCARNATION,
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
            arrived: BTreeSet::new(),
            contributions: BTreeSet::new(),
            replica: vec![BTreeMap::new(); FRAGMENTS as usize],
        }
    }

    fn sums(&self) -> bool {
        self.config.mixing == Mixing::Set
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
            12 => self.told(script),
            13 => {
                self.now = self.now + Duration::from_millis(u64::from(script.byte()) * 20);
                self.handle(Input::Deadline);
            }
            _ => self.wait(),
        }
    }

    /// The driver, its owner or the trainer tells the core something.
    fn told(&mut self, script: &mut Script<'_>) {
        let input = match script.below(8) {
            0 => Input::Leave,
            1 => Input::Finished,
            2 => {
                let offence =
                    [Offence::Garbage, Offence::BadParameters][usize::from(script.below(2))];
                Input::Offence { peer: script.peer(), offence }
            }
            3 => Input::WatcherUp { peer: script.peer() },
            4 => Input::Wait,
            5 => Input::Begin,
            6 => Input::Untrained,
            _ => match script.below(4) {
                1 => Input::Alarm { peer: script.peer() },
                2 => Input::StepMeasured {
                    step_time: Duration::from_millis(u64::from(script.byte())),
                    batch: 1 + u32::from(script.byte()),
                },
                3 if self.config.rack != 0 => Input::Stripe(script.stripe()),
                _ => return,
            },
        };
        self.handle(input);
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
        if leg == Leg::Contribution {
            self.arrived.insert(exchange);
        }
        let clock = script.clock();
        if leg == Leg::Snapshot {
            self.handle(Input::SnapshotProgress { from });
        }
        self.handle(Input::TensorReceived { from, exchange, leg, clock });
    }

    /// The trainer does a piece of work, in any order; in turn where the work is on sums.
    fn answer(&mut self, script: &mut Script<'_>) {
        if self.tasks.is_empty() {
            return;
        }
        let place = usize::from(script.byte()) % self.tasks.len();
        let task = self.tasks.remove(if self.sums() { 0 } else { place });
        let word = script.byte();
        let (seen, refused) = (word / 4, word % 4 == 0);
        let exchange = task.exchange();
        let evidence = match &task {
            Work::Mix { clock_max, .. } if self.clock <= *clock_max => evidence(seen, refused),
            _ => None,
        };
        let why = if evidence.is_some() { RefusedMix::Outlier } else { RefusedMix::BadParameters };
        let answer = self.obey(task, refused.then_some(why));
        if let Some(evidence) = evidence {
            self.handle(Input::Measured { exchange, evidence });
        }
        self.handle(answer);
    }

    /// Does a piece of work as a toy trainer does, or refuses it, and returns the answer.
    fn obey(&mut self, task: Work, refused: Option<RefusedMix>) -> Input {
        let clock = self.clock;
        match task {
            Work::Read { exchange, what: Reading::Snapshot, .. } => {
                Input::SnapshotRead { exchange, clock, hash: ContentHash::of(&[]) }
            }
            Work::Read { exchange, .. } => Input::FragmentRead { exchange, clock },
            Work::Mix { exchange, clock_max, .. } if clock > clock_max => {
                Input::MixRefused { exchange, reason: RefusedMix::TooOld }
            }
            Work::Mix { exchange, .. } => match refused {
                Some(reason) => Input::MixRefused { exchange, reason },
                None => Input::Mixed { exchange, clock },
            },
            Work::Include { exchange, contribution } => {
                self.include(exchange, contribution, refused)
            }
            Work::Undo { exchange, .. } => Input::Undone { exchange },
            Work::Adopt { exchange, fragment, contents }
            | Work::Recall { exchange, fragment, contents } => {
                if let Some(reason) = refused {
                    return Input::MixRefused { exchange, reason };
                }
                self.replica[fragment.0 as usize] = contents.versions.entries.into_iter().collect();
                Input::Adopted { exchange }
            }
        }
    }

    /// Adds a contribution that has arrived, or that is kept and which a snapshot lacked.
    fn include(
        &mut self,
        exchange: ExchangeId,
        contribution: ContributionId,
        refused: Option<RefusedMix>,
    ) -> Input {
        let ContributionId { origin, number, fragment } = contribution;
        let arrived = self.arrived.contains(&exchange);
        let kept = self.contributions.contains(&contribution);
        assert!(arrived || kept, "{contribution:?} is added and not here");
        // The own numbers are finite, and never refused.
        if let Some(reason) = refused.filter(|_| arrived) {
            return Input::MixRefused { exchange, reason };
        }
        let before = self.replica[fragment.0 as usize].insert(origin, number).unwrap_or(0);
        assert!(before + 1 == number, "{contribution:?} is added after {before}");
        self.contributions.insert(contribution);
        Input::Mixed { exchange, clock: self.clock }
    }

    /// The commit just reported is this number of the own contributions.
    fn publish(&mut self, origin: Origin, number: u64) {
        assert!(self.sums(), "nothing else has contributions");
        for (fragment, contained) in (0..).map(FragmentId).zip(&mut self.replica) {
            contained.insert(origin, number);
            let new = self.contributions.insert(ContributionId { origin, number, fragment });
            assert!(new, "number {number} of {origin:?} is there already");
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
            position: self.samples,
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
                self.arrived.remove(&exchange);
            }
            Output::Publish { origin, number } => self.publish(origin, number),
            Output::SendContribution { to, contribution, .. } => {
                assert_ne!(to, peer(ME), "nobody sends to itself");
                assert!(self.contributions.contains(&contribution), "what is kept is sent");
            }
            Output::Drop { contribution } => {
                assert!(self.contributions.remove(&contribution), "what is kept is dropped");
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
        let contents = core.contents();
        assert_eq!(contents.len(), if self.sums() { FRAGMENTS as usize } else { 0 });
        for (said, contained) in contents.iter().zip(&self.replica) {
            let same = said.entries.iter().map(|(origin, number)| (origin, number)).eq(contained);
            assert!(same, "the core knows what the replica contains: {said:?}, not {contained:?}");
        }
    }
}
