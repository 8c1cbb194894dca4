"""Cost of tracing: ``python tests/benchmarks/tracing.py [--models resnet50,swin-tiny] [--peers DIR]``.

Prints one JSON line a figure: name, value, bar (null where none is set), ok, peer, note. Every model of the paper zoo
runs on a batch of four photographs; the bare forward pass and the traced ones take turns within one process, and the
ratio of a model is that of their medians over ``--repeats`` rounds. The first round is not counted: it also reads
parameters, which a process reads once. All on one thread and in seconds of processor time, which other work on the
machine disturbs least.

Peers are measured on the same models, each in a process of its own since they patch PyTorch, against a bare pass there:

    pip install --target peers --no-deps torchlens mindstudio-probe graphviz openpyxl et-xmlfile \\
        einops skl2onnx onnx protobuf ml-dtypes tensorboard
    python tests/benchmarks/tracing.py --peers peers

``--no-deps`` keeps pip from installing another PyTorch. A peer that cannot be imported is left out with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

BATCH = 4
BARS = {"graph": 1.1, "records": 1.5, "memory": 200}
PEERS = ("torchlens", "mindstudio-probe")


def figure(name, value, bar=None, ok=True, peer=None, note=""):
    value = round(value, 3) if isinstance(value, float) else value
    line = {"name": name, "value": value, "bar": bar, "ok": bool(ok), "peer": peer, "note": note}
    print(json.dumps(line), flush=True)


def prepared(name, zoo):
    """A model of the zoo and its call; batch norm is left as constructed, which changes no time."""
    from sortlib import zoo as sources

    entry = zoo.entry(name)
    entry = entry.model_copy(update={"inputs": entry.inputs.model_copy(update={"batch": BATCH, "count": 1})})
    model, own = sources._load(entry, zoo.seed)
    ((args, kwargs),) = own or sources.samples(entry)
    return model, args, kwargs


def seconds(call) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def medians(calls, repeats) -> dict:
    """Median seconds of each call; they take turns, and the first round is not counted."""
    taken = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            taken[name].append(seconds(call))
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def peak(call) -> float:
    """Largest resident memory during a call in MB."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier passes have freed is not counted
    Path("/proc/self/clear_refs").write_text("5")  # starts the peak anew
    call()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


_MMAP_THRESHOLD = -3  # of glibc's mallopt


def memory_above(bare, traced) -> float | None:
    """MB by which the peak of a traced pass lies above that of a bare one; None where the system does not tell.

    Measured in a fork, in which every block of 1 MB and more goes back to the system when it is freed, so that what is
    counted is what is held and not how the heap has come to be divided.
    """
    try:
        receive, send = os.pipe()
        child = os.fork()
    except (AttributeError, OSError):
        return None
    if not child:
        try:
            ctypes.CDLL("libc.so.6").mallopt(_MMAP_THRESHOLD, 1 << 20)
            bare()
            os.write(send, repr(-peak(bare) + peak(traced)).encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return float(text) if text else None


def measured(name, zoo, repeats) -> dict:
    """bare, graph, records (seconds of each pass), calls, memory (MB above the bare pass)."""
    import torch

    from sortlib.tracing import Tracer

    model, args, kwargs = prepared(name, zoo)

    def bare():
        with torch.no_grad():
            model(*args, **kwargs)

    calls = {
        "bare": bare,
        "graph": lambda: Tracer(records=False).run(model, *args, **kwargs),
        "records": lambda: Tracer().run(model, *args, **kwargs),
    }
    bare()
    gc.collect()
    memory = memory_above(bare, calls["records"])
    result = medians(calls, repeats)
    result["memory"] = memory
    result["calls"] = len(calls["graph"]()[0].nodes)
    return result


def ours(names, zoo, repeats):
    """{model: what ``measured`` returns}."""
    results = {}
    for name in names:
        result = results[name] = measured(name, zoo, repeats)
        figures = {kind: round(result[kind] / result["bare"], 3) for kind in ("graph", "records")}
        print(f"# {name}: {result['calls']} calls, {figures}, memory {result['memory']}", file=sys.stderr, flush=True)
    return results


def torchlens_pass(folder):
    import torchlens

    return lambda model, args, kwargs: torchlens.trace(model, list(args), kwargs)  # which keeps every activation


def msprobe_pass(folder):
    from msprobe.pytorch import PrecisionDebugger

    statistics_of_every_call = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "statistics", "dump_path": str(folder), "rank": [], "step": [], "level": "L1",
              "statistics": statistics_of_every_call}  # fmt: skip
    file = Path(folder, "config.json")
    file.write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(file))

    def run(model, args, kwargs):
        debugger.start(model)
        model(*args, **kwargs)
        debugger.stop()
        debugger.step()

    return run


