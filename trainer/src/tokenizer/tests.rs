//! Tests of tokenizers: parity with Python, training, pieces, damage, wrong files.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::shakespeare_text;

/// Small tokenizers of several kinds, and what Python's `tokenizers` makes of texts
/// (trainer/tests/golden/encodings.py).
const GOLDEN: &str = include_str!("../../tests/golden/tokenizers.json");

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

fn parse(json: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::parse(json.to_string().into_bytes(), Path::new("DIR/tokenizer.json"))
}

fn named(name: &str) -> Tokenizer {
    parse(&golden()[name]["tokenizer"]).unwrap()
}

fn trained(kinds: usize) -> Tokenizer {
    train_tokenizer(&[shakespeare_text().unwrap()], kinds).unwrap()
}

#[test]
fn tokens_and_text_are_those_of_pythons_tokenizers() {
    let golden = golden();
    for (name, told) in golden.as_object().unwrap() {
        let tokenizer = parse(&told["tokenizer"]).unwrap();
        for case in told["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let tokens = tokenizer.encode(text).unwrap();
            assert_eq!(json!(tokens), case["ids"], "{name}: {text:?}");
            assert_eq!(json!(tokenizer.decode(&tokens)), case["decoded"], "{name}: {text:?}");
        }
    }
}

#[test]
fn a_tokenizer_tells_what_it_is() {
    for (name, form, kinds, special) in [
        ("gpt2", "byte-level BPE", 320, Some((0, "<|endoftext|>"))),
        ("llama3", "byte-level BPE", 320, Some((0, "<|endoftext|>"))),
        ("llama2", "BPE", 400, Some((0, "<unk>"))),
        ("bert", "WordPiece", 200, Some((0, "[UNK]"))),
        ("unigram", "Unigram", 200, Some((0, "<unk>"))),
    ] {
        let tokenizer = named(name);
        assert_eq!((tokenizer.form().as_str(), tokenizer.kinds()), (form, kinds), "{name}");
        let found = tokenizer.special_tokens().into_iter().next();
        assert_eq!(found, special.map(|(id, text)| (id, text.to_owned())), "{name}");
        assert_eq!(tokenizer.digest().len(), 64);
    }
}

#[test]
fn a_text_in_pieces_has_the_tokens_of_the_whole() {
    let text = shakespeare_text().unwrap().replace("\n\n", "\n \n");
    for name in ["gpt2", "llama3", "bert"] {
        let tokenizer = named(name);
        assert!(pieces(&text).count() > 3);
        assert_eq!(tokenizer.encode(&text).unwrap(), tokenizer.encode_piece(&text).unwrap());
    }
    // The mark of a beginning is that of each piece.
    let tokenizer = named("llama2");
    let (cut, whole) = (tokenizer.encode(&text).unwrap(), tokenizer.encode_piece(&text).unwrap());
    assert!(cut.len() - whole.len() < pieces(&text).count(), "{} {}", cut.len(), whole.len());
}

#[test]
fn equal_texts_train_equal_tokenizers() {
    let text = shakespeare_text().unwrap();
    let one = trained(600);
    assert_eq!(one.bytes(), trained(600).bytes());
    assert_eq!((one.form().as_str(), one.kinds()), ("byte-level BPE", 600));
    assert_eq!(one.special_tokens(), [(0, "<|endoftext|>".to_owned())]);
    assert_eq!(one.decode(&one.encode(&text).unwrap()), text);
    let ratio = text.len() as f64 / one.encode(&text).unwrap().len() as f64;
    assert!((2.0..3.0).contains(&ratio), "{ratio} bytes a token");
    // Few letters: many ways to the same token, and many pairs of one count.
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b"aabb "[(state >> 33) as usize % 5])
    };
    let text: String = (0..9000).map(|_| next()).collect();
    let train = || train_tokenizer(std::slice::from_ref(&text), 500).unwrap().digest();
    let first = train();
    assert!((0..5).all(|_| train() == first));
}

#[test]
fn a_trained_file_is_read_by_older_releases_of_python_too() {
    let file: Value = serde_json::from_slice(trained(300).bytes()).unwrap();
    let merges = file["model"]["merges"].as_array().unwrap();
    assert_eq!(merges.len(), 300 - TOKENIZER_VOCABULARY_MIN);
    assert!(merges.iter().all(|merge| merge.as_str().is_some_and(|it| it.split(' ').count() == 2)));
}

