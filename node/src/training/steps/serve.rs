//! What the training thread does for the driver between two steps.

use dnode_gossip::{RefusedMix, Role};
use dnode_protocol::{ExchangeId, FragmentId};
use dnode_trainer::{Encoded, MixError};

use super::together::Ranks;
use super::{End, Training};
use crate::training::ring::Ring;
use crate::training::{Command, MixTerms, Report};

/// Why numbers were not used: whose fault, and the reason in words.
type Refusal = (RefusedMix, String);

impl Training {
    pub(super) fn obey(&mut self, command: Command) -> Result<(), End> {
        let clock = self.at.clock;
        let report = match command {
            Command::Read { exchange, fragment, what } => {
                Report::Read { exchange, clock, numbers: self.replica.read(fragment, what) }
            }
            Command::Mix { exchange, fragment, terms, numbers } => {
                let mixed = self.mix(fragment, terms, &numbers);
                self.mixed(exchange, mixed)
            }
            Command::Absorb { exchange, fragment, from, weight, numbers } => {
                let absorbed = self.replica.absorb(fragment, weight, from, &numbers);
                self.mixed(exchange, absorbed.map(|_| None).map_err(|error| refused(&error)))
            }
            Command::Include { exchange, fragment, numbers } => {
                let included = self.replica.include(fragment, &numbers);
                self.mixed(exchange, included.map(|_| None).map_err(|error| refused(&error)))
            }
            Command::Undo { exchange, fragment, weight, reply } => {
                self.replica.undo(fragment, weight, &reply);
                Report::Undone { exchange }
            }
            Command::Adopt { exchange, fragment, snapshot } => {
                match self.replica.adopt(fragment, &snapshot) {
                    Ok(()) => Report::Adopted { exchange },
                    Err(error) => self.mixed(exchange, Err(refused(&error))),
                }
            }
            Command::Delivered { fragment, to, push } => {
                self.replica.delivered(fragment, to, &push);
                return Ok(());
            }
            Command::Permission => {
                self.look_at_permission();
                return Ok(());
            }
            Command::RoundDone => {
                self.round_open = false;
                return Ok(());
            }
            Command::AdoptClock(clock) => {
                self.adopt_clock(clock);
                return Ok(());
            }
            Command::Ring(place, group) => {
                self.ring = Some(group.map_or_else(|| Ranks::Far(Ring::new(place)), Ranks::Near));
                return Ok(());
            }
            Command::Stop { evaluate } => return Err(End::Stopped { evaluate }),
        };
        self.tell(report)
    }

    fn mixed(&self, exchange: ExchangeId, mixed: Result<Option<Encoded>, Refusal>) -> Report {
        match mixed {
            Ok(reply) => Report::Mixed { exchange, clock: self.at.clock, reply },
            Err((reason, detail)) => Report::MixRefused { exchange, reason, detail },
        }
    }

    fn mix(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        numbers: &Encoded,
    ) -> Result<Option<Encoded>, Refusal> {
        let MixTerms { role, weight, codec, clock_max } = terms;
        if self.at.clock > clock_max {
            let detail = format!("own clock {} is past {clock_max}", self.at.clock);
            return Err((RefusedMix::TooOld, detail));
        }
        let mixed = match role {
            Role::Initiator if numbers.codec != codec => Err(MixError::Codec(numbers.codec)),
            Role::Initiator => self.replica.apply(fragment, weight, numbers).map(|_| None),
            Role::Responder => {
                let answer = self.replica.answer(fragment, weight, numbers, codec);
                answer.map(|(reply, _)| Some(reply))
            }
        };
        mixed.map_err(|error| refused(&error))
    }
}

/// Whose fault it is: only what the peer sent counts against it.
fn refused(error: &MixError) -> Refusal {
    let reason = if error.blames_peer() { RefusedMix::BadParameters } else { RefusedMix::Local };
    (reason, error.to_string())
}
