"""Where does a model keep the difference between two prompts?

    python examples/short/patch_two_prompts.py gpt2 "The Eiffel Tower is in" "The Colosseum is in" " Paris" " Rome"

The prompts must have equally many tokens. The second prompt is run again for every block and position, each time with
the first prompt's residual stream put in there. What brings the first answer back, carries the difference.
"""

import sys

import pellucid
from pellucid.lens.analysis.metrics import logit_diff


def main(name: str, clean: str, corrupt: str, answer: str, other: str, page: str = "patching.html") -> tuple[int, ...]:
    """The block and the position that bring back most of the answer."""
    model = pellucid.load(name)
    patching = model.patch(clean, corrupt, logit_diff(answer, other), site="resid_pre")
    print(f"logit({answer!r}) - logit({other!r}): {patching.clean:.3f} and {patching.corrupt:.3f}")
    for layer, shares in zip(patching.layers, patching.recovered.tolist(), strict=True):
        print(f"block {layer:>2}: " + "  ".join(f"{share:5.2f}" for share in shares))
    print(f"most at block and position {patching.best()}")
    patching.show().save(page)
    return patching.best()


if __name__ == "__main__":
    main(*sys.argv[1:6])
