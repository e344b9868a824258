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
use tokio::time::Instant;

use crate::candidates::Budget;
use crate::limits::{HELD_DIALS_MAX, PERMITTED_MAX};

/// A behaviour that learns of the addresses this peer may have from its owner alone (identify believes
/// whoever is connected, and names no one), and, when gated, dials only peers that were permitted.
#[derive(Debug)]
pub(crate) struct Guarded<B> {
    inner: B,
    gate: Option<Gate>,
    budget: Option<Budget>,
}

/// Who may be dialled, and the dials that wait for it.
#[derive(Debug, Default)]
struct Gate {
    permitted: BTreeSet<PeerId>,
    held: VecDeque<DialOpts>,
}

impl<B: NetworkBehaviour> Guarded<B> {
    /// `inner`, which never forgets a candidate and so learns of few.
    pub(crate) const fn budgeted(inner: B, now: Instant) -> Self {
        Self { inner, gate: None, budget: Some(Budget::new(now)) }
    }

    /// `inner`, which forgets old candidates, and whose dials wait until their peer was permitted.
    pub(crate) fn gated(inner: B) -> Self {
        Self { inner, gate: Some(Gate::default()), budget: None }
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

    /// This peer may be reached at `address`.
    pub(crate) fn candidate(&mut self, address: &Multiaddr, now: Instant) {
        if self.budget.as_mut().is_none_or(|budget| budget.admits(address, now)) {
            let candidate = NewExternalAddrCandidate { addr: address };
            self.inner.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
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
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // Permits come from the swarm's owner, which polls afterwards.
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
    use crate::limits::CANDIDATES_MAX;

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
        let inner = Dials(VecDeque::from([a]), 0);
        let mut open = Guarded { inner, gate: None, budget: None };
        assert_eq!(dialled(&mut open), [a], "what is not gated");
    }

    #[tokio::test]
    async fn only_the_owner_names_candidates() {
        let now = Instant::now();
        let address = |port: u16| -> Multiaddr {
            format!("/ip4/192.0.2.1/udp/{port}/quic-v1").parse().unwrap()
        };
        let mut gated = Guarded::gated(Dials::default());
        let mut budgeted = Guarded::budgeted(Dials::default(), now);
        for port in 1..1000 {
            let addr = &address(port);
            for guarded in [&mut gated, &mut budgeted] {
                let candidate = NewExternalAddrCandidate { addr };
                guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
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
