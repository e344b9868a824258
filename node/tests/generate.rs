//! Text from a checkpoint: the built-in Shakespeare is trained on a little, and `dnode generate` writes.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

mod command;

use std::path::{Path, PathBuf};
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
        (&["nowhere"], "no model in nowhere: name a data directory"),
        (&["play", "--threads", "1025"], "--threads = 1025 is out of range: expected 0..=1024"),
    ] {
        refuses(folder, &[&["generate"], words].concat(), want);
    }
}

/// `dnode` with these words ends with code 2 and one line that begins so.
fn refuses(folder: &Path, words: &[&str], want: &str) {
    let output = dnode(folder, words);
    let told = said(&output).1;
    assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
    assert!(told.starts_with(&format!("error: {want}")), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
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
    assert_eq!(there.status.code(), Some(2), "a file that is there stays");

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
        (vec!["eval", "nowhere", "--data", "short.txt"], "no model in nowhere"),
    ] {
        refuses(folder, &words, want);
    }
}

/// What `dnode` says that must do well.
fn done(folder: &Path, words: &[&str]) -> String {
    let output = dnode(folder, words);
    assert!(output.status.success(), "{output:?}");
    said(&output).0
}

/// The export `out` of a small llama with a tokenizer.
fn exported(folder: &Path) -> PathBuf {
    assert!(train_tokenizer(folder, "tokens.json").status.success());
    train(folder, "home", &TOKENS);
    done(folder, &["export", "out", "--from", "home"]);
    folder.join("out")
}

/// `dnode generate out` with these words fails so.
fn refused(folder: &Path, words: &[&str], want: &str) {
    refuses(folder, &[&["generate", "out"], words].concat(), want);
}

#[test]
fn a_folder_of_hugging_faces_form_does_as_its_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    assert!(train_tokenizer(folder, "tokens.json").status.success());
    train(folder, "tokens", &TOKENS);
    train(folder, "characters", &[&TOKENS[..1], &["gpt"], &TOKENS[4..]].concat());
    let done = |words: &[&str]| done(folder, words);
    for home in ["tokens", "characters"] {
        let out = format!("{home}-out");
        done(&["export", &out, "--from", home]);
        let write = ["--prompt", "ROMEO:", "--length", "30"];
        let text = |place: &str, threads: &str| {
            done(&[&["generate", place, "--threads", threads], &write[..]].concat())
        };
        assert_eq!(text(home, "1"), text(&out, "2"), "{home}");
        let score = |place: &str| {
            let told = done(&["eval", place, "--data", "shakespeare", "--held-out", "--json"]);
            let told: serde_json::Value = serde_json::from_str(&told).unwrap();
            (told["loss"].clone(), told["bytes"].clone(), told["vocabulary"].clone())
        };
        assert_eq!(score(home), score(&out), "{home}");
    }
}

#[test]
fn a_folder_says_what_stands_around_a_text() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let place = exported(folder);
    // The export names the token that ends a text; whatever the folder names ends what is written.
    let told = std::fs::read_to_string(place.join("config.json")).unwrap();
    assert!(
        told.contains("\"eos_token_id\": 0") && told.contains("\"bos_token_id\": null"),
        "{told}"
    );
    let told = std::fs::read_to_string(place.join("tokenizer_config.json")).unwrap();
    assert!(told.contains("\"eos_token\": \"<|endoftext|>\""), "{told}");
    let ends = serde_json::json!({ "eos_token_id": (0..300).collect::<Vec<u32>>() });
    std::fs::write(place.join("generation_config.json"), ends.to_string()).unwrap();
    assert_eq!(done(folder, &["generate", "out", "--prompt", "ROMEO:"]), "ROMEO:\n");
    std::fs::write(place.join("generation_config.json"), "{\"eos_token_id\": \"x\"}").unwrap();

    let want = "the model out/generation_config.json: eos_token_id is \"x\", expected the number";
    refused(folder, &[], want);
    std::fs::remove_file(place.join("generation_config.json")).unwrap();
    // What the tokenizer puts before a text is before the prompt, unless told otherwise.
    let llama = "{\"tokenizer_class\": \"LlamaTokenizer\", \"bos_token\": \"<|endoftext|>\"}";
    let told = std::fs::read(place.join("tokenizer_config.json")).unwrap();
    std::fs::write(place.join("tokenizer_config.json"), llama).unwrap();
    std::fs::write(folder.join("short.txt"), "ROMEO:").unwrap();
    let score = ["eval", "out", "--data", "short.txt", "--json"];
    let bare = done(folder, &[&score[..], &["--no-bos"]].concat());
    assert_ne!(bare, done(folder, &score));
    std::fs::write(place.join("tokenizer_config.json"), told).unwrap();
    assert_eq!(bare, done(folder, &score));
}

