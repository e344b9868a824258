//! Hyper-parameters of the embedded backend: models and optimizers.

mod optimizer;

use std::fmt;
use std::path::PathBuf;

use dnode_protocol::LayoutError;
use serde::{Deserialize, Serialize};

use crate::batch::SampleShape;
use crate::hugging_face::InitError;

pub use self::optimizer::{Decayed, MomentFormat, OptimizerConfig, OptimizerKind, Schedule};

/// Most hidden layers of an mlp and most blocks of a transformer; a limit against typing errors.
pub(crate) const LAYERS_MAX: usize = 256;
/// Widest layer, channels; a limit against typing errors.
pub(crate) const WIDTH_MAX: usize = 65_536;
/// Longest context, tokens; the time of attention grows with its square.
pub const CONTEXT_MAX: usize = 8_192;
/// Most threads of a trainer; a limit against typing errors.
pub(crate) const THREADS_MAX: usize = 1_024;

/// Which reference model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Multi-layer perceptron on images.
    #[default]
    Mlp,
    /// Two convolutions and two linear layers on images.
    Cnn,
    /// Causal transformer on text.
    Gpt,
    /// Causal transformer of the Llama family on text.
    Llama,
}

impl ModelKind {
    /// Whether it reads text and writes it; the others read images.
    #[must_use]
    pub const fn is_text(self) -> bool {
        match self {
            Self::Mlp | Self::Cnn => false,
            Self::Gpt | Self::Llama => true,
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
            Self::Gpt => "gpt",
            Self::Llama => "llama",
        })
    }
}

/// How rotary positions are stretched, so that a model takes longer texts than it was first trained with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotaryScaling {
    /// Not at all.
    #[default]
    None,
    /// All of them, by the factor.
    Linear,
    /// The slow ones by the factor, the quick ones not at all (Llama 3.1).
    Llama3,
}

/// The model; keys that a kind does not use are ignored by it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Which model. Default mlp.
    pub kind: ModelKind,
    /// Widths of the hidden layers (mlp), each `1..=65536`; 1 to 256 of them. Default `[256, 128]`.
    pub hidden: Vec<usize>,
    /// Transformer blocks (gpt, llama), `1..=256`. Default 4.
    pub layers: usize,
    /// Attention heads (gpt, llama), at least 1, a divisor of `width`. Default 4.
    pub heads: usize,
    /// Heads of keys and values (llama), a divisor of `heads`; 0 takes
    /// [`ModelConfig::key_value_heads`]. Default 0.
    pub key_value_heads: usize,
    /// Channels of the residual stream (gpt, llama), `1..=65536`. Default 128.
    pub width: usize,
    /// Channels of a block's inner layer (llama), at most 65536; 0 takes [`ModelConfig::inner`].
    /// Default 0.
    pub inner: usize,
    /// Tokens per sample (gpt, llama), `1..=8192`. Default 64.
    pub context: usize,
    /// Kinds of tokens (gpt, llama), of which the data may have fewer; 0 takes those of the data.
    /// Default 0.
    pub vocabulary: usize,
    /// Whether the head is the transposed token embedding (llama). Default true.
    pub tied: bool,
    /// Share of the residual stream's contributions that a step drops (gpt, llama), in `[0, 1)`. Default 0.
    pub dropout: f64,
    /// Added to the mean square of a norm (llama), above 0. Default 1e-5.
    pub norm_epsilon: f64,
    /// Base of the rotary positions (llama), above 1. Default 10,000.
    pub rotary_base: f64,
    /// How these are stretched (llama). Default none.
    pub rotary_scaling: RotaryScaling,
    /// By how much (llama), at least 1. Default 8.
    pub rotary_factor: f64,
    /// With [`RotaryScaling::Llama3`], positions that turn fewer times than this within `rotary_positions`
    /// are stretched by the whole factor, above 0. Default 1.
    pub rotary_low: f64,
    /// As there, those that turn more often are not stretched, above `rotary_low`. Default 4.
    pub rotary_high: f64,
    /// As there, positions that the model was first trained with, at least 1. Default 8192.
    pub rotary_positions: usize,
    /// Folder whose weights the model begins with (gpt, llama); `None` draws them. Default `None`.
    pub init: Option<PathBuf>,
    /// What [`crate::weights_digest`] tells of the weights that peers begin with, where these are not
    /// drawn; with adapters, of the weights that stay as they are. Default `None`.
    pub weights: Option<String>,
    /// Rank of the adapters that are trained in place of the weights (gpt, llama); 0 trains the weights.
    /// Default 0.
    pub lora_rank: usize,
    /// What the product of an adapter's matrices is multiplied by, times the rank; 0 is twice the rank.
    /// Default 0.
    pub lora_alpha: f64,
    /// Which modules of `transformers` have adapters, by the last word of their names. Default none.
    pub lora_targets: Vec<String>,
}

