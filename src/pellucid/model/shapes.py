"""The kinds of tensor a transformer handles, named once. Checked in tests, free at run time.

Axes: batch; pos, two of them query_pos and key_pos, an encoder's source_pos; head, and kv_head for
the shared heads of keys and values; d_model, d_head, d_ff, n_vocab.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Int[Tensor, "batch pos"]
History = Int[Tensor, "batch key_pos"]  # the tokens read so far, the new ones last
Samples = Int[Tensor, " batch"]  # a number for each row, from which its dropout is drawn
PositionIds = Int[Tensor, "... pos"]  # positions, one row for all sequences or one row each
Stream = Float[Tensor, "batch pos d_model"]
Embeddings = Float[Tensor, "batch pos d_embed"]  # rows of W_E, d_model wide where d_embed = 0
Rows = Float[Tensor, "... d_model"]  # vectors of the stream, each of which is computed by itself
Encoded = Float[Tensor, "batch source_pos d_model"]
ExpertWeights = Float[Tensor, "batch pos expert"]
Choices = Int[Tensor, " choice"]  # one for each expert that a position uses
Logits = Float[Tensor, "batch pos n_vocab"]
LastLogits = Float[Tensor, "batch n_vocab"]  # of the last position alone
Queries = Float[Tensor, "batch head query_pos d_head"]
HeadResults = Float[Tensor, "batch head query_pos d_model"]  # what each head adds to the stream
Keys = Float[Tensor, "batch kv_head key_pos d_head"]
SharedKeys = Float[Tensor, "batch head key_pos d_head"]  # repeated for each query head that reads them
NewKeys = Float[Tensor, "batch kv_head new_pos d_head"]  # of this call alone, beside a cache's
Pattern = Float[Tensor, "batch head query_pos key_pos"]
Rotation = tuple[Float[Tensor, "kind ... pos planes"], Float[Tensor, "kind ... pos planes"]]  # cos and sin
ScoreBias = Float[Tensor, "head query_pos key_pos"]  # what scores gain from the distance
Visible = Bool[Tensor, "... query_pos key_pos"]  # True: the query may read the key
SourceVisible = Bool[Tensor, "... query_pos source_pos"]
