"""What the rule of evidence finds of known faults, what it accuses without any, and what other methods find.

    python tests/benchmarks/detection.py [--study quick] [--only faults rq4 clean10000] [--fault NAME ...]

``faults``: the device ``simdev`` is given each of its built-in faults in turn. Cases of a study whose patterns hold the
faulty API run on ``cpu`` against it, and so does the fault's own example, which has the special values that some faults
need. Then all of them run against the device without a fault (``--cases 6``, ``--out rows.parquet``).

``rq4``: SORT, single-API and the published methods on the same faults and the same number of executed calls of each API
(``--budget 60``); resumes in the study's folder ``rq4``.

``clean10000``: new cases of the study's patterns, ``cpu`` against ``cpu:baseline`` and against the device without a
fault, until 10,000 have run on each pair or the time is up (``--minutes``). Every accusation is printed and counts,
those of both sides alike too. Rounds of cases are kept in the study's folder ``clean``, so another run goes on; they
are judged anew each time, and one in which other code accused a call is run again.

Prints a JSON line for each fault and one for each figure. Without ``--only`` all three run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

import sortlib
from sortlib.api_tables import PAPER_APIS
from sortlib.checking import _case
from sortlib.generation import generate
from sortlib.judging import RANK, judge
from sortlib.mining import mine
from sortlib.pipeline import complete, open_study
from sortlib.runner.campaign import campaign
from sortlib.runner.files import replacing
from sortlib.runner.transport import exchange_folder
from sortlib.simdev.behaviour import EVERY
from sortlib.simdev.catalogue import FAULTS
from sortlib.study import fingerprint

ACCUSING = ("suspect", "nan", "crash", "timeout", "exception", "both-suspect", "config", "slow")
HANGS = 10  # seconds for a case of a fault that never returns
OTHERS = 60


def realistic(study, count, apis) -> dict:
    """API -> up to ``count`` cases of the study that hold it, of as many patterns as possible.

    APIs that no frequent pattern holds get cases of the patterns of up to three calls that one model is enough for.
    """
    chosen = {api: _holding(study.cases, api, count) for api in apis}
    rare = [api for api in apis if not chosen[api]]
    if rare:
        patterns = [p for p in mine(study.graphs, min_support=1, max_nodes=3) if set(rare) & set(p.nodes)]
        made = generate(patterns, study.records, study.graphs, per_pattern=1, max_elements=1_000_000)
        chosen |= {api: _holding(made, api, count) for api in rare}
    return chosen


def _holding(cases, api, count):
    patterns = {}
    for case in cases:
        if any(node.api == api for node in case.nodes):
            patterns.setdefault(case.pattern, []).append(case)
    # The first case of every pattern, then the second, ...: evenly over all patterns.
    rounds = [case for k in range(count) for found in patterns.values() for case in found[k : k + 1]]
    step = max(1, len(rounds) // count)
    return rounds[::step][:count]


def example(fault, folder) -> list:
    """The fault's own example as cases; one is enough, unless only every tenth call is wrong."""
    rng = np.random.Generator(np.random.Philox(0))
    cases = []
    for number in range(EVERY if "calls" in fault.needs else 1):
        inputs = {name: eval(text, {"np": np, "rng": rng}) for name, text in fault.inputs.items()}
        cases.append(_case(fault.call, inputs, folder / f"{fault.name}-{number}"))
    return cases


def judged(cases, candidate, timeout):
    """A row for every call of the cases on ``cpu`` against a platform, with its verdict."""
    import pandas as pd

    unique = list({case.id: case for case in cases}.values())
    rows = [row for _, found in campaign(unique, "cpu", candidate, timeout) for row in found]
    return with_verdicts(pd.DataFrame(rows))


def with_verdicts(rows):
    """Rows of outcomes with the verdicts of the rule of evidence, as text."""
    found = judge(rows, "evidence")
    return found.assign(verdict=found["verdict"].astype(str))


def accusations(rows, excused=frozenset()):
    """The rows that accuse a call, without those in ``excused``, (case, node)."""
    accused = rows[rows["verdict"].isin(ACCUSING)]
    known = [(case, node) in excused for case, node in zip(accused["case"], accused["node"], strict=True)]
    return accused[~np.asarray(known, bool)]


def outcome(fault, rows, excused, own) -> dict:
    """What is known of a fault after its campaign."""
    accused = accusations(rows, excused)
    rank = {str(verdict): place for place, verdict in enumerate(RANK)}
    order = sorted(accused.to_dict("records"), key=lambda row: rank[row["verdict"]])
    mine_ = [row for row in order if row["api"] == fault.api]
    calls = rows[rows["api"] == fault.api]
    # One verdict for the fault: the right one if any call got it, else the most serious.
    best = next((row for row in mine_ if row["verdict"] == fault.verdict), mine_[0] if mine_ else None)
    return {
        "fault": fault.name, "expected": fault.verdict, "found": bool(mine_),
        "verdict": best["verdict"] if best else "", "others": sorted({r["api"] for r in order} - {fault.api}),
        "realistic": int(sum(row["case"] not in own for row in mine_)),
        "realistic_calls": int((~calls["case"].isin(own)).sum()),
        "verdicts": {k: int(v) for k, v in calls["verdict"].value_counts().items()},
        "reason": best["reason"] if best else "",
    }  # fmt: skip