impl Default for ModelConfig {
    /// The defaults; those of gpt are the small CPU setting of nanoGPT's README.
    fn default() -> Self {
        Self {
            kind: ModelKind::Mlp,
            hidden: vec![256, 128],
            layers: 4,
            heads: 4,
            key_value_heads: 0,
            width: 128,
            inner: 0,
            context: 64,
            vocabulary: 0,
            tied: true,
            dropout: 0.0,
            norm_epsilon: 1e-5,
            rotary_base: 10_000.0,
            rotary_scaling: RotaryScaling::None,
            rotary_factor: 8.0,
            rotary_low: 1.0,
            rotary_high: 4.0,
            rotary_positions: 8192,
            init: None,
            weights: None,
            lora_rank: 0,
            lora_alpha: 0.0,
            lora_targets: Vec::new(),
        }
    }
}

/// Why a configuration cannot be used; nothing was built. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value outside its range.
    #[error("{key} = {value} is out of range: expected {legal}")]
    Range {
        /// The key as in the configuration file.
        key: &'static str,
        /// The value found.
        value: String,
        /// The legal range, in words.
        legal: String,
    },
    /// The model cannot read such samples.
    #[error("model.kind = {model} needs {needs}, but the data set has {found}")]
    Data {
        /// The model.
        model: ModelKind,
        /// What it needs.
        needs: &'static str,
        /// What the data set offers.
        found: SampleShape,
    },
    /// The model has too many parameters or tensors.
    #[error(
        "build the model: {0}; model.width, model.inner, model.layers and model.hidden change its size"
    )]
    Layout(#[from] LayoutError),
    /// There is nothing to adapt.
    #[error(
        "model.lora_rank = {0} trains adapters of given weights: name their folder by model.init (--init), or leave it out"
    )]
    NoBase(usize),
    /// The folder that the model is to begin with does not hold its weights.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The machine refused to start the threads.
    #[error("start {threads} compute threads: {source}; --threads takes fewer")]
    Threads {
        /// How many.
        threads: usize,
        /// The reason.
        source: rayon::ThreadPoolBuildError,
    },
}

/// `Ok` when `legal` holds, else [`ConfigError::Range`].
pub(crate) fn ensure(
    legal: bool,
    key: &'static str,
    value: impl fmt::Debug,
    range: impl Into<String>,
) -> Result<(), ConfigError> {
    if legal {
        return Ok(());
    }
    Err(ConfigError::Range { key, value: format!("{value:?}"), legal: range.into() })
}

/// `Ok` when the value is from 1 to `most`.
fn sized(key: &'static str, value: usize, most: usize) -> Result<(), ConfigError> {
    ensure((1..=most).contains(&value), key, value, format!("1..={most}"))
}

impl ModelConfig {
    /// Whether the run begins with given weights that this configuration does not say where to find.
    #[must_use]
    pub const fn lacks_weights(&self) -> bool {
        self.kind.is_text() && self.weights.is_some() && self.init.is_none()
    }

    /// Heads of keys and values: those of the configuration, else half the heads, or as many where
    /// their number is odd.
    #[must_use]
    pub const fn key_value_heads(&self) -> usize {
        match (self.key_value_heads, self.heads) {
            (0, heads) if heads.is_multiple_of(2) => heads / 2,
            (0, heads) => heads,
            (own, _) => own,
        }
    }

    /// Channels of the inner layer: those of the configuration, else three times the width, so that
    /// a block of a llama with half as many heads of keys and values has the weights of one of a gpt,
    /// `12 · width²`.
    #[must_use]
    pub const fn inner(&self) -> usize {
        if self.inner == 0 { 3 * self.width } else { self.inner }
    }

    /// What the product of an adapter's matrices is multiplied by, times the rank.
    #[must_use]
    pub fn lora_alpha(&self) -> f64 {
        if self.lora_alpha > 0.0 { self.lora_alpha } else { 2.0 * self.lora_rank as f64 }
    }

    /// What the product of an adapter's matrices is multiplied by.
    pub(crate) fn lora_scale(&self) -> f32 {
        (self.lora_alpha() / self.lora_rank as f64) as f32
    }

    /// Kinds of tokens of the model: those of the configuration, else those of the data.
    ///
    /// # Errors
    /// [`ConfigError::Range`] when the data have more.
    pub(crate) fn vocabulary(&self, data: usize) -> Result<usize, ConfigError> {
        let own = if self.vocabulary == 0 { data } else { self.vocabulary };
        let legal = format!("0 or at least {data}, the kinds of tokens of the data");
        ensure(own >= data, "model.vocabulary", own, legal).map(|()| own)
    }

