//! A peer that only relays: joins files and network, without a model, data or trainer.

use std::time::Duration;

use dnode_network::{Network, NetworkConfig, Probe, RelayMode};
use dnode_protocol::membership::{RunSecret, Ticket};
use dnode_protocol::{PeerId, RunSpec, SharedSettings};
use tokio::sync::watch;

use super::membership::{Entrance, Member, MembershipError, enter, with_ticket};
use super::network::{canonical, network_config};
use super::{JoinError, on_threads, with_peers_file};
use crate::config::Config;
use crate::driver::{DriveError, Relay, Removals};
use crate::process::console::Console;
use crate::storage::data_dir::DataDir;
use crate::storage::identity::Identity;
use crate::storage::peer_store::PeerStore;

/// Longest wait for members to say which run theirs is, before they are asked again.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Pauses before they are asked again, the first and the longest.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Most members to which a relay is connected: as many as it may relay for.
const MEMBERS_MAX: usize = dnode_network::limits::RESERVATIONS_MAX;

/// Relays for the members of a run, to which the invitation in `ticket` or in the data directory lets this
/// peer in, until `stop` turns true. Returns the name of this peer.
///
/// # Errors
/// [`JoinError`].
pub(crate) fn relay_until(
    config: Config,
    ticket: Option<Ticket>,
    stop: watch::Receiver<bool>,
) -> Result<PeerId, JoinError> {
    crate::process::log::start(config.node.log_format, &Console::stderr());
    on_threads(relay(config, ticket, stop))
}

async fn relay(
    config: Config,
    ticket: Option<Ticket>,
    mut stop: watch::Receiver<bool>,
) -> Result<PeerId, JoinError> {
    let (config, given) = with_ticket(with_peers_file(config)?, ticket)?;
    let dir = DataDir::open(&config.node.data_dir)?;
    let identity = Identity::load_or_create(&dir)?;
    let Entrance { secret, member } = enter(&config, given.as_ref(), (&dir, &identity))?;
    let (peer_store, remembered) = PeerStore::load(dir.path());
    let removals = Removals::new(dir.path().to_owned(), secret.is_none());
    let run = match dir.bound()? {
        Some(run) => run,
        None => {
            let asked = tokio::select! {
                asked = ask(&config, secret.as_ref()) => asked?,
                _ = stop.wait_for(|stop| *stop) => return Ok(identity.peer()),
            };
            dir.bind(&asked)?;
            asked
        }
    };
    let settings = SharedSettings::default();
    let made = network_config(&config, &identity, (&run, settings), &dir, String::new())?;
    if made.nat.relay == RelayMode::Off {
        return Err(JoinError::RelaysNot);
    }
    let peers_max = made.peers_max.max(MEMBERS_MAX);
    let made = NetworkConfig { peers_max, peers_target: MEMBERS_MAX, remembered, secret, ..made };
    let (network, events) = Network::start(Member::with(member, made))?;
    let kept = (removals, peer_store);
    let bootstrap = config.network.bootstrap.iter().map(|text| canonical(text)).collect();
    let relay = Relay::new((network, run), dir.path().to_owned(), kept, bootstrap);
    relay.run(events, stop).await?;
    Ok(identity.peer())
}

/// Asks members which run theirs is, until one says so.
async fn ask(config: &Config, secret: Option<&RunSecret>) -> Result<RunSpec, JoinError> {
    let parse = |text: &String| {
        text.parse().map_err(|_| JoinError::Address(text.chars().take(128).collect()))
    };
    let addresses = config.network.bootstrap.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    if addresses.is_empty() {
        return Err(MembershipError::NobodyToAsk.into());
    }
    let (mut addresses, mut pause) = (addresses, ASK_AGAIN.0);
    loop {
        let mut probe = Probe::start(&[], secret, ANSWER_MAX).await?;
        let found = probe.dial(&addresses, ANSWER_MAX).await;
        drop(probe);
        let refused = found
            .iter()
            .all(|member| member.as_ref().is_err_and(|silence| silence.not_let_in.is_some()));
        if let Some(Err(silence)) = found.first().filter(|_| refused)
            && let Some(why) = silence.not_let_in
        {
            let address = silence.address.to_string();
            return Err(DriveError::NotLetIn { address, why }.into());
        }
        // Of many, others are asked the next time.
        addresses.rotate_left(found.len());
        for member in found {
            match member {
                Ok(answer) => {
                    if let Some([run, _]) = answer.specs.map(|specs| *specs) {
                        return Ok(run);
                    }
                }
                Err(silence) => {
                    tracing::warn!(address = %silence.address, "no member answers: {}; asking again", silence.cause);
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(ASK_AGAIN.1);
    }
}
