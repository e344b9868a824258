//! What the `config.json` of a folder of `transformers` says of its model.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{CONFIG, TOKENIZER_CONFIG};
use crate::config::{CONTEXT_MAX, ModelConfig, ModelKind, RotaryScaling};
use crate::files::read_bounded;
use crate::kernel::norm;

/// How `transformers` is to write with the model.
const GENERATION: &str = "generation_config.json";
/// The key of the tokens that end a text.
const ENDS: &str = "eos_token_id";
/// The key of stretched positions.
const SCALING: &str = "rope_scaling";
/// The same, with the base in it, from `transformers` 5 on.
const PARAMETERS: &str = "rope_parameters";
const BASE: &str = "rope_theta";
/// Longest file, bytes; those of `transformers` have a few thousand.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What is shown of a value that is not legal, characters.
const SHOWN_MAX: usize = 60;

/// Why a file describes no model that dnode has. The user's to mend.
#[derive(Debug, thiserror::Error)]
#[error("the model {}: {what}", path.display())]
pub struct ModelError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong: which key, what was found and what is expected.
    pub what: String,
}

/// How many of the positions that a model knows are used: its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// All of them.
    All,
    /// So many, of which it must not have fewer.
    First(usize),
    /// As many as the engine takes.
    Fitting,
}

/// The model that the file `place`, or `config.json` in that folder, describes, and the file. Its numbers are
/// legal for their type, not yet for their range ([`ModelConfig::validate`]).
///
/// # Errors
/// [`ModelError`] names file, key, what was found and what is expected.
pub fn read_model_file(
    place: &Path,
    positions: Positions,
) -> Result<(PathBuf, ModelConfig), ModelError> {
    let path = if place.is_dir() { place.join(CONFIG) } else { place.to_owned() };
    let fault = |what: String| ModelError { path: path.clone(), what };
    let bytes = read_bounded(&path, FILE_BYTES_MAX);
    let bytes = bytes.map_err(|reason| fault(format!("cannot be read: {reason}")))?;
    let json = serde_json::from_slice(&bytes)
        .map_err(|error| fault(format!("is not the JSON of a model: {error}")))?;
    let file = ModelFile { path, json };
    let model = match file.json["model_type"].as_str() {
        Some("llama") => file.llama(positions)?,
        Some("gpt2") => file.gpt2(positions)?,
        _ => {
            let expected = "\"llama\" or \"gpt2\", the architectures that dnode reads";
            return Err(file.fault("model_type", expected));
        }
    };
    Ok((file.path, model))
}

/// What the files of a folder name as the tokens that end a text, as `transformers` looks for it:
/// `generation_config.json`, or `config.json` where that is not there. `None` where nothing is said.
///
/// # Errors
/// [`ModelError`] when there is no number of a token, nor a list of such.
pub(crate) fn read_ends(folder: &Path) -> Result<Option<Vec<u32>>, ModelError> {
    let (mut path, mut config) = (folder.join(GENERATION), read_json(&folder.join(GENERATION))?);
    if config.is_null() {
        path = folder.join(CONFIG);
        config = read_json(&path)?;
    }
    let told = &config[ENDS];
    if told.is_null() {
        return Ok(None);
    }
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    let one = || token(told).map(|token| vec![token]);
    let ends = told.as_array().map_or_else(one, |all| all.iter().map(token).collect());
    let what = || format!("{ENDS} is {}, expected the number of a token, or a list", shown(told));
    ends.map(Some).ok_or_else(|| ModelError { path, what: what() })
}

/// What `tokenizer_config.json` of a folder says; `Null` if there is none.
///
/// # Errors
/// [`ModelError`] when it cannot be read.
pub(crate) fn read_tokenizer_config(folder: &Path) -> Result<Value, ModelError> {
    read_json(&folder.join(TOKENIZER_CONFIG))
}

/// What a file holds; `Null` where there is none.
fn read_json(path: &Path) -> Result<Value, ModelError> {
    let fault = |what: String| ModelError { path: path.to_owned(), what };
    match read_bounded(path, FILE_BYTES_MAX) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| fault(format!("is no JSON: {error}")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(fault(format!("cannot be read: {error}"))),
    }
}

/// A file of a model's configuration.
struct ModelFile {
    path: PathBuf,
    json: Value,
}

