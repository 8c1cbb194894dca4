"""The report of a study: one HTML file with what was run, what was found, and how to do it again."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path

import pandas as pd
from ruamel.yaml import YAML

from sortlib import details, figures, page, tables
from sortlib.apis import PAPER_APIS, paper_name
from sortlib.grouping import accuses, cause_of, finding_id, findings, state
from sortlib.judging import RANK, Verdict
from sortlib.page import counted, plural
from sortlib.platform import parse
from sortlib.runner.files import write_whole
from sortlib.study import Study

SHOWN_CASES = 6  # drawn as Figure 14
HARMLESS_CASES = 2  # the same where nothing is beyond rounding, since they look much alike
_FEW = 4  # methods whose every count stands in one table
_COLUMNS = 11  # of numbers in a table that fits on a page
_ABSENT = re.compile(r"^[^:]*: no attempt on ")  # footnotes on methods without a test of an API
_REASONS = 3  # shown for each method of others
_NAMED = 5  # findings in the head of the page
_WIDE = 7.0  # inches above which a drawn case takes a row of its own
MEANING = {
    Verdict.SUSPECT: "One platform is beyond the rounding bound and clearly farther from float64 than the other.",
    Verdict.NAN: "NaN or infinity where the other platform or float64 has a number.",
    Verdict.CRASH: "The process died, and died again when the case was repeated in a fresh one.",
    Verdict.TIMEOUT: "The call did not return in the time limit, twice.",
    Verdict.UNCONFIRMED: "The process died or hung, but not when the case was repeated in a fresh one.",
    Verdict.EXCEPTION: "The call raised an exception; on one side this accuses it, on both it is an invalid input.",
    Verdict.BOTH_SUSPECT: "Both platforms are beyond the rounding bound, about equally far from float64.",
    Verdict.CONFIG: "Beyond the bound, but within it when reduced-precision arithmetic is switched off.",
    Verdict.SLOW: "Right, but a hundred times slower than the other platform, twice.",
    Verdict.AMPLIFIED: "Above the threshold because a difference that arrived was passed on or enlarged; on equal "
    "inputs the call itself stays within rounding. This is what the paper reports as a precision bug.",
    Verdict.UNJUDGED: "The platforms differ, but there is no float64 reference or bound to say who is wrong.",
    Verdict.RANDOM: "Random numbers were drawn, and the two platforms draw different ones.",
    Verdict.ROUNDING: "Differences that the rounding bound explains.",
    Verdict.IDENTICAL: "All bits agree.",
    Verdict.UNREACHED: "An earlier call of the case gave no result.",
}
_HARMLESS = {Verdict.RANDOM, Verdict.ROUNDING, Verdict.IDENTICAL, Verdict.UNREACHED}


def write_report(study: Study) -> Path:
    """Write ``report.html`` into a study's directory; it opens without a network and prints on clean pages.

    Parameters
    ----------
    study : study whose cases were run.

    Returns
    -------
    pathlib.Path
        The same bytes for the same study: the page holds no time of its own.

    Raises
    ------
    SortError
        Nothing was run yet, or the file cannot be written.
    """
    study.all_outcomes  # noqa: B018 - says in one line what is missing, before half a page is made
    found = findings(study)
    sections = [
        ("findings", "Findings", *_findings(study, found)),
        ("others", "Other differences", *_other_differences(study, found)),
        ("run", "What was run", *_what_was_run(study)),
        ("validity", "RQ1: how many inputs are valid?", *_validity(study)),
        ("bugs", "RQ2: which bugs are found?", *_bugs(study)),
        ("interactions", "RQ3: what do interactions between APIs add?", *_interactions(study)),
        ("cases", "Where differences arise and grow", *_cases(study)),
        ("repeat", "How to repeat it", *_repeat(study)),
        ("left-out", "What was left out", *_left_out(study)),
    ]
    parts = [(anchor, title, "".join(content)) for anchor, title, *content in sections]
    path = study.directory / "report.html"
    write_whole(path, page.document(f"SORT study {study.config.name}", _lead(study, found), parts).encode())
    return path


def interesting_cases(study, count=SHOWN_CASES) -> list[str]:
    """Ids of the cases most worth looking at: the worst ones of groups that are more than rounding, in the order of
    ``study.findings``, then those that ``details.cases`` ranks first, one for each pattern; ``HARMLESS_CASES`` at most
    if all calls are within rounding and the threshold."""
    chosen, patterns = [], set()
    worst = study.findings[~study.findings["verdict"].isin(_HARMLESS)]["worst_case"]
    known, ranked = {case.id: case for case in study.cases}, details.cases(study)
    if worst.empty and not (ranked["beyond"] > 0).any():
        count = min(count, HARMLESS_CASES)
    for case_id in [*worst, *ranked["case"]]:
        case = known[case_id]
        if case.pattern not in patterns and len(chosen) < count:
            chosen.append(case_id)
            patterns.add(case.pattern)
    return chosen


# ---- sections ----


def _lead(study, found):
    reference, candidate = details.platform_pair(study)
    attempts = pd.concat([tables.attempts(study.outcomes), tables.attempts(study.single)])
    valid = int(tables.is_valid(attempts).sum())
    differing = int((study.all_outcomes["propagated_max_abs"] > study.config.threshold).sum())
    facts = [
        ("models", len(study.models)),
        ("frequent patterns", len(study.patterns)),
        ("cases", len(study.cases)),
        ("calls executed", len(attempts)),
        ("valid", f"{valid:,} of {len(attempts):,}"),
        (f"calls above the threshold {study.config.threshold:g}", differing),
    ]
    if study.config.generation.backward:
        facts.append(("calls with gradients compared", details.calls_with_gradients(study)))
    return (
        page.paragraph(f"{reference} (reference) against {candidate} (candidate)")
        + _summary(found)
        + page.facts(facts, compact=True)
    )


def _summary(found):
    """What was found, in the first lines of the page, with a link to each finding."""
    if found.empty:
        return page.element("div", page.element("p", "No finding: no platform is accused.", class_="verdict"),
                            class_="summary")  # fmt: skip
    accuse = "accuses" if len(found) == 1 else "accuse"
    said = page.element("p", page.text(f"{counted(len(found), 'finding')} {accuse} a platform:"), class_="verdict")
    items = ""
    for row in found.head(_NAMED).to_dict("records"):
        name = page.element("a", page.text(tables.both_names(row["api"])), href=f"#{_anchor(row['finding'])}")
        items += page.element("li", name + page.text(
            f": {row['verdict']} ({row['cause']}), {row['reference']} against {row['candidate']}, "
            f"{counted(row['calls'], 'call')}"))  # fmt: skip
    if len(found) > _NAMED:
        items += page.element("li", page.element("a", f"{len(found) - _NAMED:,} more", href="#findings"))
    return page.element("div", said + page.element("ul", items), class_="summary accusing")


def _anchor(finding):
    return f"finding-{finding}"


def _what_was_run(study):
    made, mined = study.manifest["made_with"], study.stage("mine")
    mining = study.config.mining
    yield page.table(tables.models(study), "Models and their graphs of API calls", {"apis": "APIs"})
    several = mined["patterns"] != 1
    yield page.paragraph(
        f"{counted(mined['patterns'], 'pattern')} of {mining.min_nodes} to {mining.max_nodes} calls",
        f"{'occur' if several else 'occurs'} in at least {counted(mining.min_support, 'model')};",
        f"{mined['with_join']:,} of them {'holds' if mined['with_join'] == 1 else 'hold'} a join, a call that takes",
        "tensors from two or more calls of the pattern.",
    )
    if study.config.generation.backward:
        compared, executed = details.calls_with_gradients(study), len(tables.attempts(study.all_outcomes))
        yield page.paragraph(
            f"Gradients were compared too (generation.backward), in {compared:,} of {counted(executed, 'call')}: each",
            "ran forward and backward, with an upstream gradient drawn for its outputs, and the gradients of its own",
            "inputs were compared and judged like further outputs.",
        )
    yield page.figure(figures.pattern_sizes(study), "Patterns by size and by support.",
                      f"Bars: {counted(mined['patterns'], 'pattern')} by number of calls and by number of models",
                      wide=True)  # fmt: skip
    yield page.fold("The most frequent patterns", page.figure(
        figures.patterns_grid(study), "The patterns with the highest support, larger ones first; joins are shaded.",
        "Drawings of the most frequent patterns"))  # fmt: skip
    sampler = study.config.generation.sampler
    yield page.fold(f"Generated values (sampler {sampler}) beside recorded ones", page.figure(
        figures.value_distributions(study), "What each sampler draws for a recorded tensor of the most frequent APIs: "
        "values that are uniform between a recorded minimum and maximum spread far more than real ones.",
        "Panels: recorded distribution of a tensor, and the values that each sampler draws", wide=True))  # fmt: skip
    yield page.table(tables.campaign(study), "Cases and calls, by how the calls ended")
    yield page.table(_platforms(study), "Platforms")
    yield page.element("h3", "Versions")
    yield page.facts(made.items())


def _platforms(study):
    rows = []
    for side, name in zip(("reference", "candidate"), details.platform_pair(study), strict=True):
        worker = study.manifest["workers"].get(name, {})
        rows.append({"side": side, "platform": name, "what": parse(name, study.config.platforms.own).what, **worker})
    return pd.DataFrame(rows)


def _findings(study, found):
    yield page.paragraph(
        "A finding accuses a platform: one API, one pair of platforms, one verdict and one cause; its evidence is that",
        "of its worst call. The verdict asks a float64 reference and a rounding bound which side is wrong, and looks",
        "at each call on equal inputs (local) and on each platform's own values (propagated).",
        *_spellings(study),
    )
    if found.empty:
        yield page.paragraph("There is none: nothing that was run accuses a platform.")
        return
    found = found.assign(api=found["api"].map(tables.both_names), worst_output=_worst_outputs(study, found))
    drawn, worst = interesting_cases(study), _worst_heading(study)
    if len(found) > 1:
        shown = found[["finding", "verdict", "api", "cause", "worst_output", "calls", "cases", "patterns"]]
        shown = shown.drop(columns=[name for name in ("cause", "worst_output") if not any(shown[name])])
        yield page.table(shown, "All findings", {"api": "API", "worst_output": worst},
                         links={"finding": {name: _anchor(name) for name in found["finding"]}})  # fmt: skip
    for verdict in RANK:
        rows = found[found["verdict"] == verdict]
        if len(rows):
            said = f"{verdict} ({counted(len(rows), 'finding')}, {counted(rows['calls'].sum(), 'call')})"
            yield page.element("h3", page.text(said)) + page.paragraph(MEANING[verdict])
            yield from (_finding(study, row, drawn, worst) for row in rows.to_dict("records"))
    missing = found[found["reproducer"] == "not made"]["finding"]
    if len(missing):
        yield page.paragraph("A stand-alone script and an issue text for a finding are made by this command; they then",
                             "stand here:")  # fmt: skip
        yield page.code("\n".join(f"sortlib reproduce {study.directory} {name} --minimize" for name in missing))


def _finding(study, row, drawn, worst):
    """All about one finding."""
    script = f"script-{row['finding']}" if _reproducer(study, row["finding"]) else ""
    pairs = [
        ("platforms", f"{row['reference']} (reference) against {row['candidate']} (candidate)"),
        ("cause", row["cause"]),
        (worst, row["worst_output"]),
        ("evidence", row["reason"]),
        ("only its calls have", row["only"]),
        ("seen in", f"{counted(row['calls'], 'call')}, {counted(row['cases'], 'case')}, "
                    f"{counted(row['patterns'], 'pattern')}"),
        ("worst call", f"node {row['worst_node']} of case {row['worst_case']}"),
        ("reproducer", row["reproducer"]),
    ]  # fmt: skip
    links = {"worst call": f"case-{row['worst_case']}"} if row["worst_case"] in drawn else {}
    links |= {"reproducer": script} if script else {}
    content = page.element("h4", page.text(f"{row['api']} (finding {row['finding']})"))
    content += page.facts([(name, value) for name, value in pairs if value], links=links)
    content += _script(study, row["finding"], script) if script else ""
    return page.element("div", content, class_="finding", id=_anchor(row["finding"]))


def _other_differences(study, accused):
    drawn = interesting_cases(study)
    others = study.findings[~study.findings["finding"].isin(accused["finding"])]
    if others.empty:
        yield page.paragraph("There are none." if len(accused) else "No call was judged.")
        return
    yield page.paragraph(
        "Calls that accuse no platform, by verdict, API and cause: what explains a difference, or why nobody can be",
        "said to be wrong. A row shows the worst of its calls.",
    )
    for verdict in RANK:
        rows = others[others["verdict"] == verdict]
        if rows.empty:
            continue
        said = f"{verdict} ({counted(rows['api'].nunique(), 'API')}, {counted(rows['calls'].sum(), 'call')})"
        content = page.paragraph(MEANING[verdict]) + _groups(rows, drawn)
        if verdict in _HARMLESS:
            yield page.fold(said, content)
        else:
            yield page.element("h3", page.text(said)) + content


def _groups(rows, drawn):
    """A table of groups of calls of one verdict; a worst case that is drawn below leads there."""
    rows = rows.drop(columns=["finding", "verdict", "reference", "candidate"])
    rows = rows.drop(columns=[] if any(rows["cause"]) else "cause").assign(api=rows["api"].map(tables.both_names))
    headings = {"api": "API", "worst_case": "worst case", "worst_node": "node"}
    return page.table(rows, headings=headings, links={"worst_case": {case_id: f"case-{case_id}" for case_id in drawn}})


def _worst_heading(study):
    return "worst output or gradient" if study.config.generation.backward else "worst output"


def _worst_outputs(study, found):
    """Which output or gradient of its calls is worst, for each finding; empty where the cause is no inaccuracy.

    Nothing is said where there is nothing to choose from: every call of the findings has one output, without gradients.
    """
    rows = pd.concat([study.judged, study.judged_single], ignore_index=True)
    rows = rows[accuses(rows)]
    named = {}
    for row in rows.to_dict("records"):
        cause = cause_of({**row, "verdict": row["evidence"]})
        key = finding_id(row["api"], row["reference"], row["candidate"], row["evidence"], cause)
        if cause.kind == "accuracy":
            worst = row.get("worst_output")
            worst = worst if isinstance(worst, str) else ""  # missing where no call of a file of outcomes has one
            named.setdefault(key, []).append((row["case"], row["node"], worst or "output"))
    if not study.config.generation.backward and {name for calls in named.values() for *_, name in calls} <= {"output"}:
        return ""
    return [_most(named.get(row["finding"], []), row) for row in found.to_dict("records")]


def _most(calls, finding):
    """The worst output of a finding's worst call, and how many of its calls have which where they differ."""
    counts = Counter(name for *_, name in calls)
    worst = next((name for *place, name in calls if place == [finding["worst_case"], finding["worst_node"]]), "")
    if len(counts) < 2:
        return worst
    return f"{worst}; of all calls: " + ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


