//! Carries out what the core says.

use std::ops::Range;

use dnode_gossip::Output;
use dnode_protocol::frame::{Codec, TensorHeader};
use dnode_protocol::{ExchangeId, FragmentId, PeerId};

use super::Driver;
use crate::training::{Command, MixTerms};

impl Driver {
    pub(super) fn carry_out(&mut self) {
        while let Some(output) = self.core.poll_output() {
            self.carry_out_one(output);
        }
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
                let elements = self.range(fragment).len();
                self.numbers.expect(exchange, from, leg, (fragment, elements));
            }
            Output::Read { exchange, fragment, .. } => {
                let range = self.range(fragment);
                self.training.command(Command::Read { exchange, range });
            }
            Output::SendTensor { to, exchange, leg, fragment, clock } => {
                let header = TensorHeader {
                    exchange,
                    leg,
                    codec: Codec::F32,
                    fragment,
                    clock,
                    elements: u32::try_from(self.range(fragment).len()).unwrap_or(0),
                    offset: 0,
                    count: 0,
                };
                self.send_tensor(to, header);
            }
            Output::Mix { exchange, fragment, role, weight, clock_max, .. } => {
                self.mix((exchange, fragment), MixTerms { role, weight, clock_max });
            }
            Output::Undo { exchange, fragment, weight } => {
                let range = self.range(fragment);
                let kept = self.numbers.kept_values(exchange);
                let difference = kept.expect("an applied difference is kept until it is undone");
                self.training.command(Command::Undo { exchange, range, weight, difference });
            }
            Output::Adopt { exchange, fragment } => {
                let range = self.range(fragment);
                let received = self.numbers.take_received(exchange);
                let values = received.expect("a snapshot is kept until it is adopted");
                self.training.command(Command::Adopt { exchange, range, values });
            }
            Output::Pace { local_steps } => tracing::debug!(local_steps, "pace"),
            Output::Peers(peers) => tracing::debug!(peers, "counting peers"),
            Output::Absorb { .. }
            | Output::Delivered { .. }
            | Output::Publish { .. }
            | Output::SendContribution { .. }
            | Output::Include { .. }
            | Output::Drop { .. } => {
                tracing::error!(?output, "not asked for by the rules of this version");
            }
            Output::Forget { exchange } => self.numbers.forget(exchange),
            Output::CommitLimit(limit) => self.training.limit_commits(limit),
            Output::Training { allowed } => {
                self.core_allows = allowed;
                self.update_allowed();
            }
            Output::AdoptClock(clock) => {
                self.training.command(Command::AdoptClock(clock));
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

    fn mix(&mut self, (exchange, fragment): (ExchangeId, FragmentId), terms: MixTerms) {
        let range = self.range(fragment);
        let received = self.numbers.take_received(exchange);
        let numbers = received.expect("a received tensor is kept until it is mixed");
        self.training.command(Command::Mix { exchange, range, terms, numbers });
    }

    fn send_tensor(&self, to: PeerId, header: TensorHeader) {
        let Some(payload) = self.numbers.kept(header.exchange) else { return };
        if let Err(error) = self.network.send_tensor(to, header, payload) {
            tracing::debug!(%error, "tensor not sent");
        }
    }

    fn range(&self, fragment: FragmentId) -> Range<usize> {
        self.fragments.range(fragment).expect("the core checks every fragment id")
    }
}