impl ModelFile {
    fn fault(&self, key: &str, expected: &str) -> ModelError {
        let found = self.json.get(key).map_or_else(|| "missing".to_owned(), shown);
        let what = format!("{key} is {found}, expected {expected}");
        ModelError { path: self.path.clone(), what }
    }

    /// A value that is there and not null.
    fn value(&self, key: &str) -> Option<&Value> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    fn size(&self, key: &str, default: Option<usize>) -> Result<usize, ModelError> {
        let whole = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
        let value = self.value(key).map_or(default, whole);
        value.filter(|&value| value > 0).ok_or_else(|| self.fault(key, "an integer above 0"))
    }

    fn number(&self, key: &str, default: Option<f64>) -> Result<f64, ModelError> {
        let value = self.value(key).map_or(default, Value::as_f64);
        value.filter(|&value| value > 0.0).ok_or_else(|| self.fault(key, "a number above 0"))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        let value = self.value(key).map_or(Some(default), Value::as_bool);
        value.ok_or_else(|| self.fault(key, "true or false"))
    }

    /// The value of `key`, if it is there, is `wanted`.
    fn only(&self, key: &str, wanted: Value) -> Result<(), ModelError> {
        let differs = self.value(key).is_some_and(|value| *value != wanted);
        if differs { Err(self.fault(key, &wanted.to_string())) } else { Ok(()) }
    }

    /// The classes, if there are any, have this one among them.
    fn class(&self, wanted: &str) -> Result<(), ModelError> {
        let classes = self.value("architectures").and_then(Value::as_array);
        if classes.is_some_and(|all| !all.iter().any(|class| class == wanted)) {
            return Err(self.fault("architectures", &format!("[\"{wanted}\"]")));
        }
        Ok(())
    }

    /// Tokens that the model sees at once, of those that `key` allows.
    fn context(&self, key: &str, wanted: Positions) -> Result<usize, ModelError> {
        let own = self.size(key, None)?;
        match wanted {
            Positions::First(context) if context > own => {
                Err(self.fault(key, &format!("at least model.context = {context}")))
            }
            Positions::First(context) => Ok(context),
            Positions::All if own > CONTEXT_MAX => {
                let expected =
                    format!("at most {CONTEXT_MAX}, or --set model.context with fewer tokens");
                Err(self.fault(key, &expected))
            }
            Positions::All | Positions::Fitting => Ok(own.min(CONTEXT_MAX)),
        }
    }

    /// A model of the Llama family that the engine has, in every part.
    fn llama(&self, positions: Positions) -> Result<ModelConfig, ModelError> {
        self.class("LlamaForCausalLM")?;
        self.only("hidden_act", "silu".into())?;
        self.only("attention_bias", false.into())?;
        self.only("mlp_bias", false.into())?;
        if self.value("attention_dropout").is_some_and(|value| value.as_f64() != Some(0.0)) {
            return Err(self.fault("attention_dropout", "0"));
        }
        let heads = self.size("num_attention_heads", None)?;
        let context = self.context("max_position_embeddings", positions)?;
        let width = self.size("hidden_size", None)?;
        self.check_together(width, heads)?;
        let model = ModelConfig {
            kind: ModelKind::Llama,
            layers: self.size("num_hidden_layers", None)?,
            heads,
            key_value_heads: self.size("num_key_value_heads", Some(heads))?,
            width,
            inner: self.size("intermediate_size", None)?,
            context,
            vocabulary: self.size("vocab_size", None)?,
            tied: self.flag("tie_word_embeddings", false)?,
            norm_epsilon: self.number("rms_norm_eps", None)?,
            rotary_base: self.rotary_base()?,
            ..ModelConfig::default()
        };
        self.scaled(model)
    }

    /// `rope_theta`, which `transformers` writes into `rope_parameters` from 5 on.
    fn rotary_base(&self) -> Result<f64, ModelError> {
        let Some(within) = self.value(PARAMETERS).and_then(|told| told.get(BASE)) else {
            return self.number(BASE, Some(10_000.0));
        };
        let base = within.as_f64().filter(|&base| base > 0.0);
        let base =
            base.ok_or_else(|| self.fault(PARAMETERS, "rope_theta in it, a number above 0"))?;
        if self.number(BASE, Some(base))?.to_bits() != base.to_bits() {
            return Err(self.fault(BASE, &format!("{base}, as in {PARAMETERS}")));
        }
        Ok(base)
    }