def figure(name, value, bar, ok, note=""):
    """One JSON line."""
    print(json.dumps({"name": name, "value": value, "bar": bar, "ok": bool(ok), "peer": "", "note": note}), flush=True)


def report(found):
    """The figures over all faults."""
    right = [f for f in found if f["found"] and not f["others"]]
    missed = ", ".join(f["fault"] for f in found if f not in right)
    share = len(right) / len(found)
    figure("share of faults found and blamed on the right API", round(share, 4), 0.95, share >= 0.95,
           f"{len(right)} of {len(found)}; not: {missed or 'none'}")  # fmt: skip
    for expected in sorted({f["expected"] for f in found}):
        ours = [f for f in found if f["expected"] == expected]
        wrong = [f"{f['fault']}: {f['verdict'] or 'not found'}" for f in ours if f["verdict"] != expected]
        figure(f"faults with the verdict {expected}", len(ours) - len(wrong), len(ours), not wrong, "; ".join(wrong))
    shown = [f for f in found if f["realistic"]]
    figure("faults that cases of the study alone show", len(shown), "", True,
           "not: " + ", ".join(f["fault"] for f in found if f not in shown))  # fmt: skip


def known_faults(study, given):
    """The part ``faults``."""
    import pandas as pd

    complete(study, "generate", progress=False)
    faults = [FAULTS[name] for name in given.fault or FAULTS]
    usual = realistic(study, given.cases, [api for api in PAPER_APIS if api in {f.api for f in faults}])
    frames, found = [], []
    with exchange_folder() as folder:
        own = {fault.name: example(fault, folder) for fault in faults}
        every = [case for cases in [*usual.values(), *own.values()] for case in cases]
        clean = judged(every, "simdev", OTHERS)
        alarms = accusations(clean)
        # What is wrong with both sides alike (NaN from a finite input, say) is the reference's own, and tells nothing
        # of the device; it has a figure of its own.
        alike = alarms[alarms["local_differing"].eq(0)]
        excused = set(zip(alike["case"], alike["node"], strict=True))
        for fault in faults:
            start = time.perf_counter()
            cases = [*own[fault.name], *usual[fault.api]]
            # A call that never returns is confirmed in a second process, so one realistic case is enough.
            hangs = fault.verdict == "timeout"
            rows = judged(cases[:2] if hangs else cases, f"simdev:{fault.name}", HANGS if hangs else OTHERS)
            frames.append(rows.assign(fault=fault.name))
            found.append(outcome(fault, rows, excused, {case.id for case in own[fault.name]}))
            print(json.dumps({**found[-1], "seconds": round(time.perf_counter() - start, 1)}), flush=True)
    report(found)
    false = accusations(clean, excused)
    texts = "; ".join(f"{row['api']}: {row['verdict']}" for row in false.to_dict("records"))
    figure("false alarms of cpu against clean simdev", len(false), 0, not len(false), f"{len(clean)} calls; {texts}")
    texts = "; ".join(f"{row['api']}: {row['verdict']}, {row['reason']}" for row in alike.to_dict("records"))
    figure("calls of cpu and clean simdev that are accused alike", len(alike), "", True, texts)
    if given.out:
        pd.concat([*frames, clean.assign(fault="")], ignore_index=True).to_parquet(given.out)


def methods_compared(study, given):
    """The part ``rq4``."""
    from sortlib.seeded_faults import seeded_faults, summary

    results = seeded_faults(study, given.fault or None, given.budget, progress=sys.stderr.isatty())
    for row in results.to_dict("records"):
        print(json.dumps(row), flush=True)
    table = summary(results)
    others = table[~((table["method"] == "SORT") & (table["rule"] == "evidence"))]
    for row in table.to_dict("records"):
        ours = row["method"] == "SORT" and row["rule"] == "evidence"
        best = int(others["blamed"].max()) if ours else ""
        note = (f"found {row['found']}, {row['alarms']} alarms on the clean device, {row['calls']} calls in "
                f"{row['seconds']} s; budget {given.budget} calls for each API")  # fmt: skip
        figure(f"RQ4 {row['method']} ({row['rule']}): blamed rightly, of {row['faults']} faults", row["blamed"], best,
               row["blamed"] > best if ours else True, note)  # fmt: skip
    for (method, api), reason in results.attrs["absent"].items():
        print(json.dumps({"method": method, "api": api, "absent": reason}), flush=True)


ROUND = 200  # cases that are made and run at one time


