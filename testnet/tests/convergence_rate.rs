//! Consensus distance contracts at the rate that the theory of random pair averaging gives.
//!
//! Source: docs/math.md, "How fast replicas agree": on a complete graph an average of a pair drawn
//! uniformly leaves `1 − 1/(n − 1)` of the squared consensus distance in expectation, whatever the
//! replicas are. So the mean over all events of one run, and of many, estimates that number.

use std::time::Duration;

use dnode_testnet::sim::contraction::{self, mixing_only};

/// The ratios of the squared distance after and before each of some exchanges.
fn ratios(peers: u32, seed: u64) -> Vec<f64> {
    contraction::ratios(mixing_only(peers, Duration::from_secs(20)), seed, 1e-12)
        .expect("every exchange comes")
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
