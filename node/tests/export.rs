//! Weights out and in again: `dnode export` and `--init`, and what they refuse.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

mod command;

use std::fs;
use std::process::Output;

use command::{dnode, join, said, train};
use serde_json::{Value, json};

const TINY: [&str; 8] = [
    "--set",
    "model.layers=1",
    "--set",
    "model.width=16",
    "--set",
    "model.context=8",
    "--set",
    "model.heads=2",
];

fn refused(output: &Output, want: &str) {
    let told = said(output).1;
    assert_eq!(output.status.code(), Some(2), "{told}");
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with(&format!("error: {want}")), "{told}");
    assert_eq!(told.matches("error: ").count(), 1, "{told}");
}

#[test]
fn a_model_goes_out_and_begins_another_run_and_what_cannot_is_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    train(
        folder,
        "home",
        &[&TINY[..], &["--model", "llama", "--set", "model.tied=false"]].concat(),
    );
    let out = dnode(folder, &["export", "out", "--from", "home"]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(said(&out).0, "out is a LlamaForCausalLM of 5136 parameters\n");

    // Without a word about the model: all of it is in the folder. A checkpoint is as good.
    for (home, from) in [("second", "out"), ("third", "home")] {
        train(folder, home, &["--init", from]);
        let show = dnode(folder, &["config", "show", "--init", from]);
        let shown = said(&show).0;
        for line in ["kind = \"llama\"", "width = 16", "tied = false", "context = 8"] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
    }
    let digest = |home: &str| {
        let lines = fs::read_to_string(folder.join(home).join("metrics.jsonl")).unwrap();
        let start: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        start["weights"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest("second"), digest("third"), "the same weights");
    assert_ne!(digest("home"), digest("second"), "which were trained");

    train(folder, "digits", &["--data", "digits", "--set", "model.hidden=[8]"]);
    for (words, want) in [
        (&["out", "--from", "home"][..], "export to out: it is there and not empty"),
        (
            &["mlp", "--from", "digits"],
            "export digits/checkpoints/000000000003/parameters.safetensors: its model is \"mlp\"",
        ),
        (&["new", "--from", "nowhere"], "no checkpoint in nowhere: name a data directory"),
    ] {
        refused(&dnode(folder, &[&["export"], words].concat()), want);
    }
    assert!(!folder.join("mlp").exists() && !folder.join("new").exists());

    let refuses = |flags: &[&str], want: &str| refused(&join(folder, "other", flags), want);
    refuses(&["--init", "nowhere"], "the model nowhere: no such folder");
    let other = ["--set", "model.weights=0123456789abcdef"];
    let want = format!(
        "the weights out: their digest is {}, expected 0123456789abcdef, which the run begins with",
        digest("second")
    );
    refuses(&[&["--init", "out"], &other[..]].concat(), &want);
    let alone = [&["--data", "shakespeare"], &other[..]].concat();
    refuses(&alone, "model.weights = \"0123456789abcdef\" in --set does not go with gossip.rule");
    refuses(&["--set", "model.weights=abc"], "model.weights = \"abc\" in --set is not legal");
    let wide = ["--init", "out", "--set", "model.width=20"];
    refuses(&wide, "the weights out/model.safetensors: tensor \"model.embed_tokens.weight\"");
    let bytes = fs::read(folder.join("out/model.safetensors")).unwrap();
    fs::write(folder.join("out/model.safetensors"), &bytes[..bytes.len() - 4]).unwrap();
    let torn = "the weights out/model.safetensors: not a whole safetensors file: its header tells";
    refuses(&["--init", "out"], torn);
    fs::write(folder.join("out/config.json"), json!({ "model_type": "bert" }).to_string()).unwrap();
    refuses(&["--init", "out"], "the model out/config.json: model_type is \"bert\", expected");
    // A checkpoint whose bytes are not those that were written is not exported.
    let path = folder.join("home/checkpoints/000000000003/parameters.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let want = "export home/checkpoints/000000000003/parameters.safetensors: parameters.safetensors: expected BLAKE3 ";
    refused(&dnode(folder, &["export", "new", "--from", "home"]), want);
}

const LORA: [&str; 4] = ["--init", "out", "--set", "model.lora_rank=2"];

#[test]
fn adapters_are_used_with_their_base_and_merged_into_it_and_faults_are_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let untied = [&TINY[..], &["--model", "llama", "--set", "model.tied=false"]].concat();
    for (home, out, seed) in [("home", "out", "1"), ("home2", "out2", "2")] {
        train(folder, home, &[&untied[..], &["--seed", seed]].concat());
        assert!(dnode(folder, &["export", out, "--from", home]).status.success());
    }
    let fast = ["--set", "optimizer.learning_rate=20", "--set", "optimizer.warmup_steps=0"];
    train(folder, "fine", &[&LORA[..], &fast].concat());

    let done = |words: &[&str]| {
        let output = dnode(folder, words);
        assert!(output.status.success(), "{output:?}");
        said(&output).0
    };
    // Queries and values of one layer: 2·(16 + 16) and 2·(16 + 8).
    let told = done(&["export", "adapters", "--from", "fine"]);
    assert_eq!(told, "adapters has adapters for a LlamaForCausalLM of 112 parameters\n");
    let mut files: Vec<_> = fs::read_dir(folder.join("adapters")).unwrap().collect();
    files.sort_by_key(|file| file.as_ref().unwrap().file_name());
    let names = files.into_iter().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.eq(["adapter_config.json", "adapter_model.safetensors"]));
    let told = done(&["export", "merged", "--from", "fine", "--merge", "--base", "out"]);
    assert_eq!(told, "merged is a LlamaForCausalLM of 5136 parameters\n");

    // The merged model is one like any other, and says what base and adapters say together.
    let loss = |words: &[&str]| {
        let eval = ["eval", "--data", "shakespeare", "--held-out", "--json"];
        let told: Value = serde_json::from_str(&done(&[&eval[..], words].concat())).unwrap();
        told["loss"].as_f64().unwrap()
    };
    let together = loss(&["fine", "--base", "out"]);
    train(folder, "again", &["--init", "merged", "--set", "optimizer.learning_rate=1e-9"]);
    let merged = loss(&["again"]);
    assert!((together - merged).abs() < 1e-5 * together, "{together} {merged}");
    let base = loss(&["home"]);
    assert!((together - base).abs() > 1e-4, "the adapters count: {together} {base}");
    let write = ["generate", "fine", "--length", "20"];
    assert!(done(&[&write[..], &["--base", "out"]].concat()).len() > 20);

    let fails = |words: &[&str], want: &str| refused(&dnode(folder, words), want);
    let parameters = "fine/checkpoints/000000000003/parameters.safetensors";
    let alone = format!("{parameters} holds adapters alone: name the folder of the weights");
    fails(&write, &alone);
    fails(&["eval", "fine", "--data", "shakespeare"], &alone);
    fails(&[&write[..], &["--base", "out2"]].concat(), "the weights out2: their digest is ");
    let merge = ["export", "new", "--merge", "--from"];
    fails(
        &[&merge[..], &["fine", "--base", "out2"]].concat(),
        "the weights out2: their digest is ",
    );
    let whole = "home/checkpoints/000000000003/parameters.safetensors holds a whole model, which";
    fails(&[&merge[..], &["home", "--base", "out"]].concat(), whole);
    let missing = dnode(folder, &[&merge[..], &["fine"]].concat());
    refused(&missing, "the following required arguments were not provided: --base <DIR>");
    assert!(!folder.join("new").exists());

    let refuses = |flags: &[&str], want: &str| refused(&join(folder, "other", flags), want);
    refuses(&["--init", "fine"], &format!("the model {parameters}: they are adapters alone"));
    refuses(&LORA[2..], "model.lora_rank = 2 in --set does not go with model.init = unset");
    let other = [&LORA[..], &["--set", "model.weights=0123456789abcdef"]].concat();
    refuses(&other, "the weights out: their digest is ");
    let unknown = [&LORA[..], &["--set", "model.lora_targets=qkv"]].concat();
    refuses(&unknown, "model.lora_targets = [\"qkv\"] in --set is not legal: must be");
    let of_gpt = [&LORA[..], &["--set", "model.lora_targets=c_attn"]].concat();
    refuses(
        &of_gpt,
        "model.lora_targets = [\"c_attn\"] is out of range: expected some of down_proj",
    );
    let high = [&LORA[..2], &["--set", "model.lora_rank=9"]].concat();
    refuses(
        &high,
        "model.lora_rank = 9 is out of range: expected at most 8, the shorter side of model",
    );
}
