"""Whether PyTorch computes the held-out loss that dnode did, from a checkpoint's metadata alone.

Arguments: the program dnode, the file trainer/data/digits.bin.gz, and a folder to work in. Trains each
model a little, on data made here where they are not digits, and compares; prints one line for each.
"""
import importlib.util
import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import checkpoint

TOLERANCE = 1e-5
SIDE, CLASSES = 28, 10
# Characters that need care: beyond ASCII, and what JSON escapes.
WORDS = ["peer", "größe", "naïve", "\"both\"", "tab\tand\\slash", "swarm", "τ", "→", "10%"]


def images(folder):
    """Four IDX files: one bright square for each class, and noise; also in the labels, since of a loss
    near nothing no digit would be known in f32."""
    folder.mkdir()
    draw = random.Random(1)
    for part, count in (("train", 600), ("t10k", 200)):
        pixels, labels = bytearray(), bytearray()
        for _ in range(count):
            label = draw.randrange(CLASSES)
            top, left = 2 + 2 * label, 20 - label
            for row in range(SIDE):
                for column in range(SIDE):
                    inside = top <= row < top + 5 and left <= column < left + 5
                    pixels.append(draw.randrange(120, 256) if inside else draw.randrange(100))
            labels.append(draw.randrange(CLASSES) if draw.random() < 0.3 else label)
        header = struct.pack(">4I", 0x0803, count, SIDE, SIDE)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x0801, count) + labels)
    return folder


def text(path, words):
    draw = random.Random(2)
    lines = (" ".join(draw.choice(words) for _ in range(8)) for _ in range(400))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def train(program, folder, flags):
    """dnode's own evaluation of what it wrote, and the file of parameters."""
    # The last commit is at the last step: what is evaluated is then what is written.
    flags += ["--set", "optimizer.learning_rate=0.001"]
    flags += ["--set", "run.seed=3", "--set", "gossip.local_steps=20", "--steps", "60"]
    command = [program, "join", "--no-mdns", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"]
    done = subprocess.run([*command, "--data-dir", folder, *flags], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, flags))}: {done.stderr}")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    final = next(line for line in map(json.loads, lines) if line["kind"] == "final")
    return final, sorted(folder.glob("checkpoints/*/parameters.safetensors"))[-1]


def main(program, digits, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    square = images(folder / "images")
    few = text(folder / "few.txt", WORDS)
    # More than 256 kinds of characters: tokens are bytes.
    many = text(folder / "many.txt", WORDS + [chr(code) for code in range(0x4E00, 0x4F10)])
    gpt = ["--model", "gpt", "--data", "text", "--set", "model.width=32", "--set", "model.layers=2"]
    gpt += ["--set", "model.heads=4", "--set", "model.context=24", "--set", "run.batch=8"]
    llama = ["--model", "llama", *gpt[2:], "--set", "model.inner=44"]
    embedded = ["--data", "digits"]
    runs = {
        "mlp on digits": (digits, [*embedded, "--model", "mlp", "--set", "model.hidden=[48, 24, 16]"]),
        "mlp on images": (square, ["--model", "mlp", "--data", "mnist", "--data-path", square]),
        "cnn on digits": (digits, [*embedded, "--model", "cnn"]),
        "cnn on images": (square, ["--model", "cnn", "--data", "mnist", "--data-path", square]),
        "gpt on characters": (few, [*gpt, "--data-path", few]),
        "gpt on bytes": (many, [*gpt, "--data-path", many]),
        "llama on characters": (few, [*llama, "--data-path", few]),
        "llama, untied": (few, [*llama, "--set", "model.tied=false", "--set", "model.key_value_heads=1",
                                "--data-path", few]),
    }
    if importlib.util.find_spec("tokenizers"):
        made = folder / "tokenizer.json"
        words = [program, "tokenizer", "train", "--data", few, "--vocabulary", "280", "--out", made]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        runs["llama on tokens"] = (few, [*llama, "--data-path", few, "--tokenizer", made])
    wrong = 0
    for name, (data, flags) in runs.items():
        final, parameters = train(program, folder / name.replace(" ", "-"), flags)
        told, tensors = checkpoint.read(parameters)
        model = importlib.import_module(told["model"]["kind"]).load(told, tensors)
        loss, accuracy = checkpoint.loss(model, *checkpoint.held_out(told, data))
        apart = abs(loss - final["loss"]) / abs(final["loss"])
        alike = apart <= TOLERANCE and abs(accuracy - final["accuracy"]) < 1e-3
        wrong += not alike
        print(f"{name:20} dnode {final['loss']:.9f}  PyTorch {loss:.9f}  apart {apart:.1e}"
              f"  accuracy {final['accuracy']:.4f} {accuracy:.4f}  {'' if alike else 'NOT '}alike")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
