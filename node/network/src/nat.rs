//! Peers behind NATs: whether others can dial this peer, relays, and direct paths through NATs.

pub(crate) mod allow_list;
pub(crate) mod candidates;
pub(crate) mod dial_back;
mod held_back;
pub(crate) mod limited;
pub(crate) mod reachability;
pub(crate) mod relays;
mod routes;
pub(crate) mod traversal;

/// Logs the answer of a router that was asked to forward a port. An address that the router gives counts
/// as proved.
#[cfg(feature = "upnp")]
pub(crate) fn mapped(event: &libp2p::upnp::Event) {
    use libp2p::upnp::Event;
    match event {
        Event::NewExternalAddr { external_addr, .. } => {
            tracing::info!(address = %external_addr, "the router forwards a port (UPnP)");
        }
        Event::ExpiredExternalAddr { external_addr, .. } => {
            tracing::info!(address = %external_addr, "the router forwards a port no more (UPnP)");
        }
        Event::GatewayNotFound => tracing::debug!("no router that speaks UPnP"),
        Event::NonRoutableGateway => tracing::info!("the router is behind a NAT itself (UPnP)"),
    }
}
