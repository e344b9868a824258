"""Reads a dnode checkpoint and the data it is evaluated on; docs/models.md says what the names mean."""
import gzip
import json
from pathlib import Path

import torch
from safetensors import safe_open


def read(path):
    """The metadata of a file of parameters, those in JSON parsed, and its tensors by name; as `folder`, where it is."""
    with safe_open(path, "pt") as file:
        told = {name: parsed(text) for name, text in file.metadata().items()}
        told["folder"] = Path(path).parent
        return told, {name: file.get_tensor(name) for name in file.keys()}


def parsed(text):
    return json.loads(text) if text[:1] in ("{", "[") else text


def held_out(told, path):
    """The held-out samples, as the model takes them, and their targets; `path` as dnode's data.path."""
    data, source = told["data"], told["input"]
    if data["kind"] in ("text", "shakespeare"):
        rest, context = torch.tensor(tokens(told, content(path).decode())[data["train"]:]), source["context"]
        count = data["held_out_windows"] * context
        return rest[:count].view(-1, context), rest[1:count + 1].view(-1, context)
    size = source["height"] * source["width"]
    if data["kind"] == "digits":
        records = image_bytes(content(path)).view(-1, size + 1)[data["held_out_indices"]]
        pixels, labels = records[:, :size], records[:, size]
    else:
        pixels = image_bytes(content(idx(path, "t10k-images"))[16:]).view(-1, size)
        labels = image_bytes(content(idx(path, "t10k-labels"))[8:])
    return ((pixels.double() - source["mean"]) / source["deviation"]).float(), labels.long()


def tokens(told, text):
    """The tokens of a text; where a tokenizer makes them, needs Python's `tokenizers`."""
    vocabulary = told["vocabulary"]
    if vocabulary["kind"] == "characters":
        numbers = {character: token for token, character in enumerate(vocabulary["characters"])}
        return [numbers[character] for character in text]
    if vocabulary["kind"] == "tokenizer":
        # Byte-level ones give the tokens of the whole, although dnode cuts a text into pieces.
        return tokenizer(told).encode(text, add_special_tokens=False).ids
    return list(text.encode())


def tokenizer(told):
    """The tokenizer that is stored beside the parameters."""
    from tokenizers import Tokenizer

    stored = Tokenizer.from_file(str(told["folder"] / told["vocabulary"]["file"]))
    stored.no_truncation()
    stored.no_padding()
    return stored


def content(path):
    data = Path(path).read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def idx(folder, stem):
    return next(path for path in sorted(Path(folder).iterdir()) if path.name.startswith(stem))


def image_bytes(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def loss(model, inputs, targets, samples=64):
    """Mean cross-entropy over all targets, in nats, and the share that is predicted right."""
    total, right = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(inputs), samples):
            logits = model(inputs[at:at + samples]).flatten(0, -2).double()
            wanted = targets[at:at + samples].flatten()
            total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").item()
            right += (logits.argmax(-1) == wanted).sum().item()
    return total / targets.numel(), right / targets.numel()
