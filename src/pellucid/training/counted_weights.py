"""First values of the tokens' embedding and of tables of n-grams that are counted in the training text.

A network starts with logits that know nothing, and learns in its first hundreds of steps which token follows which:
what one pass of counting knows. So the embedding, which is the readout too, starts as the best factors of what pairs of
tokens tell (Levy and Goldberg 2014, section 5), and the row of an n-gram as the mean embedding of what followed it.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model.embed import rows_of_ngrams
from pellucid.runs.options import RecipeError, with_train
from pellucid.text.tokens.store import Part
from pellucid.training.recipe import Recipe

#: the standard deviation of the counted embedding, in that of the drawn weights
WIDER = 2.5
#: rows of n-grams start as this many times the mean embedding of what followed
OF_MEAN = 3.0
#: what is added to the number of times that a row was met
PRIOR = 10.0
#: the orders that are counted; the rows of longer n-grams were met too seldom and start at 0
N_ORDERS = 2
#: tokens that are read, from the start of the text
MOST_TOKENS = 2**21
#: the largest vocabulary whose pairs are counted: their matrix takes 256 MiB
MOST_IDS = 8192
#: tokens of one piece
PIECE = 2**16


def resolve_first_weights(recipe: Recipe, is_given: bool) -> tuple[Recipe, str]:
    """The recipe with its first weights drawn or counted, and a line about them, "" where they are drawn as ever.

    Raises RecipeError where counted ones were asked for and the network or what it learns has no place for them;
    `is_given` says that the run starts from a model.
    """
    t, a = recipe.train, recipe.model
    why = why_not_counted(recipe, is_given)
    if t.first_weights == "counted" and why:
        raise RecipeError(f"train.first_weights = counted, but {why}: give auto or drawn")
    if why or t.first_weights == "drawn" or (t.first_weights == "auto" and not a.ngrams):
        return with_train(recipe, first_weights="drawn"), ""
    what = "the tokens' embedding and tables of n-grams start" if a.ngrams else "the tokens' embedding starts"
    return with_train(recipe, first_weights="counted"), f"first weights: {what} from counts of the training text"


def why_not_counted(recipe: Recipe, is_given: bool) -> str:
    """Why the first weights cannot be counted, "" where they can."""
    t, a = recipe.train, recipe.model
    if is_given or recipe.adapt.rank:
        return "the run starts from the weights of a model"
    if t.objective != "next-token" or a.encoder is not None:
        return "what follows a token is counted, and the network learns something else"
    if a.unembed != "tied" or a.readout == "none" or a.d_embed:
        return "only an embedding that is the readout too, in the width of the network, can be counted"
    if a.n_vocab > MOST_IDS:
        return f"the vocabulary has {a.n_vocab:,} ids, and pairs of at most {MOST_IDS:,} are counted"
    return ""


def counted_weights(
    a: Architecture, text: Part, seed: int, std: float, told: Callable[[int], object]
) -> dict[str, Tensor]:
    """The counted values, by the name of their parameter. `told` hears how many tokens are read."""
    ids = torch.from_numpy(text.read(0, min(len(text), MOST_TOKENS)))
    embedding = counted_embedding(ids, a.n_vocab, a.d_model, seed, WIDER * std, told)
    counted = {"embed.token.weight": embedding}
    if a.ngrams:
        tables = counted_tables(ids, embedding, sorted(a.ngrams)[:N_ORDERS], a.ngram_rows, told)
        counted |= {f"embed.ngrams.tables.{n}.weight": table for n, table in tables.items()}
    return counted


def read_pieces(n: int, told: Callable[[int], object]) -> Iterator[tuple[int, int]]:
    """Starts and ends of the pieces in which n targets are read."""
    for start in range(0, n, PIECE):
        told(start)
        yield start, min(n, start + PIECE)


def counted_embedding(
    ids: Tensor, n_vocab: int, width: int, seed: int, std: float, told: Callable[[int], object]
) -> Tensor:
    """V sqrt(S) Q [n_vocab, width], scaled to the standard deviation std, where U S V^T are the largest singular values
    of M and Q is a rotation drawn from the seed

    M_ab = sqrt(#a) (log(1 + #ab) - log(1 + #a #b / n)) less the mean of its row   (Levy and Goldberg 2014, section 5,
    whose information of a pair is log(#ab n / (#a #b)); the 1 keeps unseen pairs finite, sqrt(#a) weights rare a less)
    """
    n = len(ids) - 1
    pairs = torch.zeros(n_vocab, n_vocab, dtype=torch.float32)
    for start, stop in read_pieces(n, told):
        pair = ids[start:stop] * n_vocab + ids[start + 1 : stop + 1]
        pairs.view(-1).index_add_(0, pair, pairs.new_ones(len(pair)))
    first, second = pairs.sum(1), pairs.sum(0)
    for row, count in zip(pairs, first, strict=True):  # in place: the matrix is the largest thing here
        row.log1p_().sub_(torch.log1p(count * second / n)).mul_(count.sqrt())
        row.sub_(row.mean())
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        rank = min(width, n_vocab)
        _, sizes, right = torch.svd_lowrank(pairs, q=min(rank + 8, n_vocab), niter=4)
        rotation = torch.linalg.qr(torch.randn(width, width, dtype=torch.float32)).Q
    embedding = (right[:, :rank] * sizes[:rank].sqrt()) @ rotation[:rank]
    return embedding * (std / embedding.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny))


def counted_tables(
    ids: Tensor, embedding: Tensor, orders: list[int], n_rows: int, told: Callable[[int], object]
) -> dict[str, Tensor]:
    """For each order n the table whose row r is OF_MEAN sum_i (W[t_{i+1}] - mean W) / (#r + PRIOR), i over the places
    whose n-gram has row r and #r their number."""
    names = [str(n) for n in orders]
    sums = {name: embedding.new_zeros(n_rows, embedding.size(1)) for name in names}
    counts = {name: embedding.new_full((n_rows, 1), PRIOR) for name in names}
    share = torch.bincount(ids[1:], minlength=len(embedding)).to(embedding.dtype) / (len(ids) - 1)
    mean = share @ embedding
    for start, stop in read_pieces(len(ids) - 1, told):
        before = max(0, start - max(orders) + 1)
        followed = embedding[ids[start + 1 : stop + 1]] - mean
        positions = torch.arange(start, stop)[None]
        for name, rows, known in rows_of_ngrams(ids[None, before:stop], positions, names, n_rows):
            rows, followed_known = rows[known], followed[known[0]]
            sums[name].index_add_(0, rows, followed_known)
            counts[name].index_add_(0, rows, embedding.new_ones(len(rows), 1))
    return {name: OF_MEAN * sums[name] / counts[name] for name in names}
