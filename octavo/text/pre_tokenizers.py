"""How byte-level BPE vocabularies cut a text before merging, by the name that GGUF files give (`tokenizer.ggml.pre`).

The rules are those of the models' own tokenizer.json; a GGUF file holds only the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import PreTokenizer

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_ENDS = _ENDS.replace(r"[\r\n]*|", r"[\r\n/]*|", 1)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"

_LLAMA3 = rf"{_ENGLISH}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}{_ENDS}"
_QWEN2 = rf"{_ENGLISH}|{_BEFORE}\p{{L}}+|\p{{N}}{_ENDS}"
_QWEN35 = rf"{_ENGLISH}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}" + _ENDS.replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}{_SLASH_ENDS}"
_GPT4O = rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENGLISH}?|{_BEFORE}{_UPPER}+{_LOWER}*{_ENGLISH}?|\p{{N}}{{1,3}}{_SLASH_ENDS}"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+" + "[\r\n]*" + r"|\s*" + "[\r\n]+" + r"|\s+(?!\S)|\s+"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


@dataclass(frozen=True)
class PreTokenization:
    """`splits` one after the other; `gpt2` cuts the rest by GPT-2's own rule as well."""

    splits: tuple[str, ...] = ()
    gpt2: bool = False
    nfc: bool = False  # the text is normalised first
    ignore_merges: bool = False  # a whole word of the vocabulary is taken as it is
    add_bos: bool = False  # where the file does not say

    def build(self) -> PreTokenizer:
        """As a pre-tokenizer of the `tokenizers` library, ending in byte characters."""
        from tokenizers import Regex, pre_tokenizers

        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.splits]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        return pre_tokenizers.Sequence([*splits, byte_level])

    def backend(self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Backend:
        """The tokenizer of these tokens in byte characters and pairs of them. ValueError if they do not fit together."""
        import tokenizers
        from tokenizers import decoders, models, normalizers

        check_ids(vocabulary)
        try:
            model = models.BPE(vocab=dict(vocabulary), merges=list(merges), ignore_merges=self.ignore_merges)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"merges do not fit its vocabulary: {error}") from None
        backend = tokenizers.Tokenizer(model)
        if self.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = self.build()
        backend.decoder = decoders.ByteLevel()
        return backend


def check_ids(vocabulary: Mapping[str, int]) -> None:
    """ValueError for a token whose id is none."""
    for token, id in vocabulary.items():
        if type(id) is not int or not 0 <= id < 2**31:
            raise ValueError(f"token {token!r} cannot have the id {id!r}")


_GPT2 = PreTokenization(gpt2=True)
_GPT2_NFC = PreTokenization(gpt2=True, nfc=True)
_DIGITS = PreTokenization((r"\p{N}",), gpt2=True)
_DEFAULT = PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", r"\p{N}+", r"[0-9][0-9][0-9]"), gpt2=True)
_LLAMA3_RULES = PreTokenization((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULES = PreTokenization((_QWEN2,))
_GPT4O_RULES = PreTokenization((_GPT4O,))
_DEEPSEEK3_RULES = PreTokenization((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": _DEFAULT,
    **dict.fromkeys(["gpt-2", "phi-2", "jais", "trillion", "exaone4", "gigachat", "mellum", "granite-docling"], _GPT2),
    **dict.fromkeys(["mpt", "olmo"], _GPT2_NFC),
    **dict.fromkeys(["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"], _DIGITS),
    "command-r": PreTokenization((r"\p{N}",), gpt2=True, nfc=True),
    "falcon": PreTokenization((r"[\p{P}\$\+<=>\^~\|`]+", r"[0-9][0-9][0-9]"), gpt2=True),
    **dict.fromkeys(["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"], _LLAMA3_RULES),
    "midm-2.0": _LLAMA3_RULES,
    **dict.fromkeys(["dbrx", "smaug-bpe", "chatglm-bpe"], PreTokenization((_LLAMA3,))),
    **dict.fromkeys(["glm4", "glm5"], PreTokenization((_LLAMA3,), ignore_merges=True)),
    "qwen2": PreTokenization((_QWEN2,), nfc=True),
    "stablelm2": PreTokenization((_QWEN2,), nfc=True),
    "qwen35": PreTokenization((_QWEN35,), nfc=True),
    **dict.fromkeys(["deepseek-r1-qwen", "megrez", "hunyuan", "kormo", "solar-open", "grok-2"], _QWEN2_RULES),
    "tekken": PreTokenization((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(["gpt-4o", "llama4", "kanana2", "minimax-m2"], _GPT4O_RULES),
    "deepseek-coder": PreTokenization(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    **dict.fromkeys(["deepseek-v3", "hunyuan-dense"], _DEEPSEEK3_RULES),
}
