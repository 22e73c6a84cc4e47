"""What a user asks of a model that is looked into: one line each, the functions of this room."""

from typing import Any, Literal

from torch import Tensor

from pellucid.lens.analysis.ablation import Ablation, ablate
from pellucid.lens.analysis.heads import Heads, detect_heads
from pellucid.lens.analysis.metrics import Metric
from pellucid.lens.analysis.patching import Patching, patch
from pellucid.lens.analysis.path_patching import PathEffect, path_patch
from pellucid.lens.analysis.steering import Probe, activations, direction, fit_probe, mean_activation
from pellucid.lens.trace import Trace, trace
from pellucid.model import Transformer
from pellucid.text.tokenizers.base import Tokenizer


class Opened:
    """A network with its tokenizer, to be looked into as it is: no conversion, and no weight rewritten."""

    network: Transformer
    tokenizer: Tokenizer

    def trace(self, given: Any, **options: Any) -> Trace:
        """One pass over texts or ids, every tensor of which has a name (`pellucid.lens.trace.trace`)."""
        return trace(self.network, self.tokenizer, given, **options)

    def patch(self, clean: Any, corrupt: Any, metric: Metric, **options: Any) -> Patching:
        """Activation patching, exact or by attribution, place by place (`pellucid.lens.analysis.patching.patch`)."""
        return patch(self.network, self.tokenizer, clean, corrupt, metric, **options)

    def path_patch(self, clean: Any, corrupt: Any, metric: Metric, **options: Any) -> PathEffect:
        """What one part says to others, by no other way (`pellucid.lens.analysis.path_patching.path_patch`)."""
        return path_patch(self.network, self.tokenizer, clean, corrupt, metric, **options)

    def ablate(self, texts: Any, metric: Metric, **options: Any) -> Ablation:
        """What is lost without each head, attention or MLP (`pellucid.lens.analysis.ablation.ablate`)."""
        return ablate(self.network, self.tokenizer, texts, metric, **options)

    def heads(self, text: Any = None, **options: Any) -> Heads:
        """Every head's scores on repeated random tokens, or on a text (`pellucid.lens.analysis.heads.detect_heads`)."""
        return detect_heads(self.network, self.tokenizer, text, **options)

    def direction(self, towards: Any, away: Any, at: str, **options: Any) -> Tensor:
        """A difference of means to steer by, with `edits.add` (`pellucid.lens.analysis.steering.direction`)."""
        return direction(self.network, self.tokenizer, towards, away, at, **options)

    def mean_activation(self, texts: Any, at: str, **options: Any) -> Tensor:
        """The mean of a tensor over texts, for `edits.mean(at, over=...)` (`pellucid.lens.analysis.steering`)."""
        return mean_activation(self.network, self.tokenizer, texts, at, **options)

    def probe(
        self,
        texts: Any,
        targets: Any,
        at: str,
        *,
        pos: int | Literal["mean"] = -1,
        held_out: float = 0.3,
        shuffles: int = 5,
        seed: int = 0,
        **reading: Any,
    ) -> Probe:
        """What a tensor says about the texts, by ridge regression (`pellucid.lens.analysis.steering.fit_probe`)."""
        x = activations(self.network, self.tokenizer, texts, at, pos, **reading)
        return fit_probe(x, targets, held_out=held_out, shuffles=shuffles, seed=seed)