def _reproducer(study, finding) -> str:
    """The text of a finding's script, or nothing where none was made."""
    script = state(study, finding).get("script")
    path = study.directory / "findings" / Path(script).name if script else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""


def _script(study, finding, anchor):
    """A finding's script, to copy from the page; the issue text beside it holds what it prints."""
    known = state(study, finding)
    summary = f"Script for finding {finding}: findings/{Path(known['script']).name} ({known['state']} here)"
    return page.fold(summary, page.code(_reproducer(study, finding)), anchor=anchor)


def _spellings(study):
    """A sentence on the APIs that have another name in the paper."""
    other = [f"{paper_name(api)} is {api}" for api in sorted(tables.tested(study)) if paper_name(api) != api]
    if other:
        yield f"APIs have the paper's names; in code and in the CSV tables, {' and '.join(other)}."


def _scopes(study):
    """The sets of APIs to show: the paper's 15, and all tested ones if there are others; with words for captions."""
    yield None, "the paper's 15 APIs"
    found = tables.tested(study)
    if found - set(PAPER_APIS):
        yield "tested", f"all {len(found)} tested APIs" if len(found) > 1 else "the only tested API"


def _validity(study):
    yield page.paragraph(
        "RQ1, RQ2 and RQ3 are the paper's research questions (section V). RQ1 asks what share of the inputs that a",
        "method makes for an API is valid, so that the API can be called with them (Table I).",
    )
    yield page.paragraph(
        "Every input set handed to an API on the reference platform is an attempt, valid if the API returned; nothing",
        "is retried. Ratios in percent. / marks where a method has no test.",
    )
    for apis, scope in _scopes(study):
        methods, validity = _methods(study, apis), tables.validity(study, apis)
        notes, source = _about(_notes(validity)[0], study, methods), "" if apis else " (paper Table I)"
        validity = validity.drop(columns=[name for name in validity if name.endswith("_reasons")])
        caption = f"Attempts and valid inputs, {scope}{source}"
        if len(methods) <= _FEW:
            yield from _by_method(validity, methods, caption, notes)
            continue
        ratios = validity[["api", "paper_name", *(f"{key}_ratio" for key in methods)]]
        yield from _by_method(ratios, methods, f"Valid inputs in percent, {scope}{source}", notes, ("ratio",))
        yield page.fold(f"Attempts and valid inputs behind them, {scope}", *_by_method(validity, methods, caption, []))
    validity = tables.validity(study)
    columns, headings, groups = _grouped(validity, {"paper": "published ratio of valid inputs"})
    theirs = _notes(validity)[1]
    yield page.fold("The paper's numbers", page.table(validity[columns], "", headings, groups, theirs))
    yield from _invalid(study)


