//! Peers behind NATs: where this peer stands, relays, and direct paths in spite of NATs.

pub(crate) mod allow_list;
pub(crate) mod candidates;
pub(crate) mod dial_back;
pub(crate) mod limited;
pub(crate) mod reachability;
pub(crate) mod relays;
mod routes;
pub(crate) mod traversal;

/// What a router said that was asked to forward a port; an address that it gave counts as proven.
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
