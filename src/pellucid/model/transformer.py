"""Tokens -> embedding -> blocks -> unembedding -> logits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.model.block import BLOCK, CROSS_BLOCK, BlockInputs
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.dropout import number_dropout_modules
from pellucid.model.embed import EMBED, READOUT
from pellucid.model.norm import Identity, make_norm
from pellucid.model.positions import make_rotary_table, make_shared_score_bias
from pellucid.model.shapes import Embeddings, Encoded, Logits, PositionIds, SourceVisible, Stream, Tokens, Visible
from pellucid.model.tap import OFF, Tap


class Backbone(nn.Module):
    """Tokens to the residual stream behind the last block, normalised where the architecture says so."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.architecture = a
        self.embed = EMBED[a.embed_projection](a)
        self.rotary_table = make_rotary_table(a)
        make_block = (BLOCK if a.encoder is None else CROSS_BLOCK)[a.block]
        self.relative = make_shared_score_bias(a)
        blocks = [make_block(a, layer) for layer in range(a.n_layers)]
        if self.relative is not None:
            for block in blocks:
                block.attn.mask.position_bias = self.relative  # one table, read in every layer
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = make_norm(a) if a.final_norm == "norm" else Identity()

    def hidden(
        self,
        tokens: Tokens,
        *,
        positions: PositionIds | None = None,
        mask: Visible | None = None,
        segments: Tokens | None = None,
        source: Encoded | None = None,
        source_mask: SourceVisible | None = None,
        embeddings: Embeddings | None = None,
        cache: NoCache | None = None,
        tap: Tap = OFF,
    ) -> Stream:
        """The residual stream [batch, pos, d_model] behind the last block and the final norm.

        positions    of each token, [pos] or [batch, pos]; by default 0, 1, ... after what the cache keeps
        mask         True where a query may read a key, [query, key] or [batch, query, key], where the keys include
                     the cache's; it replaces the rule of attention.mask, and windows still narrow it
        segments     kind of each token, for architectures with n_segments
        source       an encoder's output [batch, source_pos, d_model], for blocks that read one; see `encode`
        source_mask  True where a query may read a position of the source
        embeddings   [batch, pos, d_embed, or d_model where this is 0] in place of W_E[tokens]
        cache        a Cache, which is read and extended; it keeps the keys and values of `source` from its first call
        tap          receives every named tensor (`pellucid.tensor_names`) and may replace it

        Raises ValueError when the positions do not fit into n_ctx, when a cache holds the keys of a shorter text that
        has other frequencies (`Architecture.frequency_border`), when blocks read an encoder's output and none is
        given, and when source or segments are given to an architecture that would ignore them.
        """
        self.check(segments, source, source_mask)
        cache = cache or NO_CACHE
        positions = self.positions_after(cache.length, tokens) if positions is None else positions
        if cache.length and self.architecture.frequency_border:
            self.check_border(positions)
        inputs = BlockInputs(self.rotary_table(positions), mask, source, source_mask)
        x = self.embed(tokens, cache.remember(tokens), positions, segments, embeddings, tap)
        for i, block in enumerate(self.blocks):
            x = block(x, inputs, cache[i], tap.at(f"blocks.{i}"))
        cache.advance(tokens.size(1))
        return self.final_norm(x, tap, "final_norm")

    forward = hidden

    def check(self, segments: Tokens | None, source: Encoded | None, source_mask: SourceVisible | None) -> None:
        """Refuse inputs that would be ignored, and an encoder-decoder without its source."""
        if self.architecture.encoder is not None and source is None:
            raise ValueError(
                "this architecture reads an encoder's output and none was given: pass source=encode(tokens)"
            )
        if self.architecture.encoder is None and (source is not None or source_mask is not None):
            raise ValueError(
                "a source was given to an architecture without an encoder: leave source and source_mask out"
            )
        if segments is not None and not self.architecture.n_segments:
            raise ValueError("segments were given to an architecture with n_segments = 0: leave them out")

    def check_border(self, positions: PositionIds) -> None:
        """Refuse to go on with the keys of a text of up to n_trained positions in a longer one."""
        border, first, last = self.architecture.frequency_border, positions.amin(-1), positions.amax(-1)
        if ((first > 0) & (first <= border) & (border <= last)).any():
            raise ValueError(
                f"the cache holds keys of a text of up to positions.n_trained = {border} positions, and longrope has "
                "other frequencies for the longer text: read it from its beginning into an empty cache"
            )

    def positions_after(self, start: int, tokens: Tokens) -> PositionIds:
        """start, start + 1, ..., one for each token; ValueError when they do not fit into the context."""
        end = start + tokens.size(1)
        if end > self.architecture.n_ctx:
            raise ValueError(
                f"{end} positions were given to a model whose context is n_ctx = {self.architecture.n_ctx}: "
                f"pass at most the last {self.architecture.n_ctx} tokens"
            )
        return torch.arange(start, end, device=tokens.device)


class Transformer(Backbone):
    """T: tokens t_1 ... t_n to logits, row i for the token that follows t_i   (Becker-Kahn 4.3; Goon 1.1)"""

    def __init__(self, a: Architecture):
        super().__init__(a)
        self.unembed = READOUT[a.readout](a, self.embed)
        self.encoder = None if a.encoder is None else Backbone(a.encoder)
        if self.encoder is not None and a.source_embed == "shared":
            self.encoder.embed.token = self.embed.token
        number_dropout_modules(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        # a move that makes new parameters (`to_empty`) makes one for each name, tied or not
        super()._apply(fn, recurse)
        if self.architecture.unembed == "tied" and self.architecture.readout != "none":
            self.unembed.weight = self.embed.token.weight
        return self

    def forward(
        self,
        tokens: Tokens,
        *,
        positions: PositionIds | None = None,
        mask: Visible | None = None,
        segments: Tokens | None = None,
        source: Encoded | None = None,
        source_mask: SourceVisible | None = None,
        embeddings: Embeddings | None = None,
        cache: NoCache | None = None,
        tap: Tap = OFF,
    ) -> Logits:
        """Logits [batch, pos, n_vocab] of the token after each of `tokens` [batch, pos]; arguments as for `hidden`.

        Raises ValueError as `hidden` does, and ReadoutError where readout = none: `hidden` then gives all there is.
        """
        x = self.hidden(
            tokens,
            positions=positions,
            mask=mask,
            segments=segments,
            source=source,
            source_mask=source_mask,
            embeddings=embeddings,
            cache=cache,
            tap=tap,
        )
        return tap("logits", self.unembed(x))

    def encode(self, tokens: Tokens, mask: Visible | None = None, tap: Tap = OFF) -> Encoded:
        """The encoder's output for the source tokens, to be passed as `source`."""
        assert self.encoder is not None, "this architecture has no encoder"
        return self.encoder.hidden(tokens, mask=mask, tap=tap.at("encoder"))
