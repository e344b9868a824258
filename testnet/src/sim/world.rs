//! The world: it hands every event to the part that it is for, and what follows from it to others.

mod faults;
mod work;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Duration;

use dnode_gossip::testing::{Effect, peer as name};
use dnode_gossip::{Config, Event, Input};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Message, Time};

use super::capacity::Sizes;
use super::checks::{Checks, SMALL, Violation};
use super::context::{Context, Phase};
use super::defect::{CHATTER, Defect};
use super::invariants::kept::Kept;
use super::invariants::property::{Moment, Stage};
use super::learning::Learning;
use super::ledger::told;
use super::link::Lane;
use super::names::index_of;
use super::network::Network;
use super::processes::Processes;
use super::queue::{Arrival, Happening};
use super::text::{Report, happening};
use super::trace::Trace;
use super::view::View;
use crate::scenario::Scenario;

/// Events whose peers are fetched from memory together.
const AHEAD: usize = 16;

/// A simulated swarm.
#[derive(Debug)]
pub struct World {
    context: Context,
    network: Network,
    processes: Processes,
    checks: Checks,
    /// What trains real models; without it replicas are toys.
    learning: Option<Learning>,
    /// Reused memory.
    effects: Vec<Effect>,
    /// Events of which the peers have been fetched.
    fetched: usize,
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
        let count = scenario.peers;
        let joiners: BTreeSet<u32> = scenario.joiners().collect();
        let mut context = Context::new(scenario, config, seed, trace);
        let (mut network, mut processes) = (Network::default(), Processes::default());
        for _ in 0..count {
            processes.add(&mut context);
            network.add_port(&mut context);
        }
        network.draw_edges(&mut context);
        let checks = Checks::new(&context, learning.is_none());
        let (effects, fetched) = (Vec::new(), 0);
        let mut world = Self { context, network, processes, checks, learning, effects, fetched };
        (0..count).filter(|peer| !joiners.contains(peer)).for_each(|peer| world.start(peer, None));
        world
    }

    /// Plants a defect.
    pub fn plant(&mut self, defect: Option<Defect>) {
        self.context.plant(defect);
        for (_, sim) in self.processes.all_mut() {
            if let Some(host) = sim.host_mut() {
                host.hoards = defect == Some(Defect::Hoards);
            }
        }
    }

    /// Virtual time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.context.now()
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.context.events()
    }

    /// The first broken invariant.
    #[must_use]
    pub const fn violation(&self) -> Option<&Violation> {
        self.checks.violation()
    }

    /// How exactly the rule has kept what it keeps, if that is a number.
    #[must_use]
    pub fn kept(&self) -> Option<Kept> {
        self.checks.kept()
    }

    /// What trains real models here, if anything does.
    #[must_use]
    pub const fn learning(&self) -> Option<&Learning> {
        self.learning.as_ref()
    }

    /// What properties see.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.checks.view(&self.context, &self.processes, &self.network)
    }

    /// Gives the trace back.
    #[must_use]
    pub fn into_trace(self) -> Trace {
        self.context.into_trace()
    }

    /// Whether nothing is kept for `peer`, and no exchange and no round of it is open.
    #[must_use]
    pub fn rests(&self, peer: u32) -> bool {
        self.processes[peer].rests()
    }

    /// The virtual time after some time from now.
    #[must_use]
    pub fn end_after(&self, time: Duration) -> Time {
        self.context.now() + time
    }

    /// Lets events happen until `done` holds, the time is `end` or an invariant breaks.
    ///
    /// Returns whether `done` holds. `done` is asked before every event.
    pub fn run_until(&mut self, end: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if self.violation().is_some() {
                return false;
            }
            if done(self) {
                return true;
            }
            if self.context.next_time().is_none_or(|time| time > end) {
                self.context.pass_to(end);
                return false;
            }
            self.step();
        }
    }

    /// Ends all faults: links are calm, cuts healed, pauses over. Dead peers stay dead.
    pub fn calm(&mut self) {
        self.context.enter(Phase::Calm);
        let script = self.context.scenario().script.iter();
        let changed: BTreeSet<u32> = script.flat_map(|scripted| scripted.fault.peers()).collect();
        for peer in changed {
            self.processes[peer].trainer_mut().slow_down(1.0);
            let uplink = self.context.scenario().link.uplink;
            self.network.set_line(peer, (Duration::ZERO, 0.0, 0.0), uplink);
        }
        self.network.heal();
        for (peer, sim) in self.processes.all_mut() {
            sim.end_pause(peer, &mut self.context);
        }
    }

    /// From now on commits add nothing.
    pub fn make_still(&mut self) {
        self.context.enter(Phase::Still);
    }

    /// Trainers have done their last step: they begin no more rounds, and nobody waits for them.
    pub fn stop(&mut self) {
        self.context.enter(Phase::Stopped);
        for peer in 0..self.context.scenario().peers {
            self.processes[peer].finish(self.context.now());
            self.settle(peer);
        }
    }

    /// Every peer begins a round of exchanges, as peers do that have finished.
    pub fn exchange_once(&mut self) {
        for peer in 0..self.context.scenario().peers {
            self.processes[peer].exchange_once(self.context.now());
            self.settle(peer);
        }
    }

    /// Tells the properties that a stage is reached.
    pub fn reached(&mut self, stage: Stage) {
        self.observe(&Moment::Reached(stage));
    }

    fn observe(&mut self, moment: &Moment<'_>) {
        self.checks.observe(moment, &self.context, &self.processes, &self.network);
    }

    /// Looks at what the next events are about.
    ///
    /// The peers of a large world fit no cache. Memory answers many questions in the time of one, if
    /// they are asked together: first for the events, then for edges, peers and their neighbours.
    fn fetch_ahead(&mut self) {
        let (mut peers, mut count) = ([0; AHEAD], 0);
        for what in self.context.ahead(AHEAD) {
            black_box(what.is_some());
        }
        for what in self.context.ahead(AHEAD).flatten() {
            if let Some(peer) = self.subject(what) {
                peers[count] = peer;
                count += 1;
            }
        }
        let hosts = || peers[..count].iter().filter_map(|peer| self.processes[*peer].host());
        for peer in &peers[..count] {
            let sim = &self.processes[*peer];
            black_box((sim.paused_until(), sim.counts().received, self.network.uplink(*peer)));
        }
        for host in hosts() {
            black_box((host.clock, host.core.poll_deadline()));
        }
        for host in hosts() {
            black_box(host.core.staleness());
        }
        self.fetched = self.context.ahead(AHEAD).len();
    }

    fn step(&mut self) {
        if self.fetched == 0 && self.context.scenario().peers > SMALL {
            self.fetch_ahead();
        }
        self.fetched = self.fetched.saturating_sub(1);
        let Some((time, what)) = self.context.next() else {
            return;
        };
        if let Happening::Wake { peer } = what
            && !self.processes[peer].wakes_at(time)
        {
            return;
        }
        if let Some(peer) = self.subject(&what) {
            let sim = &mut self.processes[peer];
            let until = sim.paused_until();
            if until > self.context.now() {
                if matches!(what, Happening::Wake { .. }) {
                    sim.put_off_wake();
                }
                return self.context.at(until, what);
            }
        }
        self.context.count(|| happening(&what, &self.network));
        match what {
            Happening::Arrive(arrival) => self.arrive(arrival),
            Happening::Land { arrival, bytes, head } => {
                let now = self.network.land(&mut self.context, arrival, (bytes, head));
                now.into_iter().for_each(|arrival| self.arrive(arrival));
            }
            Happening::Wake { peer } => {
                self.processes[peer].wake(self.context.now());
                self.settle(peer);
            }
            Happening::Work { peer, incarnation } => self.work(peer, incarnation),
            Happening::Tick { peer, incarnation } => self.tick(peer, incarnation),
            Happening::Up { edge, end, generation } => self.up(edge, end, generation),
            Happening::Down { edge, end, generation } => self.down(edge, end, generation),
            Happening::Idle { edge, generation } => {
                let ends = self.network.ends_to_drop(edge, generation);
                for end in (0..2).filter(|end| ends[*end]) {
                    self.down(edge, end, generation);
                }
            }
            Happening::Dial { edge } => self.dial(edge),
            Happening::Fault(fault) => self.fault(fault),
        }
    }

    /// The peer that must not be paused for this to happen.
    fn subject(&self, what: &Happening) -> Option<u32> {
        match what {
            Happening::Arrive(Arrival { edge, toward: end, .. })
            | Happening::Up { edge, end, .. }
            | Happening::Down { edge, end, .. } => Some(self.network.way(*edge, *end)[1]),
            Happening::Wake { peer }
            | Happening::Work { peer, .. }
            | Happening::Tick { peer, .. } => Some(*peer),
            Happening::Land { .. }
            | Happening::Idle { .. }
            | Happening::Dial { .. }
            | Happening::Fault(_) => None,
        }
    }

    /// Carries out what a host asks for and schedules what it waits for.
    fn settle(&mut self, peer: u32) {
        let mut effects = std::mem::take(&mut self.effects);
        while let Some(host) = self.processes[peer].host_mut() {
            host.swap_effects(&mut effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects.drain(..) {
                self.carry_out(peer, effect);
            }
        }
        effects.clear();
        self.effects = effects;
        self.processes[peer].follow_up(peer, &mut self.context);
        if self.processes[peer].host().is_some() {
            self.observe(&Moment::Handled { peer });
        }
    }

    /// Carries out one effect of `peer`'s host.
    fn carry_out(&mut self, peer: u32, effect: Effect) {
        let effect = match &self.learning {
            Some(learning) => learning.fleet.leaves(peer, effect),
            None => Some(effect),
        };
        let Some(effect) = effect else { return };
        match effect {
            Effect::Event(event) => self.on_event(peer, &event),
            Effect::Disconnect { peer: other, back_off } => {
                let ends = (peer, index_of(&other));
                if self.network.disconnect(&mut self.context, ends, back_off) {
                    let input = Input::PeerDown { peer: other };
                    self.processes[peer].tell(input, self.context.now());
                }
            }
            Effect::Message { to, ref message } => {
                self.checks.on_sent(message);
                let copies = if self.context.has(Defect::Chatters) { CHATTER } else { 1 };
                (1..copies).for_each(|_| self.transmit(peer, index_of(&to), effect.clone()));
                self.transmit(peer, index_of(&to), effect);
            }
            Effect::Tensor { to, .. } => self.transmit(peer, index_of(&to), effect),
        }
    }

    /// Counts a message or tensor and sends it off, if the two want to be connected.
    fn transmit(&mut self, from: u32, to: u32, payload: Effect) {
        let Some(edge) = self.network.edge_to(from, to) else {
            return;
        };
        let counts = self.processes[from].counts_mut();
        let (lane, bytes) = match &payload {
            Effect::Message { message, .. } => {
                let bytes = Sizes::control(message);
                counts.messages += 1;
                counts.control_bytes += bytes;
                (Lane::Control, bytes)
            }
            Effect::Tensor { numbers, .. } => {
                let bytes = match &self.learning {
                    Some(learning) => learning.fleet.tensor_bytes(numbers),
                    None => self.context.sizes().tensor(numbers.len() / size_of::<f64>()),
                };
                counts.tensors += 1;
                counts.tensor_bytes += bytes;
                (Lane::Bulk, bytes)
            }
            Effect::Disconnect { .. } | Effect::Event(_) => return,
        };
        self.network.transmit(&mut self.context, (edge, from), (lane, bytes), payload);
    }

    /// A message or tensor is at its receiver.
    fn arrive(&mut self, arrival: Arrival) {
        let [from, peer] = self.network.way(arrival.edge, arrival.toward);
        let (sim, now) = (&mut self.processes[peer], self.context.now());
        if !self.network.is_current(&arrival) || sim.host().is_none() {
            return;
        }
        sim.counts_mut().received += 1;
        let incarnation = sim.incarnation();
        let Some(host) = sim.host_mut() else {
            return;
        };
        let heard = self.network.heard_before(&arrival).unwrap_or_default();
        if let Effect::Message { message, .. } = &arrival.payload
            && let Some(clock) = told(message, incarnation)
        {
            self.network.hear(&arrival, clock);
        }
        match arrival.payload {
            Effect::Message { mut message, .. } => {
                if let Some(defect) = self.context.defect() {
                    defect.distort(&mut message, host.clock);
                }
                let accepts = if let Message::Accept { exchange, .. } = &message {
                    Some(*exchange)
                } else {
                    None
                };
                host.handle(Input::Received { from: name(from), message }, now);
                if let Some(exchange) = accepts {
                    let ignores_clock = host.core.ignores_clock(&name(from));
                    self.checks.on_accepted(&exchange, ignores_clock);
                }
            }
            Effect::Tensor { exchange, leg, mut clock, numbers, .. } => {
                if leg == Leg::Offer {
                    self.checks.on_offer(&exchange, heard);
                    if self.context.has(Defect::FreshensOffers) {
                        clock = clock.max(heard);
                    }
                }
                host.tensor(name(from), (exchange, leg, clock, numbers), now);
            }
            Effect::Disconnect { .. } | Effect::Event(_) => {}
        }
        self.settle(peer);
    }

    /// Two peers try to connect.
    fn dial(&mut self, edge: u32) {
        let made = self.network.dial(&mut self.context, edge, self.processes.all());
        if let Some(generation) = made {
            self.up(edge, 0, generation);
            let delay = self.context.delay();
            self.context.after(delay, Happening::Up { edge, end: 1, generation });
        }
    }

    /// One end learns that a connection is up.
    fn up(&mut self, edge: u32, end: usize, generation: u32) {
        let ends = self.network.up(edge, (end, generation), self.processes.all());
        let Some([peer, other]) = ends else {
            return;
        };
        let incarnation = self.processes[other].incarnation();
        let sim = &mut self.processes[peer];
        sim.counts_mut().ups += 1;
        sim.tell(Input::PeerUp { peer: name(other), incarnation }, self.context.now());
        self.settle(peer);
    }

    /// One end learns that a connection is gone.
    fn down(&mut self, edge: u32, end: usize, generation: u32) {
        let Some([peer, other]) = self.network.down(edge, end, generation) else {
            return;
        };
        self.processes[peer].tell(Input::PeerDown { peer: name(other) }, self.context.now());
        let redial = self.context.scenario().redial;
        self.network.schedule_dial(&mut self.context, edge, redial);
        self.settle(peer);
    }

    /// A core reports something.
    fn on_event(&mut self, peer: u32, event: &Event) {
        self.context.note(format_args!("  p{peer} {}", Report(event)));
        if let Some(learning) = &mut self.learning {
            learning.on_event(peer, self.context.now(), event);
        }
        self.processes[peer].counts_mut().on_event(event);
        self.checks.on_event(peer, event, self.context.now());
        self.observe(&Moment::Said { peer, event });
    }
}
