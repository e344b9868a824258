//! What `config.json` of a Hugging Face folder says of a model, as keys of the configuration.

use std::path::{Path, PathBuf};

use dnode_trainer::InitError;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::error::ConfigError;
use super::settings::read_bounded;

/// The file that describes a model in a folder of its own.
const FILE: &str = "config.json";
/// Longest context that the embedded engine takes; [`super::keys`] has the same bound.
const CONTEXT_MAX: i64 = 8192;
/// What a gpt adds to the variance in its norms.
const GPT2_EPSILON: f64 = 1e-5;
/// What is shown of a value that is not legal, characters.
const SHOWN_MAX: usize = 60;

/// What the metadata of a checkpoint say.
const OF_CHECKPOINT: [&str; 11] = [
    "model.kind",
    "model.layers",
    "model.heads",
    "model.key_value_heads",
    "model.width",
    "model.inner",
    "model.context",
    "model.vocabulary",
    "model.tied",
    "model.norm_epsilon",
    "model.rotary_base",
];

/// A key and its value.
type Entry = (&'static str, Value);

/// What a file says of a model.
pub(super) struct Described {
    /// The file itself, where its folder was named.
    pub(super) file: PathBuf,
    /// Keys and values; legal for their type, not yet for their range.
    pub(super) values: Vec<Entry>,
}

/// A file of a model's configuration.
struct ModelFile {
    path: PathBuf,
    json: Json,
}

/// What the file `path`, or `config.json` in that folder, says. `context` is
/// that of the command line, if it has one.
///
/// # Errors
/// [`ConfigError::Model`] names file, key, what was found and what is expected.
pub(super) fn read(path: &Path, context: Option<i64>) -> Result<Described, ConfigError> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let fault = |what: String| ConfigError::Model { path: path.clone(), what };
    let text = read_bounded(&path).map_err(|reason| fault(format!("cannot be read: {reason}")))?;
    let json: Json = serde_json::from_str(&text)
        .map_err(|error| fault(format!("is not the JSON of a model: {error}")))?;
    let file = ModelFile { path, json };
    let values = match file.json["model_type"].as_str() {
        Some("llama") => file.llama(context)?,
        Some("gpt2") => file.gpt2(context)?,
        _ => {
            let expected = "\"llama\" or \"gpt2\", the architectures that dnode reads";
            return Err(file.fault("model_type", expected));
        }
    };
    Ok(Described { file: file.path, values })
}

/// What the folder of `--init` says: its `config.json`, or the metadata of a checkpoint of dnode's.
///
/// # Errors
/// [`ConfigError::Model`] as [`read`], also where there is neither.
pub(super) fn read_init(path: &Path, context: Option<i64>) -> Result<Described, ConfigError> {
    let model = dnode_trainer::model_of(path)
        .map_err(|InitError { path, what }| ConfigError::Model { path, what })?;
    let Some(model) = model else { return read(path, context) };
    let table = Table::try_from(model).map_err(|error| {
        let (path, what) = (path.to_owned(), error.to_string());
        ConfigError::Model { path, what }
    })?;
    let of_kind = |name: &str| table.get(name.strip_prefix("model.")?).cloned();
    let values = OF_CHECKPOINT.iter().filter_map(|name| Some((*name, of_kind(name)?)));
    Ok(Described { file: path.to_owned(), values: values.collect() })
}

impl ModelFile {
    fn fault(&self, key: &str, expected: &str) -> ConfigError {
        let found = self.json.get(key).map_or_else(|| "missing".to_owned(), shown);
        let what = format!("{key} is {found}, expected {expected}");
        ConfigError::Model { path: self.path.clone(), what }
    }

    /// A value that is there and not null.
    fn value(&self, key: &str) -> Option<&Json> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    fn integer(&self, key: &str, default: Option<i64>) -> Result<i64, ConfigError> {
        let value = self.value(key).map_or(default, Json::as_i64);
        value.filter(|&value| value > 0).ok_or_else(|| self.fault(key, "an integer above 0"))
    }

    fn number(&self, key: &str, default: Option<f64>) -> Result<f64, ConfigError> {
        let value = self.value(key).map_or(default, Json::as_f64);
        value.filter(|&value| value > 0.0).ok_or_else(|| self.fault(key, "a number above 0"))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        let value = self.value(key).map_or(Some(default), Json::as_bool);
        value.ok_or_else(|| self.fault(key, "true or false"))
    }

    /// The value of `key`, if it is there, is `wanted`.
    fn only(&self, key: &str, wanted: Json) -> Result<(), ConfigError> {
        let differs = self.value(key).is_some_and(|value| *value != wanted);
        if differs { Err(self.fault(key, &wanted.to_string())) } else { Ok(()) }
    }

