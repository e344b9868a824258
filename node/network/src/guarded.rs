//! Bounds around behaviours of libp2p that others can make dial or remember.

use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll, ready};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NewExternalAddrCandidate,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

use crate::direct::ip;
use crate::limits::{CANDIDATES_MAX, HELD_DIALS_MAX, PERMITTED_MAX};
use crate::streams::Path;

/// A behaviour that learns of at most [`CANDIDATES_MAX`] addresses this peer may have, none of them
/// through a relay, and, when gated, dials only peers that were permitted.
#[derive(Debug)]
pub(crate) struct Guarded<B> {
    inner: B,
    gate: Option<Gate>,
    /// Candidates that the behaviour knows.
    candidates: BTreeSet<Multiaddr>,
    /// Candidates that everybody shall learn of.
    found: VecDeque<Multiaddr>,
}

/// Who may be dialled, and the dials that wait for it.
#[derive(Debug, Default)]
struct Gate {
    permitted: BTreeSet<PeerId>,
    held: VecDeque<DialOpts>,
}

impl<B: NetworkBehaviour> Guarded<B> {
    /// `inner` with bounded candidates.
    pub(crate) const fn new(inner: B) -> Self {
        Self { inner, gate: None, candidates: BTreeSet::new(), found: VecDeque::new() }
    }

    /// `inner` with bounded candidates, whose dials wait until their peer was permitted.
    pub(crate) fn gated(inner: B) -> Self {
        Self { gate: Some(Gate::default()), ..Self::new(inner) }
    }

    /// From now on `peer` may be dialled, and so it is if a dial was held.
    pub(crate) fn permit(&mut self, peer: PeerId) {
        if let Some(gate) = &mut self.gate
            && gate.permitted.len() < PERMITTED_MAX
        {
            gate.permitted.insert(peer);
        }
    }

    /// From now on `peer` may not be dialled; a dial that waits for it is given up.
    pub(crate) fn forbid(&mut self, peer: PeerId) {
        if let Some(gate) = &mut self.gate {
            gate.permitted.remove(&peer);
            gate.held.retain(|dial| dial.get_peer_id() != Some(peer));
        }
    }

    /// Tells every behaviour of the swarm that this peer may be reached at `address`.
    pub(crate) fn candidate(&mut self, address: Multiaddr) {
        let room = self.found.len() < CANDIDATES_MAX;
        if room && !self.candidates.contains(&address) && !self.found.contains(&address) {
            self.found.push_back(address);
        }
    }
}

impl Gate {
    fn may(&self, dial: &DialOpts) -> bool {
        dial.get_peer_id().is_some_and(|peer| self.permitted.contains(&peer))
    }

    fn hold(&mut self, dial: DialOpts) {
        if self.held.len() < HELD_DIALS_MAX {
            self.held.push_back(dial);
        }
    }

    fn release(&mut self) -> Option<DialOpts> {
        let index = self.held.iter().position(|dial| self.may(dial))?;
        self.held.remove(index)
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for Guarded<B> {
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
        if let FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr }) = &event {
            let full = self.candidates.len() >= CANDIDATES_MAX && !self.candidates.contains(*addr);
            // Of a circuit that came in the other end sees no address at all.
            if full || Path::of(addr) == Path::Relayed || ip(addr).is_none() {
                return;
            }
            self.candidates.insert((*addr).clone());
        }
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // Candidates and permits come from the swarm's owner, which polls afterwards.
        if let Some(address) = self.found.pop_front() {
            return Poll::Ready(ToSwarm::NewExternalAddrCandidate(address));
        }
        if let Some(opts) = self.gate.as_mut().and_then(Gate::release) {
            return Poll::Ready(ToSwarm::Dial { opts });
        }
        loop {
            match (ready!(self.inner.poll(context)), &mut self.gate) {
                (ToSwarm::Dial { opts }, Some(gate)) if !gate.may(&opts) => gate.hold(opts),
                (other, _) => return Poll::Ready(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;
    use libp2p::swarm::dummy;

    use super::*;

    /// Dials whom it is told to.
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

    /// Whom the behaviour dials now.
    fn dialled(guarded: &mut Guarded<Dials>) -> Vec<PeerId> {
        let mut context = Context::from_waker(noop_waker_ref());
        let mut all = Vec::new();
        while let Poll::Ready(event) = guarded.poll(&mut context) {
            if let ToSwarm::Dial { opts } = event {
                all.extend(opts.get_peer_id());
            }
        }
        all
    }

    #[test]
    fn nobody_is_dialled_who_was_not_permitted() {
        let (a, b, c) = (PeerId::random(), PeerId::random(), PeerId::random());
        let mut guarded = Guarded::gated(Dials::default());
        guarded.inner.0.extend([a, b, c, a]);
        assert_eq!(dialled(&mut guarded), []);
        guarded.permit(b);
        assert_eq!(dialled(&mut guarded), [b]);
        guarded.forbid(a);
        guarded.permit(a);
        assert_eq!(dialled(&mut guarded), [], "it was given up");
        guarded.inner.0.extend([a, b]);
        assert_eq!(dialled(&mut guarded), [a, b]);
        guarded.inner.0.extend((0..1000).map(|_| c));
        assert_eq!(dialled(&mut guarded), []);
        guarded.permit(c);
        assert_eq!(dialled(&mut guarded).len(), HELD_DIALS_MAX);
        let mut open = Guarded::new(Dials(VecDeque::from([a]), 0));
        assert_eq!(dialled(&mut open), [a], "what is not gated");
    }

    #[test]
    fn candidates_are_few_and_direct() {
        let mut guarded = Guarded::new(Dials::default());
        let address = |port: usize| -> Multiaddr {
            format!("/ip4/192.0.2.1/udp/{port}/quic-v1").parse().unwrap()
        };
        let tell = |guarded: &mut Guarded<Dials>, addr: &Multiaddr| {
            let candidate = NewExternalAddrCandidate { addr };
            guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
            guarded.inner.1
        };
        let relay = PeerId::random();
        let relayed = address(1).with_p2p(relay).unwrap();
        let relayed = relayed.with(libp2p::multiaddr::Protocol::P2pCircuit);
        assert_eq!(tell(&mut guarded, &relayed), 0);
        assert_eq!(tell(&mut guarded, &format!("/p2p/{relay}").parse().unwrap()), 0);
        for port in 1..1000 {
            tell(&mut guarded, &address(port));
        }
        assert_eq!(guarded.inner.1, CANDIDATES_MAX);
        assert_eq!(tell(&mut guarded, &address(1)), CANDIDATES_MAX + 1, "it is known");
        for port in 1..1000 {
            guarded.candidate(address(port));
        }
        assert!(guarded.found.len() <= CANDIDATES_MAX);
    }
}
