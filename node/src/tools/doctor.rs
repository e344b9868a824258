//! `dnode doctor`: what this machine and its network can do, asked before a run and bounded in time.

mod clock;
mod exchange;
mod finding;
mod graphics;
mod link;
mod machine;
mod reach;
mod storage;

use std::time::Duration;

use dnode_network::{Multiaddr, default_listen};

use crate::config::Config;
use crate::tools::link_bench::Speed;

pub use finding::{DoctorReport, Finding, Verdict};

/// What a person tells besides the configuration.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Where `dnode bench link --listen` runs.
    pub link: Option<Multiaddr>,
    /// Rate of the link to reckon with, bytes per second, where none is measured.
    pub rate: Option<f64>,
    /// Time of a local step; measured where it is `None`.
    pub step: Option<Duration>,
}

/// Asks everything, in the order in which a person would want to know it.
///
/// Must be called in a tokio runtime of several threads.
pub async fn examine(config: &Config, wishes: &Wishes) -> DoctorReport {
    let mut findings = vec![machine::processor(config.node.threads), clock::clock()];
    findings.extend(graphics::graphics(&config.node));
    let load = exchange::Load::measure(config, wishes.step).await;
    let bytes = load.as_ref().map_or(0, |load| storage::checkpoints(load.parameters));
    findings.push(storage::storage(&config.node.data_dir, bytes).await);
    let addresses = |texts: &[String]| -> Vec<Multiaddr> {
        texts.iter().filter_map(|text| text.parse().ok()).collect()
    };
    let mut listen = addresses(&config.network.listen);
    if listen.is_empty() {
        listen = default_listen();
    }
    let bootstrap = addresses(&config.network.bootstrap);
    let (reached, round_trip) = reach::reach(&listen, &bootstrap).await;
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
