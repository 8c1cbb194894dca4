"""Cost of a campaign: ``python tests/benchmarks/campaign.py [--study runs/quick] [--cases N] [--only cost,...]``.

Prints one JSON line a figure: name, value, bar (null where none is set), ok, peer, note. All figures are ratios within
one run, or memory. What is compared:

cost     The whole campaign, from the call of ``sl.run`` to the table: start of both processes, drawing, checks, both
         sides, float64 reference, bounds, comparison. Against it *bare*: the same calls with the same inputs, in two
         processes with the same settings and threads that run at the same time. One makes the reference's calls and
         then each once more in float64 (converting the inputs included); the other makes the candidate's calls, twice
         where the campaign runs a call on the candidate's own values and on the reference's (``once`` counts them
         once). Bare time is the start of the slower process and the seconds that it spends in these calls; drawing the
         inputs, which it has to do too, is left out. CPU seconds are those of all processes; of the bare ones, those of
         start and calls.
         The same calls *one after the other*, the reference's and the float64 ones in one process and then the
         candidate's in another, each with all cores, are what a loop over both platforms takes.
workers  The same campaign confined to one core, over that on all: what its two workers gain from the second.
memory   ``--many`` small cases into Parquet parts, as a study runs them: peak memory of the parent and of the
         workers, and the growth of the workers from the first fifth of the time to the end.
scripts  The loop of FreeFuzz and TitanFuzz: every case is written as a script of its own, which imports torch and
         numpy, makes tensors of the recorded shapes and runs the calls once, eagerly; scripts run one after the other,
         each in a new Python process, with ``subprocess.run``. No oracle is added, which favours this loop: the
         campaign beside it runs the same cases on two platforms with all its checks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REFERENCE, CANDIDATE = "cpu", "cpu:baseline"


def figure(name, value, bar=None, ok=True, peer=None, note=""):
    value = round(value, 3) if isinstance(value, float) else value
    line = {"name": name, "value": value, "bar": bar, "ok": bool(ok), "peer": peer, "note": note}
    print(json.dumps(line), flush=True)


def children_cpu() -> float:
    """CPU seconds of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(cases):
    """(outcomes, wall seconds, CPU seconds) of a campaign."""
    import sortlib as sl

    begin, own, children = time.perf_counter(), time.process_time(), children_cpu()
    outcomes = sl.run(cases, REFERENCE, CANDIDATE, progress=False)
    return outcomes, time.perf_counter() - begin, time.process_time() - own + children_cpu() - children


# ---- cost ----


def twice(cases, outcomes) -> dict:
    """Case id -> nodes whose inputs differed between the candidate's own chain and the reference."""
    differs = set(zip(outcomes["case"], outcomes["node"], outcomes["propagated_differing"] > 0, strict=True))
    return {case.id: sorted({dst for src, dst, _ in case.edges if (case.id, src, True) in differs}) for case in cases}


