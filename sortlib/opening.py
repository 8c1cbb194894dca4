"""Opening composite calls, so that the calls inside them are seen instead of one node.

A Python function such as ``multi_head_attention_forward`` hands itself to the mode that traces, after asking
``has_torch_function``. A copy of it that is told "no" runs its body, whose calls the mode sees again. The recurrent
networks are built-in and have no body to see; for them PyTorch's own decompositions stand in, which agree with the
fused kernels up to rounding.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from torch._decomp import decompositions

from sortlib import apis
from sortlib.errors import SortError, choices

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_DECOMPOSED = {
    "lstm": ("lstm_impl", "lstm_data_impl"),
    "gru": ("gru_impl", "gru_impl_data"),
    "rnn_tanh": ("rnn_tanh_input", "rnn_tanh_data"),
    "rnn_relu": ("rnn_relu_input", "rnn_relu_data"),
}


@functools.cache
def openable() -> dict[str, dict]:
    """Canonical name -> {function: what runs in its place} of all calls that can be opened."""
    found = {}
    for function in apis.overridable():
        api = apis.identify(function)
        python = api.target.startswith(("torch.nn.functional.", "torch.functional."))
        inside = _unchecked(function) if python else _decomposition(api.name)
        if inside and not api.name.startswith("_"):
            found.setdefault(api.name, {})[function] = inside
    return found


def open_calls(names) -> dict[Callable, Callable]:
    """What to run in place of each function of the given canonical names.

    Raises
    ------
    SortError
        A name of no API, or of one without calls inside.
    """
    chosen = {}
    for name in names:
        if name not in openable():
            known = any(apis.identify(function).name == name for function in apis.overridable())
            reason = "is built-in, its inside cannot be seen" if known else "is no API"
            raise SortError(f"cannot open {name!r}: it {reason}; valid: {choices(openable())}")
        chosen |= openable()[name]
    return chosen


def _no(*_):
    return False


def _unchecked(function):
    if not isinstance(function, types.FunctionType) or not set(_CHECKS) & set(function.__code__.co_names):
        return None
    return _with_globals(function, dict.fromkeys(_CHECKS, _no))


def _with_globals(function, changed):
    names = {**function.__globals__, **changed}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _decomposition(name):
    plain, packed = (getattr(decompositions, part, None) for part in _DECOMPOSED.get(name, ("", "")))
    if plain is None or packed is None:
        return None
    # Not the oneDNN kernel for a whole layer, which would hide the steps again.
    plain = _with_globals(plain, {"select_one_layer_lstm_function": lambda *_: decompositions.one_layer_lstm})

    def run(*args):
        return (plain if isinstance(args[3], bool) else packed)(*args)

    return run