def _methods(study, apis):
    """Names of the methods by key; where other APIs than the paper's are shown, those that were tested on them."""
    return {method.key: method.name for method in tables.methods(study) if apis is None or not method.baseline}


def _about(notes, study, methods):
    """Footnotes on the methods that are shown: all but those that begin with the name of another."""
    others = {method.name for method in tables.methods(study)} - set(methods.values())
    return [note for note in notes if note.partition(":")[0].split(" and ")[0] not in others]


def _by_method(table, methods, caption, notes, single=()):
    """A table by method, in as many parts as fit on a page each; the notes stand below the last part.

    ``single`` holds the only kinds of column there are, if a method has but one: then it is headed by its name. Of many
    methods, those without any count are left out else.
    """
    columns, headings, groups = _grouped(table, methods)
    if single:
        headings |= {f"{key}_{kind}": name for key, name in methods.items() for kind in single}
        groups = {}
    parts = [[]]
    for key in methods:
        own = [name for name in columns if name.startswith(f"{key}_")]
        if len(methods) > _FEW and not single and all((table[name] == tables.NOTHING).all() for name in own):
            continue  # the notes say why
        if parts[-1] and len(parts[-1]) + len(own) > _COLUMNS:
            parts.append([])
        parts[-1] += own
    for number, part in enumerate(parts, 1):
        said = caption if len(parts) == 1 else f"{caption}, part {number} of {len(parts)}"
        yield page.table(table[["paper_name", *part]], said, headings, groups, notes if number == len(parts) else [])


