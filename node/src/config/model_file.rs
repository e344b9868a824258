//! What `config.json` of a Hugging Face folder says of a model, as keys of the configuration.

use std::path::{Path, PathBuf};

use dnode_trainer::{
    ModelConfig, ModelError, ModelKind, Positions, RotaryScaling, model_of, read_model_file,
};
use toml::{Table, Value};

use super::error::ConfigError;

/// What a model of any kind follows.
const OF_ANY: [&str; 6] = [
    "model.kind",
    "model.layers",
    "model.heads",
    "model.width",
    "model.context",
    "model.vocabulary",
];
/// What a llama follows besides.
const OF_LLAMA: [&str; 6] = [
    "model.key_value_heads",
    "model.inner",
    "model.tied",
    "model.norm_epsilon",
    "model.rotary_base",
    "model.rotary_scaling",
];
/// What stretched positions follow besides, those of Llama 3.1 all of it.
const OF_SCALING: [&str; 4] =
    ["model.rotary_factor", "model.rotary_low", "model.rotary_high", "model.rotary_positions"];

/// A key and its value.
type Entry = (&'static str, Value);

/// What a file says of a model.
pub(super) struct Described {
    /// The file itself, where its folder was named.
    pub(super) file: PathBuf,
    /// Keys and values; legal for their type, not yet for their range.
    pub(super) values: Vec<Entry>,
}

impl Described {
    fn new((file, model): (PathBuf, ModelConfig)) -> Result<Self, ConfigError> {
        let of_llama = if model.kind == ModelKind::Llama { &OF_LLAMA[..] } else { &[] };
        let of_scaling = match model.rotary_scaling {
            RotaryScaling::None => &[],
            RotaryScaling::Linear => &OF_SCALING[..1],
            RotaryScaling::Llama3 => &OF_SCALING[..],
        };
        let table = Table::try_from(model);
        let fault =
            |error: toml::ser::Error| ModelError { path: file.clone(), what: error.to_string() };
        let table = table.map_err(fault)?;
        let names = OF_ANY.iter().chain(of_llama).chain(of_scaling);
        let value = |name: &str| table.get(name.strip_prefix("model.")?).cloned();
        let values = names.filter_map(|name| Some((*name, value(name)?))).collect();
        Ok(Self { file, values })
    }
}

/// What the file `path`, or `config.json` in that folder, says. `context` is
/// that of the command line, if it has one.
///
/// # Errors
/// [`ConfigError::Model`] names file, key, what was found and what is expected.
pub(super) fn read(path: &Path, context: Option<i64>) -> Result<Described, ConfigError> {
    Described::new(read_model_file(path, positions(context))?)
}

/// What the folder of `--init` says: its `config.json`, or the metadata of a checkpoint of dnode's.
///
/// # Errors
/// [`ConfigError::Model`] as [`read`], also where there is neither.
pub(super) fn read_init(path: &Path, context: Option<i64>) -> Result<Described, ConfigError> {
    Described::new(model_of(path, positions(context))?)
}

/// What a context that is given wants of a model; one that is not legal is refused by its own name.
fn positions(context: Option<i64>) -> Positions {
    let given = context.and_then(|context| usize::try_from(context).ok());
    given.map_or(Positions::All, Positions::First)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value as Json, json};

    use super::*;
    use crate::config::{Config, Settings};

    /// The file that describes a model in a folder of its own.
    const FILE: &str = "config.json";

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
        assert_eq!((model.kind, sizes), (ModelKind::Gpt, (2, 3, 24, 64, 300)));
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
        let stretched = json!({
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192
        });
        for (scaling, want) in [
            (stretched, (RotaryScaling::Llama3, 32.0, 8192)),
            (json!({ "type": "linear", "factor": 2.0 }), (RotaryScaling::Linear, 2.0, 8192)),
            (json!({ "rope_type": "default" }), (RotaryScaling::None, 8.0, 8192)),
        ] {
            let model = changed("rope_scaling", scaling).unwrap().model;
            let got = (model.rotary_scaling, model.rotary_factor, model.rotary_positions);
            assert_eq!(got, want);
        }
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
            (
                "rope_scaling",
                json!({"factor": 8.0}),
                "{\"factor\":8.0}, expected null, or a rope_type of \"default\", \"linear\" or \"llama3\"",
            ),
            (
                "rope_scaling",
                json!({"type": "linear"}),
                "{\"type\":\"linear\"}, expected factor in it, a number above 0",
            ),
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
