"""The built-in faults by name. Importing this builds nothing."""

from __future__ import annotations

from sortlib.errors import SortError, choices
from sortlib.simdev import behaviour, normalisation, pointwise, pooling, products
from sortlib.simdev.record import Fault

MODULES = (products, pointwise, normalisation, pooling, behaviour)
FAULTS: dict[str, Fault] = {fault.name: fault for module in MODULES for fault in module.FAULTS}


def find(name: str) -> Fault:
    """A built-in fault.

    Raises
    ------
    SortError
        No fault has that name.
    """
    if name not in FAULTS:
        from sortlib.config import suggestion  # reads YAML, which a worker in another interpreter may lack

        raise SortError(f"simdev has no fault {name!r}{suggestion(name, FAULTS)}; valid: {choices(FAULTS)}")
    return FAULTS[name]


def faults():
    """The built-in faults as a DataFrame.

    Returns
    -------
    pandas.DataFrame
        fault, api, what, verdict (the right judgement of a call that shows it), needs (which inputs show it), and
        call with inputs, an example that does (``sl.check`` takes them).
    """
    import pandas as pd

    columns = ["fault", "api", "what", "verdict", "needs", "call", "inputs"]
    rows = [[f.name, f.api, f.what, f.verdict, f.needs, f.call, f.inputs] for f in FAULTS.values()]
    return pd.DataFrame(rows, columns=columns)
