//! Text from a checkpoint: the built-in Shakespeare is trained on a little, and `dnode generate` writes.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

mod command;

use std::path::Path;
use std::process::Output;

use command::{dnode, said, train};

#[test]
fn a_checkpoint_alone_writes_text_and_what_cannot_is_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let tiny = ["--set", "model.layers=1", "--set", "model.width=16", "--set", "model.context=8"];
    // No data and no model are named: both have defaults that go together.
    let closing = train(folder, "play", &tiny);
    assert!(closing.contains(" 12 samples (") && closing.contains(" samples/s while training)"));
    let words = ["generate", "play", "--prompt", "ROMEO:", "--length", "30"];
    let first = dnode(folder, &words);
    assert!(first.status.success(), "{first:?}");
    let text = said(&first).0;
    assert!(text.starts_with("ROMEO:"), "{text:?}");
    assert_eq!(text.chars().count(), "ROMEO:".len() + 30 + 1, "{text:?}");
    assert_eq!(text, said(&dnode(folder, &words)).0, "equal seeds write equal text");
    let other = dnode(folder, &[&words[..], &["--seed", "2"]].concat());
    assert_ne!(text, said(&other).0);
    // It ends before what it has written in the middle.
    let (at, stop) = text.char_indices().nth("ROMEO:".len() + 15).unwrap();
    let stopped =
        dnode(folder, &[&words[..], &["--stop", &text[at..at + stop.len_utf8()]]].concat());
    let stopped = said(&stopped).0;
    let before = text["ROMEO:".len()..].find(stop).unwrap() + "ROMEO:".len();
    assert_eq!(stopped, format!("{}\n", &text[..before]));

    let untied = ["--model", "llama", "--set", "model.tied=false"];
    train(folder, "llama", &[&tiny[..], &untied].concat());
    let llama = dnode(folder, &["generate", "llama", "--prompt", "ROMEO:", "--length", "30"]);
    assert_eq!(said(&llama).0.chars().count(), "ROMEO:".len() + 30 + 1, "{llama:?}");

    train(folder, "digits", &["--data", "digits", "--set", "model.hidden=[8]"]);
    for (words, want) in [
        (&["play", "--prompt", "ROMÉO"][..], "the text has 'É', which is not in the model's"),
        (&["play", "--length", "100001"], "--length = 100001 is out of range: expected 0..=100000"),
        (&["play", "--temperature", "0"], "--temperature = 0.0 is out of range: expected a number"),
        (
            &["play", "--stop", ""],
            "--stop = [\"\"] is out of range: expected at most 16 texts of 1 to",
        ),
        (
            &["digits"],
            "the parameters digits/checkpoints/000000000003/parameters.safetensors: its model is \"mlp\"",
        ),
        (&["nowhere"], "no checkpoint in nowhere: name a data directory"),
    ] {
        let output = dnode(folder, &[&["generate"], words].concat());
        let told = said(&output).1;
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with(&format!("error: {want}")), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

/// The tokenizer of 300 tokens of the built-in text, in the file `out`.
fn train_tokenizer(folder: &Path, out: &str) -> Output {
    let words = ["tokenizer", "train", "--data", "shakespeare", "--vocabulary", "300", "--out"];
    dnode(folder, &[&words[..], &[out]].concat())
}

/// The flags of a small llama with the tokenizer `tokens.json`.
const TOKENS: [&str; 10] = [
    "--model",
    "llama",
    "--tokenizer",
    "tokens.json",
    "--set",
    "model.layers=1",
    "--set",
    "model.width=16",
    "--set",
    "model.context=8",
];

#[test]
fn a_tokenizer_is_trained_and_travels_with_the_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let made = train_tokenizer(folder, "tokens.json");
    let (told, _) = said(&made);
    assert!(told.starts_with("tokens.json: byte-level BPE of 300 tokens, "), "{made:?}");
    assert!(told.contains("special tokens: 1: 0 \"<|endoftext|>\"\n"), "{told}");
    assert!(train_tokenizer(folder, "again.json").status.success());
    let files = ["tokens.json", "again.json"].map(|name| std::fs::read(folder.join(name)).unwrap());
    assert!(files[0] == files[1], "equal texts train equal files");
    let there = train_tokenizer(folder, "again.json");
    assert_eq!(there.status.code(), Some(1), "a file that is there stays");

    train(folder, "play", &TOKENS);
    // From here on, the checkpoint has all that is needed.
    std::fs::remove_file(folder.join("tokens.json")).unwrap();
    let words = ["generate", "play", "--prompt", "Caf\u{e9} \u{1f600}", "--length", "40"];
    let first = dnode(folder, &words);
    let (text, _) = said(&first);
    assert!(first.status.success() && text.starts_with("Caf\u{e9} \u{1f600}"), "{first:?}");
    assert_eq!(text, said(&dnode(folder, &words)).0, "equal seeds write equal text");
    let shown = dnode(folder, &["tokenizer", "show", "play", "--text", "To be"]);
    assert!(said(&shown).0.contains("\"To be\" of 5 bytes is "), "{shown:?}");

    let stored = folder.join("play/checkpoints/000000000003/tokenizer.json");
    let content = std::fs::read_to_string(&stored).unwrap();
    std::fs::write(&stored, content + " ").unwrap();
    let output = dnode(folder, &["generate", "play"]);
    let told = said(&output).1;
    assert!(told.contains("parameters.safetensors: tokenizer.json: expected BLAKE3 "), "{told}");
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
}

