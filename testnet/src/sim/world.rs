//! The world: all peers, all links, one heap of events, one virtual clock, one source of chance.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Duration;

use dnode_gossip::testing::Effect;
use dnode_gossip::{Balance, Config, Event, Input};
use dnode_protocol::Time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::book::Book;
use super::capacity::Sizes;
use super::defect::Defect;
use super::invariants::{self, Kept, Moment, Property, Stage, View};
use super::journal::Journal;
use super::learn::Learning;
use super::line::{Line, happening};
use super::link::Edge;
use super::peer::{SimPeer, index_of};
use super::queue::{Happening, Queue};
use super::trace::Trace;
use crate::scenario::Scenario;
use crate::scenario::fault::{Fault, exponential};

/// Worlds of at most this many peers get the expensive checks.
const SMALL: u32 = 32;

/// Events whose peers are fetched from memory together.
const AHEAD: usize = 16;

/// Exchanges of one initiator that are booked: as many of the newest as peers remember, and one that
/// is applied is taken out. That one of them is missing would show as a broken invariant.
const DEALS: usize = 1024;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property.
    pub property: &'static str,
    /// What is wrong.
    pub what: String,
    /// The event after which it was found.
    pub event: u64,
    /// Virtual time.
    pub now: Time,
}

/// A simulated swarm.
#[derive(Debug)]
pub struct World {
    pub(super) scenario: Scenario,
    pub(super) sizes: Sizes,
    pub(super) config: Config,
    pub(super) now: Time,
    pub(super) events: u64,
    pub(super) queue: Queue,
    pub(super) rng: ChaCha8Rng,
    pub(super) peers: Vec<SimPeer>,
    pub(super) edges: Vec<Edge>,
    pub(super) journal: Journal,
    pub(super) book: Book,
    /// The values that all replicas start from, if they must: `[fragments][width]`.
    pub(super) initial: Vec<Vec<f64>>,
    pub(super) trace: Trace,
    pub(super) violation: Option<Violation>,
    pub(super) defect: Option<Defect>,
    pub(super) calm: bool,
    pub(super) still: bool,
    pub(super) stopped: bool,
    /// What trains real models; without it replicas are toys.
    pub(super) learning: Option<Learning>,
    properties: Vec<Box<dyn Property>>,
    /// Reused memory.
    effects: Vec<Effect>,
    /// Events of which the peers have been fetched.
    fetched: usize,
    pub(super) seed: u64,
}

impl World {
    /// A world in which every peer of the scenario has just started.
    #[must_use]
    pub fn new(scenario: Scenario, seed: u64, trace: Trace) -> Self {
        let config = scenario.config();
        Self::with(scenario, config, None, seed, trace)
    }

    /// A world of peers with this gossip configuration, that train real models if `learning` says so.
    ///
    /// The invariants are about toy replicas: worlds that learn are not checked.
    #[must_use]
    pub fn with(
        scenario: Scenario,
        config: Config,
        learning: Option<Learning>,
        seed: u64,
        trace: Trace,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = scenario.peers;
        let small = count <= SMALL;
        let (fragments, width) = (scenario.fragments as usize, scenario.width);
        let mut world = Self {
            config,
            now: Time::ZERO,
            events: 0,
            queue: Queue::default(),
            peers: Vec::with_capacity(count as usize),
            edges: Vec::new(),
            journal: Journal::new(count as usize, fragments, width, small),
            book: Book::new(count as usize, DEALS),
            initial: Vec::new(),
            trace,
            violation: None,
            defect: None,
            calm: false,
            still: false,
            stopped: false,
            properties: match &learning {
                Some(_) => Vec::new(),
                None => invariants::table(&scenario, small),
            },
            learning,
            effects: Vec::new(),
            fetched: 0,
            seed,
            rng: ChaCha8Rng::from_rng(&mut rng),
            sizes: scenario.sizes(),
            scenario,
        };
        world.trace.line(format_args!("seed {seed}, {:?}", world.scenario));
        let plan = world.scenario.faults.draw(count, world.scenario.faults_for, &mut rng);
        for (at, fault) in plan {
            world.queue.push(at, Happening::Fault(fault));
        }
        for scripted in world.scenario.script.clone() {
            world.queue.push(Time::ZERO + scripted.at, Happening::Fault(scripted.fault));
        }
        (0..count).for_each(|peer| world.draw_peer(peer));
        world.draw_edges();
        let joiners: BTreeSet<u32> = world.scenario.joiners().collect();
        (0..count).filter(|peer| !joiners.contains(peer)).for_each(|peer| world.start(peer, None));
        world
    }

