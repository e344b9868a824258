//! The configuration: one TOML file, every key also settable by a flag; flags > file > default.

mod advice;
mod combinations;
mod error;
mod key;
mod keys;
mod kind;
mod lora;
mod model_file;
mod optimizer;
mod reference;
mod relations;
mod run;
mod settings;
mod suggest;
mod values;

/// How a peer picks its partners; [`Schedule`] is that of the learning rate.
pub use dnode_gossip::Schedule as PartnerSchedule;
pub use dnode_gossip::{Policy, Weighting};
pub use dnode_protocol::frame::Codec;
pub use dnode_protocol::{RunField, RunSpec, SharedSettings, Tolerance};
pub use dnode_torch::{Device, Precision};
pub use dnode_trainer::{
    DataConfig, DataKind, ModelConfig, ModelKind, OptimizerKind, Schedule, Skew, Stream,
};
pub use error::{ConfigError, Origin};
pub use key::{Agreement, Key, Preset, Section};
pub(crate) use keys::STEPS_MAX;
pub use keys::{
    Config, DATA_DIGEST, Gossip, KEYS, Network, Node, Optimizer, Run, SECTIONS, SETTINGS, find,
};
pub use kind::{Kind, Reals};
pub use reference::{file_text, origin_text, reference_markdown, reference_text};
pub use run::{run_line, run_spec, shared_settings, ticket_line};
pub(crate) use run::{run_settings, shared_settings_of, trust_settings};
pub use settings::Settings;
pub use values::{
    Backend, Balance, Budget, Collective, Direct, LogFormat, Nat, Relay, Rule, Share,
};

impl Default for Config {
    fn default() -> Self {
        Settings::new().resolve().expect("a test checks that the defaults go together")
    }
}

#[cfg(test)]
mod tests;
