//! What each fuzz target does with its bytes; shared with the replay of the corpus.
//!
//! A property that does not hold panics, which libFuzzer and the replay report alike.

mod audit;
mod frames;
mod gossip_core;
mod invitation;
mod membership;
mod verdicts;

pub use audit::{audit, sound_log};
pub use frames::{decode_control, decode_tensor};
pub use gossip_core::gossip_core;
pub use invitation::invitation;
pub use membership::membership;
pub use verdicts::verdicts;

/// Every target by name, as in `fuzz_targets/` and `corpus/`.
pub const TARGETS: [(&str, fn(&[u8])); 7] = [
    ("audit", audit),
    ("decode_control", decode_control),
    ("decode_tensor", decode_tensor),
    ("gossip_core", gossip_core),
    ("invitation", invitation),
    ("membership", membership),
    ("verdicts", verdicts),
];
