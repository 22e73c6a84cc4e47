"""What a user trusts in files from elsewhere: two risks, taken one by one.

pickles    weights in a pickle are read. Only tensors are taken from it, by PyTorch's own unpickler, which code could
           still break out of
tokenizer  a tokenizer.json may have patterns and steps that are not known to be fast: no code runs, but a text can take
           very long, or much memory
"""

from typing import Literal, get_args

Risk = Literal["pickles", "tokenizer"]
#: False: neither; True: both
Trust = bool | Risk


def check_trust(trust: Trust) -> None:
    """Raise ValueError for anything but False, True and the name of a risk, whether or not a file has the risk."""
    if not (isinstance(trust, bool) or trust in get_args(Risk)):
        raise ValueError(f'trust = {trust!r}: expected False, True (both), "pickles" or "tokenizer"')


def trusts(trust: Trust, risk: Risk) -> bool:
    """Whether this risk is taken."""
    return trust is True or trust == risk
