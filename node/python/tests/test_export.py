"""`transformers` opens what `dnode export` writes, with equal logits, and `--init` takes what it saves."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT

#: Set where the packages must be there; elsewhere a machine without them leaves these tests out.
MUST = "DNODE_TEST_PACKAGES" in os.environ
transformers = importlib.import_module("transformers") if MUST else pytest.importorskip("transformers")
sys.path.insert(0, str(ROOT / "testnet" / "pytorch"))
import checkpoint  # noqa: E402
import gpt  # noqa: E402
import llama  # noqa: E402

#: Largest difference of a logit, relative to the largest: sums are added up in another order.
TOLERANCE = 1e-5
SMALL = ["--set", "model.width=24", "--set", "model.heads=3", "--set", "model.context=11"]
MODELS = {
    "gpt": ["--model", "gpt", "--set", "model.layers=2"],
    "llama": ["--model", "llama", "--set", "model.layers=3", "--set", "model.inner=31"],
    "untied": ["--model", "llama", "--set", "model.tied=false", "--set", "model.key_value_heads=1",
               "--set", "model.norm_epsilon=0.001", "--set", "model.rotary_base=500.0"],
    "stretched": ["--model", "llama", "--set", "model.rotary_scaling=linear", "--set", "model.rotary_factor=3.0"],
}


def dnode(folder: Path, *words: str) -> str:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "release" / "dnode"
    done = subprocess.run([str(program), *words], cwd=folder, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(folder: Path, home: str, *flags: str) -> None:
    alone = ["--no-mdns", "--rule", "none", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--set", "run.batch=4"]
    dnode(folder, "join", "--data-dir", home, *alone, *flags)


def opened(folder: Path) -> Any:
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"], told
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_logits_of_an_exported_model(name: str, tmp_path: Path) -> None:
    train(tmp_path, "home", "--steps", "20", *SMALL, *MODELS[name])
    dnode(tmp_path, "export", "out", "--from", "home")
    theirs = opened(tmp_path / "out")
    file = next((tmp_path / "home").glob("checkpoints/*/parameters.safetensors"))
    metadata, tensors = checkpoint.read(file)
    ours = (gpt if name == "gpt" else llama).load(metadata, tensors).eval()
    tokens = torch.randint(metadata["model"]["vocabulary"], (3, 11), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        want, got = ours(tokens), theirs(input_ids=tokens).logits
    assert got.shape == want.shape
    error = float((got - want).abs().max() / want.abs().max())
    print(name, "largest relative error of a logit", error)
    assert error <= TOLERANCE, error


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=20, n_head=2, n_layer=2, vocab_size=70, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def grouped() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, intermediate_size=40, num_hidden_layers=2,
        vocab_size=67, max_position_embeddings=12, rope_theta=700.0)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("make,kind,shard", [
    (gpt2, torch.float32, "10GB"), (gpt2, torch.float16, "8KB"),
    (grouped, torch.bfloat16, "10GB"), (grouped, torch.float32, "8KB"),
])
def test_what_transformers_saves_is_what_a_run_begins_with(make: Any, kind: Any, shard: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = make()
    for parameter in model.parameters():
        parameter.data.normal_()
    model = model.to(kind)
    model.save_pretrained(tmp_path / "in", max_shard_size=shard)
    files = [file.name for file in (tmp_path / "in").glob("*.safetensors")]
    assert (len(files) > 1) == (shard == "8KB"), files
    # A step so small that it moves no number that is not zero.
    small = ["--set", "optimizer.learning_rate=1e-30", "--set", "optimizer.warmup_steps=0"]
    train(tmp_path, "home", "--init", "in", "--steps", "1", *small)
    dnode(tmp_path, "export", "out", "--from", "home")
    again = opened(tmp_path / "out").state_dict()
    for name, tensor in model.float().state_dict().items():
        assert torch.equal(again[name], tensor), name
    told = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("in", "out")]
    assert told[0]["architectures"] == told[1]["architectures"]


def exported_with_tokens(folder: Path) -> Path:
    dnode(folder, "tokenizer", "train", "--data", "shakespeare", "--vocabulary", "300", "--out", "tokens.json")
    train(folder, "home", "--steps", "30", *SMALL, *MODELS["untied"], "--tokenizer", "tokens.json",
          "--set", "optimizer.learning_rate=0.02")
    dnode(folder, "export", "out", "--from", "home")
    return folder / "out"


@pytest.mark.parametrize("llama", [False, True])
def test_dnode_writes_what_transformers_writes(llama: bool, tmp_path: Path) -> None:
    """Greedily, from the export alone, with and without a token that the tokenizer puts before a text."""
    out = exported_with_tokens(tmp_path)
    if llama:
        told = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
        (out / "tokenizer_config.json").write_text(json.dumps({**told, "unk_token": None, "legacy": False}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == 300 and tokenizer.eos_token_id == 0
    assert (tokenizer("ROMEO:").input_ids[0] == 0) == llama
    model = opened(out)
    assert model.config.eos_token_id == 0
    for prompt in ["ROMEO:", "the king"]:
        tokens = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        left = 11 - tokens.input_ids.shape[1]
        assert left > 2, tokens
        written = model.generate(**tokens, max_new_tokens=left, do_sample=False, pad_token_id=0)
        want = tokenizer.decode(written[0], skip_special_tokens=True)
        words = ["generate", "out", "--prompt", prompt, "--length", str(left), "--temperature", "1e-9"]
        assert dnode(tmp_path, *words) == want + "\n"


def test_dnode_answers_as_transformers_would(tmp_path: Path) -> None:
    """Likelihoods of choices behind a context, summed over their tokens, as they are and per character."""
    out = exported_with_tokens(tmp_path)
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(out), opened(out)
    words = ["the", "and", "king", "to be", "O, my", "thou", "it", "not", "I", "lord"]
    questions, right, differ = [], [0, 0], 0
    drawn = random.Random(3)
    for _ in range(60):
        context, choices, answer = drawn.choice(words), drawn.sample(words, 3), drawn.randrange(3)
        costs = []
        for choice in choices:
            before = len(tokenizer(context).input_ids)
            tokens = torch.tensor([tokenizer(f"{context} {choice}").input_ids])
            assert tokens.shape[1] <= 12, tokens
            with torch.no_grad():
                told = model(input_ids=tokens[:, :-1]).logits.log_softmax(-1)[0]
            costs.append(-float(told.gather(1, tokens[0, 1:, None])[before - 1:].sum()))
        each = [cost / len(choice) for cost, choice in zip(costs, choices, strict=True)]
        picks = [numbers.index(min(numbers)) for numbers in (costs, each)]
        right = [count + (pick == answer) for count, pick in zip(right, picks, strict=True)]
        differ += picks[0] != picks[1]
        questions.append({"context": context, "choices": choices, "answer": answer})
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, questions)))
    told = json.loads(dnode(tmp_path, "eval", "out", "--choices", "tasks.jsonl", "--json"))
    assert [told["accuracy"], told["accuracy_normalised"]] == [count / 60 for count in right], told
    assert told["chance"] == pytest.approx(1 / 3) and differ > 0
