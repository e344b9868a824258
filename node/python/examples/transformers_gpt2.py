"""A `Trainer` of Hugging Face `transformers` trains a small GPT-2 in a swarm, by a callback.

    pip install 'transformers[torch]'
    python -m dnode.launch -n 2 node/python/examples/transformers_gpt2.py
    python node/python/examples/transformers_gpt2.py --text FILE --layers 6 --heads 6 --width 384 --context 256

The model is made from a configuration, at random: nothing is downloaded. Without `--text` the text is the
repository's documentation, docs/*.md, by bytes. Its last tenth is held out.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dnode.transformers import SwarmCallback

import nanogpt


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Windows of `context` bytes of a text, one after the other."""

    def __init__(self, text: torch.Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return len(self.text) // self.context

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.text[index * self.context : (index + 1) * self.context]
        return {"input_ids": window, "labels": window}


def main() -> None:
    words = nanogpt.arguments(__doc__)
    words.add_argument("--accumulate", type=int, default=2, help="batches of a step")
    words.add_argument("--output", type=Path, help="a folder for checkpoints; a temporary one if not given")
    given = words.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=nanogpt.BYTES, n_positions=given.context, n_embd=given.width, n_layer=given.layers,
        n_head=given.heads, bos_token_id=0, eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    text = nanogpt.load(given.text)
    held_out = text[-len(text) // 10 :][: 16 * given.context]
    output = given.output or Path(tempfile.mkdtemp(prefix="dnode-transformers-"))
    args = TrainingArguments(
        output_dir=str(output), max_steps=given.steps, per_device_train_batch_size=given.batch,
        gradient_accumulation_steps=given.accumulate, learning_rate=given.learning_rate, logging_steps=20,
        save_steps=50, save_total_limit=2, report_to=[], disable_tqdm=True,
        # Each peer has its own order of the windows.
        data_seed=int(os.environ.get("DNODE_LAUNCH_RANK", os.getpid())),
    )
    callback = SwarmCallback(run="transformers", ticket=given.ticket, local_steps=10)
    trainer = Trainer(
        model, args, train_dataset=Windows(text[: -len(text) // 10], given.context),
        eval_dataset=Windows(held_out, given.context), callbacks=[callback],
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    swarm = callback.swarm
    assert swarm is not None
    outcome = swarm.leave()
    print(
        f"END before={before:.4f} after={after:.4f} exchanges={outcome['exchanges']} reason={swarm.membership} "
        f"steps={swarm.last_step.index} samples={outcome['samples']} taken={trainer.state.global_step} "
        f"peers={max(entry.get('swarm_peers', 0) for entry in trainer.state.log_history):.0f}"
    )


if __name__ == "__main__":
    main()