def bare(cases, again, together=True) -> dict:
    """Both sides' bare processes: side -> their answer.

    At the same time with half of the cores each, as in a campaign, or one after the other with all of them.
    """
    from sortlib.platform import require, worker_threads
    from sortlib.runner import launch

    threads = worker_threads() if together else os.cpu_count()

    text = json.dumps({"cases": [case.to_json() for case in cases], "again": again})
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(text)

        def side(name, platform):
            spec = {**platform.to_json(), "threads": platform.threads or threads}
            done = subprocess.run(
                [sys.executable, __file__, "--bare", name, str(path), json.dumps(spec), repr(time.time())],
                env=launch.environment(platform.python, platform.env), stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            answers[name] = json.loads(done.stdout)

        sides = [threading.Thread(target=side, args=(name, require(platform)))
                 for name, platform in (("reference", REFERENCE), ("candidate", CANDIDATE))]  # fmt: skip
        for thread in sides:
            thread.start()
            if not together:
                thread.join()
        for thread in sides:
            thread.join()
    return answers


def bare_side(name, path, spec, started):
    """In a process of its own: draw, and time nothing but the calls."""
    import torch

    from sortlib.runner import bounds, execution

    torch.set_num_threads(spec["threads"])
    execution.apply_flags(spec["backends"])
    executor = execution.Executor(spec)
    ready, start_cpu = time.time() - started, time.process_time()
    given = json.loads(Path(path).read_text())
    spent = {"calls": 0.0, "again": 0.0, "double": 0.0}
    cpu = dict.fromkeys(spent, 0.0)

    def timed(kind, call):
        begin, used = time.perf_counter(), time.process_time()
        result = call()
        spent[kind] += time.perf_counter() - begin
        cpu[kind] += time.process_time() - used
        return result

    for case in given["cases"]:
        external = {key: executor.place(value) for key, value in execution.draw_externals(case).items()}
        values = {}
        for position, node in enumerate(case["nodes"]):
            seed = execution.seed_of(case, position)
            try:
                arguments = executor.arguments(node, external, values)
            except KeyError:  # an earlier call failed, as it does in the campaign
                continue
            call = timed("calls", lambda a=arguments, n=node, s=seed: executor.call(n, a, s))
            values |= {(position, k): tensor for k, tensor in enumerate(call.outputs)}
            if name == "reference":
                timed("double", lambda a=arguments, n=node, s=seed: executor.call(n, bounds.widen(a), s))
            elif position in given["again"].get(case["id"], ()):
                timed("again", lambda a=arguments, n=node, s=seed: executor.call(n, a, s))
    print(json.dumps({"start": ready, "start_cpu": start_cpu, **spent, "cpu": cpu}))


def cost(cases):
    outcomes, wall, cpu = measured(cases)
    again = twice(cases, outcomes)
    sides = bare(cases, again)
    calls = {name: side["calls"] + side["double"] + side["again"] for name, side in sides.items()}
    once = {name: side["calls"] + side["double"] for name, side in sides.items()}
    start = max(side["start"] for side in sides.values())
    bare_cpu = sum(side["start_cpu"] + sum(side["cpu"].values()) for side in sides.values())
    note = (f"{len(cases)} cases, {len(outcomes)} calls: campaign {wall:.1f} s; bare "
            f"{start + max(calls.values()):.1f} s: start {start:.1f}, reference "
            f"{sides['reference']['calls']:.1f} and float64 "
            f"{sides['reference']['double']:.1f}, candidate {sides['candidate']['calls']:.1f} and again "
            f"{sides['candidate']['again']:.1f}; {os.cpu_count()} cores, a half of them for each process")  # fmt: skip
    ratio = wall / (start + max(calls.values()))
    figure("campaign_over_bare", ratio, 1.3, ratio <= 1.3, "bare calls, two processes", note)
    apart = bare(cases, again, together=False)
    loop = sum(side["start"] + side["calls"] + side["double"] + side["again"] for side in apart.values())
    figure("campaign_over_bare_one_after_other", wall / loop, 1.3, wall / loop <= 1.3,
           "bare calls, one platform after the other", f"campaign {wall:.1f} s; bare {loop:.1f} s")  # fmt: skip
    figure("campaign_over_bare_once", wall / (start + max(once.values())), None, True, "each candidate call once")
    figure("campaign_over_bare_cpu", cpu / bare_cpu, None, True, "bare calls, CPU seconds",
           f"{cpu:.1f} over {bare_cpu:.1f} s")  # fmt: skip
    figure("cases_per_second", len(cases) / wall, note="start of the processes included")
    return wall


# ---- workers ----


def workers(cases):
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        figure("two_workers_over_one", None, 1.7, True, note="skipped: this machine has one core")
        return
    two = sorted(everywhere)[:2]
    try:
        os.sched_setaffinity(0, two[:1])
        one = measured(cases)[1]
        os.sched_setaffinity(0, two)
        both = measured(cases)[1]
    finally:
        os.sched_setaffinity(0, everywhere)
    figure("two_workers_over_one", one / both, 1.7, one / both >= 1.7, "the same campaign on one core",
           f"{len(cases)} cases: {one:.1f} s on one core, {both:.1f} s on two")  # fmt: skip


# ---- memory ----


def resident(pid) -> dict:
    """Resident memory of a process in MB: all, its peak, and by kind; empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {
        line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines if line.startswith(("VmRSS", "VmHWM", "Rss"))
    }


def worker_ids() -> list[int]:
    found = Path("/proc/self/task").glob("*/children")
    children = [int(pid) for file in found for pid in file.read_text().split()]
    return [pid for pid in children if b"sortlib.runner.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def memory(cases, many):
    """Run in a process of its own, so that nothing else counts as the parent's memory."""
    from sortlib.outcomes import run_missing

    cases = [dataclasses.replace(cases[k % len(cases)], id=f"{k:016x}") for k in range(many)]
    seen, own, finished = [], [], threading.Event()

    def watch():
        while not finished.wait(0.5):
            seen.append([resident(pid) for pid in worker_ids()])
            mine = resident(os.getpid())
            own.append(mine["RssAnon"] + mine["RssShmem"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            run_missing(Path(folder) / "outcomes", cases, REFERENCE, CANDIDATE, 60, "memory", progress=False)
            wall = time.perf_counter() - begin
    finally:
        finished.set()
        watcher.join()
    sizes = [max((worker["VmRSS"] for worker in found if worker), default=0.0) for found in seen]
    fifth, last = (max(part, default=0.0) for part in (sizes[: len(sizes) // 5], sizes[len(sizes) // 5 :]))
    worker = max((worker["VmHWM"] for found in seen for worker in found if worker), default=0.0)
    parent, everything = max(own, default=0.0), resident(os.getpid())["VmHWM"]
    note = f"{many} cases in {wall:.0f} s"
    figure("worker_peak_mb", worker, 2000, 0 < worker < 2000, note=note)
    figure("parent_peak_mb", parent, 500, 0 < parent < 500,
           note=f"{note}; without library files mapped from disk, {everything:.0f} MB with them")  # fmt: skip
    figure("worker_growth_mb", last - fifth, 100, last - fifth < 100,
           note=f"resident memory {fifth:.0f} MB in the first fifth of the time, {last:.0f} MB after it")  # fmt: skip


# ---- scripts ----


def script(case) -> str | None:
    """A case as a stand-alone script; None where an argument has no simple literal."""
    lines = ["import numpy as np", "import torch", ""]
    try:
        for position, node in enumerate(case.to_json()["nodes"]):
            parts = []
            for name, form, kind in node["arguments"]:
                text = _literal(form)
                parts.append(f"*{text}" if kind == "variadic" else f"{name}={text}" if kind == "keyword" else text)
            lines.append(f"out = {node['target']}({', '.join(parts)})")
            lines.append(f"v{position} = out if isinstance(out, (tuple, list)) else [out]")
    except ValueError:
        return None
    return "\n".join([*lines, "print(float(v0[0].double().abs().max()))", ""])


def _literal(form):
    if isinstance(form, list):
        return f"[{', '.join(map(_literal, form))}]"
    if not isinstance(form, dict):
        return repr(form)
    ((tag, content),) = form.items()
    if tag == "$from":
        return f"v{content[0]}[{content[1]}]"
    if tag == "$tuple":
        return f"({''.join(_literal(item) + ', ' for item in content)})"
    if tag == "$draw" and content[1]["$tensor"]["dtype"] == "float32":
        return f"torch.from_numpy(np.random.standard_normal({content[1]['$tensor']['shape']}).astype(np.float32))"
    raise ValueError(tag)


def scripts(cases, count):
    written = [(case, text) for case in cases if (text := script(case))]
    step = max(1, len(written) // count)
    chosen = written[::step][:count]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        for number, (_, text) in enumerate(chosen):
            path = Path(folder) / f"{number}.py"
            path.write_text(text)
            failed += subprocess.run([sys.executable, str(path)], capture_output=True, timeout=120).returncode != 0
        loop = len(chosen) / (time.perf_counter() - begin)
    beside = [case for case, _ in written]
    rate = len(beside) / measured(beside)[1]
    figure("cases_over_script_loop", rate / loop, 20, rate / loop >= 20 and not failed,
           "one Python process per script (FreeFuzz, TitanFuzz)",
           f"{loop:.2f} scripts/s over {len(chosen)} scripts ({failed} failed), {rate:.1f} cases/s over {len(beside)} "
           "cases, start included")  # fmt: skip


# ---- command line ----


def elements(case) -> int:
    """Elements that are drawn for a case."""
    found = {}

    def walk(form):
        if isinstance(form, dict):
            if "$draw" in form:
                size = 1
                for length in form["$draw"][1]["$tensor"]["shape"]:
                    size *= length
                found[form["$draw"][0]] = size
            for item in form.values():
                walk(item)
        elif isinstance(form, list):
            for item in form:
                walk(item)

    for node in case.to_json()["nodes"]:
        walk(node["arguments"])
    return sum(found.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="runs/quick", help="directory; made as the study of its name if missing")
    parser.add_argument("--cases", type=int, help="evenly chosen; all if not given")
    parser.add_argument("--many", type=int, default=20_000, help="cases of the memory part")
    parser.add_argument("--scripts", type=int, default=20, help="scripts of the script loop")
    parser.add_argument("--only", default="cost,workers,memory,scripts")
    parser.add_argument("--bare", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        name, path, spec, started = options.bare
        bare_side(name, path, json.loads(spec), float(started))
        return
    from sortlib.pipeline import open_study

    cases = open_study(options.study, upto="generate", progress=False).cases
    parts = options.only.split(",")
    if "memory" in parts:
        if len(parts) > 1:
            command = [sys.executable, __file__, "--study", options.study, "--many", str(options.many)]
            subprocess.run([*command, "--only", "memory"], check=True)
        else:
            memory(sorted(cases, key=elements)[: max(1, len(cases) // 10)], options.many)
    if options.cases:
        cases = cases[:: max(1, len(cases) // options.cases)][: options.cases]
    if "cost" in parts:
        cost(cases)
    if "workers" in parts:
        workers(cases)
    if "scripts" in parts:
        scripts(cases, options.scripts)


if __name__ == "__main__":
    main()
