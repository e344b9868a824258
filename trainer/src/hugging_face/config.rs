//! The `config.json` that `transformers` makes a model of dnode from.

use serde_json::{Value, json};

use crate::config::{ModelConfig, ModelKind};
use crate::kernel::norm;

/// What `config.json` says of this model; `None` for models that `transformers` does not have.
///
/// `config.vocabulary` and `config.context` are those of the model.
pub(super) fn json(config: &ModelConfig) -> Option<Value> {
    match config.kind {
        ModelKind::Mlp | ModelKind::Cnn => None,
        ModelKind::Gpt => Some(gpt2(config)),
        ModelKind::Llama => Some(llama(config)),
    }
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
        "bos_token_id": null,
        "eos_token_id": null,
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.inner(),
        "max_position_embeddings": config.context,
        "model_type": "llama",
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.key_value_heads(),
        "rms_norm_eps": config.norm_epsilon,
        "rope_scaling": null,
        "rope_theta": config.rotary_base,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
        "vocab_size": config.vocabulary,
    })
}

fn gpt2(config: &ModelConfig) -> Value {
    json!({
        "activation_function": "gelu_new",
        "architectures": [class(ModelKind::Gpt)],
        "attn_pdrop": 0.0,
        "bos_token_id": null,
        "embd_pdrop": 0.0,
        "eos_token_id": null,
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