    /// Checks the keys that this kind of model uses.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the key, its value and the legal range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let legal = self.lora_rank == 0 || self.kind.is_text();
        let expected = "0: adapters are of a gpt or llama";
        ensure(legal, "model.lora_rank", self.lora_rank, expected)?;
        let legal = if self.kind.is_text() { 0.0..1.0 } else { 0.0..f64::MIN_POSITIVE };
        let expected = "0 <= value < 1 in a gpt or llama, else 0";
        ensure(legal.contains(&self.dropout), "model.dropout", self.dropout, expected)?;
        match self.kind {
            ModelKind::Mlp => {
                let widths = self.hidden.iter().all(|width| (1..=WIDTH_MAX).contains(width));
                let count = (1..=LAYERS_MAX).contains(&self.hidden.len());
                ensure(
                    widths && count,
                    "model.hidden",
                    &self.hidden,
                    format!("1 to {LAYERS_MAX} widths, each 1..={WIDTH_MAX}"),
                )
            }
            ModelKind::Cnn => Ok(()),
            ModelKind::Gpt => self.validate_transformer(),
            ModelKind::Llama => {
                self.validate_transformer()?;
                let positive = |key, value: f64, least: f64| {
                    let range = format!("a number above {least}");
                    ensure(value.is_finite() && value > least, key, value, range)
                };
                sized("model.inner", self.inner(), WIDTH_MAX)?;
                positive("model.norm_epsilon", self.norm_epsilon, 0.0)?;
                positive("model.rotary_base", self.rotary_base, 1.0)?;
                self.validate_scaling()?;
                let grouped = self.key_value_heads();
                ensure(
                    self.heads.is_multiple_of(grouped),
                    "model.key_value_heads",
                    grouped,
                    format!("a divisor of model.heads = {}", self.heads),
                )?;
                ensure(
                    self.width.is_multiple_of(2 * self.heads),
                    "model.heads",
                    self.heads,
                    format!(
                        "heads of an even width: model.width = {} channels are turned in pairs",
                        self.width
                    ),
                )
            }
        }
    }

    fn validate_scaling(&self) -> Result<(), ConfigError> {
        let Self { rotary_scaling, rotary_factor: factor, rotary_low: low, .. } = *self;
        if rotary_scaling == RotaryScaling::None {
            return Ok(());
        }
        let legal = factor.is_finite() && factor >= 1.0;
        ensure(legal, "model.rotary_factor", factor, "a number of at least 1")?;
        if rotary_scaling == RotaryScaling::Linear {
            return Ok(());
        }
        let legal = low.is_finite() && low > 0.0;
        ensure(legal, "model.rotary_low", low, "a number above 0")?;
        let high = self.rotary_high;
        let range = format!("a number above model.rotary_low = {low}");
        ensure(high.is_finite() && high > low, "model.rotary_high", high, range)?;
        ensure(self.rotary_positions > 0, "model.rotary_positions", 0, "at least 1")
    }

    fn validate_transformer(&self) -> Result<(), ConfigError> {
        sized("model.layers", self.layers, LAYERS_MAX)?;
        sized("model.width", self.width, WIDTH_MAX)?;
        sized("model.context", self.context, CONTEXT_MAX)?;
        let alpha = self.lora_alpha;
        ensure(alpha.is_finite() && alpha >= 0.0, "model.lora_alpha", alpha, "0 or more")?;
        ensure(
            self.heads > 0 && self.width.is_multiple_of(self.heads),
            "model.heads",
            self.heads,
            format!("a divisor of model.width = {}", self.width),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_value_is_named_with_its_range() {
        let check = |config: &ModelConfig, want: &str| {
            assert_eq!(config.validate().unwrap_err().to_string(), want);
        };
        let gpt = ModelConfig { kind: ModelKind::Gpt, ..ModelConfig::default() };
        assert!(gpt.validate().is_ok());
        for heads in [0, 5] {
            check(
                &ModelConfig { heads, ..gpt.clone() },
                &format!(
                    "model.heads = {heads} is out of range: expected a divisor of model.width = 128"
                ),
            );
        }
        check(
            &ModelConfig { layers: 0, ..gpt },
            "model.layers = 0 is out of range: expected 1..=256",
        );
        for (kind, dropout) in [(ModelKind::Gpt, 1.0), (ModelKind::Mlp, 0.1)] {
            let want = "is out of range: expected 0 <= value < 1 in a gpt or llama, else 0";
            let config = ModelConfig { kind, dropout, ..ModelConfig::default() };
            check(&config, &format!("model.dropout = {dropout:?} {want}"));
        }
        check(
            &ModelConfig { hidden: vec![], ..ModelConfig::default() },
            "model.hidden = [] is out of range: expected 1 to 256 widths, each 1..=65536",
        );
        let optimizer =
            OptimizerConfig { momentum: 1.0, ..OptimizerConfig::default_of(OptimizerKind::Sgd) };
        assert_eq!(
            optimizer.validate().unwrap_err().to_string(),
            "optimizer.momentum = 1.0 is out of range: expected 0 <= value < 1"
        );
        let optimizer = OptimizerConfig { learning_rate: f32::NAN, ..optimizer };
        assert!(optimizer.validate().is_err());
    }

    #[test]
    fn the_defaults_of_all_kinds_are_legal() {
        for kind in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
            assert!(OptimizerConfig::default_of(kind).validate().is_ok());
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(serde_json::from_str::<ModelConfig>(r#"{"kind":"gpt","width":64}"#).is_ok());
        assert!(serde_json::from_str::<ModelConfig>(r#"{"wdth":64}"#).is_err());
        assert!(serde_json::from_str::<OptimizerConfig>(r#"{"lr":1}"#).is_err());
    }
}