    /// The classes, if there are any, have this one among them.
    fn class(&self, wanted: &str) -> Result<(), ConfigError> {
        let classes = self.value("architectures").and_then(Json::as_array);
        if classes.is_some_and(|all| !all.iter().any(|class| class == wanted)) {
            return Err(self.fault("architectures", &format!("[\"{wanted}\"]")));
        }
        Ok(())
    }

    /// Tokens that the model sees at once: those of the command line, or all that `key` allows.
    fn context(&self, key: &str, given: Option<i64>) -> Result<i64, ConfigError> {
        let positions = self.integer(key, None)?;
        match given {
            Some(context) if context > positions => {
                Err(self.fault(key, &format!("at least model.context = {context}")))
            }
            Some(context) => Ok(context),
            None if positions > CONTEXT_MAX => {
                let expected =
                    format!("at most {CONTEXT_MAX}, or --set model.context with fewer tokens");
                Err(self.fault(key, &expected))
            }
            None => Ok(positions),
        }
    }

    /// A model of the Llama family that the engine has, in every part.
    fn llama(&self, context: Option<i64>) -> Result<Vec<Entry>, ConfigError> {
        self.class("LlamaForCausalLM")?;
        self.only("hidden_act", "silu".into())?;
        self.only("attention_bias", false.into())?;
        self.only("mlp_bias", false.into())?;
        if self.value("attention_dropout").is_some_and(|value| value.as_f64() != Some(0.0)) {
            return Err(self.fault("attention_dropout", "0"));
        }
        self.only("rope_scaling", Json::Null)?;
        let heads = self.integer("num_attention_heads", None)?;
        let context = self.context("max_position_embeddings", context)?;
        let width = self.integer("hidden_size", None)?;
        self.check_together(width, heads)?;
        let groups = self.integer("num_key_value_heads", Some(heads))?;
        Ok(vec![
            ("model.kind", Value::String("llama".to_owned())),
            ("model.layers", Value::Integer(self.integer("num_hidden_layers", None)?)),
            ("model.heads", Value::Integer(heads)),
            ("model.key_value_heads", Value::Integer(groups)),
            ("model.width", Value::Integer(width)),
            ("model.inner", Value::Integer(self.integer("intermediate_size", None)?)),
            ("model.context", Value::Integer(context)),
            ("model.vocabulary", Value::Integer(self.integer("vocab_size", None)?)),
            ("model.tied", Value::Boolean(self.flag("tie_word_embeddings", false)?)),
            ("model.norm_epsilon", Value::Float(self.number("rms_norm_eps", None)?)),
            ("model.rotary_base", Value::Float(self.number("rope_theta", Some(10_000.0))?)),
        ])
    }

    /// A GPT-2 that the engine has, in every part. Its dropout is not: it is no part of what the model
    /// computes.
    fn gpt2(&self, context: Option<i64>) -> Result<Vec<Entry>, ConfigError> {
        self.class("GPT2LMHeadModel")?;
        if !matches!(
            self.value("activation_function").map(Json::as_str),
            None | Some(Some("gelu_new" | "gelu_pytorch_tanh"))
        ) {
            return Err(self.fault("activation_function", "\"gelu_new\""));
        }
        self.only("tie_word_embeddings", true.into())?;
        self.only("scale_attn_weights", true.into())?;
        self.only("scale_attn_by_inverse_layer_idx", false.into())?;
        self.only("add_cross_attention", false.into())?;
        self.only("layer_norm_epsilon", GPT2_EPSILON.into())?;
        let (width, heads) = (self.integer("n_embd", None)?, self.integer("n_head", None)?);
        if width % heads != 0 {
            return Err(self.fault("n_head", &format!("a divisor of n_embd = {width}")));
        }
        self.only("n_inner", (4 * width).into())?;
        Ok(vec![
            ("model.kind", Value::String("gpt".to_owned())),
            ("model.layers", Value::Integer(self.integer("n_layer", None)?)),
            ("model.heads", Value::Integer(heads)),
            ("model.width", Value::Integer(width)),
            ("model.context", Value::Integer(self.context("n_positions", context)?)),
            ("model.vocabulary", Value::Integer(self.integer("vocab_size", None)?)),
        ])
    }

