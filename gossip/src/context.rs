//! What every part of the core works with: who this peer is, the time, randomness, and what is to be said.

mod leases;
mod outbox;
mod progress;
mod step;

use dnode_protocol::{ExchangeId, FragmentId, Message, PeerId, Stripe, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{Config, Event, Output, Work};
pub(crate) use leases::Leases;
pub(crate) use outbox::Outbox;
pub(crate) use progress::{Progress, Replacing, speed, steps_time};
pub(crate) use step::{Ending, ExchangeStep, Look, Step};

/// The environment of all parts, and the few things that belong to none of them.
///
/// A part changes its own state and this; what other parts have to do then it asks for as a [`Step`].
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// The own name.
    pub(crate) me: PeerId,
    /// Which start of the own process this is.
    pub(crate) incarnation: u64,
    /// Fragments of the model.
    pub(crate) fragments: u32,
    pub(crate) config: Config,
    /// The time of the present input.
    pub(crate) now: Time,
    pub(crate) rng: ChaCha8Rng,
    /// Where the own training stands.
    pub(crate) progress: Progress,
    /// Which exchange may change which fragment.
    pub(crate) leases: Leases,
    outbox: Outbox,
    /// The part of the fragments that this peer exchanges.
    stripe: Stripe,
    next_sequence: u64,
    steps: Vec<Step>,
}

impl Context {
    pub(crate) fn new(
        (me, incarnation, fragments): (PeerId, u64, u32),
        seed: [u8; 32],
        progress: Progress,
        config: Config,
        now: Time,
    ) -> Self {
        Self {
            me,
            incarnation,
            fragments,
            config,
            now,
            rng: ChaCha8Rng::from_seed(seed),
            progress,
            leases: Leases::default(),
            outbox: Outbox::default(),
            stripe: Stripe::WHOLE,
            next_sequence: 0,
            steps: Vec::new(),
        }
    }

    /// Asks for what other parts have to do next; what is asked for first is done first.
    pub(crate) fn then(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// What was asked for since this was called last.
    pub(crate) fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    pub(crate) fn output(&mut self, output: Output) {
        self.outbox.push(output);
    }

    /// The next output, if there is one.
    pub(crate) fn pop_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.output(Output::Event(event));
    }

    pub(crate) fn work(&mut self, work: Work) {
        self.output(Output::Work(work));
    }

    /// Says `message` to `to`, if that is a neighbour.
    pub(crate) fn send(&mut self, to: PeerId, message: Message) {
        self.outbox.send(to, message, self.now);
    }

    /// Says the same to every neighbour.
    pub(crate) fn tell_all(&mut self, message: &Message) {
        for peer in self.outbox.neighbours() {
            self.send(peer, message.clone());
        }
    }

    /// The connections, by which messages go out.
    pub(crate) const fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The name of the own exchange with this sequence number.
    pub(crate) const fn exchange_id(&self, sequence: u64) -> ExchangeId {
        ExchangeId { initiator: self.me, incarnation: self.incarnation, sequence }
    }

    /// Whether this life of this peer may have given this name.
    pub(crate) fn is_own(&self, exchange: ExchangeId) -> bool {
        exchange == self.exchange_id(exchange.sequence)
    }

    /// The sequence number of the own exchange that begins now.
    pub(crate) const fn take_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    /// One more than the last sequence number given.
    pub(crate) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// All fragments of the model.
    pub(crate) fn all_fragments(&self) -> impl DoubleEndedIterator<Item = FragmentId> + use<> {
        (0..self.fragments).map(FragmentId)
    }

    /// The part of the fragments that this peer exchanges.
    pub(crate) const fn stripe(&self) -> Stripe {
        self.stripe
    }

    /// Takes over a stripe; returns the one before.
    pub(crate) const fn set_stripe(&mut self, stripe: Stripe) -> Stripe {
        std::mem::replace(&mut self.stripe, stripe)
    }

    /// Whether this peer exchanges `fragment`.
    pub(crate) fn owns(&self, fragment: FragmentId) -> bool {
        self.stripe.owns(fragment, self.fragments)
    }

    /// Whether `fragment` is exchanged between this peer and one of stripe `theirs`.
    pub(crate) fn shares(&self, theirs: Stripe, fragment: FragmentId) -> bool {
        self.owns(fragment) && theirs.owns(fragment, self.fragments) && !self.stripe.is_mate(theirs)
    }

    /// Fragments that belong to stripe `now` and did not belong to `before`.
    pub(crate) fn gained(
        &self,
        before: Stripe,
        now: Stripe,
    ) -> impl Iterator<Item = FragmentId> + use<> {
        let fragments = self.fragments;
        let gained = move |fragment: &FragmentId| {
            now.owns(*fragment, fragments) && !before.owns(*fragment, fragments)
        };
        self.all_fragments().filter(gained)
    }

    /// What neighbours are told of the own rack; `None` without one.
    pub(crate) fn rack_message(&self) -> Option<Message> {
        let name = self.config.rack;
        (name != 0).then_some(Message::Rack { name, stripe: self.stripe })
    }

    /// Tells all neighbours which part of the fragments this peer exchanges for its rack.
    ///
    /// Ranks of one rack are equal after every commit without this core's doing, so they exchange
    /// nothing with each other and wait for no news of each other. Of another rack a fragment is
    /// exchanged with the rank that owns it there.
    pub(crate) fn tell_rack(&mut self) {
        if let Some(message) = self.rack_message() {
            self.tell_all(&message);
        }
    }
}

#[cfg(test)]
impl Context {
    /// The context of peer 0, whose model has one fragment: to test a part alone.
    pub(crate) fn alone(config: Config) -> Self {
        let progress = Progress::new(dnode_protocol::Clock(0), config.pace.reference());
        let name = (crate::testing::peer(0), 1, 1);
        Self::new(name, [1; 32], progress, config, Time::ZERO)
    }

    /// Everything said so far.
    pub(crate) fn said(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.pop_output()).collect()
    }
}
