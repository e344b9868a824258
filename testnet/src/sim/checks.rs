//! What watches a world: a record of its exchanges from outside all cores, and what must hold.

use dnode_gossip::{Event, Input, Role, Work};
use dnode_protocol::{Clock, ExchangeId, Message, Time};

use super::context::Context;
use super::invariants;
use super::invariants::kept::Kept;
use super::invariants::property::{Moment, Property};
use super::journal::Journal;
use super::ledger::{Deal, Ledger};
use super::network::Network;
use super::processes::Processes;
use super::view::View;

/// Worlds of at most this many peers get the expensive checks.
pub(super) const SMALL: u32 = 32;

/// Exchanges of one initiator that are recorded: as many of the newest as peers remember, and one that
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

/// What watches a world.
#[derive(Debug)]
pub(super) struct Checks {
    journal: Journal,
    ledger: Ledger,
    properties: Vec<Box<dyn Property>>,
    violation: Option<Violation>,
}

impl Checks {
    /// All that must hold in the scenario of `context`, or nothing: invariants are about toy replicas.
    pub(super) fn new(context: &Context, checked: bool) -> Self {
        let scenario = context.scenario();
        let (count, small) = (scenario.peers as usize, scenario.peers <= SMALL);
        let fragments = scenario.fragments as usize;
        Self {
            journal: Journal::new(
                (count, fragments),
                scenario.width,
                small,
                context.config().journal_window,
            ),
            ledger: Ledger::new(count, DEALS),
            properties: if checked { invariants::table(scenario, small) } else { Vec::new() },
            violation: None,
        }
    }

    /// The first broken invariant.
    pub(super) const fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// How exactly the rule has kept what it keeps, if that is a number.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.properties.iter().find_map(|property| property.kept())
    }

    /// What properties see.
    pub(super) fn view<'a>(
        &'a self,
        context: &'a Context,
        processes: &'a Processes,
        network: &'a Network,
    ) -> View<'a> {
        view((&self.journal, &self.ledger), context, processes, network)
    }

    /// Tells the properties what has just happened, until one is broken.
    pub(super) fn observe(
        &mut self,
        moment: &Moment<'_>,
        context: &Context,
        processes: &Processes,
        network: &Network,
    ) {
        if self.violation.is_some() {
            return;
        }
        let view = view((&self.journal, &self.ledger), context, processes, network);
        for property in &mut self.properties {
            if let Err(what) = property.observe(moment, &view) {
                let (event, now) = (view.events, view.now);
                self.violation = Some(Violation { property: property.name(), what, event, now });
                return;
            }
        }
    }

    /// A core sends a message.
    pub(super) fn on_sent(&mut self, message: &Message) {
        self.ledger.sent(message);
    }

    /// A core reports something.
    pub(super) fn on_event(&mut self, peer: u32, event: &Event, now: Time) {
        self.journal.said(peer, event, now);
    }

    /// The initiator has heard that its proposal is accepted.
    pub(super) fn on_accepted(&mut self, exchange: &ExchangeId, ignores_clock: bool) {
        self.ledger.heard_accepted(exchange, ignores_clock);
    }

    /// The offer of an exchange arrives where the initiator's newest known clock is `known`.
    pub(super) fn on_offer(&mut self, exchange: &ExchangeId, known: Clock) {
        self.ledger.offered(exchange, known);
    }

    /// The initiator's numbers are read when it has done `commits` and stands at `clock`.
    pub(super) fn on_read(&mut self, exchange: &ExchangeId, commits: u64, clock: Clock) {
        self.ledger.read(exchange, commits, clock);
    }

    /// A peer in some life, whose numbers weigh `mass`, has done a piece of work.
    pub(super) fn on_work(
        &mut self,
        worker: (u32, u64, f64),
        (task, answer): (&Work, &Input),
        change: (&[f64], &[f64]),
        now: Time,
    ) {
        let masses = self.ledger.get(&task.exchange()).and_then(Deal::merging_masses);
        self.journal.merging(task, masses);
        self.journal.worked(worker, (task, answer), change, now);
    }

    /// What was asked of a piece of work has been observed: what nobody asks about again goes.
    pub(super) fn close(&mut self, task: &Work) {
        let exchange = task.exchange();
        if matches!(task, Work::Mix { role: Role::Initiator, .. }) {
            self.journal.prune(&exchange);
            self.ledger.close(&exchange);
        }
    }
}

fn view<'a>(
    (journal, ledger): (&'a Journal, &'a Ledger),
    context: &'a Context,
    processes: &'a Processes,
    network: &'a Network,
) -> View<'a> {
    View {
        now: context.now(),
        events: context.events(),
        scenario: context.scenario(),
        config: context.config(),
        peers: processes.all(),
        journal,
        ledger,
        network,
    }
}
