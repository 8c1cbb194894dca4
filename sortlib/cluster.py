"""An existing Dask cluster as an executor of a study's cases.

What travels is text: cases with seeds, platform specifications and rows of numbers; no tensor is pickled. Every task
starts worker processes of its own on the machine where it runs, so a crash or a hang of a case ends none of Dask's.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from sortlib.errors import SortError, choices

_PATIENCE = 10  # seconds for a scheduler to answer


@contextlib.contextmanager
def connect(scheduler: str, resources: dict[str, float] | None = None):
    """An executor for ``sl.run`` and ``complete`` whose tasks run on a Dask cluster.

    Parameters
    ----------
    scheduler : address, for example ``tcp://head:8786``.
    resources : what each task needs of a Dask worker's resources, for example ``{"GPU": 1}``.

    Raises
    ------
    SortError
        Dask is not installed, no scheduler answers, it has no workers, none has the resources, or one cannot import
        sortlib or has another version of it.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise SortError("a cluster needs Dask: pip install 'dask[distributed]' (the extra [cluster])") from None
    try:
        # Asked first: a client waits for ever for a server that is no scheduler, and one without a scheduler complains
        # of itself when it is collected. In a thread, since a notebook's own event loop is running.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _identity(scheduler)).result()
        client = Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        text = (str(error).strip().splitlines() or [f"nothing came back in {_PATIENCE} s"])[0]
        raise SortError(f"scheduler {scheduler}: no Dask scheduler answers there: {text}") from None
    with client:
        _check(client, scheduler, resources or {})
        yield client.get_executor(pure=False, **({"resources": resources} if resources else {}))


async def _identity(scheduler):
    from distributed.core import rpc

    async def ask():
        async with rpc(scheduler, timeout=_PATIENCE) as answering:
            return await answering.identity()

    return await asyncio.wait_for(ask(), _PATIENCE)


def resources_of(texts) -> dict[str, float]:
    """``["GPU=1"]`` as ``{"GPU": 1.0}``.

    Raises
    ------
    SortError
        A text is no name and amount.
    """
    found = {}
    for text in texts or ():
        name, _, amount = text.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < float("inf"):
            raise SortError(f"resource {text!r}: must be a name and an amount above 0, for example GPU=1")
    return found


def _check(client, scheduler, resources):
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise SortError(f"scheduler {scheduler}: has no workers; start some with 'dask worker {scheduler}'")
    fitting = [address for address, about in workers.items()
               if all(about["resources"].get(name, 0) >= amount for name, amount in resources.items())]  # fmt: skip
    if not fitting:
        wanted = ", ".join(f"{name}={amount:g}" for name, amount in resources.items())
        offered = {f"{name}={amount:g}" for about in workers.values() for name, amount in about["resources"].items()}
        raise SortError(f"scheduler {scheduler}: no worker offers {wanted}; offered: {choices(offered) or 'nothing'}")
    for address, said in client.run(_version, workers=fitting, on_error="return").items():
        if isinstance(said, Exception):
            raise SortError(f"scheduler {scheduler}: worker {address} cannot run sortlib: {said}")
        if said != _version():
            raise SortError(f"scheduler {scheduler}: worker {address} has sortlib {said}, here is {_version()}")


def _version() -> str:
    import sortlib

    return sortlib.__version__
