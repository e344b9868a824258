//! The tokens that stand around a text, as `transformers` puts them, and those that end one.
//!
//! A `tokenizer.json` says by its post-processor what is put around a text. The tokenizers of Llama in
//! `transformers` go by `tokenizer_config.json` in its place (`LlamaTokenizerFast.update_post_processor`).

use serde_json::Value;

use super::Tokenizer;

/// Names of special tokens behind which nothing of a text follows: of GPT-2 and `dnode tokenizer train`,
/// Llama 1 and 2, Llama 3 (two), Gemma (two), Qwen, and Phi.
const ENDS: [&str; 8] = [
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<eos>",
    "<end_of_turn>",
    "<|im_end|>",
    "<|end|>",
];
/// Names of special tokens before which nothing of a text stands: of Llama 1 and 2, Llama 3, and Gemma.
const BEGINNINGS: [&str; 3] = ["<s>", "<|begin_of_text|>", "<bos>"];
/// Classes of `transformers` that go by `tokenizer_config.json`.
const LLAMA_CLASSES: [&str; 2] = ["LlamaTokenizer", "LlamaTokenizerFast"];
/// A text by which the tokens around it are found.
const PROBE: &str = "a";

/// The tokens around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Before it.
    pub(crate) before: Vec<u32>,
    /// Behind it.
    pub(crate) after: Vec<u32>,
}

impl Tokenizer {
    /// What its post-processor puts around a text.
    pub(crate) fn marks(&self) -> Marks {
        let tokens = |with_marks: bool| {
            let encoded = self.inner.encode_fast(PROBE, with_marks);
            encoded.map_or_else(|_| Vec::new(), |encoded| encoded.get_ids().to_vec())
        };
        let (bare, whole) = (tokens(false), tokens(true));
        let at = whole.windows(bare.len().max(1)).position(|some| some == bare);
        let Some(at) = at else { return Marks::default() };
        Marks { before: whole[..at].to_vec(), after: whole[at + bare.len()..].to_vec() }
    }

    /// What `transformers` puts around a text where `config` is what `tokenizer_config.json` beside it says,
    /// `Null` if there is none; `is_llama`: of a model of this type.
    pub(crate) fn marks_by(&self, config: &Value, is_llama: bool) -> Marks {
        let class = config["tokenizer_class"].as_str();
        if !class.map_or(is_llama, |class| LLAMA_CLASSES.contains(&class)) {
            return self.marks();
        }
        let token = |name: &str, usual: &str| {
            let told = &config[name];
            // A text, or an object with more about it.
            let text = told.as_str().or_else(|| told["content"].as_str()).unwrap_or(usual);
            self.inner.token_to_id(text)
        };
        let added = |flag: &str, default: bool| config[flag].as_bool().unwrap_or(default);
        let (begin, end) = (token("bos_token", "<s>"), token("eos_token", "</s>"));
        if class.is_none() && begin.is_none() {
            // Not of Llama, although nothing says so: `transformers` would add a token that no model knows.
            return self.marks();
        }
        let before = begin.filter(|_| added("add_bos_token", true)).into_iter().collect();
        let after = end.filter(|_| added("add_eos_token", false)).into_iter().collect();
        Marks { before, after }
    }

    /// The token that begins a text: the one that its post-processor puts there, or a special one with the
    /// name that published models give theirs.
    pub(crate) fn beginning(&self) -> Option<u32> {
        match self.marks().before.as_slice() {
            [token] => Some(*token),
            _ => self.special(&BEGINNINGS).first().copied(),
        }
    }

    /// The tokens that end a text: special ones with one of the names that published models give theirs.
    pub(crate) fn ends(&self) -> Vec<u32> {
        self.special(&ENDS)
    }

    /// Special tokens with one of these names.
    fn special(&self, names: &[&str]) -> Vec<u32> {
        let all = self.special_tokens().into_iter();
        all.filter(|(_, name)| names.contains(&name.as_str())).map(|(token, _)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// Words of one letter between `<s>` and `</s>`, and what stands around a text.
    fn tokenizer(post_processor: &Value) -> Tokenizer {
        let special = |id: u32, content: &str| {
            json!({
                "id": id, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false
            })
        };
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "pre_tokenizer": { "type": "Whitespace" }, "post_processor": post_processor,
            "decoder": null, "added_tokens": [special(0, "<s>"), special(1, "</s>")],
            "model": {
                "type": "WordLevel", "unk_token": "?",
                "vocab": { "<s>": 0, "</s>": 1, "?": 2, "a": 3, "b": 4 }
            }
        });
        Tokenizer::parse(file.to_string().into_bytes(), Path::new("test")).unwrap()
    }

    fn template(single: &Value) -> Value {
        json!({
            "type": "TemplateProcessing", "single": single, "pair": single,
            "special_tokens": {
                "<s>": { "id": "<s>", "ids": [0], "tokens": ["<s>"] },
                "</s>": { "id": "</s>", "ids": [1], "tokens": ["</s>"] }
            }
        })
    }

    fn marks(before: &[u32], after: &[u32]) -> Marks {
        Marks { before: before.to_vec(), after: after.to_vec() }
    }

    #[test]
    fn a_post_processor_says_what_stands_around_a_text() {
        let special = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let plain = tokenizer(&Value::Null);
        assert_eq!(plain.marks(), Marks::default());
        assert_eq!((plain.beginning(), plain.ends()), (Some(0), vec![1]), "by name");
        let before = tokenizer(&template(&json!([special("<s>"), text])));
        assert_eq!(before.marks(), marks(&[0], &[]));
        let both = tokenizer(&template(&json!([special("</s>"), text, special("<s>")])));
        assert_eq!((both.marks(), both.beginning()), (marks(&[1], &[0]), Some(1)));
    }

    #[test]
    fn the_tokenizers_of_llama_go_by_their_configuration() {
        let plain = tokenizer(&Value::Null);
        for (config, is_llama, want) in [
            (Value::Null, true, marks(&[0], &[])),
            (Value::Null, false, marks(&[], &[])),
            (json!({ "tokenizer_class": "LlamaTokenizer" }), false, marks(&[0], &[])),
            (json!({ "tokenizer_class": "PreTrainedTokenizerFast" }), true, marks(&[], &[])),
            (json!({ "add_bos_token": false, "add_eos_token": true }), true, marks(&[], &[1])),
            (
                json!({
                    "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false,
                    "add_eos_token": true, "eos_token": { "content": "</s>", "lstrip": false }
                }),
                true,
                marks(&[], &[1]),
            ),
            (json!({ "bos_token": "b" }), true, marks(&[4], &[])),
            (json!({ "bos_token": "none" }), true, marks(&[], &[])),
        ] {
            assert_eq!(plain.marks_by(&config, is_llama), want, "{config} {is_llama}");
        }
    }
}