def _invalid(study):
    """Reasons of invalid attempts: all of SORT and Single-API, and the most frequent ones of each other method."""
    invalid = tables.invalid(study)
    others = [method.name for method in tables.methods(study) if method.baseline]
    ours = invalid[~invalid["method"].isin(others)]
    if len(ours):
        ours = ours.assign(api=ours["api"].map(tables.both_names))
        yield page.table(ours, "Why attempts were not valid", {"api": "API"})
    rows = []
    for method in others:
        kinds = invalid[invalid["method"] == method].groupby("kind", sort=False)
        found = [{"method": method, "attempts": int(group["attempts"].sum()), "APIs": group["api"].nunique(),
                  "message": group["example"].iloc[0]} for _, group in kinds]  # fmt: skip
        rows += sorted(found, key=lambda row: (-row["attempts"], row["message"]))[:_REASONS]
    if rows:
        summary = f"Why attempts of the other methods were not valid: the {_REASONS} most frequent reasons of each"
        yield page.fold(summary, page.table(pd.DataFrame(rows)))


def _bugs(study):
    threshold = f"{study.config.threshold:g}"
    yield page.paragraph("RQ2 asks how many bugs a method finds, by API and symptom (Table II).")
    yield page.paragraph(
        f"The paper counts every call whose outputs differ by more than {threshold} or that fails on one side. Under",
        "the evidence rule only what rounding cannot explain accuses a platform.",
    )
    for apis, scope in _scopes(study):
        source = "" if apis else " (paper Table II)"
        yield from _counts(tables.bugs(study, apis), _methods(study, apis), scope, threshold, source)
    first = page.figure(
        figures.error_by_magnitude(study), "Every call by the size of its output and by its difference. Rounding grows "
        "with the values, so that a fixed threshold measures the size of an output as much as its error.",
        "Scatter: difference of each call against the largest magnitude of its output")  # fmt: skip
    second = page.figure(
        figures.difference_histogram(study), "The same calls counted: by their difference with the paper's threshold, "
        "and by their error against float64 in multiples of their rounding bound.",
        "Histograms: differences of calls, and errors of both platforms in units of the bound")  # fmt: skip
    yield page.element("div", first + second, class_="pair")
    yield page.figure(
        figures.heat_table(study), "By API, on equal inputs: the largest difference, and how often not all bits agree.",
        "Table: APIs with their largest difference and the share of calls that differ in a bit")  # fmt: skip
    bugs = tables.bugs(study)
    published = [name for name in bugs if name.startswith("paper_") and name != "paper_name"]
    names = {f"paper_{method}": f"{method}, published" for method in dict.fromkeys(
        name.removeprefix("paper_").rpartition("_")[0] for name in published)}  # fmt: skip
    kept = bugs[["api", "paper_name", *published]]
    yield page.fold("The paper's numbers", *_by_method(kept, names, "Published counts", _notes(bugs)[1]))


