"""Writes what `transformers` computes with small random models, for dnode's models to equal:
    python3 trainer/tests/golden/reference.py [FOLDER]
Needs torch, transformers (made with 4.40.2, stretched positions with 4.44.2; 4.43 is the first with those of
Llama 3.1), safetensors and peft (made with 0.10.0). One file for each model: its configuration in the metadata; the
weights and their gradients under the names of `transformers`, tokens, logits and the mean loss. Files of
adapters have these and their gradients under the names that `peft` saves, and no other gradients.
"""
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

SAMPLES, TOKENS = 2, 7
LLAMAS = {
    "grouped": dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=1, intermediate_size=40,
                    num_hidden_layers=1, vocab_size=61, tie_word_embeddings=False),
    "tied": dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=21,
                 num_hidden_layers=2, vocab_size=29, tie_word_embeddings=True, rope_theta=500.0,
                 rms_norm_eps=1e-3),
    "untied": dict(hidden_size=12, num_attention_heads=2, num_key_value_heads=2, intermediate_size=31,
                   num_hidden_layers=3, vocab_size=13, tie_word_embeddings=False, rope_theta=100000.0),
    "linear": dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=21,
                   num_hidden_layers=1, vocab_size=17, tie_word_embeddings=True,
                   rope_scaling=dict(rope_type="linear", factor=2.5)),
    # Turns within 100 positions: 16, 3.4, 0.7 and 0.2, so that one is between those that stay and stretch.
    "llama3": dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, intermediate_size=19,
                   num_hidden_layers=2, vocab_size=17, tie_word_embeddings=True, rope_theta=500.0,
                   rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=100)),
}
GPT2 = dict(n_embd=20, n_head=2, n_layer=1, vocab_size=37, n_positions=TOKENS, attn_pdrop=0.0,
            embd_pdrop=0.0, resid_pdrop=0.0)
ADAPTERS = {
    "llama": ("grouped", dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj", "o_proj", "up_proj",
                                                                 "down_proj"])),
    "gpt2": (None, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
}


def randomize(model):
    """Large weights, none of them the same, of which half precision loses nothing."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        values = values * (0.2 if parameter.dim() < 2 else 1.5 / parameter.shape[-1] ** 0.5)
        if parameter.dim() < 2 and name.endswith("weight"):
            values = values + 1.0
        parameter.data = values.half().float()


def write(path, model, told, lora=None):
    randomize(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if lora is not None:
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
        adapters = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
        generator = torch.Generator().manual_seed(13)
        for name, parameter in adapters.items():
            values = torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
            parameter.data = values.half().float()
            names[id(parameter)] = name.replace(".default.", ".")
    model.train()
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(model.config.vocab_size, (SAMPLES, TOKENS + 1), generator=generator)
    # The loss of a model with positions for TOKENS tokens alone, as `transformers` has it for labels.
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    if model.config.max_position_embeddings > TOKENS:
        own = model(input_ids=tokens, labels=tokens).loss
        assert abs(own - loss) < 1e-6, (own, loss)
    loss.backward()
    tensors = {"tokens": tokens.int(), "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for parameter in model.parameters():
        name = names[id(parameter)]
        tensors[f"weight.{name}"] = parameter.detach().half()
        if parameter.grad is not None:
            tensors[f"gradient.{name}"] = parameter.grad
    save_file({name: value.contiguous() for name, value in tensors.items()}, path,
              {"config": json.dumps(told, sort_keys=True)})
    print(path, path.stat().st_size, "bytes, loss", float(loss))


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    torch.set_num_threads(1)
    for name, sizes in LLAMAS.items():
        config = LlamaConfig(max_position_embeddings=64, **sizes)
        told = {key: getattr(config, key) for key in [*sizes, "rope_theta", "rms_norm_eps", "model_type"]}
        write(folder / f"llama-{name}.safetensors", LlamaForCausalLM(config), told)
    config = GPT2Config(**GPT2)
    told = {key: getattr(config, key) for key in [*GPT2, "layer_norm_epsilon", "activation_function", "model_type"]}
    write(folder / "gpt2.safetensors", GPT2LMHeadModel(config), told)
    for name, (sizes, lora) in ADAPTERS.items():
        if sizes is not None:
            config = LlamaConfig(max_position_embeddings=64, **LLAMAS[sizes])
            keys = [*LLAMAS[sizes], "rope_theta", "rms_norm_eps", "model_type"]
            model = LlamaForCausalLM(config)
        else:
            config = GPT2Config(**GPT2)
            keys = [*GPT2, "layer_norm_epsilon", "activation_function", "model_type"]
            model = GPT2LMHeadModel(config)
        told = {**{key: getattr(config, key) for key in keys}, **lora}
        write(folder / f"adapters-{name}.safetensors", model, told, lora)


main()
