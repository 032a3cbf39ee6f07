"""The tokenizer: text to ids, and what each id stands for. Built on the `tokenizers` library, from a model directory
(tokenizer.json, or what can be converted to it) or from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ValidationError
from octavo.text.detokenizer import Detokenizer
from octavo.text.pieces import PieceDecoder, read_decoder

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    `special_tokens` are the named ones (bos_token, eos_token, ...) with their texts, as templates see them;
    `chat_templates` the named chat templates ("default" is the ordinary one); `eos_token_ids` every id that the
    tokenizer's own files say ends an answer. `vocab_size` is counted if it is not given.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str],
        chat_templates: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        self._backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_templates = dict(chat_templates or {})
        added = backend.get_added_tokens_decoder()
        self.added_ids: frozenset[int] = frozenset(added)
        self.special_ids: frozenset[int] = frozenset(id for id, token in added.items() if token.special)
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        self.pad_token_id = self._id_of("pad_token")
        own = () if self.eos_token_id is None else (self.eos_token_id,)
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *eos_token_ids]))
        bos = self.bos_token_id
        self._adds_bos = bos is not None and backend.encode("").ids[:1] == [bos]
        self._vocab_size = vocab_size
        self._pieces: dict[int, bytes] = {}
        self.ascii_texts: dict[int, str] = {}  # of tokens that are not added ones, as the detokenizers meet them

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    @cached_property
    def pieces(self) -> PieceDecoder:
        """How token strings turn into bytes. LoadError for a decoder that generates no text (BERT's)."""
        decoder = self._backend.decoder
        return read_decoder(None if decoder is None else decoder.__getstate__())

    @property
    def vocab_size(self) -> int:
        """The largest id, of the added tokens too, plus one. The model may have more rows (padding), or fewer."""
        if self._vocab_size is None:  # counting takes a while, and not everybody asks
            self._vocab_size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        return self._vocab_size

    @cached_property
    def max_chars_per_token(self) -> int:
        """Length of the longest token string: n tokens never hold more than n times as many characters."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; special tokens written in it are recognised. With `add_special_tokens`, what the tokenizer puts
        round a text (BOS, EOS) is added, but no second BOS where the text begins with one.

        ValidationError for a lone surrogate, which no text can hold.
        """
        try:
            # as a batch of one: only batches let other threads run meanwhile, and this kind computes no offsets
            batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = batch[0].ids
        except TypeError:
            raise ValidationError(_surrogate_message(text), parameter="prompt") from None
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_token_id]:
            del ids[0]
        return ids

    def encode_within(self, text: str, limit: int, side: str, add_special_tokens: bool = True) -> tuple[list[int], int]:
        """As `encode`, but of at most `limit` tokens: what the tokenizer puts round a text stays, and the text is cut, on
        the left or the right. The second number is how many tokens were dropped. ValidationError where not even what is put
        round it fits."""
        (content,) = self._contents([text])
        room = limit - (self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0)
        dropped = max(0, len(content.ids) - room)
        if room < 1:
            raise ValidationError(_no_room_message(limit), parameter="truncate_prompt_tokens", value=limit)
        content.truncate(room, direction=side)
        return list(self._backend.post_process(content, None, add_special_tokens).ids), dropped

    def first_tokens(self, text: str, limit: int) -> str:
        """As much of a text, from its start, as has `limit` tokens."""
        encoding = self._backend.encode(text, add_special_tokens=False)  # with offsets
        return text if len(encoding.ids) <= limit else text[: encoding.offsets[limit - 1][1]]

    def encode_pair(
        self, first: str, second: str, limits: tuple[int | None, int | None], limit: int | None, side: str
    ) -> tuple[list[int], int | None, int]:
        """Two texts as one input: its ids, where the second type of tokens begins (None: there is none), and how many tokens
        were dropped to leave each text at most its own of `limits`, and all of it `limit`, for which the longer text is cut
        first."""
        contents = self._contents([first, second])
        sizes = [len(content.ids) for content in contents]
        keep = [size if most is None else min(size, most) for size, most in zip(sizes, limits, strict=True)]
        if limit is not None:
            room = limit - self._backend.num_special_tokens_to_add(True)
            if room < 2:
                raise ValidationError(_no_room_message(limit), parameter="truncate_prompt_tokens", value=limit)
            keep = _longest_first(keep, room)
        for content, size in zip(contents, keep, strict=True):
            content.truncate(size, direction=side)
        joined = self._backend.post_process(contents[0], contents[1], True)
        types: list[int] = joined.type_ids
        return list(joined.ids), types.index(1) if 1 in types else None, sum(sizes) - sum(keep)

    def _contents(self, texts: list[str]) -> list[Encoding]:
        """Without what is put round a text. ValidationError for a lone surrogate."""
        try:
            return self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            text = next(text for text in texts if any("\ud800" <= character <= "\udfff" for character in text))
            raise ValidationError(_surrogate_message(text), parameter="prompt") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids` as a text of its own; ids that stand for nothing are left out."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push_all(token_ids) + detokenizer.finish()

    def join(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids` as the tokenizers library has it, special tokens included: of any tokenizer, also of one
        whose tokens alone do not say what they add to a text."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it ("Ġworld"); "" for an id that stands for nothing."""
        return (self._backend.id_to_token(token_id) or "") if 0 <= token_id < 2**32 else ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text (b" world"); perhaps only a part of a character."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self.pieces.piece(self.token_text(token_id))
            if piece:
                self._pieces[token_id] = piece
        return piece


def _surrogate_message(text: str) -> str:
    position = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    return f"The text is not valid Unicode: it holds a lone surrogate at character {position}"


def _no_room_message(limit: int) -> str:
    return f"truncate_prompt_tokens {limit} leaves no room for a text beside the tokens that the tokenizer adds; give more"


def _longest_first(sizes: list[int], room: int) -> list[int]:
    """Two sizes that together fit into the room: tokens are taken from whichever is longer."""
    shorter = min(min(sizes), room // 2) if sum(sizes) > room else min(sizes)
    longer = min(max(sizes), room - shorter)
    return [shorter, longer] if sizes[0] < sizes[1] else [longer, shorter]


def load_tokenizer(path: Path) -> Tokenizer:
    """From a directory or a .gguf file. LoadError says which file is missing or cannot be read."""
    if path.suffix == ".gguf":
        from octavo.text.gguf_tokenizer import tokenizer_from_gguf
        from octavo.weights.gguf_header import read_header

        return tokenizer_from_gguf(read_header(path).metadata)
    from octavo.text.hf_tokenizer import tokenizer_from_directory

    return tokenizer_from_directory(path)
