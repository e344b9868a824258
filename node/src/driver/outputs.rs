//! Carries out what the core says.

use dnode_gossip::{ContributionId, Output, Work};
use dnode_protocol::frame::{Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};
use dnode_trainer::{Encoded, Reading};

use super::Driver;
use crate::training::{Command, MixTerms};

impl Driver {
    pub(super) fn carry_out(&mut self) {
        while let Some(output) = self.core.poll_output() {
            self.traces.output(&output);
            self.carry_out_one(output);
        }
        self.traces.settle(&self.network);
    }

    fn carry_out_one(&mut self, output: Output) {
        match output {
            Output::Send { to, message } => {
                // The core repeats what matters; a full queue or a lost connection only delays it.
                if let Err(error) = self.network.send(to, &message) {
                    tracing::debug!(%error, message = message.name(), "message not sent");
                }
            }
            Output::Expect { exchange, from, leg, fragment } => {
                let elements = self.elements(fragment);
                self.numbers.expect(exchange, from, leg, (fragment, elements));
            }
            Output::SendTensor { to, exchange, leg, fragment, clock } => {
                if let Some(numbers) = self.numbers.kept(exchange) {
                    self.send_tensor(to, (exchange, leg, fragment, clock), numbers);
                }
            }
            Output::SendContribution { to, exchange, contribution, clock } => {
                if let Some(numbers) = self.numbers.contribution(contribution) {
                    let head = (exchange, Leg::Contribution, contribution.fragment, clock);
                    self.send_tensor(to, head, numbers);
                }
            }
            Output::Publish { origin, number } => self.numbers.publish(origin, number),
            Output::Drop { contribution } => self.numbers.drop_contribution(contribution),
            Output::Work(work) => {
                let command = self.command(work);
                self.training.command(command);
            }
            Output::Delivered { exchange, fragment, to } => {
                if let Some(push) = self.numbers.kept(exchange) {
                    self.training.command(Command::Delivered { fragment, to, push });
                }
            }
            Output::Pace(load) => self.training.pace(load),
            Output::Peers(peers) => self.training.share_among(peers),
            Output::Forget { exchange } => self.numbers.forget(exchange),
            Output::CommitLimit(limit) => self.training.limit_commits(limit),
            Output::Training { allowed } => {
                self.core_allows = allowed;
                self.update_allowed();
            }
            Output::AdoptClock { clock, replaced } => {
                self.training.command(Command::AdoptClock { clock, replaced });
            }
            Output::RoundDone => self.round_done(),
            Output::Disconnect { peer, back_off, reason } => {
                tracing::warn!(peer = %peer.short(), ?back_off, "disconnecting: {reason}");
                if let Err(error) = self.network.disconnect(peer, back_off) {
                    tracing::warn!(%error, "disconnect");
                }
            }
            Output::Event(event) => self.journal.gossip_event(&event),
        }
    }

    /// What the training thread is to do.
    fn command(&mut self, work: Work) -> Command {
        match work {
            Work::Read { exchange, fragment, what } => {
                Command::Read { exchange, fragment, what: reading(what) }
            }
            Work::Mix { exchange, fragment, role, weight, codec, clock_max, tolerance } => {
                let numbers = self.received(exchange);
                let terms = MixTerms { role, weight, codec, clock_max, tolerance };
                Command::Mix { exchange, fragment, terms, numbers }
            }
            Work::Absorb { exchange, fragment, from, weight, tolerance } => {
                let numbers = self.received(exchange);
                Command::Absorb { exchange, fragment, from, weight, tolerance, numbers }
            }
            Work::Include { exchange, contribution } => {
                let numbers = self.contribution(exchange, contribution);
                Command::Include { exchange, fragment: contribution.fragment, numbers }
            }
            Work::Undo { exchange, fragment, weight } => {
                Command::Undo { exchange, fragment, weight, reply: self.journalled(exchange) }
            }
            Work::Adopt { exchange, fragment, contents } => {
                let snapshot = self.received(exchange);
                Command::Adopt { exchange, fragment, snapshot, contents }
            }
            Work::Recall { exchange, fragment, contents } => {
                Command::Recall { exchange, fragment, contents }
            }
        }
    }

    fn contribution(&mut self, exchange: ExchangeId, contribution: ContributionId) -> Encoded {
        let numbers = self.numbers.include(exchange, contribution);
        numbers.expect("a contribution is kept until it is dropped")
    }

    fn journalled(&self, exchange: ExchangeId) -> Encoded {
        let kept = self.numbers.kept(exchange);
        kept.expect("an applied difference is kept until it is undone")
    }

    fn received(&mut self, exchange: ExchangeId) -> Encoded {
        let received = self.numbers.take_received(exchange);
        received.expect("a received tensor is kept until it is used")
    }

    fn send_tensor(
        &mut self,
        to: PeerId,
        (exchange, leg, fragment, clock): (ExchangeId, Leg, FragmentId, Clock),
        numbers: Encoded,
    ) {
        let elements = u32::try_from(numbers.elements).unwrap_or(0);
        let codec = numbers.codec;
        let header =
            TensorHeader { exchange, leg, codec, fragment, clock, elements, offset: 0, count: 0 };
        let written = self.traces.sends(&header, numbers.bytes.len());
        let sent = self.network.send_tensor_then(to, header, numbers.bytes, written);
        if let Err(error) = sent {
            tracing::debug!(%error, "tensor not sent");
        }
    }

    fn elements(&self, fragment: FragmentId) -> usize {
        let range = self.fragments.range(fragment);
        range.expect("the core checks every fragment id").len()
    }
}

const fn reading(what: dnode_gossip::Reading) -> Reading {
    match what {
        dnode_gossip::Reading::Offer(codec) => Reading::Offer(codec),
        dnode_gossip::Reading::Push { to, codec } => Reading::Push { to, codec },
        dnode_gossip::Reading::Snapshot => Reading::Snapshot,
    }
}