    /// The model with its positions stretched as `rope_scaling` says.
    fn scaled(&self, model: ModelConfig) -> Result<ModelConfig, ModelError> {
        // From 5 on `transformers` writes the same into `rope_parameters`.
        let (at, told) = match (self.value(PARAMETERS), self.value(SCALING)) {
            (Some(told), None) => (PARAMETERS, told),
            (None, Some(told)) => (SCALING, told),
            (None, None) => return Ok(model),
            (Some(new), Some(old)) if new == old => (PARAMETERS, new),
            (Some(_), Some(_)) => {
                return Err(self.fault(SCALING, &format!("nothing beside {PARAMETERS}")));
            }
        };
        if told.get("partial_rotary_factor").is_some_and(|part| part.as_f64() != Some(1.0)) {
            return Err(self.fault(at, "a partial_rotary_factor of 1 in it"));
        }
        // Until 4.43, `transformers` called it `type`.
        let kind = told.get("rope_type").or_else(|| told.get("type")).and_then(Value::as_str);
        let number = |key: &str| {
            let value = told[key].as_f64().filter(|&value| value > 0.0);
            value.ok_or_else(|| self.fault(at, &format!("{key} in it, a number above 0")))
        };
        let mut model = model;
        match kind {
            Some("default") => {}
            Some("linear") => {
                model.rotary_scaling = RotaryScaling::Linear;
                model.rotary_factor = number("factor")?;
            }
            Some("llama3") => {
                model.rotary_scaling = RotaryScaling::Llama3;
                model.rotary_factor = number("factor")?;
                model.rotary_low = number("low_freq_factor")?;
                model.rotary_high = number("high_freq_factor")?;
                model.rotary_positions = number("original_max_position_embeddings")? as usize;
            }
            Some(_) | None => {
                let expected = "null, or a rope_type of \"default\", \"linear\" or \"llama3\"";
                return Err(self.fault(at, expected));
            }
        }
        Ok(model)
    }

    /// A GPT-2 that the engine has, in every part. Its dropout is not: it is no part of what the model
    /// computes.
    fn gpt2(&self, positions: Positions) -> Result<ModelConfig, ModelError> {
        self.class("GPT2LMHeadModel")?;
        if !matches!(
            self.value("activation_function").map(Value::as_str),
            None | Some(Some("gelu_new" | "gelu_pytorch_tanh"))
        ) {
            return Err(self.fault("activation_function", "\"gelu_new\""));
        }
        self.only("tie_word_embeddings", true.into())?;
        self.only("scale_attn_weights", true.into())?;
        self.only("scale_attn_by_inverse_layer_idx", false.into())?;
        self.only("add_cross_attention", false.into())?;
        self.only("layer_norm_epsilon", norm::epsilon().into())?;
        let (width, heads) = (self.size("n_embd", None)?, self.size("n_head", None)?);
        if !width.is_multiple_of(heads) {
            return Err(self.fault("n_head", &format!("a divisor of n_embd = {width}")));
        }
        self.only("n_inner", width.saturating_mul(4).into())?;
        Ok(ModelConfig {
            kind: ModelKind::Gpt,
            layers: self.size("n_layer", None)?,
            heads,
            width,
            context: self.context("n_positions", positions)?,
            vocabulary: self.size("vocab_size", None)?,
            ..ModelConfig::default()
        })
    }

    /// Whether heads divide the width into even parts, and share keys in groups.
    fn check_together(&self, width: usize, heads: usize) -> Result<(), ModelError> {
        let groups = self.size("num_key_value_heads", Some(heads))?;
        if !width.is_multiple_of(heads) || !(width / heads).is_multiple_of(2) {
            let expected =
                format!("a number of heads that divides hidden_size = {width} into even parts");
            return Err(self.fault("num_attention_heads", &expected));
        }
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of num_attention_heads = {heads}");
            return Err(self.fault("num_key_value_heads", &expected));
        }
        let head_width = width / heads;
        if self.size("head_dim", Some(head_width))? != head_width {
            let expected = format!("{head_width}, hidden_size / num_attention_heads");
            return Err(self.fault("head_dim", &expected));
        }
        Ok(())
    }
}

/// A value on one line, not too long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