def peer(which, names, zoo, repeats):
    """Print one line: RATIOS {model: ratio}. Runs in a process of its own; PyTorch is patched after the bare passes."""
    import torch

    torch.set_grad_enabled(False)
    bares, ratios = {}, {}
    for name in names:
        bares[name] = _bare(*prepared(name, zoo), repeats)
    with tempfile.TemporaryDirectory() as folder:
        pass_of = {"torchlens": torchlens_pass, "mindstudio-probe": msprobe_pass}[which](folder)
        for name in names:
            full = functools.partial(pass_of, *prepared(name, zoo))
            try:
                full()
                ratios[name] = statistics.median(seconds(full) for _ in range(repeats)) / bares[name]
            except Exception as error:  # a peer that fails on a model is a result
                print(f"# {which} on {name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
            print(f"# {which} {name} {ratios.get(name)}", file=sys.stderr, flush=True)
    print("RATIOS " + json.dumps(ratios))


def _bare(model, args, kwargs, repeats):
    model(*args, **kwargs)
    return statistics.median(seconds(lambda: model(*args, **kwargs)) for _ in range(repeats))


def report(results):
    count = len(results)
    for kind, text in (("graph", "graph only"), ("records", "records and evidence")):
        ratios = {name: r[kind] / r["bare"] for name, r in results.items()}
        value = statistics.median(ratios.values())
        worst = max(ratios, key=ratios.get)
        calls = statistics.median((r[kind] - r["bare"]) / r["calls"] for r in results.values()) * 1e6
        note = (
            f"median of {count} models at batch {BATCH}; {calls:.0f} us a call; largest {ratios[worst]:.2f} ({worst})"
        )
        figure(f"time of a traced pass over a bare one: {text}", value, BARS[kind], value <= BARS[kind], note=note)
    known = {name: r["memory"] for name, r in results.items() if r["memory"] is not None}
    if known:
        worst = max(known, key=known.get)
        note = f"largest of {count} models ({worst}); median {statistics.median(known.values()):.1f} MB"
        figure(
            "MB of memory above the bare pass", known[worst], BARS["memory"], known[worst] <= BARS["memory"], note=note
        )


def main():
    import torch

    from sortlib.zoo import load_zoo

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="names in the paper zoo, with commas; all by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="folder of pip install --target with the peers")
    parser.add_argument("--peer-models", help="names for the peers, which take long; those of --models by default")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    zoo = load_zoo("paper")
    names = options.models.split(",") if options.models else [entry.name for entry in zoo.models]
    if options.peer:
        peer(options.peer, names, zoo, options.repeats)
        return
    results = ours(names, zoo, options.repeats)
    report(results)
    if not options.peers:
        print("# peers left out: give --peers DIR (see this file's head)", file=sys.stderr)
        return
    names = options.peer_models.split(",") if options.peer_models else names
    mine = {name: r["records"] / r["bare"] for name, r in results.items()}
    for which in PEERS:
        command = [sys.executable, __file__, "--peer", which, "--models", ",".join(names), "--repeats", "2"]
        # Appended to the path, so that nothing in the folder hides a package that is installed.
        code = f"import sys, runpy; sys.path.append({str(options.peers)!r}); sys.argv = sys.argv[1:]; "
        code += "runpy.run_path(sys.argv[0], run_name='__main__')"
        command[1:1] = ["-c", code]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RATIOS ")]
        if done.returncode or not lines:
            figure(
                f"time of a traced pass over a bare one: {which}", None, None, True, which, "left out: it does not run"
            )
            continue
        ratios = json.loads(lines[0].removeprefix("RATIOS "))
        both = [name for name in ratios if name in mine]
        value = statistics.median(ratios[name] for name in both) if both else None
        own = statistics.median(mine[name] for name in both) if both else None
        note = (
            f"on {len(both)} of {len(names)} models, where ours with records takes {own:.3f} times"
            if both
            else "none ran"
        )
        figure(f"time of a traced pass over a bare one: {which}", value, None, True, which, note)


if __name__ == "__main__":
    main()
