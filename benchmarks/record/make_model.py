"""Write a tiny random Llama and a byte-level tokenizer for recording server logs.

The weights are random, so the answers are noise.  The engine neither knows nor
cares: it schedules, batches, preempts and logs as it would for a real model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

VOCAB_SIZE = 320
SPECIAL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}<|assistant|>"
)


def write_tokenizer(folder: Path) -> int:
    """Save a tokenizer with one token per byte and return its end-of-text id."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL_TOKENS[0])
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return int(fast.eos_token_id)


def write_weights(folder: Path, eos_token_id: int, layers: int, seed: int) -> int:
    """Save a random bfloat16 Llama and return its number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=eos_token_id,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Parse the arguments and write the model folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder to write, made if missing")
    parser.add_argument("--layers", type=int, default=4, help="decoder layers (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    eos_token_id = write_tokenizer(args.folder)
    count = write_weights(args.folder, eos_token_id, args.layers, args.seed)
    print(f"{args.folder}: {count:,} parameters, end-of-text id {eos_token_id}")


if __name__ == "__main__":
    main()