    /// Whether heads divide the width into even parts, and share keys in groups.
    fn check_together(&self, width: i64, heads: i64) -> Result<(), ConfigError> {
        let groups = self.integer("num_key_value_heads", Some(heads))?;
        if width % heads != 0 || width / heads % 2 != 0 {
            let expected =
                format!("a number of heads that divides hidden_size = {width} into even parts");
            return Err(self.fault("num_attention_heads", &expected));
        }
        if heads % groups != 0 {
            let expected = format!("a divisor of num_attention_heads = {heads}");
            return Err(self.fault("num_key_value_heads", &expected));
        }
        let head_width = width / heads;
        if self.integer("head_dim", Some(head_width))? != head_width {
            let expected = format!("{head_width}, hidden_size / num_attention_heads");
            return Err(self.fault("head_dim", &expected));
        }
        Ok(())
    }
}

/// A value on one line, not too long.
fn shown(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::config::{Config, Settings};

    /// As `transformers` writes it, without what a model does not depend on.
    fn llama() -> Json {
        json!({
            "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
            "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
            "initializer_range": 0.02, "intermediate_size": 40, "max_position_embeddings": 2048,
            "model_type": "llama", "num_attention_heads": 3, "num_hidden_layers": 2,
            "num_key_value_heads": 1, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
            "rope_scaling": null, "rope_theta": 500_000.0, "tie_word_embeddings": false,
            "torch_dtype": "bfloat16", "transformers_version": "4.40.2", "use_cache": true,
            "vocab_size": 300
        })
    }

    #[expect(clippy::unwrap_in_result, reason = "a failure in a test's preparation fails the test")]
    /// The configuration of `--set` these and `--model` a folder with this file, which is named
    /// `DIR/config.json` in errors.
    fn read_text(text: &str, set: &[&str]) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), text).unwrap();
        let mut settings = Settings::new();
        for setting in set {
            settings.set(setting).unwrap();
        }
        let own = folder.path().to_str().unwrap();
        let result = settings.model(own).and_then(|()| settings.resolve());
        result.map_err(|error| error.to_string().replace(own, "DIR"))
    }

    /// As `transformers` writes the smallest GPT-2, smaller still.
    fn gpt2() -> Json {
        json!({
            "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
            "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
            "n_embd": 24, "n_head": 3, "n_inner": null, "n_layer": 2, "n_positions": 1024,
            "resid_pdrop": 0.1, "scale_attn_weights": true, "vocab_size": 300
        })
    }

    #[test]
    fn a_gpt2_is_a_gpt_and_what_the_engine_lacks_is_named() {
        let model = read_text(&gpt2().to_string(), &["model.context=64"]).unwrap().model;
        let sizes = (model.layers, model.heads, model.width, model.context, model.vocabulary);
        assert_eq!((model.kind, sizes), (dnode_trainer::ModelKind::Gpt, (2, 3, 24, 64, 300)));
        for (key, value, want) in [
            (
                "architectures",
                json!(["GPT2Model"]),
                "[\"GPT2Model\"], expected [\"GPT2LMHeadModel\"]",
            ),
            ("activation_function", json!("relu"), "\"relu\", expected \"gelu_new\""),
            ("n_inner", json!(50), "50, expected 96"),
            ("n_head", json!(5), "5, expected a divisor of n_embd = 24"),
            ("layer_norm_epsilon", json!(1e-6), "1e-6, expected 0.00001"),
            ("tie_word_embeddings", json!(false), "false, expected true"),
            ("scale_attn_by_inverse_layer_idx", json!(true), "true, expected false"),
            ("n_positions", Json::Null, "null, expected an integer above 0"),
        ] {
            let mut file = gpt2();
            file[key] = value;
            let error = read_text(&file.to_string(), &[]).unwrap_err();
            assert_eq!(error, format!("the model DIR/config.json: {key} is {want}"));
        }
    }

    #[test]
    fn a_model_follows_the_folder_that_it_begins_with_where_nothing_else_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().to_str().unwrap();
        let follow = |set: &[&str]| {
            let mut settings = Settings::new();
            for setting in set {
                settings.set(setting).unwrap();
            }
            settings.flag("model.init", own, "--init").unwrap();
            let result = settings.follow_init().and_then(|()| settings.resolve());
            result.map_err(|error| error.to_string().replace(own, "DIR"))
        };
        let error = follow(&[]).unwrap_err();
        assert_eq!(error, "the model DIR: no config.json there and no checkpoint of dnode");
        fs::write(folder.path().join(FILE), llama().to_string()).unwrap();
        let model = follow(&["model.layers=3", "model.context=8"]).unwrap().model;
        assert_eq!((model.layers, model.context, model.width), (3, 8, 24));
        assert_eq!(model.init.as_deref(), Some(folder.path()));
        let tokenizer = folder.path().join(dnode_trainer::TOKENIZER_FILE);
        fs::write(&tokenizer, "{}").unwrap();
        let tokens_of = |set: &[&str]| follow(set).unwrap().data.tokenizer;
        assert_eq!(tokens_of(&[]).as_deref(), Some(tokenizer.as_path()));
        assert_eq!(tokens_of(&["data.vocabulary=bytes"]), None);
        let other = tokens_of(&["data.tokenizer=OTHER"]);
        assert_eq!(other.as_deref(), Some(Path::new("OTHER")));
    }

    fn changed(key: &str, value: Json) -> Result<Config, String> {
        let mut file = llama();
        file[key] = value;
        read_text(&file.to_string(), &[])
    }

    #[test]
    fn a_file_makes_the_model_and_set_wins_over_it() {
        let model = read_text(&llama().to_string(), &[]).unwrap().model;
        let sizes = (model.layers, model.heads, model.key_value_heads, model.width, model.inner);
        assert_eq!(sizes, (2, 3, 1, 24, 40));
        assert_eq!((model.context, model.vocabulary, model.tied), (2048, 300, false));
        let numbers = (model.norm_epsilon.to_bits(), model.rotary_base.to_bits());
        assert_eq!(numbers, (1e-6_f64.to_bits(), 500_000.0_f64.to_bits()));
        let set = ["model.context=16", "model.tied=true"];
        let model = read_text(&llama().to_string(), &set).unwrap().model;
        assert_eq!((model.context, model.tied, model.inner), (16, true, 40));
        // What is absent has the default of `transformers`.
        let mut short = llama();
        for key in ["num_key_value_heads", "rope_theta", "tie_word_embeddings", "architectures"] {
            short.as_object_mut().unwrap().remove(key);
        }
        let model = read_text(&short.to_string(), &[]).unwrap().model;
        assert_eq!((model.key_value_heads, model.tied), (3, false));
        assert_eq!(model.rotary_base.to_bits(), 10_000.0_f64.to_bits());
    }

    #[test]
    fn what_no_model_can_be_made_of_names_file_key_found_and_expected() {
        for (key, value, want) in [
            (
                "model_type",
                json!("mistral"),
                "\"mistral\", expected \"llama\" or \"gpt2\", the architectures that dnode reads",
            ),
            (
                "architectures",
                json!(["LlamaModel"]),
                "[\"LlamaModel\"], expected [\"LlamaForCausalLM\"]",
            ),
            ("hidden_size", Json::Null, "null, expected an integer above 0"),
            ("vocab_size", json!("many"), "\"many\", expected an integer above 0"),
            ("num_hidden_layers", json!(-1), "-1, expected an integer above 0"),
            ("rms_norm_eps", json!(0.0), "0.0, expected a number above 0"),
            ("tie_word_embeddings", json!(1), "1, expected true or false"),
            ("hidden_act", json!("gelu"), "\"gelu\", expected \"silu\""),
            ("attention_bias", json!(true), "true, expected false"),
            ("attention_dropout", json!(0.1), "0.1, expected 0"),
            ("rope_scaling", json!({"factor": 8.0}), "{\"factor\":8.0}, expected null"),
            ("head_dim", json!(16), "16, expected 8, hidden_size / num_attention_heads"),
            ("num_key_value_heads", json!(2), "2, expected a divisor of num_attention_heads = 3"),
            (
                "num_attention_heads",
                json!(8),
                "8, expected a number of heads that divides hidden_size = 24 into even parts",
            ),
            (
                "max_position_embeddings",
                json!(9000),
                "9000, expected at most 8192, or --set model.context with fewer tokens",
            ),
        ] {
            let error = changed(key, value).unwrap_err();
            assert_eq!(error, format!("the model DIR/config.json: {key} is {want}"));
        }
        let error = changed("num_hidden_layers", json!(1000)).unwrap_err();
        let want =
            "model.layers = 1000 in DIR/config.json is not legal: must be an integer, 1 to 256";
        assert_eq!(error, want);
        let set =
            |set: &[&str]| read_text(&llama().to_string(), set).map(|config| config.model.context);
        let error = set(&["model.context=4096"]).unwrap_err();
        assert!(error.ends_with("is 2048, expected at least model.context = 4096"), "{error}");
        for (text, want) in
            [("", "is not the JSON of a model: EOF"), ("[]", "model_type is missing")]
        {
            let error = read_text(text, &[]).unwrap_err();
            assert!(error.starts_with(&format!("the model DIR/config.json: {want}")), "{error}");
        }
        let error = Settings::new().model("no/such").unwrap_err().to_string();
        assert!(error.starts_with("the model no/such: cannot be read: "), "{error}");
    }
}
