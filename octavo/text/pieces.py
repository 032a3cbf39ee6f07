"""Token strings to bytes: what a tokenizer's decoder does to one token, read from its description.

Text is then those bytes, one token after the other, decoded as UTF-8. Decoders of generative models are of two kinds:
byte-level (every character of a token string stands for one byte) and SentencePiece-like (replace U+2581 by a space,
`<0xNN>` tokens are bytes, perhaps one space less at the start of the text).
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from octavo.errors import LoadError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@cache
def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (Radford et al., GPT-2): printable Latin-1 stands for itself, the other bytes
    for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return alphabet


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """The `errors` handler of byte-fallback tokens: one U+FFFD for every byte, as the tokenizers library gives."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("octavo.each_byte", _replace_each_byte)


@dataclass
class PieceDecoder:
    """The parts of a decoder that matter, in the order in which they act."""

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    separator: str = ""  # between tokens, where there is no decoder at all
    strip_character: str = " "
    strip_count: int = 0  # leading characters of the whole text that are dropped
    bare_first_token: bool = False  # the first token loses every replaced character

    @property
    def errors(self) -> str:
        """How bytes that are no UTF-8 turn into U+FFFD: one for each ill-formed sequence, or one for each byte."""
        return "octavo.each_byte" if self.byte_fallback else "replace"

    def piece(self, token: str) -> bytes:
        """The bytes of one token string."""
        if self.byte_level:
            alphabet = byte_alphabet()
            try:
                return bytes([alphabet[character] for character in token])
            except KeyError:  # an added token, spelled as it is
                return token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        return token.encode()


def read_decoder(description: bytes | None) -> PieceDecoder:
    """From the JSON of a tokenizer's decoder. LoadError names a decoder that no generative model is known to use."""
    decoder = PieceDecoder()
    if description is None:
        decoder.separator = " "
        return decoder
    fused = False
    for step in _steps(json.loads(description)):
        kind = step["type"]
        if kind == "ByteLevel":
            decoder.byte_level = True
        elif kind == "Replace" and "String" in step["pattern"]:
            decoder.replacements += ((step["pattern"]["String"], step["content"]),)
        elif kind == "ByteFallback":
            decoder.byte_fallback = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and not step["stop"]:
            decoder.strip_character, decoder.strip_count = step["content"], step["start"]
        elif kind == "Metaspace":
            decoder.replacements += ((step["replacement"], " "),)
            decoder.bare_first_token = step.get("prepend_scheme", "always") != "never"
        else:
            raise LoadError(f"tokenizer.json: a decoder of type {kind!r} is not supported for generating text")
    return decoder


def _steps(description: dict[str, Any]) -> list[dict[str, Any]]:
    if description["type"] == "Sequence":
        return [step for part in description["decoders"] for step in _steps(part)]
    return [description]
