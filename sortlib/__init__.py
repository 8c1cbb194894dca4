"""SORT workbench: subgraph-oriented realistic testing of PyTorch and its backends.

    models + real inputs --trace--> graphs + records --mine--> patterns --generate--> cases
      --run on reference and candidate platform--> outcomes --judge--> findings --> tables, figures, report

Names are imported on first use, so that a worker process on a machine with only torch and numpy can import
``sortlib.runner`` without pandas or Jupyter.
"""

import importlib

_HOME = {
    "ApiGraph": "sortlib.graph",
    "Pattern": "sortlib.graph",
    "SortError": "sortlib.errors",
    "mine": "sortlib.mining",
    "trace": "sortlib.tracing",
    "generate": "sortlib.generation",
    "run": "sortlib.runner.campaign",
    "judge": "sortlib.judging",
    "check": "sortlib.checking",
    "platforms": "sortlib.platform",
    "Study": "sortlib.study",
    "open_study": "sortlib.pipeline",
    "explore": "sortlib.explorer",
    "findings": "sortlib.grouping",
    "minimize": "sortlib.minimizing",
    "reproduce": "sortlib.reproducing.making",
}
_MODULES = {"apis", "details", "figures", "tables", "zoo"}

__version__ = "0.1.0"
__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"sortlib.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'sortlib' has no attribute {name!r}")


def __dir__():
    return __all__
