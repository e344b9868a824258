//! Noise on commits: what others get of this peer's training tells little of its data.
//!
//! ```text
//! Δ ← Δ · min(1, C / ‖Δ‖)        over all parameters together
//! Δ ← Δ + N(0, (z C)²)           for each parameter
//! ```
//! This is the Gaussian mechanism of DP-SGD (Abadi et al. 2016, arXiv 1607.00133, Algorithm 1) with
//! the progress of a whole commit in place of a sample's gradient. Everything behind it, outer step,
//! share, error feedback, code and the peer's own weights, uses the result alone, so it reveals no more.

mod accountant;
mod noise;

pub use accountant::{Adjacency, PrivacyLoss};
pub use noise::{CommitNoise, NoiseSeed};

#[cfg(test)]
mod tests;