def _counts(bugs, methods, scope, threshold, source):
    """Counts by the paper's rule, then by the evidence rule."""
    evidence = [name for name in bugs if name.partition("_")[2].startswith(("evidence", "findings"))]
    notes = [note for note in _notes(bugs)[0] if not _ABSENT.search(note)]  # those stand in RQ1
    counts = bugs.drop(columns=evidence)
    if len(methods) > _FEW:
        named = ("api", "paper_name")
        counts = counts[[name for name in counts if name in named or name.endswith("_distinct") or _any(counts[name])]]
        notes = [*notes, "symptoms that no call of a method shows are not shown"]
    caption = f"By the paper's rule, threshold {threshold}, {scope}{source}"
    yield from _by_method(counts, methods, caption, notes)
    used = [name for name in evidence if "findings" in name or _any(bugs[name])]
    judged = bugs[["api", "paper_name", *used]].rename(columns=lambda name: name.replace("_evidence_", "_"))
    notes = ["verdicts that no call has are not shown"]
    if any(name.endswith("_exception") for name in used):
        notes.append("findings: exceptions on both sides are invalid inputs and accuse no platform")
    caption = f"By the evidence rule, {scope}: calls by verdict, and findings that accuse a platform"
    yield from _by_method(judged, methods, caption, notes)