def many_clean_cases(study, given):
    """The part ``clean10000``."""
    end, now = time.monotonic() + given.minutes * 60, revision()
    candidates = ("cpu:baseline", "simdev")
    counts = {candidate: Counter() for candidate in candidates}
    for number, folder, ids, make in _rounds(study):
        if min(count["cases"] for count in counts.values()) >= given.clean_cases:
            break
        for candidate, count in counts.items():
            path = folder / f"{candidate.replace(':', '-')}-{number:04}.parquet"
            rows = read_round(path, now)
            if rows is None:
                if time.monotonic() > end:
                    continue
                rows = judged(make(), candidate, OTHERS).assign(revision=now)
                write_round(rows, path)
            count.update(rows["verdict"])
            count["cases"] += len(ids)
            count["cases measured by other code"] += 0 if (rows["revision"] == now).all() else len(ids)
            refused = both_refuse(rows)
            count["refused by both"] += int(refused.sum())
            for row in accusations(rows[~refused]).to_dict("records"):
                count["accused"] += 1
                print(json.dumps({"candidate": candidate, **{name: row[name] for name in (
                    "case", "pattern", "node", "api", "model", "verdict", "local_differing", "reason")}}),
                      flush=True)  # fmt: skip
            print(json.dumps({"candidate": candidate, "progress": dict(count)}), flush=True)
        if time.monotonic() > end:
            break
    for candidate, count in counts.items():
        figure(f"calls accused by cpu against {candidate} in {count['cases']} cases of the study", count["accused"], 0,
               not count["accused"] and count["cases"] >= given.clean_cases,
               f"{given.clean_cases} cases wanted; calls by verdict: {dict(count)}")  # fmt: skip


def both_refuse(rows):
    """Whether each call raised on both sides: an invalid input, which accuses nobody."""
    return rows["status"].eq("exception") & rows["side"].eq("both")


def revision() -> str:
    """A mark of the code that measures the evidence; the rule judges anew what was measured."""
    home = Path(sortlib.__file__).parent
    parts = [home / "thresholds.py", home / "drawing.py", *sorted((home / "runner").rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()[:12]


def read_round(path, now):
    """The rows of a round that was run before, judged; None where it has to run.

    What other code accused is run again, since the code may have been mended; what it did not accuse is kept.
    """
    import pandas as pd

    if not path.is_file():
        return None
    rows = with_verdicts(pd.read_parquet(path))
    outdated = (rows["revision"] != now).any() and len(accusations(rows[~both_refuse(rows)]))
    return None if outdated else rows


def write_round(rows, path):
    """Keep the rows of a round; an interrupt leaves no half of them."""
    with replacing(path) as new:
        rows.to_parquet(new)


def _rounds(study):
    """(number, folder, ids, function that makes the cases) of rounds of up to ``ROUND`` new cases of the study's
    patterns, each from all sizes and APIs. The ids are kept in the folder, one for each set of patterns and settings,
    so that what ran is not made again.
    """
    settings, known = study.config.generation, set()
    mark = fingerprint(study.stage("mine").get("fingerprint"), study.config.seed, settings.sampler,
                       settings.max_elements, ROUND)  # fmt: skip
    folder = study.path("clean", mark, "ids").parent
    number, empty, seed = 0, 0, study.config.seed
    while empty * ROUND <= len(study.patterns):  # until a whole pass gave nothing new
        seed += 1  # other joins and other values than the study's own
        order = np.random.Generator(np.random.Philox(seed)).permutation(len(study.patterns))
        for start in range(0, len(order), ROUND):
            patterns = [study.patterns[place] for place in order[start : start + ROUND]]
            make = partial(generate, patterns, study.records, study.graphs, 1, seed, settings.sampler,
                           settings.max_elements)  # fmt: skip
            path = folder / f"ids-{number:04}.json"
            if path.is_file():
                ids = json.loads(path.read_text())
            else:
                ids = list(dict.fromkeys(case.id for case in make() if case.id not in known))
                path.write_text(json.dumps(ids))
            known.update(ids)
            empty = 0 if ids else empty + 1
            if ids:
                yield number, folder, ids, partial(_chosen, make, frozenset(ids))
            number += 1


def _chosen(make, ids):
    return [case for case in make() if case.id in ids]


PARTS = {"faults": known_faults, "rq4": methods_compared, "clean10000": many_clean_cases}


def main():
    """Run every campaign and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", default="quick", help="a study's directory, or a bundled study to make first")
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS, help="parts to run")
    parser.add_argument("--fault", nargs="*", default=[], choices=FAULTS, metavar="NAME", help="names of faults")
    parser.add_argument("--cases", type=int, default=6, help="faults: cases of the study for each fault")
    parser.add_argument("--out", help="faults: Parquet file for all rows")
    parser.add_argument("--budget", type=int, default=60, help="rq4: executed calls of each method and API")
    parser.add_argument("--clean-cases", type=int, default=10_000, help="clean10000: cases on each pair")
    parser.add_argument("--minutes", type=float, default=600, help="clean10000: no new round after this time")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    folder = Path(given.study)
    folder = folder if (folder / "manifest.json").is_file() else Path("runs") / folder
    study = open_study(folder, "mine", given.study, progress=False)
    for part in given.only:
        PARTS[part](study, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
