//! Control messages and tensors that a peer changes or keeps back on their way out.

use std::time::Duration;

use dnode_gossip::testing::Effect;
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, Message};

use super::{Misbehaviour, Wrong};
use crate::sim::names::index_of;

/// One that disconnects does so in one of so many commits.
const RETURNS_EVERY: u64 = 4;
/// One that mixes seldom does so in one of so many commits.
const MIXES_EVERY: u64 = 18;

/// Whether one that mixes seldom does so at this clock.
const fn mixes(clock: Clock) -> bool {
    clock.0.is_multiple_of(MIXES_EVERY)
}

/// What leaves a peer with which this is wrong, in place of `effect`; `None` when nothing does.
pub(in super::super) fn forge(wrong: &Misbehaviour, effect: Effect) -> Option<Effect> {
    match effect {
        Effect::Message { to, message: Message::Heartbeat(heartbeat) }
            if wrong.kind == Wrong::DriftAndReturns
                && heartbeat.clock.0 % RETURNS_EVERY == RETURNS_EVERY - 1 =>
        {
            Some(Effect::Disconnect { peer: to, back_off: Duration::ZERO })
        }
        Effect::Message { to, message } => {
            forge_message(wrong, message).map(|message| Effect::Message { to, message })
        }
        Effect::Tensor { to, exchange, leg, clock, numbers } => {
            let silent = wrong.kind == Wrong::SelectiveSilence && index_of(&to).is_multiple_of(2);
            let kept = silent && matches!(leg, Leg::Offer | Leg::Reply);
            let clock = lie(wrong, clock);
            (!kept).then_some(Effect::Tensor { to, exchange, leg, clock, numbers })
        }
        other @ (Effect::Disconnect { .. } | Effect::Event(_)) => Some(other),
    }
}

/// The clock that is told in place of `clock`.
fn lie(wrong: &Misbehaviour, clock: Clock) -> Clock {
    let ahead = if wrong.kind == Wrong::Clock { wrong.factor as u64 } else { 0 };
    Clock(clock.0 + ahead)
}

fn forge_message(wrong: &Misbehaviour, mut message: Message) -> Option<Message> {
    match (&mut message, wrong.kind) {
        (Message::Ack { .. }, Wrong::NeverAcknowledges) => return None,
        (Message::Propose { terms, .. }, Wrong::DriftAndSeldom) if !mixes(terms.clock) => {
            return None;
        }
        (Message::Accept { exchange, terms, .. }, Wrong::DriftAndSeldom) if !mixes(terms.clock) => {
            return Some(Message::Busy { exchange: *exchange });
        }
        (Message::Accept { exchange, .. }, Wrong::Busy) => {
            return Some(Message::Busy { exchange: *exchange });
        }
        (Message::Heartbeat(heartbeat), Wrong::Clock) => {
            heartbeat.clock = lie(wrong, heartbeat.clock);
        }
        (Message::Propose { terms, .. } | Message::Accept { terms, .. }, Wrong::Clock) => {
            terms.clock = lie(wrong, terms.clock);
        }
        (Message::Heartbeat(heartbeat), Wrong::FrozenAndFast) => heartbeat.step_micros = 1,
        (Message::Propose { terms, .. } | Message::Accept { terms, .. }, Wrong::NoiseAndHeavy) => {
            (terms.mass, terms.work, terms.merges) = (u32::MAX, u32::MAX, true);
        }
        (Message::Snapshot { clock, .. } | Message::Stale { clock, .. }, Wrong::Clock) => {
            *clock = lie(wrong, *clock);
        }
        _ => {}
    }
    Some(message)
}
