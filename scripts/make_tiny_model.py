"""Writes a tiny Llama model directory (config and tokenizer, no weights) that vLLM starts with
`--load-format dummy`.

Nothing is downloaded: the byte-level BPE tokenizer is trained here on a few sentences, so any text, Chinese
included, has tokens. Run it with the Python of the engine environment: `python scripts/make_tiny_model.py
DIRECTORY`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

SENTENCES = [
    "The tide rises and the gate holds the flood until there is room behind it.",
    "A request waits in the queue, is admitted when it fits, and leaves the cache when it ends.",
    "Numbers: 0 1 2 3 4 5 6 7 8 9 10 100 1000; names: alpha beta gamma delta word token prompt answer.",
    "潮水上涨时，闸门让请求排队，等缓存有空位再放行。",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Two layers with heads of dimension 64: the CPU attention kernel refuses smaller ones."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        architectures=["LlamaForCausalLM"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )


def main() -> None:
    """Writes the model to the directory named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: make_tiny_model.py DIRECTORY")
    directory = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    make_config(tokenizer).save_pretrained(directory)


if __name__ == "__main__":
    main()
