"""Which heads and MLPs speak for the next token?

    python examples/short/attribute_a_prediction.py gpt2 "The capital of France is the city of"

A logit is the sum of what every part wrote into the residual stream. This prints its largest terms, and writes a page.
"""

import sys

import pellucid


def main(name: str, prompt: str, page: str = "attribution.html") -> tuple[float, float]:
    """The sum of the terms, and the logit that they add up to."""
    model = pellucid.load(name)
    trace = model.trace(prompt)
    predicted = int(trace.logits[0, -1].argmax())
    parts = trace.attribute(predicted, by="head")
    print(f"next token: {trace.top(pos=-1, k=1)[0][0]!r}, logit {parts.logit:.3f}")
    for part, value in parts.top(10):
        print(f"{part:>12} {value:+.3f}")
    parts.show().save(page)
    return parts.total, parts.logit


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