def _any(column):
    """Whether any cell counts something."""
    return any(isinstance(value, int) and value for value in column)


def _notes(table):
    """A table's footnotes on our columns, and those on the published ones."""
    notes = table.attrs.get("footnotes", ())
    published = [note for note in notes if note.startswith("paper_")]
    return [note for note in notes if note not in published], [note.partition(": ")[2] for note in published]


def _grouped(table, prefixes):
    """Columns of some prefixes behind the API's name, with headings and groups for ``page.table``."""
    columns, headings, groups = ["paper_name"], {"paper_name": "API"}, {}
    for prefix, group in prefixes.items():
        for name in table:
            if name.startswith(f"{prefix}_") and name != "paper_name":
                columns.append(name)
                headings[name] = name.removeprefix(f"{prefix}_").replace("_", " ")
                groups[name] = group
    return columns, headings, groups


def _interactions(study):
    yield page.paragraph(
        "RQ3 asks what is gained by testing APIs together, as models call them, over testing each alone: whether",
        "differences grow from call to call (Figure 13).",
    )
    for apis, scope in _scopes(study):
        yield from _figure_13(study, apis, scope)


def _figure_13(study, apis, scope):
    average, share = tables.average_difference(study, apis), tables.involvement(study, apis)
    a, b = ("", "") if apis else (" (paper Figure 13a)", " (paper Figure 13b)")
    first = page.figure(
        figures.average_difference(study, apis), "Average over an API's executions of the largest absolute difference "
        f"of its output, tested in patterns and alone; {scope}{a}.",
        "Dots: average difference of each API, in patterns and alone; the table below has the numbers")  # fmt: skip
    second = page.figure(
        figures.involvement(study, apis), "Share of an API's executions in which it, or a call that it feeds, exceeds "
        f"the threshold; {scope}{b}.",
        "Bars: share of executions involved in erroneous behaviour; the table below has the numbers")  # fmt: skip
    yield page.element("div", first + second, class_="pair")
    both = average.merge(share, on=["api", "paper_name"], suffixes=("_difference", "_share")).drop(columns="api")
    both = both.astype(object).where(both.notna(), tables.NOTHING)
    headings = {"paper_name": "API"}
    headings |= {name: "SORT" if name.startswith("sort") else "single-API" for name in both if name not in headings}
    groups = {name: "average difference" if name.endswith("difference") else "share involved" for name in both
              if name != "paper_name"}  # fmt: skip
    caption = f"The numbers of both figures, {scope}"
    yield page.table(both, caption, headings, groups, average.attrs.get("footnotes", ()))


