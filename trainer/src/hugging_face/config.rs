//! The `config.json` that `transformers` makes a model of dnode from.

use serde_json::{Value, json};

use crate::config::{ModelConfig, ModelKind, RotaryScaling};
use crate::kernel::norm;
use crate::tokenizer::Tokenizer;

/// What `config.json` says of this model; `None` for models that `transformers` does not have.
///
/// `config.vocabulary` and `config.context` are those of the model; `tokenizer` makes its tokens, if any does.
pub(super) fn json(config: &ModelConfig, tokenizer: Option<&Tokenizer>) -> Option<Value> {
    let mut told = match config.kind {
        ModelKind::Mlp | ModelKind::Cnn => return None,
        ModelKind::Gpt => gpt2(config),
        ModelKind::Llama => llama(config),
    };
    told["bos_token_id"] = tokenizer.and_then(Tokenizer::beginning).into();
    told["eos_token_id"] = match tokenizer.map(Tokenizer::ends).unwrap_or_default().as_slice() {
        [] => Value::Null,
        [one] => (*one).into(),
        several => several.into(),
    };
    Some(told)
}

/// What `tokenizer_config.json` says: that the tokenizer is to be used as its file says. Without it,
/// `transformers` takes that of a llama for one of the first Llama, and adds tokens that the model lacks.
pub(super) fn tokenizer_json(config: &ModelConfig, tokenizer: &Tokenizer) -> Value {
    let name = |token: u32| tokenizer.token(token);
    let mut told = json!({
        "clean_up_tokenization_spaces": false,
        "model_max_length": config.context,
        "tokenizer_class": "PreTrainedTokenizerFast",
    });
    if let Some(token) = tokenizer.beginning().and_then(name) {
        told["bos_token"] = token.into();
    }
    if let Some(token) = tokenizer.ends().first().copied().and_then(name) {
        told["eos_token"] = token.into();
    }
    told
}

/// The class of `transformers`.
pub(super) const fn class(kind: ModelKind) -> &'static str {
    match kind {
        ModelKind::Llama => "LlamaForCausalLM",
        ModelKind::Gpt => "GPT2LMHeadModel",
        ModelKind::Mlp | ModelKind::Cnn => "no class",
    }
}

/// What `adapter_config.json` of `peft` says of the adapters of this model.
pub(super) fn peft_json(config: &ModelConfig) -> Value {
    json!({
        "base_model_name_or_path": null,
        "bias": "none",
        // The linear layers of GPT-2 are turned.
        "fan_in_fan_out": config.kind == ModelKind::Gpt,
        "inference_mode": true,
        "lora_alpha": config.lora_alpha(),
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": config.lora_rank,
        "target_modules": config.lora_targets,
        "task_type": "CAUSAL_LM",
    })
}

fn llama(config: &ModelConfig) -> Value {
    json!({
        "architectures": [class(ModelKind::Llama)],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.inner(),
        "max_position_embeddings": config.context,
        "model_type": "llama",
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.key_value_heads(),
        "rms_norm_eps": config.norm_epsilon,
        "rope_scaling": scaling(config),
        "rope_theta": config.rotary_base,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
        "vocab_size": config.vocabulary,
    })
}

/// How positions are stretched. Releases before 4.43 have `linear` alone, with these two names.
fn scaling(config: &ModelConfig) -> Value {
    let factor = config.rotary_factor;
    match config.rotary_scaling {
        RotaryScaling::None => Value::Null,
        RotaryScaling::Linear => json!({ "type": "linear", "factor": factor }),
        RotaryScaling::Llama3 => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": config.rotary_low,
            "high_freq_factor": config.rotary_high,
            "original_max_position_embeddings": config.rotary_positions,
        }),
    }
}

fn gpt2(config: &ModelConfig) -> Value {
    json!({
        "activation_function": "gelu_new",
        "architectures": [class(ModelKind::Gpt)],
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "layer_norm_epsilon": norm::epsilon(),
        "model_type": "gpt2",
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": null,
        "n_layer": config.layers,
        "n_positions": config.context,
        "resid_pdrop": 0.0,
        "scale_attn_by_inverse_layer_idx": false,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
        "vocab_size": config.vocabulary,
    })
}
