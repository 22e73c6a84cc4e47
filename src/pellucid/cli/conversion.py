"""The command that takes models from one layout of files to another."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional


def convert(
    source: Positional[str],
    destination: Positional[Path],
    *,
    to: Literal["pellucid", "huggingface", "gguf", "adapter"] | None = None,
    family: str | None = None,
    checkpoint: str = "best",
    trust: bool = False,
    licence: str | None = None,
    weights: Literal["float32", "float16", "q8_0"] | None = None,
    compare: bool = True,
    push: str | None = None,
) -> int:
    """Write a model in another layout, and compare the logits before it gets its name.

    Args:
        source: a run, a saved model, a Hugging Face folder, or a name on the hub.
        destination: the folder to write, or for llama.cpp the file NAME.gguf, which must not exist.
        to: the layout; unless given, NAME.gguf is gguf, theirs become ours and ours huggingface. adapter is a run's
            low-rank adapters alone, for peft.
        family: the Hugging Face family to write; the first that can say the architecture unless given.
        checkpoint: of a run: best (lowest held-out loss), last, or a step.
        trust: read pickled tensors, and tokenizers with patterns that are not known to be safe.
        licence: what the model card says.
        weights: of gguf: what matrices are kept in, float32 unless given.
        compare: compare the logits, which holds the whole network; --no-compare for models larger than memory.
        push: put what was written into this repository of the hub (OWNER/NAME), private where it is new.
    """
    import pellucid

    done = pellucid.convert(
        source,
        destination,
        to=to,
        family=family,
        checkpoint=checkpoint,
        trust=trust,
        licence=licence,
        weights=weights,
        compare=compare,
    )
    print(f"{done.folder}: {done.layout}, {done.n_bytes:,} bytes of weights\n{done.parity or 'logits not compared'}")
    if push is not None:
        from pellucid.hub.push import push as push_to_hub

        print(f"pushed to {push_to_hub(done.folder, push)}")
    return 0
