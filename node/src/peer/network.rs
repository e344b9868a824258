//! Translates the configuration into that of the network.

use dnode_network::{DirectConfig, Multiaddr, NatConfig, NetworkConfig, RelayMode};
use dnode_protocol::{RunSpec, SharedSettings};

use super::JoinError;
use crate::config::{self, Config};
use crate::storage::data_dir::DataDir;
use crate::storage::identity::Identity;
use crate::storage::peer_store::read_peers_file;

/// The address in the form in which the network reports it.
pub(super) fn canonical(address: &str) -> String {
    let parsed = address.parse::<Multiaddr>();
    parsed.map_or_else(|_| address.to_owned(), |parsed| parsed.to_string())
}

/// The configuration of the network.
///
/// # Errors
/// [`JoinError::Address`] names a text that is not an address.
pub(super) fn network_config(
    config: &Config,
    identity: &Identity,
    (run, settings): (&RunSpec, SharedSettings),
    dir: &DataDir,
    digest: String,
) -> Result<NetworkConfig, JoinError> {
    let parse = |texts: &[String]| {
        let parsed = texts.iter().map(|text| {
            text.parse().map_err(|_| JoinError::Address(text.chars().take(128).collect()))
        });
        parsed.collect::<Result<Vec<_>, _>>()
    };
    let network = &config.network;
    let mut made = NetworkConfig::new(*identity.secret_key(), run.clone(), dir.life());
    made.settings = settings;
    made.digest = digest;
    if !network.listen.is_empty() {
        made.listen = parse(&network.listen)?;
    }
    made.bootstrap = parse(&network.bootstrap)?;
    made.mdns = network.mdns;
    made.peers_max = network.peers_max;
    made.upload_max = network.max_upload.saturating_mul(1000);
    made.download_max = network.max_download.saturating_mul(1000);
    // Ranks must be neighbours, and a peer's rack is known only once it is a neighbour.
    let has_rack = !network.rack.is_empty();
    made.peers_target =
        if has_rack { network.peers_max } else { made.peers_target.min(network.peers_max) };
    made.direct = match network.direct {
        config::Direct::Auto => DirectConfig::default(),
        config::Direct::Trusted => DirectConfig { trusted: true, ..DirectConfig::default() },
        config::Direct::Off => DirectConfig::OFF,
    };
    made.nat = NatConfig {
        traverse: network.nat == config::Nat::Auto,
        relay: match network.relay {
            config::Relay::Auto if network.nat == config::Nat::Off => RelayMode::Off,
            config::Relay::Auto => RelayMode::Auto,
            config::Relay::On => RelayMode::On,
            config::Relay::Off => RelayMode::Off,
        },
        relay_bulk: network.relay_bulk.saturating_mul(1000),
        external: parse(&network.external)?,
        upnp: network.upnp,
    };
    Ok(made)
}

/// The configuration with the addresses of its peers file.
///
/// # Errors
/// [`JoinError`] when the file cannot be used.
pub fn with_peers_file(mut config: Config) -> Result<Config, JoinError> {
    if let Some(path) = &config.network.peers_file {
        let listed = read_peers_file(path)?;
        config.network.bootstrap.extend(listed);
    }
    Ok(config)
}