#[test]
fn what_cannot_be_trained_says_what_would_fit() {
    for wrong in [0, 256, TOKENIZER_VOCABULARY_MAX + 1] {
        let error = train_tokenizer(&["some text".to_owned()], wrong).unwrap_err().to_string();
        let want = format!("train a tokenizer of {wrong} tokens: expected 257 to 1048576");
        assert!(error.starts_with(&want), "{error}");
    }
    let error = train_tokenizer(&["aa aa".to_owned()], 300).unwrap_err().to_string();
    let want = "train a tokenizer of 300 tokens: the text makes only 259; give more text, or --vocabulary 259";
    assert_eq!(error, want);
    assert!(train_tokenizer(&["aa aa".to_owned()], 259).is_ok());
    assert!(train_tokenizer(&[], 257).is_ok(), "the bytes need no text");
}

#[test]
fn what_is_no_tokenizer_is_refused_in_one_line_that_names_the_file() {
    let message = |result: Result<Tokenizer, TokenizerError>| {
        let text = result.unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    let read = || message(Tokenizer::read(&file)).replace(folder.path().to_str().unwrap(), "DIR");
    assert!(
        read().starts_with("read the tokenizer DIR/tokenizer.json: No such file"),
        "{}",
        read()
    );
    let message_of = |path: &Path| Tokenizer::read(path).unwrap_err().to_string();
    assert_eq!(message_of(folder.path()), message_of(&file), "a folder means the file in it");
    std::fs::write(&file, "").unwrap();
    let want = "the tokenizer DIR/tokenizer.json: EOF while parsing a value at line 1 column 0; expected the tokenizer.json of";
    assert!(read().starts_with(want), "{}", read());
    let long = std::fs::File::create(&file).unwrap();
    long.set_len(TOKENIZER_BYTES_MAX + 1).unwrap();
    let want = "read the tokenizer DIR/tokenizer.json: longer than 64 MiB; name a tokenizer.json of at most 64 MiB";
    assert_eq!(read(), want);
    let other = message(parse(&json!({ "model_type": "llama" })));
    assert!(other.contains("tokenizer.json: missing field `model`"), "{other}");
    let other = message(parse(&json!({ "model": 1 })));
    assert!(other.contains("did not match any variant of untagged enum Model"), "{other}");
    let mut far = golden()["bert"]["tokenizer"].clone();
    far["model"]["vocab"]["far"] = json!(TOKENIZER_VOCABULARY_MAX);
    assert!(message(parse(&far)).contains("it has 1048577 tokens, at most 1048576 fit"));
}

#[test]
fn a_character_that_is_no_token_is_named_where_none_stands_for_the_unknown() {
    let golden = golden();
    let without_unknown = |name: &str, key: &str| {
        let mut told = golden[name]["tokenizer"].clone();
        told["model"][key] = if name == "unigram" { Value::Null } else { json!(null) };
        if name == "bert" {
            told["model"][key] = json!("[NONE]");
        }
        told
    };
    let mut bpe = without_unknown("llama2", "unk_token");
    bpe["model"]["byte_fallback"] = json!(false);
    let tokenizer = parse(&bpe).unwrap();
    assert!(tokenizer.encode("We will").unwrap().len() > 1);
    let error = tokenizer.encode("We ä").unwrap_err().to_string();
    let want = "the tokenizer DIR/tokenizer.json has no token for 'ä', nor one for the unknown; use one that knows all bytes, for example of `dnode tokenizer train`";
    assert_eq!(error, want);
    // Byte fallback makes it whole.
    let whole = without_unknown("llama2", "unk_token");
    assert!(parse(&whole).unwrap().encode("We ä").is_ok());
    for told in [without_unknown("bert", "unk_token"), without_unknown("unigram", "unk_id")] {
        let error = parse(&told).unwrap().encode("東").unwrap_err().to_string();
        let want = "the tokenizer DIR/tokenizer.json cannot encode the text: ";
        assert!(error.starts_with(want) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn random_merges_are_left_out_so_that_peers_agree() {
    let mut told = golden()["gpt2"]["tokenizer"].clone();
    told["model"]["dropout"] = json!(0.5);
    let (random, plain) = (parse(&told).unwrap(), named("gpt2"));
    let text = "with some of the words that are there";
    assert_eq!(random.encode(text).unwrap(), plain.encode(text).unwrap());
}

/// The places of all values in `told`, as JSON pointers.
fn visit(told: &Value, place: &str, places: &mut Vec<String>) {
    places.push(place.to_owned());
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match told {
        Value::Object(parts) => {
            parts
                .iter()
                .for_each(|(key, part)| visit(part, &format!("{place}/{}", escaped(key)), places));
        }
        Value::Array(parts) => {
            parts
                .iter()
                .enumerate()
                .for_each(|(at, part)| visit(part, &format!("{place}/{at}"), places));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn a_file_of_wrong_values_is_refused_or_read_without_a_panic() {
    let wrongs = [json!(null), json!(u32::MAX), json!(-1), json!(""), json!([]), json!({})];
    for told in golden().as_object().unwrap().values() {
        let mut places = Vec::new();
        visit(&told["tokenizer"], "", &mut places);
        // The tables of tokens and merges are alike in all their lines.
        let mut lines = 0;
        places.retain(|place| {
            lines += usize::from(place.starts_with("/model/") && place.matches('/').count() > 2);
            lines < 4
        });
        for (place, wrong) in
            places.iter().flat_map(|place| wrongs.iter().map(move |it| (place, it)))
        {
            let mut told = told["tokenizer"].clone();
            *told.pointer_mut(place).unwrap() = wrong.clone();
            if let Ok(read) = parse(&told) {
                let _ = read.encode("Some text,\n 12 of it \u{1f600}").map(|it| read.decode(&it));
            }
        }
    }
}

proptest! {
    #[test]
    fn a_byte_level_tokenizer_gives_any_text_back(text in "\\PC{0,40}|[ \\t\\r\\na-c']{0,60}") {
        for name in ["gpt2", "llama3"] {
            let tokenizer = named(name);
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens), text.clone());
            prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.kinds()));
        }
    }

    #[test]
    fn a_damaged_file_is_refused_or_read_without_a_panic(at in 0.0..1.0_f64, byte: u8, cut: bool) {
        for (name, told) in golden().as_object().unwrap() {
            let mut bytes = told["tokenizer"].to_string().into_bytes();
            let at = (at * bytes.len() as f64) as usize;
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            if let Ok(read) = Tokenizer::parse(bytes, Path::new(name)) {
                let _ = read.encode("Some text,\n 12 of it \u{1f600}").map(|it| read.decode(&it));
            }
        }
    }
}

/// Found by fuzzing: the library panics on these.
#[test]
fn a_part_that_cannot_be_read_is_one_line() {
    let sound = golden()["gpt2"]["tokenizer"].clone();
    let message = |text: String| {
        let parsed = Tokenizer::parse(text.into_bytes(), Path::new("DIR/tokenizer.json"));
        parsed.unwrap_err().to_string()
    };
    let mut far = sound.clone();
    far["decoder"] = json!({ "type": "ByteLevel", "add_prefix_space": "NUMBER" });
    let far = message(far.to_string().replace("\"NUMBER\"", "1e309"));
    assert!(far.contains("number out of range") && !far.contains('\n'), "{far}");
    let mut damaged = sound;
    damaged["normalizer"] = json!({ "type": "Precompiled", "precompiled_charsmap": "AAAA" });
    let damaged = message(damaged.to_string());
    assert!(!damaged.contains('\n'), "{damaged}");
}

#[test]
fn a_tokenizer_is_found_in_its_folder_in_a_checkpoint_and_in_the_newest_of_a_data_directory() {
    let root = tempfile::tempdir().unwrap();
    let at = |place: &str| Tokenizer::file_at(&root.path().join(place));
    let file = |place: &str| root.path().join(place).join(TOKENIZER_FILE);
    for step in ["000000000004", "000000000008"] {
        let folder = root.path().join("home/checkpoints").join(step);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("parameters.safetensors"), b"").unwrap();
    }
    std::fs::create_dir(root.path().join("model")).unwrap();
    assert_eq!(at("model"), file("model"));
    assert_eq!(at("home"), file("home/checkpoints/000000000008"));
    assert_eq!(at("home/checkpoints/000000000004"), file("home/checkpoints/000000000004"));
    assert_eq!(at("tok.json"), root.path().join("tok.json"));
}
