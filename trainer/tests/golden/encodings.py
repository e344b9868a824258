"""Writes tokenizers.json: small tokenizers of several kinds, and what Python's `tokenizers` makes of texts.

    python3 trainer/tests/golden/encodings.py

Made with tokenizers 0.19.1; trainer/src/tokenizer/tests.rs compares.
"""

import gzip
import json
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
TEXT = gzip.open(HERE.parent.parent / "data" / "shakespeare.txt.gz", "rt", encoding="utf-8").read()
SAMPLES = [
    "",
    "First Citizen:\nWe'll hear, my lord!  You 're 12345 <|endoftext|>late.",
    "a\n\nb \n c\r\nd\t\te   ",
    "Grüße aus 東京 \u2014 na\u00efve caf\u00e9 e\u0301 \U0001f600\U0001f468\u200d\U0001f469",
    " leading and trailing ",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )


def llama3():
    tokenizer, trainer = gpt2()
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    return tokenizer, trainer


def llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    return tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )


golden = {}
for make in [gpt2, llama3, llama2, bert, unigram]:
    tokenizer, trainer = make()
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True)[:2000], trainer)
    # As files of models often have them: they must not shorten a text.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding()
    told = json.loads(tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in SAMPLES]
    decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded]
    cases = [{"text": t, "ids": i, "decoded": d} for t, i, d in zip(SAMPLES, encoded, decoded)]
    golden[make.__name__] = {"tokenizer": told, "cases": cases}
(HERE / "tokenizers.json").write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")
