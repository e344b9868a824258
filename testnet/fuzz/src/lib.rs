//! What each fuzz target does with its bytes; shared with the replay of the corpus and with campaigns on
//! inputs that are made from it.
//!
//! A property that does not hold panics, which libFuzzer and the replay report alike.

mod audit;
mod campaign;
mod files;
mod frames;
mod gossip_core;
mod invitation;
mod membership;
mod verdicts;

pub use audit::{audit, sound_log};
pub use campaign::Campaign;
pub use files::{checkpoint, codecs, images, model_file, tokenizer, weights};
pub use frames::{decode_control, decode_tensor};
pub use gossip_core::gossip_core;
pub use invitation::invitation;
pub use membership::membership;
pub use verdicts::verdicts;

/// Every target by name, as in `fuzz_targets/` and `corpus/`.
pub const TARGETS: [(&str, fn(&[u8])); 13] = [
    ("audit", audit),
    ("checkpoint", checkpoint),
    ("codecs", codecs),
    ("decode_control", decode_control),
    ("decode_tensor", decode_tensor),
    ("gossip_core", gossip_core),
    ("images", images),
    ("invitation", invitation),
    ("membership", membership),
    ("model_file", model_file),
    ("tokenizer", tokenizer),
    ("verdicts", verdicts),
    ("weights", weights),
];
