"""A model that is served: its engine, and what clients ask about it."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pellucid.architecture import Architecture
from pellucid.edits import EditError
from pellucid.generate.encoder_inputs import encode_source
from pellucid.generate.grammars import Grammar, GrammarCompiler
from pellucid.generate.readers import NO_TAPS, TapFactory
from pellucid.lens.generation_trace import GenerationTrace
from pellucid.model import Transformer
from pellucid.parameter_counts import count_parameters
from pellucid.serve.answer_forms import FormError, form_grammar
from pellucid.serve.engine import Engine
from pellucid.serve.generation import SharedSources, TooLargeError
from pellucid.serve.protocol import MAX_EDITED_TENSORS, EditBody, as_prompts
from pellucid.serve.stepwise import EncoderDecoderEngine, encode_sources_together
from pellucid.tensor_names import select
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: grammars are compiled one after another: neither engines nor other requests wait for them
COMPILING = ThreadPoolExecutor(1, thread_name_prefix="pellucid grammar")
#: bytes of a text that are encoded whatever the context, so that an error can tell the number of tokens
ENCODED_AT_ONCE = 2**16


class Outbox:
    """Puts items into queues of an event loop, from other threads.

    The loop is woken once for all items that are put before it gets to them: a step of 64 sequences wakes it about
    once, not 64 times.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.items: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        self.waking = False

    def put(self, queue: asyncio.Queue[Any], item: Any) -> None:
        """Put an item into a queue; called in any thread."""
        self.items.append((queue, item))
        if not self.waking:
            self.waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits for the item
                self.loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Called in the loop's thread. What is put from here on wakes the loop again."""
        self.waking = False
        while self.items:
            queue, item = self.items.popleft()
            queue.put_nowait(item)


