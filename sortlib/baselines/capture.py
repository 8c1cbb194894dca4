"""Seeing the API calls of a program, each in the form of a test case's node."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from sortlib import apis
from sortlib.errors import SortError
from sortlib.features import Opaque, encode, map_tensors, measure, plain
from sortlib.runner.execution import tensors_in


class Capture(TorchFunctionMode):
    """Sends every call before it runs, so that a crash leaves its call behind.

    Calls that take no tensor only make one; what they make is drawn from its features when the case is run.

    Parameters
    ----------
    send : takes ``node=`` before a call and ``returned=`` after it.
    longest : number of calls that are sent; later ones are not.
    """

    def __init__(self, send, longest):
        super().__init__()
        self.send, self.longest = send, longest
        self.count = 0
        self.made = {}  # id -> (tensor, its version then, what stands for it)
        self.streams = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        node, arguments = self._node(func, args, kwargs)
        if node is None:
            return func(*args, **kwargs)
        number = self.count
        self.count += 1
        self.send(node=node)
        result = func(*args, **kwargs)
        self.send(returned=number)
        outputs = [args[0]] if node["api"] == "setitem" else tensors_in(result)
        for output, tensor in enumerate(outputs):
            self.made[id(tensor)] = (tensor, tensor._version, {"$from": [number, output]})
        return result

    def _node(self, func, args, kwargs):
        if self.count >= self.longest:
            return None, ()
        try:
            api = apis.identify(func)
            apis.resolve(api.target)
            arguments = apis.bind(api, args, kwargs)
        except (SortError, TypeError, ValueError, AttributeError):
            return None, ()
        if api.query or not tensors_in([a.value for a in arguments]):
            return None, ()
        forms = []
        for argument in arguments:
            value = plain(argument.value) if not isinstance(argument.value, torch.Tensor) else argument.value
            opaque = []
            map_tensors(value, lambda _, item, seen=opaque: seen.append(item), Opaque)
            if opaque:
                return None, ()
            forms.append([argument.name, encode(map_tensors(value, self._stand_in), _special), argument.kind])
        return {
            "api": api.name, "target": api.target, "arguments": forms, "record": ["", 0, self.count],
            "module_path": "", "source": "", "inplace": apis.writes_in_place(api, arguments),
            "random": apis.is_random(api.name, arguments),
        }, arguments  # fmt: skip

    def _stand_in(self, _, tensor):
        found = self.made.get(id(tensor))
        if found is None or found[1] != tensor._version:
            features = measure(tensor, "input")
            found = (tensor, tensor._version, {"$draw": [f"value{self.streams}", encode(features)]})
            self.streams += 1
            self.made[id(tensor)] = found
        return _Form(found[2])


class _Form:
    def __init__(self, form):
        self.form = form


def _special(value):
    return value.form if isinstance(value, _Form) else None
