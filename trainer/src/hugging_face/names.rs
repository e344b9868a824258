//! Which tensors of `transformers` hold the numbers of which tensor of dnode (docs/models.md).

use std::ops::Range;

use dnode_protocol::{ParameterLayout, TensorSpec};

use crate::config::{ModelConfig, ModelKind};

/// What the names of a GPT-2 begin with, where it has its head; the models that OpenAI has published
/// leave it out.
pub(crate) const GPT2_PREFIX: &str = "transformer.";
/// The head, which a tied model need not have.
pub(crate) const HEAD: &str = "lm_head.weight";

/// A tensor of `transformers`: some rows of one of dnode's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) name: String,
    /// Its shape there.
    pub(crate) shape: Vec<usize>,
    /// The tensor of dnode.
    pub(crate) own: &'a TensorSpec,
    /// Of that, these rows; of a vector the elements.
    rows: Range<usize>,
    /// Whether it has them as columns: the linear layers of GPT-2 are `[inputs, outputs]`.
    pub(crate) transposed: bool,
}

impl Part<'_> {
    /// The rows of dnode's tensor.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Where its numbers are in dnode's tensor.
    pub(crate) fn range(&self) -> Range<usize> {
        let columns = columns(self.own);
        self.rows.start * columns..self.rows.end * columns
    }

    /// The numbers as dnode has them, from those of `transformers`, or back.
    pub(crate) fn turned(&self, values: &[f32], to_own: bool) -> Vec<f32> {
        let (rows, columns) = (self.rows.len(), columns(self.own));
        let (from_rows, from_columns) = if to_own { (columns, rows) } else { (rows, columns) };
        let mut turned = vec![0.0; values.len()];
        for (row, values) in values.chunks_exact(from_columns.max(1)).enumerate() {
            for (column, value) in values.iter().enumerate() {
                turned[column * from_rows + row] = *value;
            }
        }
        turned
    }
}

fn columns(own: &TensorSpec) -> usize {
    own.shape.iter().skip(1).product()
}

/// The tensors of `LlamaForCausalLM` or `GPT2LMHeadModel`, in the order of dnode's; `None` for models that
/// `transformers` does not have.
pub(crate) fn parts<'a>(
    config: &ModelConfig,
    layout: &'a ParameterLayout,
) -> Option<Vec<Part<'a>>> {
    let parts = layout.tensors().iter().map(|own| match config.kind {
        ModelKind::Mlp | ModelKind::Cnn => None,
        ModelKind::Gpt => Some(vec![gpt2(own)?]),
        ModelKind::Llama => llama(config, own),
    });
    Some(parts.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// `block3.rest` as `(Some("3"), "rest")`; other names as they are.
fn split(name: &str) -> (Option<&str>, &str) {
    let block = name.strip_prefix("block").and_then(|rest| rest.split_once('.'));
    block.map_or((None, name), |(index, part)| (Some(index), part))
}

fn llama<'a>(config: &ModelConfig, own: &'a TensorSpec) -> Option<Vec<Part<'a>>> {
    let (block, part) = split(&own.name);
    let rows = own.shape.first().copied().unwrap_or(0);
    let head = config.width.checked_div(config.heads)?;
    let (queries, keys) = (config.heads * head, config.key_value_heads() * head);
    let inner = config.inner();
    let parts: &[(&str, usize)] = match part {
        "token_embedding" => &[("model.embed_tokens", rows)],
        "final_norm.gain" => &[("model.norm", rows)],
        "head.weight" => &[("lm_head", rows)],
        "attention_norm.gain" => &[("input_layernorm", rows)],
        "inner_norm.gain" => &[("post_attention_layernorm", rows)],
        "attention.weight" => {
            &[("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)]
        }
        "projection.weight" => &[("self_attn.o_proj", rows)],
        "expand.weight" => &[("mlp.gate_proj", inner), ("mlp.up_proj", inner)],
        "contract.weight" => &[("mlp.down_proj", rows)],
        _ => return None,
    };
    let block = block.map_or_else(String::new, |index| format!("model.layers.{index}."));
    let mut start = 0;
    let part = |&(name, rows): &(&str, usize)| {
        let rows = start..start + rows;
        start = rows.end;
        let mut shape = own.shape.clone();
        shape[0] = rows.len();
        Part { name: format!("{block}{name}.weight"), shape, own, rows, transposed: false }
    };
    Some(parts.iter().map(part).collect())
}

fn gpt2(own: &TensorSpec) -> Option<Part<'_>> {
    let (block, part) = split(&own.name);
    let name = match part {
        "token_embedding" => "wte.weight".to_owned(),
        "position_embedding" => "wpe.weight".to_owned(),
        other => {
            let (layer, kind) = other.split_once('.')?;
            let layer = match layer {
                "attention_norm" => "ln_1",
                "attention" => "attn.c_attn",
                "projection" => "attn.c_proj",
                "inner_norm" => "ln_2",
                "expand" => "mlp.c_fc",
                "contract" => "mlp.c_proj",
                "final_norm" => "ln_f",
                _ => return None,
            };
            format!("{layer}.{}", kind.replace("gain", "weight"))
        }
    };
    let block = block.map_or_else(String::new, |index| format!("h.{index}."));
    let transposed = own.name.ends_with(".weight");
    let mut shape = own.shape.clone();
    if transposed {
        shape.reverse();
    }
    let rows = 0..own.shape.first().copied().unwrap_or(0);
    Some(Part { name: format!("{GPT2_PREFIX}{block}{name}"), shape, own, rows, transposed })
}

/// Whether `transformers` keeps constants under this name that its models compute themselves.
pub(crate) fn is_constant(kind: ModelKind, name: &str) -> bool {
    match kind {
        ModelKind::Gpt => name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"),
        ModelKind::Llama => name.ends_with(".rotary_emb.inv_freq"),
        ModelKind::Mlp | ModelKind::Cnn => false,
    }
}
