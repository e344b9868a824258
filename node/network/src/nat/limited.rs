//! Bounds around behaviours of libp2p that other peers can cause to dial or to remember addresses.

use std::task::{Context, Poll, ready};

use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, DialError, DialFailure, FromSwarm,
    NetworkBehaviour, NewExternalAddrCandidate, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use crate::nat::allow_list::PunchAllowList;
use crate::nat::candidates::Budget;
use crate::nat::dial_back::DialBackQueue;
use crate::nat::held_back::HeldBack;

/// A behaviour with two bounds. It learns possible addresses of this peer from its owner alone, because
/// identify would believe any connected peer and does not say which one. A gate decides which of its
/// dials pass.
#[derive(Debug)]
pub(crate) struct Limited<B> {
    inner: B,
    gate: Option<Gate>,
    budget: Option<Budget>,
}

/// Which dials pass, and when.
#[derive(Debug)]
enum Gate {
    /// Dials to permitted peers pass.
    Punch(PunchAllowList),
    /// All dials pass, a few at a time.
    DialBack(DialBackQueue),
    /// Dials pass but those to peers that are held back.
    Held(HeldBack),
}

/// The error of a dial to an address that it must not go to.
#[derive(Debug, thiserror::Error)]
#[error("addresses that are dialled for nobody")]
struct Refused;

impl<B: NetworkBehaviour> Limited<B> {
    /// Wraps `inner`, which never forgets a candidate and therefore is told of few.
    pub(crate) const fn budgeted(inner: B, now: Instant) -> Self {
        Self { inner, gate: None, budget: Some(Budget::new(now)) }
    }

    /// Wraps `inner`, which forgets old candidates. Each of its dials waits until the peer is permitted.
    pub(crate) fn gated(inner: B) -> Self {
        Self { inner, gate: Some(Gate::Punch(PunchAllowList::default())), budget: None }
    }

    /// Wraps `inner`, whose dials are asked for by others; a few run at a time.
    pub(crate) fn in_turn(inner: B) -> Self {
        Self { inner, gate: Some(Gate::DialBack(DialBackQueue::default())), budget: None }
    }

    /// Wraps `inner`, which dials the peers of which others tell it, but for those that are held back.
    pub(crate) fn holding_back(inner: B) -> Self {
        Self { inner, gate: Some(Gate::Held(HeldBack::default())), budget: None }
    }

    /// The behaviour itself.
    pub(crate) const fn inner(&mut self) -> &mut B {
        &mut self.inner
    }

    /// Has `peer` not dialled before `until`.
    pub(crate) fn hold(&mut self, peer: PeerId, until: Instant) {
        if let Some(Gate::Held(held)) = &mut self.gate {
            held.hold(peer, until);
        }
    }

    /// Permits dials to `peer` from now on; one that was held begins.
    pub(crate) fn permit(&mut self, peer: PeerId) {
        if let Some(Gate::Punch(allowed)) = &mut self.gate {
            allowed.permit(peer);
        }
    }

    /// Permits no dials to `peer` any more; one that waits for the permission is given up.
    pub(crate) fn forbid(&mut self, peer: PeerId) {
        if let Some(Gate::Punch(allowed)) = &mut self.gate {
            allowed.forbid(peer);
        }
    }

    /// Tells the behaviour that this peer may be reachable at `address`, within the budget.
    pub(crate) fn candidate(&mut self, address: &Multiaddr, now: Instant) {
        if self.budget.as_mut().is_none_or(|budget| budget.admits(address, now)) {
            let candidate = NewExternalAddrCandidate { addr: address };
            self.inner.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
        }
    }
}

impl<B: NetworkBehaviour> Limited<B> {
    /// Tells the behaviour that a dial will not be made.
    fn give_up(&mut self, dial: &DialOpts) {
        let (peer_id, connection_id) = (dial.get_peer_id(), dial.connection_id());
        let failure = DialFailure { peer_id, error: &DialError::Aborted, connection_id };
        self.inner.on_swarm_event(FromSwarm::DialFailure(failure));
    }

    /// The next dial that passes.
    fn release(&mut self) -> Option<DialOpts> {
        match self.gate.as_mut()? {
            Gate::Punch(allowed) => allowed.next(),
            Gate::Held(held) => held.next(),
            Gate::DialBack(queue) => {
                let (next, overdue) = (queue.next(), queue.overdue(Instant::now()));
                for dial in overdue {
                    self.give_up(&dial);
                }
                next
            }
        }
    }
}

