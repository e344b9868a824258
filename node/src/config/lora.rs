//! What the keys of adapters have in common.

/// Keys of adapters matter where it is above 0.
pub(super) const LORA_RANK: &str = "model.lora_rank";
/// Modules of the transformers that have a matrix, as `transformers` names them.
pub(super) const LORA_TARGETS: &[&str] = &[
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "c_attn",
    "c_proj",
    "c_fc",
];
/// What Hu et al. adapt (arXiv:2106.09685, §4.2), and `peft` where nothing is said.
const QV: &str = "[\"q_proj\", \"v_proj\"]";
/// By the kind of model; those of images have none.
pub(super) const LORA_DEFAULTS: &[(&str, &str)] =
    &[("mlp", QV), ("cnn", QV), ("gpt", "[\"c_attn\"]"), ("llama", QV)];
