//! `dnode doctor`: examines, before a run and in bounded time, what this machine and its network can do.

mod clock;
mod exchange;
mod finding;
mod graphics;
mod link;
mod machine;
mod reach;
mod storage;

use std::time::Duration;

use dnode_network::{Multiaddr, RunSecret, default_listen};

use crate::config::Config;
use crate::tools::link_bench::Speed;

pub use finding::{DoctorReport, Finding, Verdict};

/// What a person says besides the configuration.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Address where `dnode bench link --listen` runs.
    pub link: Option<Multiaddr>,
    /// Rate of the link to assume where none is measured, bytes per second.
    pub rate: Option<f64>,
    /// Time of a local step; it is measured where this is `None`.
    pub step: Option<Duration>,
}

/// Examines everything, in the order in which a person would want to know it. `secret`: that of the run
/// to join, if it is closed.
///
/// Must be called in a tokio runtime of several threads.
pub async fn examine(config: &Config, secret: Option<&RunSecret>, wishes: &Wishes) -> DoctorReport {
    let mut findings = vec![machine::processor(config.node.threads), clock::clock()];
    findings.extend(graphics::graphics(&config.node));
    let (memory, load) = exchange::Load::measure(config, wishes.step).await;
    let kept = config.node.checkpoints_kept as u64;
    let bytes = memory.map_or(0, |memory| storage::checkpoints(memory.parameters(), kept));
    findings.extend(memory.map(machine::memory));
    findings.push(storage::storage(&config.node.data_dir, bytes).await);
    let addresses = |texts: &[String]| -> Vec<Multiaddr> {
        texts.iter().filter_map(|text| text.parse().ok()).collect()
    };
    let mut listen = addresses(&config.network.listen);
    if listen.is_empty() {
        listen = default_listen();
    }
    let bootstrap = addresses(&config.network.bootstrap);
    let (reached, round_trip) = reach::reach(&listen, &bootstrap, secret).await;
    findings.extend(reached);
    let (finding, speed) = link::link(wishes.link.as_ref()).await;
    findings.push(finding);
    let rate = speed.as_ref().map(Speed::slower).or(wishes.rate);
    let round_trip = speed.and_then(|speed| speed.round_trip).or(round_trip);
    findings.push(match load {
        Ok(load) => load.judge(rate, round_trip),
        Err(finding) => finding,
    });
    DoctorReport { findings }
}