    /// Plants a defect.
    pub fn plant(&mut self, defect: Option<Defect>) {
        self.defect = defect;
        for host in self.peers.iter_mut().filter_map(|peer| peer.host.as_mut()) {
            host.hoards = defect == Some(Defect::Hoards);
        }
    }

    /// Virtual time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The first broken invariant.
    #[must_use]
    pub const fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// How exactly the rule has kept what it keeps, if that is a number.
    #[must_use]
    pub fn kept(&self) -> Option<Kept> {
        self.properties.iter().find_map(|property| property.kept())
    }

    /// What properties see.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View {
            now: self.now,
            events: self.events,
            scenario: &self.scenario,
            config: &self.config,
            peers: &self.peers,
            journal: &self.journal,
            book: &self.book,
            edges: &self.edges,
        }
    }

    /// Gives the trace back.
    #[must_use]
    pub fn into_trace(self) -> Trace {
        self.trace
    }

    /// Lets events happen until `done` holds, the time is `end` or an invariant breaks.
    ///
    /// Returns whether `done` holds. `done` is asked before every event.
    pub fn run_until(&mut self, end: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if self.violation.is_some() {
                return false;
            }
            if done(self) {
                return true;
            }
            if self.queue.next_time().is_none_or(|time| time > end) {
                self.now = self.now.max(end);
                return false;
            }
            self.step();
        }
    }

    /// Ends all faults: links are calm, cuts healed, pauses over. Dead peers stay dead.
    pub fn calm(&mut self) {
        self.calm = true;
        self.scenario.link = self.scenario.link.calm();
        for peer in self
            .scenario
            .script
            .iter()
            .flat_map(|scripted| scripted.fault.peers())
            .collect::<BTreeSet<_>>()
        {
            self.peers[peer as usize].slowness = 1.0;
            self.set_line(peer, Duration::ZERO, 0.0, 0.0);
        }
        self.fault(Fault::Heal {});
        for (index, peer) in (0..).zip(&mut self.peers) {
            if peer.paused_until > self.now {
                peer.paused_until = self.now;
                // What it was to be woken for has been put off to the end of the pause.
                peer.wake_at = self.now;
                self.queue.push(self.now, Happening::Wake { peer: index });
            }
        }
    }

    /// From now on commits add nothing.
    pub const fn make_still(&mut self) {
        self.still = true;
    }

    /// Trainers have done their last step: they begin no more rounds, and nobody waits for them.
    pub fn stop(&mut self) {
        self.stopped = true;
        for peer in 0..self.scenario.peers {
            let sim = &mut self.peers[peer as usize];
            if let Some(host) = sim.host.as_mut() {
                sim.finished = true;
                host.handle(Input::Finished, self.now);
            }
            self.settle(peer);
        }
    }

    /// Tells the properties that a stage is reached.
    pub fn reached(&mut self, stage: Stage) {
        self.observe(&Moment::Reached(stage));
    }

    pub(super) fn observe(&mut self, moment: &Moment<'_>) {
        if self.violation.is_some() {
            return;
        }
        let view = View {
            now: self.now,
            events: self.events,
            scenario: &self.scenario,
            config: &self.config,
            peers: &self.peers,
            journal: &self.journal,
            book: &self.book,
            edges: &self.edges,
        };
        for property in &mut self.properties {
            if let Err(what) = property.observe(moment, &view) {
                let (event, now) = (self.events, self.now);
                self.violation = Some(Violation { property: property.name(), what, event, now });
                return;
            }
        }
    }

    /// Looks at what the next events are about.
    ///
    /// The peers of a large world fit no cache. Memory answers many questions in the time of one, if
    /// they are asked together: first for the events, then for edges, peers and their neighbours.
    fn fetch_ahead(&mut self) {
        let (mut peers, mut count) = ([0; AHEAD], 0);
        for what in self.queue.ahead(AHEAD) {
            black_box(what.is_some());
        }
        for what in self.queue.ahead(AHEAD).flatten() {
            if let Some(peer) = self.subject(what) {
                peers[count] = peer;
                count += 1;
            }
        }
        let hosts = || {
            let peers = peers[..count].iter().map(|peer| &self.peers[*peer as usize]);
            peers.filter_map(|peer| peer.host.as_ref())
        };
        for peer in &peers[..count] {
            let sim = &self.peers[*peer as usize];
            black_box((sim.paused_until, sim.wake_at, sim.counts.received, sim.uplink));
        }
        for host in hosts() {
            black_box((host.clock, host.core.poll_deadline()));
        }
        for host in hosts() {
            black_box(host.core.staleness());
        }
        self.fetched = self.queue.ahead(AHEAD).len();
    }

    fn step(&mut self) {
        if self.fetched == 0 && self.scenario.peers > SMALL {
            self.fetch_ahead();
        }
        self.fetched = self.fetched.saturating_sub(1);
        let Some((time, what)) = self.queue.pop() else {
            return;
        };
        self.now = self.now.max(time);
        if let Happening::Wake { peer } = what
            && self.peers[peer as usize].wake_at != time
        {
            return;
        }
        if let Some(peer) = self.subject(&what) {
            let until = self.peers[peer as usize].paused_until;
            if until > self.now {
                if matches!(what, Happening::Wake { .. }) {
                    self.peers[peer as usize].wake_at = until;
                }
                return self.queue.push(until, what);
            }
        }
        self.events += 1;
        if self.trace.is_on() {
            let line = happening(&what, &self.edges);
            self.trace.line(format_args!("{} {} {line}", self.events, self.now.as_micros()));
        }
        match what {
            Happening::Arrive { edge, toward, generation, payload } => {
                self.arrive(edge, toward, generation, payload);
            }
            Happening::Land { edge, toward, generation, payload, bytes, head } => {
                self.land((edge, toward), generation, payload, (bytes, head));
            }
            Happening::Wake { peer } => self.wake(peer),
            Happening::Work { peer, incarnation } => self.work(peer, incarnation),
            Happening::Tick { peer, incarnation } => self.tick(peer, incarnation),
            Happening::Up { edge, end, generation } => self.up(edge, end, generation),
            Happening::Down { edge, end, generation } => self.down(edge, end, generation),
            Happening::Idle { edge, generation } => self.idle(edge, generation),
            Happening::Dial { edge } => self.dial(edge),
            Happening::Fault(fault) => self.fault(fault),
        }
    }

    /// The peer that must not be paused for this to happen.
    fn subject(&self, what: &Happening) -> Option<u32> {
        match what {
            Happening::Arrive { edge, toward, .. } => {
                Some(self.edges[*edge as usize].ends[*toward])
            }
            Happening::Up { edge, end, .. } | Happening::Down { edge, end, .. } => {
                Some(self.edges[*edge as usize].ends[*end])
            }
            Happening::Wake { peer }
            | Happening::Work { peer, .. }
            | Happening::Tick { peer, .. } => Some(*peer),
            Happening::Land { .. }
            | Happening::Idle { .. }
            | Happening::Dial { .. }
            | Happening::Fault(_) => None,
        }
    }

    fn wake(&mut self, peer: u32) {
        let sim = &mut self.peers[peer as usize];
        sim.wake_at = Time::NEVER;
        if let Some(host) = sim.host.as_mut()
            && host.core.poll_deadline().0 <= self.now
        {
            host.handle(Input::Deadline, self.now);
        }
        self.settle(peer);
    }

    /// Carries out what a host asks for and schedules what it waits for.
    pub(super) fn settle(&mut self, peer: u32) {
        let mut effects = std::mem::take(&mut self.effects);
        while let Some(host) = self.peers[peer as usize].host.as_mut() {
            host.swap_effects(&mut effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects.drain(..) {
                self.carry(peer, effect);
            }
        }
        effects.clear();
        self.effects = effects;
        self.resume(peer);
        let (now, defect) = (self.now, self.defect);
        let sim = &mut self.peers[peer as usize];
        let Some(host) = sim.host.as_mut() else {
            return;
        };
        sim.clock_max = sim.clock_max.max(host.clock);
        if host.rounds_done > sim.rounds_done_seen {
            sim.counts.rounds_done += host.rounds_done - sim.rounds_done_seen;
            sim.rounds_done_seen = host.rounds_done;
            sim.round_open = false;
        }
        let (deadline, _) = host.core.poll_deadline();
        if deadline < sim.wake_at && defect != Some(Defect::DeafToDeadlines) {
            sim.wake_at = deadline.max(now);
            self.queue.push(sim.wake_at, Happening::Wake { peer });
        }
        if host.has_work() && !sim.working {
            sim.working = true;
            let incarnation = sim.incarnation;
            let time = self.scenario.work.mul_f64(self.rng.random());
            self.queue.push(now + time, Happening::Work { peer, incarnation });
        }
        self.observe(&Moment::Handled { peer });
    }

    pub(super) fn said(&mut self, peer: u32, event: &Event) {
        if self.trace.is_on() {
            self.trace.line(format_args!("  p{peer} {}", Line(event)));
        }
        if let Some(learning) = &mut self.learning {
            learning.said(peer, self.now, event);
        }
        let counts = &mut self.peers[peer as usize].counts;
        match event {
            Event::Applied { role, exchange, .. } => {
                counts.applied += u64::from(*role == dnode_gossip::Role::Initiator);
                counts.halves += 1;
                // A push has two ends as well, and its initiator reports nothing.
                if self.config.mixing != dnode_gossip::Mixing::Exchange {
                    let initiator = &mut self.peers[index_of(&exchange.initiator) as usize];
                    initiator.counts.pushes += 1;
                }
            }
            Event::Included { .. } => counts.halves += 1,
            Event::CatchUpStarted { .. } => counts.catch_ups += 1,
            Event::Merging { .. } => counts.merges += 1,
            Event::PeerUp(_)
            | Event::PeerDown(_)
            | Event::Suspected(_)
            | Event::Demoted { .. }
            | Event::Restored(_)
            | Event::Refused { .. }
            | Event::Undone { .. }
            | Event::Failed { .. }
            | Event::Undecided { .. }
            | Event::Held { .. }
            | Event::Deadline { .. }
            | Event::CatchUpDone { .. }
            | Event::Split { .. }
            | Event::Whole { .. }
            | Event::Guarded { .. }
            | Event::LeftOutBy { .. }
            | Event::Offended { .. } => {}
        }
        self.journal.said(peer, event);
        self.observe(&Moment::Said { peer, event });
    }

    pub(super) fn round_interval(&mut self, peer: u32) -> Duration {
        let sim = &self.peers[peer as usize];
        let mut mean = sim.round_time.mul_f64(sim.slowness);
        if let (Balance::Steps | Balance::Batch, Some(host)) = (self.config.pace.balance, &sim.host)
        {
            let reference = self.config.pace.reference().samples();
            mean = mean.mul_f64(host.load.samples() as f64 / reference as f64);
        }
        if self.scenario.poisson { exponential(mean, &mut self.rng) } else { mean }
    }
}
