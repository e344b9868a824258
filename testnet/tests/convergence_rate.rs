//! Consensus distance contracts at the rate that the theory of random pair averaging gives.
//!
//! Source: docs/math.md, "How fast replicas agree": on a complete graph an average of a pair drawn
//! uniformly leaves `1 − 1/(n − 1)` of the squared consensus distance in expectation, whatever the
//! replicas are. So the mean over all events of one run, and of many, estimates that number.

use std::time::Duration;

use dnode_protocol::Time;
use dnode_testnet::scenario::link::LinkModel;
use dnode_testnet::scenario::{Scenario, Spread};
use dnode_testnet::sim::invariants::distance_squared;
use dnode_testnet::sim::{Trace, World};

/// Exchanges are much shorter than the time between them, so that a drawn partner is hardly ever
/// busy; nobody commits, so that partners are drawn uniformly.
fn scenario(peers: u32) -> Scenario {
    Scenario {
        peers,
        fragments: 1,
        width: 4,
        neighbours: peers - 1,
        round_time: Duration::from_secs(20),
        speed: Spread::NONE,
        poisson: true,
        rounds_per_commit: u64::MAX,
        increment: 0.0,
        work: Duration::ZERO,
        link: LinkModel { delay: Duration::from_micros(200), ..LinkModel::default() },
        ..Scenario::default()
    }
}

/// The ratios of the squared distance after and before each of some exchanges.
fn ratios(peers: u32, seed: u64) -> Vec<f64> {
    let mut world = World::new(scenario(peers), seed, Trace::off());
    // The first heartbeats: from then on everybody is an eligible partner.
    world.run_until(Time::from_millis(600), |_| false);
    let applied =
        |world: &World| world.view().peers.iter().map(|peer| peer.counts().applied).sum::<u64>();
    let distance = |world: &World| {
        distance_squared(&world.view().hosts().map(|(_, host)| host).collect::<Vec<_>>())
    };
    let mut before = distance(&world);
    let (mut count, mut ratios) = (applied(&world), Vec::new());
    let enough = before * 1e-12;
    while before > enough {
        let end = world.end_after(Duration::from_secs(600));
        assert!(world.run_until(end, |world| applied(world) > count), "{:?}", world.violation());
        count = applied(&world);
        let after = distance(&world);
        ratios.push(after / before);
        before = after;
    }
    ratios
}

#[test]
fn pair_exchanges_contract_at_the_theoretical_rate() {
    for (peers, runs) in [(4, 60), (8, 40), (16, 20)] {
        let ratios: Vec<f64> = (0..runs).flat_map(|seed| ratios(peers, seed)).collect();
        let count = ratios.len() as f64;
        let mean = ratios.iter().sum::<f64>() / count;
        let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let error = (variance / count).sqrt();
        let theory = 1.0 - 1.0 / f64::from(peers - 1);
        assert!(
            (mean - theory).abs() <= 3.0 * error,
            "{peers} peers, {count} exchanges: mean ratio {mean:.4} ± {error:.4}, theory {theory:.4}"
        );
        assert!(error < 0.01, "{peers} peers: the estimate is too rough, ± {error}");
    }
}
