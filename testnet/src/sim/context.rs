//! What all parts of a world work with: settings, virtual time, randomness, events to come, the trace.

use std::fmt;
use std::time::Duration;

use dnode_gossip::Config;
use dnode_protocol::Time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::capacity::Sizes;
use super::defect::Defect;
use super::queue::{Happening, Queue};
use super::trace::Trace;
use crate::scenario::Scenario;
use crate::scenario::fault::exponential;

/// How far a simulation has come, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Faults happen.
    Faults,
    /// No fault happens any more.
    Calm,
    /// Commits add nothing.
    Still,
    /// Trainers have done their last step.
    Stopped,
}

/// What all parts of a world work with.
#[derive(Debug)]
pub(super) struct Context {
    scenario: Scenario,
    config: Config,
    sizes: Sizes,
    seed: u64,
    defect: Option<Defect>,
    phase: Phase,
    now: Time,
    events: u64,
    queue: Queue,
    rng: ChaCha8Rng,
    trace: Trace,
}

impl Context {
    /// The start of a simulation: its faults are drawn and scheduled.
    pub(super) fn new(scenario: Scenario, config: Config, seed: u64, mut trace: Trace) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let own = ChaCha8Rng::from_rng(&mut rng);
        trace.line(format_args!("seed {seed}, {scenario:?}"));
        let mut queue = Queue::default();
        for (at, fault) in scenario.faults.draw(scenario.peers, scenario.faults_for, &mut rng) {
            queue.push(at, Happening::Fault(fault));
        }
        for scripted in &scenario.script {
            queue.push(Time::ZERO + scripted.at, Happening::Fault(scripted.fault.clone()));
        }
        Self {
            config,
            sizes: scenario.sizes(),
            seed,
            defect: None,
            phase: Phase::Faults,
            now: Time::ZERO,
            events: 0,
            queue,
            rng: own,
            trace,
            scenario,
        }
    }

    pub(super) const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(super) const fn config(&self) -> &Config {
        &self.config
    }

    pub(super) const fn sizes(&self) -> Sizes {
        self.sizes
    }

    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) const fn defect(&self) -> Option<Defect> {
        self.defect
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    pub(super) const fn plant(&mut self, defect: Option<Defect>) {
        self.defect = defect;
    }

    /// Whether the simulation has come so far.
    pub(super) fn reached(&self, phase: Phase) -> bool {
        self.phase >= phase
    }

    /// Goes on to a later phase. Links are calm from [`Phase::Calm`] on.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
        if phase == Phase::Calm {
            self.scenario.link = self.scenario.link.calm();
        }
    }

    pub(super) const fn now(&self) -> Time {
        self.now
    }

    pub(super) const fn events(&self) -> u64 {
        self.events
    }

    /// Time passes to `time`, if that is later.
    pub(super) fn pass_to(&mut self, time: Time) {
        self.now = self.now.max(time);
    }

    /// The time of the next event.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.queue.next_time()
    }

    /// The next events in order, at most `count`, as far as they are sorted.
    pub(super) fn ahead(&self, count: usize) -> impl ExactSizeIterator<Item = Option<&Happening>> {
        self.queue.ahead(count)
    }

    /// The next event, to whose time virtual time passes.
    pub(super) fn next(&mut self) -> Option<(Time, Happening)> {
        let (time, what) = self.queue.pop()?;
        self.pass_to(time);
        Some((time, what))
    }

    /// Counts an event, with its text in the trace.
    pub(super) fn count(&mut self, text: impl FnOnce() -> String) {
        self.events += 1;
        if self.trace.is_on() {
            let (event, now) = (self.events, self.now.as_micros());
            self.trace.line(format_args!("{event} {now} {}", text()));
        }
    }

    /// Something happens at `time`.
    pub(super) fn at(&mut self, time: Time, what: Happening) {
        self.queue.push(time, what);
    }

    /// Something happens after `time`.
    pub(super) fn after(&mut self, time: Duration, what: Happening) {
        self.queue.push(self.now + time, what);
    }

    /// Events that were ever scheduled.
    #[cfg(test)]
    pub(super) const fn scheduled(&self) -> u64 {
        self.queue.scheduled()
    }

    /// Adds a line to the trace, if there is one.
    pub(super) fn note(&mut self, text: fmt::Arguments<'_>) {
        self.trace.line(text);
    }

    pub(super) fn into_trace(self) -> Trace {
        self.trace
    }

    /// Draws what the scenario leaves to chance.
    pub(super) fn draw<T>(&mut self, draw: impl FnOnce(&Scenario, &mut ChaCha8Rng) -> T) -> T {
        draw(&self.scenario, &mut self.rng)
    }

    /// A share of `time`, all equally likely.
    pub(super) fn part_of(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.random())
    }

    /// Whether something of this probability happens; what never happens draws nothing.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability.min(1.0))
    }

    /// How long the next message travels.
    pub(super) fn delay(&mut self) -> Duration {
        self.scenario.link.draw_delay(&mut self.rng)
    }

    /// The time until something that happens every `mean` on average.
    pub(super) fn interval(&mut self, mean: Duration) -> Duration {
        if self.scenario.poisson { exponential(mean, &mut self.rng) } else { mean }
    }
}
