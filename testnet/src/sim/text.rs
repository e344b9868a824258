//! Events as short text, peers by index: `p3`, exchanges as `x3/1/17`.

use std::fmt;

use dnode_gossip::Event;
use dnode_gossip::testing::Effect;
use dnode_protocol::ExchangeId;

use super::names::index_of;
use super::network::Network;
use super::queue::Happening;

/// What is about to happen, for the trace.
pub(super) fn happening(what: &Happening, network: &Network) -> String {
    match what {
        Happening::Arrive(arrival) => {
            let [from, to] = network.way(arrival.edge, arrival.toward);
            format!("p{to} receives from p{from} {}", Payload(&arrival.payload))
        }
        Happening::Land { arrival, bytes, .. } => {
            let [_, to] = network.way(arrival.edge, arrival.toward);
            format!("{bytes} bytes land at p{to}")
        }
        Happening::Wake { peer } => format!("p{peer} wakes"),
        Happening::Work { peer, .. } => format!("p{peer} works"),
        Happening::Tick { peer, .. } => format!("p{peer} ticks"),
        Happening::Up { edge, end, .. } => {
            format!("p{} up e{edge}", network.way(*edge, *end)[1])
        }
        Happening::Down { edge, end, .. } => {
            format!("p{} down e{edge}", network.way(*edge, *end)[1])
        }
        Happening::Idle { edge, .. } => format!("e{edge} idle"),
        Happening::Dial { edge } => format!("e{edge} dials"),
        Happening::Fault(fault) => format!("fault {fault:?}"),
    }
}

struct Exchange(ExchangeId);

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExchangeId { initiator, incarnation, sequence } = &self.0;
        write!(f, "x{}/{incarnation}/{sequence}", index_of(initiator))
    }
}

struct Payload<'a>(&'a Effect);

impl fmt::Display for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Effect::Message { message, .. } => match message.exchange() {
                Some(exchange) => write!(f, "{} {}", message.name(), Exchange(exchange)),
                None => f.write_str(message.name()),
            },
            Effect::Tensor { exchange, leg, clock, numbers, .. } => {
                write!(f, "{leg:?} {} at {clock} {numbers:02x?}", Exchange(*exchange))
            }
            Effect::Disconnect { .. } | Effect::Event(_) => Ok(()),
        }
    }
}

/// A report of a core, for the trace.
pub(super) struct Report<'a>(pub(super) &'a Event);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Event::PeerUp(peer) => write!(f, "peer up p{}", index_of(peer)),
            Event::PeerDown(peer) => write!(f, "peer down p{}", index_of(peer)),
            Event::Suspected(peer) => write!(f, "suspects p{}", index_of(peer)),
            Event::Demoted { peer, bound } => {
                write!(f, "demotes p{}, which held by {bound}", index_of(peer))
            }
            Event::Restored(peer) => write!(f, "restores p{}", index_of(peer)),
            Event::Applied { exchange, fragment, peer, role, weight, lag, age } => write!(
                f,
                "applied {} {fragment} with p{} as {role:?}, weight {weight}, lag {lag}, age {age}",
                Exchange(*exchange),
                index_of(peer)
            ),
            Event::Undone { exchange } => write!(f, "undone {}", Exchange(*exchange)),
            Event::Failed { exchange, peer, failure } => {
                write!(f, "failed {} with p{}: {failure:?}", Exchange(*exchange), index_of(peer))
            }
            Event::Refused { exchange, peer, bound } => {
                write!(f, "refuses {} of p{} by {bound}", Exchange(*exchange), index_of(peer))
            }
            Event::Undecided { exchange } => write!(f, "undecided {}", Exchange(*exchange)),
            Event::Held { bound, peer } => write!(f, "held by {bound} of p{}", index_of(peer)),
            Event::Deadline { name, peer, value, why } => match peer {
                Some(peer) => write!(f, "{name} of p{} is {value:?}: {why}", index_of(peer)),
                None => write!(f, "{name} is {value:?}: {why}"),
            },
            Event::Interval { steps, wanted, cause } => {
                write!(f, "mixes every {steps} steps of {wanted}: {cause:?}")
            }
            Event::Included { contribution, age } => {
                let origin = index_of(&contribution.origin.peer);
                let (number, fragment) = (contribution.number, contribution.fragment);
                write!(f, "includes number {number} of p{origin} in {fragment}, age {age}")
            }
            Event::CatchUpStarted { target } => write!(f, "catches up to {target}"),
            Event::CatchUpDone { clock } => write!(f, "caught up at {clock}"),
            Event::Split { seen, of, since } => write!(f, "sees {seen} of {of} since {since}"),
            Event::Whole { seen, of, lasted } => {
                write!(f, "sees {seen} of {of} again after {lasted:?}")
            }
            Event::Merging { clock, work } => write!(f, "merges at {clock} with work {work}"),
            Event::LeftOutBy { peer, partners, of } => {
                write!(f, "left out by {peer}, {partners} of {of}")
            }
            Event::Exiled { partners, of } => {
                write!(f, "takes over a replica, as {partners} of {of} leave it out")
            }
            Event::Guarded { peer, trust, grounds } => {
                write!(f, "p{} is {trust:?}: {grounds:?}", index_of(peer))
            }
            Event::Offended { peer, back_off } => {
                write!(f, "offended by p{}, back-off {back_off:?}", index_of(peer))
            }
        }
    }
}