def _cases(study):
    yield page.paragraph(
        "The cases most worth looking at, drawn like the paper's Figure 14: left each platform on its own intermediate",
        "values, right every call on the reference's values, so that what a call receives is told from what it adds.",
    )
    yield page.element("div", "".join(_case(study, case_id) for case_id in interesting_cases(study)), class_="pair")
    yield page.element("h3", "A whole model")
    yield page.figure(
        figures.whole_model(study, side="propagated"), "All calls of one model, each with the largest difference that "
        "a tested pattern shows there; a pattern is tested once and holds wherever it occurs.",
        "Graph of a whole model, its calls coloured by the largest difference", wide=True)  # fmt: skip


def _case(study, case_id):
    """A case as a part of its own; the drawing names it, so the heading tells its calls."""
    calls = details.calls(study, case_id)
    names = ", ".join(paper_name(node.api) for node in study.case(case_id).nodes)
    worst = "; ".join(f"{paper_name(row['api'])}: {row['evidence']}" for row in calls.to_dict("records")
                      if row["evidence"] not in _HARMLESS)  # fmt: skip
    drawn = figures.amplification(study, case_id, which="both")
    wide = drawn.get_size_inches()[0] > _WIDE
    heading = page.element("h3", page.text(names))
    image = page.figure(drawn, worst or "Nothing beyond rounding.",
                        f"Case {case_id}: graph of the calls {names}; the table below has the differences")  # fmt: skip
    shown = calls.assign(api=calls["api"].map(paper_name))
    headings = {"api": "API", "reference_error": "error of reference", "candidate_error": "error of candidate",
                "paper": "paper", "evidence": "evidence"}  # fmt: skip
    numbers = page.fold("Numbers, and how to run this case again", page.table(shown, headings=headings),
                        page.code(_rerun(study, case_id)))  # fmt: skip
    look = "case whole" if wide else "case"
    return page.element("div", heading + image + numbers, class_=look, id=f"case-{case_id}")


def _rerun(study, case_id):
    reference, candidate = details.platform_pair(study)
    return (
        f"import sortlib as sl\n\nstudy = sl.Study({str(study.directory)!r})\n"
        f"outcomes = sl.run([study.case({case_id!r})], {reference!r}, {candidate!r})\n"
        f"sl.judge(outcomes, rule='evidence')[['api', 'propagated_max_abs', 'local_max_abs', 'verdict', 'reason']]\n"
        f"# where a call accuses a platform, a stand-alone script and an issue text:\n"
        f"# sl.reproduce(study, {case_id!r}, minimize=True)"
    )