impl Gate {
    /// Takes a dial to let it pass later; returns it when it will never pass.
    fn ask(&mut self, dial: DialOpts) -> Option<DialOpts> {
        match self {
            Self::Punch(allowed) => allowed.ask(dial),
            Self::DialBack(queue) => queue.ask(dial, Instant::now()),
            Self::Held(held) => held.ask(dial, Instant::now()),
        }
    }

    /// Whether the dial `connection` to `peer` may go to `addresses`. Dials of other behaviours may.
    fn allows(
        &self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
    ) -> bool {
        match self {
            Self::Punch(allowed) => allowed.allows(connection, addresses),
            Self::DialBack(queue) => queue.allows(connection, peer, addresses),
            Self::Held(_) => true,
        }
    }

    /// A dial ended.
    fn ended(&mut self, connection: ConnectionId) {
        match self {
            Self::Punch(allowed) => allowed.ended(connection),
            Self::DialBack(queue) => queue.ended(connection),
            Self::Held(_) => {}
        }
    }

    /// Notes connections that open and close, and dials that end.
    fn watch(&mut self, event: &FromSwarm<'_>) {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is non-exhaustive; the rest changes nothing"
        )]
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            }) => {
                self.ended(*connection_id);
                if let Self::DialBack(queue) = self
                    && let ConnectedPoint::Listener { send_back_addr, .. } = endpoint
                {
                    queue.came(*connection_id, *peer_id, send_back_addr);
                }
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. }) => match self {
                Self::Punch(allowed) => allowed.went(*connection_id),
                Self::DialBack(queue) => queue.went(*connection_id),
                Self::Held(_) => {}
            },
            FromSwarm::DialFailure(DialFailure { connection_id, .. }) => self.ended(*connection_id),
            _ => {}
        }
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for Limited<B> {
    type ConnectionHandler = B::ConnectionHandler;
    type ToSwarm = B::ToSwarm;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.inner.handle_pending_inbound_connection(id, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(id, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        if self.gate.as_ref().is_some_and(|gate| !gate.allows(id, peer, addresses)) {
            return Err(ConnectionDenied::new(Refused));
        }
        self.inner.handle_pending_outbound_connection(id, peer, addresses, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(id, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let Some(gate) = &mut self.gate {
            gate.watch(&event);
        }
        if !matches!(event, FromSwarm::NewExternalAddrCandidate(_)) {
            self.inner.on_swarm_event(event);
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        if let Some(Gate::Punch(allowed)) = &mut self.gate
            && !allowed.hears(connection)
        {
            return;
        }
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        loop {
            // Newly permitted dials and expired deadlines need no waker: the owner of the swarm polls
            // often.
            if let Some(opts) = self.release() {
                return Poll::Ready(ToSwarm::Dial { opts });
            }
            match (ready!(self.inner.poll(context)), &mut self.gate) {
                (ToSwarm::Dial { opts }, Some(gate)) => {
                    if let Some(dial) = gate.ask(opts) {
                        self.give_up(&dial);
                    }
                }
                (other, _) => return Poll::Ready(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::task::noop_waker_ref;
    use libp2p::swarm::dummy;

    use super::*;
    use crate::limits::{
        CANDIDATES_MAX, DIAL_BACKS_HELD_MAX, DIAL_BACKS_PER_IP_MAX, HELD_DIALS_MAX,
        PUNCH_ADDRESSES_MAX,
    };

    /// A behaviour that dials the peers that it is told to dial.
    #[derive(Default)]
    struct Dials(VecDeque<PeerId>, usize);

    impl NetworkBehaviour for Dials {
        type ConnectionHandler = dummy::ConnectionHandler;
        type ToSwarm = std::convert::Infallible;

        fn handle_established_inbound_connection(
            &mut self,
            _: ConnectionId,
            _: PeerId,
            _: &Multiaddr,
            _: &Multiaddr,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            Ok(dummy::ConnectionHandler)
        }

        fn handle_established_outbound_connection(
            &mut self,
            _: ConnectionId,
            _: PeerId,
            _: &Multiaddr,
            _: Endpoint,
            _: PortUse,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            Ok(dummy::ConnectionHandler)
        }

        fn on_swarm_event(&mut self, _: FromSwarm<'_>) {
            self.1 += 1;
        }

        fn on_connection_handler_event(
            &mut self,
            _: PeerId,
            _: ConnectionId,
            event: THandlerOutEvent<Self>,
        ) {
            match event {}
        }

        fn poll(
            &mut self,
            _: &mut Context<'_>,
        ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
            let next = self.0.pop_front();
            next.map_or(Poll::Pending, |peer| {
                Poll::Ready(ToSwarm::Dial { opts: DialOpts::peer_id(peer).build() })
            })
        }
    }

    /// The peers that the behaviour dials now.
    fn dialled(limited: &mut Limited<Dials>) -> Vec<PeerId> {
        let mut context = Context::from_waker(noop_waker_ref());
        let mut all = Vec::new();
        while let Poll::Ready(event) = limited.poll(&mut context) {
            if let ToSwarm::Dial { opts } = event {
                all.extend(opts.get_peer_id());
            }
        }
        all
    }

    #[test]
    fn nobody_is_dialled_who_was_not_permitted() {
        let (a, b, c) = (PeerId::random(), PeerId::random(), PeerId::random());
        let mut limited = Limited::gated(Dials::default());
        limited.inner.0.extend([a, b, c, a]);
        assert_eq!(dialled(&mut limited), []);
        limited.permit(b);
        assert_eq!(dialled(&mut limited), [b]);
        limited.forbid(a);
        limited.permit(a);
        assert_eq!(dialled(&mut limited), [], "it was given up");
        limited.inner.0.extend([a, b]);
        assert_eq!(dialled(&mut limited), [a, b]);
        limited.inner.0.extend((0..1000).map(|_| c));
        assert_eq!(dialled(&mut limited), []);
        limited.permit(c);
        assert_eq!(dialled(&mut limited).len(), HELD_DIALS_MAX);
        let inner = Dials(VecDeque::from([a]), 0);
        let mut open = Limited { inner, gate: None, budget: None };
        assert_eq!(dialled(&mut open), [a], "what is not gated");
    }

    #[test]
    fn a_hole_is_punched_to_few_addresses() {
        let peer = PeerId::random();
        let mut limited = Limited::gated(Dials(VecDeque::from([peer]), 0));
        limited.permit(peer);
        let mut context = Context::from_waker(noop_waker_ref());
        let Poll::Ready(ToSwarm::Dial { opts }) = limited.poll(&mut context) else {
            panic!("no dial");
        };
        let address: Multiaddr = "/ip4/192.0.2.1/tcp/80".parse().unwrap();
        let mut pending = |id, count| {
            let all = vec![address.clone(); count];
            limited.handle_pending_outbound_connection(id, Some(peer), &all, Endpoint::Dialer)
        };
        assert!(pending(opts.connection_id(), PUNCH_ADDRESSES_MAX).is_ok());
        assert!(pending(opts.connection_id(), PUNCH_ADDRESSES_MAX + 1).is_err());
        assert!(pending(ConnectionId::new_unchecked(0), 99).is_ok(), "a dial of somebody else");
    }

    #[tokio::test]
    async fn dials_that_others_ask_for_take_turns_and_go_nowhere_private() {
        let mut limited = Limited::in_turn(Dials::default());
        let peers: Vec<PeerId> = (0..2 * DIAL_BACKS_HELD_MAX).map(|_| PeerId::random()).collect();
        limited.inner.0.extend(&peers);
        assert_eq!(dialled(&mut limited).len(), DIAL_BACKS_PER_IP_MAX, "nobody knows from where");
        let told = peers.len() - DIAL_BACKS_HELD_MAX - DIAL_BACKS_PER_IP_MAX;
        assert_eq!(limited.inner.1, told, "those without room");

        let mut limited = Limited::in_turn(Dials(VecDeque::from([peers[0], peers[1]]), 0));
        let mut context = Context::from_waker(noop_waker_ref());
        let Poll::Ready(ToSwarm::Dial { opts }) = limited.poll(&mut context) else {
            panic!("no dial");
        };
        let id = opts.connection_id();
        let mut pending = |text: &str| {
            let address = text.parse().unwrap();
            let peer = opts.get_peer_id();
            limited.handle_pending_outbound_connection(id, peer, &[address], Endpoint::Dialer)
        };
        assert!(pending("/ip4/192.168.1.1/tcp/80").is_err());
        assert!(pending("/ip4/192.0.2.1/tcp/80").is_ok());
    }

    #[tokio::test]
    async fn only_the_owner_names_candidates() {
        let now = Instant::now();
        let address = |port: u16| -> Multiaddr {
            format!("/ip4/192.0.2.1/udp/{port}/quic-v1").parse().unwrap()
        };
        let mut gated = Limited::gated(Dials::default());
        let mut budgeted = Limited::budgeted(Dials::default(), now);
        for port in 1..1000 {
            let addr = &address(port);
            for limited in [&mut gated, &mut budgeted] {
                let candidate = NewExternalAddrCandidate { addr };
                limited.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
            }
        }
        assert_eq!((gated.inner.1, budgeted.inner.1), (0, 0));
        for port in 1..1000 {
            gated.candidate(&address(port), now);
            budgeted.candidate(&address(port), now);
        }
        assert_eq!((gated.inner.1, budgeted.inner.1), (999, CANDIDATES_MAX));
    }
}