#[test]
fn the_faults_of_a_folder_are_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let place = exported(folder);
    refused(folder, &["--base", "home"], "out holds a whole model, which needs no --base");
    let config = std::fs::read_to_string(place.join("config.json")).unwrap();
    let change = |from: &str, to: &str| {
        assert!(config.contains(from), "{config}");
        std::fs::write(place.join("config.json"), config.replace(from, to)).unwrap();
    };
    change("\"vocab_size\": 300", "\"vocab_size\": 299");
    let want = "the model out/config.json: vocab_size is 299, expected at least 300, the kinds of tokens beside it: byte-level BPE";
    refused(folder, &[], want);
    change("\"hidden_size\": 16", "\"hidden_size\": 24");
    refused(folder, &[], "the weights out/model.safetensors: tensor \"model.embed_tokens.weight\"");
    change("\"model_type\": \"llama\"", "\"model_type\": \"bert\"");
    refused(folder, &[], "the model out/config.json: model_type is \"bert\", expected");
    change("16", "16");
    std::fs::write(place.join("tokenizer.json"), "{}").unwrap();
    refused(folder, &[], "the tokenizer out/tokenizer.json: ");
    std::fs::remove_file(place.join("tokenizer.json")).unwrap();
    refused(folder, &[], "the folder out has no tokenizer.json, which says");
    std::fs::remove_file(place.join("model.safetensors")).unwrap();
    std::fs::copy(folder.join("tokens.json"), place.join("tokenizer.json")).unwrap();
    refused(
        folder,
        &[],
        "the weights out: no model.safetensors and no model.safetensors.index.json",
    );
}

#[test]
fn questions_are_scored_and_a_line_that_is_none_is_named() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    train(folder, "play", &TOKENS[..2].iter().chain(&TOKENS[4..]).copied().collect::<Vec<_>>());
    let good = r#"{"context": "ROMEO:\nO, ", "choices": ["she", "zzzzzz", "qqqq"], "answer": 0}"#;
    let swag = r#"{"ctx": "To be", "endings": ["or not", "xq"], "label": "1", "ind": 4}"#;
    let write = |text: &str| std::fs::write(folder.join("tasks.jsonl"), text).unwrap();
    let eval = |words: &[&str]| {
        dnode(folder, &[&["eval", "play", "--choices", "tasks.jsonl"], words].concat())
    };
    write(&format!("{good}\n\n{swag}\n"));
    let told = |words: &[&str]| -> serde_json::Value {
        let output = eval(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_str(&said(&output).0).unwrap()
    };
    let all = told(&[]);
    assert_eq!((&all["questions"], &all["shortened"]), (&2.into(), &2.into()), "{all}");
    assert!((all["chance"].as_f64().unwrap() - 5.0 / 12.0).abs() < 1e-9, "{all}");
    let share = |name: &str| all[name].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share));
    assert!(share("accuracy") && share("accuracy_normalised"), "{all}");
    assert_eq!(told(&["--limit", "1"])["questions"], 1);
    let output = eval(&["--threads", "2"]);
    let text = said(&output).0;
    assert!(text.starts_with("tasks.jsonl: 2 questions, tokens of 63 characters"), "{output:?}");
    assert!(text.contains("\naccuracy 0.") || text.contains("\naccuracy 1."), "{text}");

    let refused = |words: &[&str], want: &str| {
        let eval = ["eval", "play", "--choices", "tasks.jsonl"];
        refuses(folder, &[&eval, words].concat(), want);
    };
    refused(&["--data", "shakespeare"], "the argument '--choices <FILE>' cannot be used with");
    refused(&["--limit", "0"], "invalid value '0' for '--limit <N>'");
    write(&format!("{good}\n{{\"context\": 1}}\n"));
    refused(&[], "tasks.jsonl line 2: context is 1; expected a JSON object of context, choices");
    write(&good.replace("zzzz", "\u{20ac}"));
    refused(&[], "tasks.jsonl line 1: the text has '\u{20ac}', which is not in the model's");
    write(&good.replace("zzzz", "zzzzzz"));
    refused(&[], "tasks.jsonl line 1: the choice \"zzzzzzzz\" has 9 tokens, expected 1 to 8");
    write("\n");
    refused(&[], "the questions tasks.jsonl: there is none");
    std::fs::remove_file(folder.join("tasks.jsonl")).unwrap();
    refused(&[], "read the questions tasks.jsonl: No such file");
}