@dataclass
class ServedModel:
    """A model under the name that clients ask for."""

    name: str
    engine: Engine
    chat_template: ChatTemplate | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    last_outbox: Outbox | None = field(init=False, default=None)
    """the outbox of the event loop that asked last; a server has one loop"""
    compilers: dict[frozenset[int], GrammarCompiler] = field(init=False, default_factory=dict)
    """of grammars, by the ids that end a text"""

    @cached_property
    def answer_ends(self) -> frozenset[int]:
        """The tokens that end an answer in a conversation."""
        return frozenset(self.chat_template.end_ids(self.tokenizer)) if self.chat_template else frozenset()

    def outbox(self, loop: asyncio.AbstractEventLoop) -> Outbox:
        """What carries the engine's tokens to this event loop."""
        if self.last_outbox is None or self.last_outbox.loop is not loop:
            self.last_outbox = Outbox(loop)
        return self.last_outbox

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    @property
    def architecture(self) -> Architecture | None:
        """The transformer's architecture, None for another predictor."""
        return self.engine.network.architecture if isinstance(self.engine.network, Transformer) else None

    @property
    def reads_sources(self) -> bool:
        """Whether an encoder reads a source."""
        return isinstance(self.engine, EncoderDecoderEngine)

    def describe(self) -> dict[str, Any]:
        """OpenAI's model object; `meta` as llama.cpp's server gives it, and whether an encoder reads a source."""
        meta = {"n_vocab": self.engine.n_vocab, "n_ctx_train": self.engine.n_ctx, "reads_source": self.reads_sources}
        if (a := self.architecture) is not None:
            meta |= {"n_embd": a.d_model, "n_params": count_parameters(a)["total"]}
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "pellucid", "meta": meta}

    def prompts(
        self, prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], field: str = "prompt"
    ) -> list[list[int]]:
        """Ids of each prompt; those of texts as `encode` gives them. `field` is what the request calls them."""
        self.check_texts(prompt, field)
        return [self.encode(one) for one in as_prompts(prompt)]

    def check_texts(self, prompt: Any, field: str, n_ctx: int = 0) -> None:
        """`check_bytes` of each text."""
        for one in as_prompts(prompt):
            if isinstance(one, str):
                self.check_bytes(one, field, n_ctx)

    @cached_property
    def bytes_per_token(self) -> float:
        """The bytes of the longest token; infinity where tokens do not spell their text."""
        if not self.tokenizer.lossless or self.tokenizer.unknown is not None:
            return math.inf
        return max(len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.n_vocab))

    def check_bytes(self, text: str, field: str, n_ctx: int = 0) -> None:
        """Raise TooLargeError for a long text that a context of so many tokens, the model's unless given, cannot hold,
        before it is encoded.
        """
        n, n_ctx = len(text.encode()), n_ctx or self.engine.n_ctx
        if n > ENCODED_AT_ONCE and n > n_ctx * self.bytes_per_token:
            raise TooLargeError(
                f"the text has {n:,} bytes, and the {n_ctx} tokens of this model's context spell at most "
                f"{n_ctx * self.bytes_per_token:,}: shorten it",
                field,
            )

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Ids of one prompt, with what the model's own tokenizer puts beside a text; the separator for nothing at all.

        Raises ValueError for ids that this model does not know.
        """
        tokenizer = self.tokenizer
        if not isinstance(prompt, str):
            self.check_ids(prompt)
            return list(prompt) or self.encode("")
        return self.with_special_ids(tokenizer.encode(prompt))

    def with_special_ids(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text with what the model reads before and after it, or its encoder where there is one; the
        separator for nothing at all.
        """
        tokenizer = self.tokenizer
        if self.reads_sources:
            return tokenizer.source_ids(ids)
        if self.is_masked:
            return tokenizer.masked_ids(ids) or [tokenizer.separator]
        return tokenizer.prompt_ids(ids)

    @property
    def reads_tools(self) -> bool:
        """Whether the chat template writes the tools that a request names."""
        return self.chat_template is not None and self.chat_template.reads_tools

    @property
    def is_masked(self) -> bool:
        """Whether every position of the network reads both sides."""
        return self.architecture is not None and self.architecture.attention.mask == "bidirectional"

    def targets(self, prompt: Any) -> list[list[int]]:
        """Beginnings of an encoder-decoder's targets: the start token, and what is to follow it."""
        self.check_texts(prompt, "prompt")
        begun = [self.tokenizer.encode(one) if isinstance(one, str) else list(one) for one in as_prompts(prompt)]
        for ids in begun:
            self.check_ids(ids)
        return [[self.tokenizer.start, *ids] for ids in begun]

    def sources(self, source: Any, field: str) -> list[list[int]]:
        """What the encoder reads; ids are read as they are."""
        a = self.architecture
        assert a is not None
        assert a.encoder is not None
        self.check_texts(source, field, a.encoder.n_ctx)
        return [encode_source(self.tokenizer, one) if isinstance(one, str) else list(one) for one in as_prompts(source)]

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise ValueError for ids that the network or the tokenizer does not know."""
        if wrong := [token for token in ids if not 0 <= token < self.engine.n_known]:
            raise ValueError(f"token id {wrong[0]}: this model knows ids from 0 to {self.engine.n_known - 1}")

    def taps(self, edits: Sequence[EditBody] | None) -> TapFactory:
        """What makes a request's edits; EditError for edits that this model does not allow."""
        if not edits:
            return NO_TAPS
        network = self.engine.network
        if not isinstance(network, Transformer):
            raise ValueError("edits: this model is no transformer, so it has no tensors to edit; leave edits out")
        dtype = network.embed.token.weight.dtype
        n_tensors = 0
        try:
            # counted before the values are read and compared with each of their tensors
            for edit in edits:
                n_tensors += len(select(edit.name, network.architecture))
                if n_tensors > MAX_EDITED_TENSORS:
                    raise EditError(
                        f"the edits change more than {MAX_EDITED_TENSORS:,} tensors (a name with * counts each that it "
                        "matches): name fewer"
                    )
            return GenerationTrace(network, [edit.edit(dtype) for edit in edits])
        except KeyError as error:
            raise ValueError(str(error.args[0])) from None

    async def grammar(self, form: tuple[str, Any] | None, ends: frozenset[int]) -> Grammar | None:
        """What a text follows that has the form which a field of a request asks for, and ends with one of these ids.

        Raises FormError for a form that cannot be had.
        """
        if form is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(COMPILING, self.compile_form, *form, ends)

    def compile_form(self, field: str, value: Any, ends: frozenset[int]) -> Grammar:
        """The grammar of the form that a field with this value asks for."""
        try:
            if ends not in self.compilers:
                self.compilers[ends] = GrammarCompiler(self.tokenizer, ends)
            return self.compilers[ends].compile(form_grammar(field, value))
        except ValueError as error:
            raise FormError(field, error) from None

    def shared_sources(self, sources: Sequence[Sequence[int]] | None, taps: TapFactory) -> SharedSources:
        """The encoder's inputs of a request's prompts."""
        if sources is None or not isinstance(self.engine, EncoderDecoderEngine):
            return SharedSources()
        return SharedSources(encode_sources_together(self.engine, sources, taps))

    def token_text(self, token: int) -> str:
        """A token as clients are shown it: a special one by its name, a part of a character as its bytes."""
        for name, special in self.tokenizer.special.items():
            if special == token:
                return name
        data = self.tokenizer.token_bytes(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