def _repeat(study):
    config = study.config
    reference, candidate = details.platform_pair(study)
    yield page.paragraph(
        f"The seed {config.seed} decides the joins of records and every drawn value; the same seed, versions and",
        "platforms give the same tables to the last digit.",
    )
    command = study.manifest["made_with"]["command"]
    if command.startswith("sortlib"):
        yield page.paragraph("The study was started by this command:") + page.code(command)
    yield page.paragraph(
        f"Anywhere else, save this as {config.name}.yaml and run the command below it. The zoo file names the models,",
        "their input images and, where asked for, pretrained weights.",
    )
    settings = config.model_copy(update={"platforms": config.platforms.model_copy(
        update={"reference": reference, "candidate": candidate})})  # fmt: skip
    yield page.code(_yaml(settings.model_dump(mode="json", exclude_none=True)))
    yield page.code(f"sortlib study {config.name}.yaml --out {study.directory}")
    yield page.fold("Manifest", page.code(json.dumps(_brief(study.manifest), indent=1)), printed=False)


def _yaml(value) -> str:
    buffer, yaml = io.StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False
    yaml.dump(value, buffer)
    return buffer.getvalue().strip()


def _brief(manifest):
    """The manifest without the list of patterns without a case, which has a table of its own."""
    stages = {name: {key: value for key, value in facts.items() if key != "without_case"}
              for name, facts in manifest["stages"].items()}  # fmt: skip
    return {**manifest, "stages": stages}


def _left_out(study):
    config, made = study.config, study.stage("generate")
    tested, mined = made["patterns_tested"], made["patterns_mined"]
    notes = []
    if tested < mined:
        were = "was" if mined - tested == 1 else "were"
        notes.append(f"{mined - tested:,} of {counted(mined, 'mined pattern')} {were} not tested "
                     f"(generation.max_patterns is {config.generation.max_patterns:,}); those tested are spread over "
                     "sizes and APIs.")  # fmt: skip
    limit = config.generation.max_elements
    large = sum(_larger(record, limit) for record in study.records) if limit else 0
    if large:
        notes.append(f"{counted(large, 'record')} with a tensor of more than {limit:,} elements "
                     f"{'was' if large == 1 else 'were'} not used (generation.max_elements).")  # fmt: skip
    if config.mining.keep != "all":
        notes.append(f"Only {config.mining.keep} patterns were kept (mining.keep).")
    for model, facts in study.stage("trace").get("done", {}).items():
        if facts["other_graph"] and model in study.models:
            number = len(facts["other_graph"])
            samples = f"{plural('sample', number)} {', '.join(map(str, facts['other_graph']))}"
            notes.append(f"{model}: {samples} took another path through the model and "
                         f"{'was' if number == 1 else 'were'} not recorded.")  # fmt: skip
    for graph in study.graphs:
        notes += [f"{graph.name}: {note}" for note in graph.notes]
    pending = len(study.cases) - study.all_outcomes["case"].nunique()
    if pending:
        have = "has" if pending == 1 else "have"
        notes.append(f"{pending:,} of {counted(len(study.cases), 'case')} {have} not been run yet.")
    without = made.get("without_case", {})
    if without:
        notes.append(f"{counted(len(without), 'pattern')} to be tested gave no case.")
    shown = tables.methods(study)[:2] if len(tables.methods(study)) > _FEW else tables.methods(study)
    about = _about(_notes(tables.bugs(study))[0], study, {method.key: method.name for method in shown})
    yield page.bullets([*notes, *about]) or page.paragraph("Nothing.")
    if without:
        yield page.table(_reasons(without), "Patterns without a case, by reason")


def _larger(record, limit):
    tensors = [features for _, features in record.tensors()]
    return any(features.numel > limit for features in (*tensors, *record.outputs))


def _reasons(without):
    rows = {}
    for pattern, reason in without.items():
        rows.setdefault(reason, []).append(pattern)
    ordered = sorted(rows.items(), key=lambda item: (-len(item[1]), item[0]))
    return pd.DataFrame([{"patterns": len(ids), "reason": reason, "for example": ids[0]} for reason, ids in ordered])
