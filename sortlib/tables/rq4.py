"""RQ4: which known faults each method finds (not in the paper; ``sortlib.seeded_faults`` runs the comparison)."""

from __future__ import annotations

import pandas as pd

from sortlib.apis import PAPER_APIS
from sortlib.tables.frames import NOTHING, frame, noted, with_total
from sortlib.tables.methods import both_names

NOT_RUN = "not run yet; 'sortlib faults STUDY' runs it"


def seeded_faults(study) -> pd.DataFrame:
    """RQ4: per API the seeded faults, and how many of them each method found and blamed on the right API.

    Columns are ``faults``, then for each method and rule ``*_found``, ``*_blamed`` (found, and no other API accused)
    and ``*_alarms`` (accusations on the clean device by the same attempts). ``/`` where no fault of the API was run,
    or the method has no attempt on it.
    """
    from sortlib.seeded_faults import STAGE, stored

    results, table = stored(study), frame(list(PAPER_APIS))
    counted = results.drop_duplicates("fault")["api"].value_counts().to_dict()
    table["faults"] = with_total(table["api"], {api: int(count) for api, count in counted.items()})
    for (method, rule), rows in results.groupby(["method", "rule"], sort=False):
        groups = dict(list(rows.groupby("api")))
        for name in ("found", "blamed"):
            table[f"{method}_{rule}_{name}"] = with_total(
                table["api"], {api: int(group[name].sum()) for api, group in groups.items()}
            )
        alarms = {api: int(group["alarms"].iloc[0]) for api, group in groups.items()}
        table[f"{method}_{rule}_alarms"] = with_total(table["api"], alarms)
    return noted(table, _notes(study.stage(STAGE), results, study.config.mining.min_support))


def _notes(settings, results, support):
    if results.empty:
        return [f"{NOTHING}: {NOT_RUN}"]
    notes = [
        f"{settings['budget']} executed calls of each method and API; {results['fault'].nunique()} faults of simdev",
        "own: the method's own oracle; evidence, paper: SORT's oracle under either rule",
        "alarms on the clean device, which is the CPU bit for bit: for methods that look at one platform (FreeFuzz-P, "
        "DeepREL) they are claims about PyTorch itself, which nobody has examined here",
    ]
    rare = [api for api in PAPER_APIS if api in results.attrs["rare"]]
    if rare:
        shared = "1 model has" if support == 1 else f"{support} models share"
        notes.append(f"SORT: {', '.join(map(both_names, rare))}: in no pattern that {shared}, so it was run on rare "
                     "ones, of up to three calls, which one model is enough for")  # fmt: skip
    reasons = {}
    for (method, api), why in results.attrs["absent"].items():
        reasons.setdefault((method, why), []).append(api)
    notes += [f"{method}: no attempt on {', '.join(apis)}: {why}" for (method, why), apis in reasons.items()]
    rest = [api for api in PAPER_APIS if api not in set(results["api"])]
    return [*notes, f"{NOTHING} for {', '.join(rest)}: {NOT_RUN}"] if rest else notes