#[test]
fn an_evaluation_counts_bits_per_byte_whatever_the_tokens() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    assert!(train_tokenizer(folder, "tokens.json").status.success());
    train(folder, "play", &TOKENS);
    train(folder, "plain", &[&TOKENS[..2], &TOKENS[4..]].concat());
    let score = |words: &[&str]| -> serde_json::Value {
        let output = dnode(folder, &[&["eval", "--data", "shakespeare", "--json"], words].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_str(&said(&output).0).unwrap()
    };
    let number = |score: &serde_json::Value, name: &str| score[name].as_f64().unwrap();
    let (all, plain) = (score(&["play"]), score(&["plain"]));
    assert_eq!((&all["bytes"], &plain["tokens"]), (&plain["bytes"], &plain["bytes"]));
    for score in [&all, &plain] {
        let nats = number(score, "loss") * number(score, "tokens");
        let bits = nats / std::f64::consts::LN_2 / number(score, "bytes");
        assert!((bits - number(score, "bits_per_byte")).abs() < 1e-9, "{score}");
        let perplexity = number(score, "loss").exp();
        assert!((perplexity - number(score, "perplexity")).abs() < 1e-6, "{score}");
    }
    let held_out = score(&["play", "--held-out"]);
    assert_eq!(held_out["tokens"].as_u64(), Some(all["tokens"].as_u64().unwrap() / 10));
    // What training measured at its end, whose windows begin one token later.
    let metrics = std::fs::read_to_string(folder.join("play/metrics.jsonl")).unwrap();
    let line = metrics.lines().find(|line| line.contains("\"kind\":\"final\"")).unwrap();
    let measured = number(&serde_json::from_str(line).unwrap(), "loss");
    assert!((number(&held_out, "loss") - measured).abs() < 0.01, "{held_out} {measured}");
}

#[test]
fn a_tokenizer_or_text_that_does_not_fit_is_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    assert!(train_tokenizer(folder, "tokens.json").status.success());
    train(folder, "play", &TOKENS);
    std::fs::write(folder.join("empty.txt"), "").unwrap();
    std::fs::write(folder.join("short.txt"), "short").unwrap();
    let join = ["join", "--rule", "none", "--no-mdns", "--data-dir", "new", "--tokenizer"];
    let own = ["join", "--rule", "none", "--no-mdns", "--data-dir", "new"];
    let own = [&own[..], &TOKENS].concat();
    let train = ["tokenizer", "train", "--vocabulary", "300", "--data"];
    for (words, want) in [
        (
            [&own[..], &["--set", "model.vocabulary=299"]].concat(),
            "model.vocabulary = 299 is out of range: expected 0 or at least 300",
        ),
        (
            [&own[..], &["--data", "text", "--data-path", "short.txt"]].concat(),
            "read data short.txt: expected at least 90 tokens",
        ),
        (
            [&own[..], &["--set", "data.vocabulary=bytes"]].concat(),
            "data.tokenizer = \"tokens.json\" in --tokenizer does not go with data.vocabulary",
        ),
        ([&join[..], &["none.json"]].concat(), "read the tokenizer none.json: No such file"),
        (
            [&join[..], &["short.txt"]].concat(),
            "the tokenizer short.txt: expected value at line 1 column 1; expected the tokenizer.json",
        ),
        ([&train[..], &["nowhere.txt"]].concat(), "open data nowhere.txt: not found"),
        (
            [&train[..], &["short.txt"]].concat(),
            "train a tokenizer of 300 tokens: the text makes only 261; give more text",
        ),
        (vec!["tokenizer", "show", "nowhere"], "read the tokenizer nowhere: No such file"),
        (vec!["eval", "play", "--data", "empty.txt"], "the text has no token to score"),
        (vec!["eval", "nowhere", "--data", "short.txt"], "no checkpoint in nowhere"),
    ] {
        let output = dnode(folder, &words);
        let told = said(&output).1;
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.starts_with(&format!("error: {want}")), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}
