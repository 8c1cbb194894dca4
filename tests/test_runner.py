"""Campaigns with real faults in real worker processes: each is the outcome of its own case and of no other."""

import errno
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import faulty_backend as fault
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import sortlib as sl
from sortlib import apis
from sortlib.checking import check_many
from sortlib.errors import SortError
from sortlib.features import LEVELS, measure
from sortlib.generation import generate
from sortlib.graph import Edge, Embedding, Pattern
from sortlib.platform import Platform, require
from sortlib.runner import campaign, evidence, execution, single, transport
from sortlib.runner.campaign import run
from sortlib.runner.execution import Executor, draw_externals, duplicate, seed_of
from sortlib.tracing import Tracer

HERE = str(Path(__file__).parent)


def faulty(name="faulty", **env):
    return Platform(name, "cpu", imports=("faulty_backend",), env={"PYTHONPATH": HERE, "SORT_TEST_FAULTS": "1", **env})


def case_of(function, *inputs, nodes=None):
    """One case of a traced function; ``nodes`` gives the pattern's nodes and their order."""
    graph, records = Tracer("model").run(function, *inputs)
    nodes = tuple(range(len(graph.nodes))) if nodes is None else nodes
    edges = tuple(Edge(nodes.index(e.src), nodes.index(e.dst), e.argument) for e in graph.edges)
    apis = tuple(graph.nodes[i].api for i in nodes)
    place = Embedding(0, nodes, tuple(range(len(edges))))
    (case,) = generate([Pattern("-".join(apis), apis, edges, 1, (0,), (place,))], records, [graph], per_pattern=1)
    return case


def chain(rows):
    """tanh -> relu -> sigmoid; the faulty backend fails in relu for marked numbers of rows."""
    return case_of(lambda x: torch.sigmoid(torch.relu(torch.tanh(x))), torch.randn(rows, 3))


def summary(outcomes):
    """(status, side) of every node of each case."""
    return [list(zip(rows.status, rows.side, strict=True)) for _, rows in outcomes.groupby("case", sort=False)]


def without_times(outcomes):
    return outcomes.drop(columns=[name for name in outcomes if name.startswith("seconds")])


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """Exchanged tensors go to a folder of the test, which must be empty at the end."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(transport, "memory_dir", lambda: str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def workers(parent):
    """Process ids of the workers that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z" and "sortlib.runner.worker" in command:
            found.append(int(status.parent.name))
    return found


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FINE = [("ok", "")] * 3


def broken(status, side):
    """The middle call ends one side: the reference's last call has no input, of the candidate only its chain breaks."""
    return [("ok", ""), (status, side), ("ok", "") if side == "candidate" else ("unreached", "")]


def test_each_fault_of_the_candidate_is_the_outcome_of_its_own_case():
    rows = [3, fault.SEGFAULT, 4, fault.ABORT, fault.ENDLESS, fault.RAISES, fault.HUGE, fault.MEMORY, fault.NARROW, 5]
    outcomes = run([chain(n) for n in rows], "cpu", faulty(), timeout=4, progress=False)
    found = dict(zip(rows, summary(outcomes), strict=True))
    # sigmoid of the reference's value still runs where the candidate's relu only raised.
    raised = [("ok", ""), ("exception", "candidate"), ("ok", "")]
    assert found == {
        3: FINE, fault.SEGFAULT: broken("crash", "candidate"), 4: FINE, fault.ABORT: broken("crash", "candidate"),
        fault.ENDLESS: broken("timeout", "candidate"), fault.RAISES: raised, fault.HUGE: raised, fault.MEMORY: raised,
        fault.NARROW: [("ok", ""), ("mismatch", "candidate"), ("ok", "")], 5: FINE,
    }  # fmt: skip
    messages = outcomes[outcomes.api == "relu"].message.tolist()
    assert messages[1].startswith("killed by SIGSEGV") and messages[3].startswith("killed by SIGABRT")
    assert messages[4] == "no answer within 4 s"
    assert messages[5] == "RuntimeError: this backend does not like 14 rows"
    assert messages[6].startswith("RuntimeError: ") and "alloc" in messages[6].lower()
    assert messages[7] == "MemoryError: "
    assert messages[8] == "output shapes [(17, 2)], reference [(17, 3)]"
    after = outcomes[(outcomes.api == "sigmoid") & (outcomes.status == "ok")]
    broke = after.reference_shape.isin([f"[{n}, 3]" for n in range(fault.SEGFAULT, fault.NARROW + 1)])
    assert broke.sum() == 7
    assert after[broke].propagated_broken.all() and after[broke].propagated_max_abs.isna().all()
    assert (after[~broke].propagated_max_abs == 0).all()
    assert (outcomes.reference == "cpu").all() and (outcomes.candidate == "faulty").all()
    verdicts = sl.judge(outcomes, "evidence").verdict.astype(str)
    assert verdicts[outcomes.api == "relu"].tolist() == [
        "identical", "crash", "identical", "crash", "timeout", "exception", "exception", "exception", "suspect",
        "identical",
    ]  # fmt: skip


def test_a_fault_of_the_reference_says_whether_the_other_side_has_it_too():
    cases = [chain(n) for n in (fault.SEGFAULT, fault.RAISES, 3)]
    outcomes = run(cases, faulty(), "cpu", timeout=20, progress=False)
    assert summary(outcomes) == [broken("crash", "reference"), broken("exception", "reference"), FINE]
    outcomes = run(cases, faulty(), faulty("same"), timeout=20, progress=False)
    assert summary(outcomes) == [broken("crash", "both"), broken("exception", "both"), FINE]
    message = outcomes[outcomes.status == "crash"].message.item()
    assert message.startswith("reference: killed by SIGSEGV") and "candidate: killed by SIGSEGV" in message


@linux
def test_a_worker_that_is_killed_from_outside_costs_nothing():
    cases = [chain(n) for n in (3, fault.SLOW, 4, fault.SLOW, 5)]
    found, unconfirmed = [], []
    for case, rows in campaign.campaign(cases, "cpu", faulty(), timeout=60):
        found.append([row["status"] for row in rows])
        unconfirmed.append([row["unconfirmed"] for row in rows])
        if len(found) in (1, 3):  # the candidate works on a slow case now
            time.sleep(0.5)
            for process in workers(os.getpid()):
                os.kill(process, signal.SIGKILL)
        assert case.id == cases[len(found) - 1].id
    assert found == [["ok"] * 3] * 5
    assert unconfirmed[0] == [""] * 3
    assert unconfirmed[1][1] == unconfirmed[3][1] == "crash", "the candidate ran relu when it was killed"
    # The reference was killed between two cases, which the later one says at its first call.
    assert all(node in (0, 1) for case in unconfirmed for node, kind in enumerate(case) if kind)
    assert workers(os.getpid()) == []


def test_an_unconfirmed_death_is_a_state_of_its_own_and_hides_no_finding():
    case = chain(3)
    rows = run([case], progress=False).assign(unconfirmed=["", "crash", "timeout"], message=["", "killed", "late"])
    rows.loc[2, ["candidate_error", "candidate_ratio", "candidate_own_ratio"]] = [1.0, 1e6, 1e6]  # a wrong result
    assert sl.judge(rows, "evidence").verdict.astype(str).tolist()[1:] == ["unconfirmed", "suspect"]
    assert sl.judge(rows, "evidence").reason[1] == "killed"
    assert sl.judge(rows, "paper").verdict.tolist() == ["pass"] * 3


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_timeout_that_is_none_is_one_line(timeout):
    with pytest.raises(SortError) as error:
        run([chain(3)], timeout=timeout, progress=False)
    assert str(error.value) == f"timeout: must be a number of seconds above 0, not {timeout!r}"


def test_calls_that_do_not_need_the_broken_one_still_run_on_both_sides():
    def block(x):
        y = torch.tanh(x)
        return torch.relu(y), torch.sigmoid(y)

    case = case_of(block, torch.randn(fault.ABORT, 3))
    assert [node.api for node in case.nodes] == ["tanh", "relu", "sigmoid"]
    for sides, side in ((("cpu", faulty()), "candidate"), ((faulty(), "cpu"), "reference")):
        outcomes = run([case], *sides, progress=False)
        assert summary(outcomes) == [[("ok", ""), ("crash", side), ("ok", "")]]
        assert outcomes.propagated_max_abs[2] == 0, "sigmoid's own chain is whole"


@linux
def test_workers_die_with_their_parent_and_the_next_campaign_tidies_up(memory):
    script = f"""
        import sys
        sys.path.insert(0, {HERE!r})
        from sortlib.runner import transport
        transport.memory_dir = lambda: {str(memory)!r}
        import test_runner as t
        from sortlib.runner.campaign import campaign
        for _ in campaign([t.chain(3), t.chain(t.fault.ENDLESS)], "cpu", t.faulty(), timeout=600):
            print("one case is done", flush=True)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "one case is done\n"
    started = workers(parent.pid)
    assert len(started) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert len(list(memory.iterdir())) == 1, "a killed process cannot tidy up"
    held = memory / "sortlib-held"
    with transport.exchange_folder() as folder:
        folder.rename(held)
        with transport.exchange_folder() as other:
            assert sorted(memory.iterdir()) == sorted([held, other]), "folders in use are left alone"
        held.rename(folder)


def test_an_abandoned_campaign_stops_at_once():
    started = time.monotonic()
    cases = [chain(n) for n in (3, fault.ENDLESS, 4)]
    for _ in campaign.campaign(cases, "cpu", faulty(), timeout=300):
        break  # as an interrupt does, the generator is closed while the candidate hangs
    assert time.monotonic() - started < 60
    if sys.platform == "linux":
        assert workers(os.getpid()) == []


def test_a_faulty_call_is_blamed_and_those_after_it_only_pass_it_on():
    weight, mean, variance = torch.randn(4, 3, 3, 3), torch.zeros(4), torch.ones(4)

    def block(x):
        return torch.relu(F.batch_norm(F.conv2d(x, weight), mean, variance))

    case = case_of(block, torch.randn(2, 3, 8, 8))
    outcomes = run([case], "cpu", faulty(SORT_TEST_CONV_OFFSET="0.01"), progress=False).set_index("api")
    assert outcomes.local_max_abs["conv2d"] == pytest.approx(0.01, rel=1e-3)
    assert outcomes.local_max_abs[["batch_norm", "relu"]].tolist() == [0, 0]
    # batch norm divides by sqrt(variance), which its record lets be drawn within [1, 1], plus eps = 1e-5.
    assert outcomes.propagated_max_abs["batch_norm"] == pytest.approx(0.01, rel=1e-3)
    assert outcomes.propagated_max_abs["relu"] == pytest.approx(0.01, rel=1e-3)
    assert outcomes.incoming.tolist() == [0, *outcomes.propagated_max_abs[["conv2d", "batch_norm"]]]
    assert outcomes.candidate_error["conv2d"] == pytest.approx(0.01, rel=1e-3)
    assert outcomes.reference_error["conv2d"] < 1e-5
    judged = sl.judge(outcomes.reset_index(), "evidence").set_index("api").verdict
    assert judged.astype(str).to_dict() == {"conv2d": "suspect", "batch_norm": "amplified", "relu": "amplified"}
    assert sl.judge(outcomes.reset_index(), "paper").verdict.tolist() == ["fail"] * 3


def test_runs_and_executors_agree_in_all_but_times(monkeypatch):
    monkeypatch.setattr(campaign, "SHARE", 2)
    weight = torch.randn(8, 8)

    def block(x):
        return F.gelu(F.linear(torch.softmax(x, -1), weight)).chunk(2, -1)[1]

    cases = [case_of(block, torch.randn(n, 8)) for n in (2, 3, 4)]
    first = without_times(run(cases, progress=False))
    assert len(first) == 12 and (first.status == "ok").all()
    assert first.local_differing.max() > 0, "the two platforms differ somewhere, or equality shows nothing"
    with ThreadPoolExecutor(2) as pool:  # two tasks at once
        pd.testing.assert_frame_equal(without_times(run(cases, executor=pool, progress=False)), first)
    # spawn: a fork of a process that runs threads may hang. Its tasks see the real memory folder.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        again = without_times(run(cases[:2], executor=pool, progress=False))
    pd.testing.assert_frame_equal(again, first[first.case.isin([case.id for case in cases[:2]])])


def test_equal_cases_of_one_campaign_do_not_share_what_they_exchange():
    """Several are in flight at once; each of the five must give what one alone gives."""
    entries = [("torch.nn.functional.gelu(x)", {"x": torch.linspace(-4, 4, 1000)})] * 5
    found = [without_times(rows).drop(columns=["case"], errors="ignore") for rows in check_many(entries)]
    assert [rows.status.tolist() for rows in found] == [["ok"]] * 5
    for rows in found[1:]:
        pd.testing.assert_frame_equal(rows, found[0])


def test_unequal_inputs_are_an_error_and_not_a_finding():
    with pytest.raises(SortError, match="the two platforms drew different inputs"):
        run([chain(3)], "cpu", faulty(SORT_TEST_OTHER_INPUTS="1"), progress=False)


def test_a_backend_that_cannot_be_imported_is_one_line():
    with pytest.raises(SortError) as error:
        run([chain(3)], "cpu", Platform("mine", "cpu", imports=("no_such_backend",)), progress=False)
    assert str(error.value) == "platform mine: ModuleNotFoundError: No module named 'no_such_backend'"
    with pytest.raises(SortError, match="platform mine: cannot start /no/python: No such file or directory"):
        run([chain(3)], "cpu", Platform("mine", "cpu", python="/no/python"), progress=False)


def test_a_platform_made_by_hand_is_taken_as_it_is():
    made = Platform("mine", "cpu", threads=1)
    assert require(made) is made
    if not torch.cuda.is_available():
        with pytest.raises(SortError, match="platform 'gpu' is not available: "):
            require(Platform("gpu", "cuda"))


# ---- execution, in this process ----


def executed(case, times=1):
    """Outputs by (node, output) of a case run in this process, and what was drawn for it."""
    form, executor = case.to_json(), Executor(Platform("cpu", "cpu").to_json())
    external, produced = draw_externals(form), {}
    for position, node in enumerate(form["nodes"]):
        for _ in range(times):
            call = executor.call(node, executor.arguments(node, external, produced), seed_of(form, position))
            assert call.error is None
        produced |= {(position, k): tensor for k, tensor in enumerate(call.outputs)}
    return produced, external


def test_in_place_calls_leave_the_values_of_later_calls_alone():
    def block(x):
        y = torch.tanh(x)
        z = y + 1
        return y.relu_(), z

    case = case_of(block, torch.randn(50), nodes=(0, 2, 1))  # relu_ runs before the sum reads the same tensor
    assert [node.api for node in case.nodes] == ["tanh", "relu", "add"] and case.nodes[1].inplace
    outputs, _ = executed(case)
    assert outputs[0, 0].min() < 0
    assert torch.equal(outputs[1, 0], outputs[0, 0].clamp(min=0))
    assert torch.equal(outputs[2, 0], outputs[0, 0] + 1)


@pytest.mark.parametrize(
    "call, inputs",
    [
        (lambda x: F.dropout(x, 0.5, training=False, inplace=True).add_(1), [torch.randn(50)]),
        (lambda x, m, v: F.batch_norm(x, m, v, training=True), [torch.randn(9, 3), torch.zeros(3), torch.ones(3)]),
        (lambda i, w: F.embedding(i, w, max_norm=0.1), [torch.arange(3), torch.randn(3, 4)]),
        (lambda x: x.__setitem__(0, 7.0), [torch.randn(3, 2)]),
    ],
)
def test_inputs_are_the_same_for_every_run(call, inputs):
    """In-place APIs, running statistics and renormalised embeddings write into copies."""
    case = case_of(call, *inputs)
    fresh = draw_externals(case.to_json())
    outputs, used = executed(case, times=3)
    assert all(torch.equal(fresh[stream], used[stream]) for stream in fresh)
    once, _ = executed(case)
    assert all(torch.equal(outputs[key], once[key]) for key in once)


def test_copies_keep_strides_and_gaps():
    for tensor in (torch.randn(4, 6)[:, ::2], torch.randn(2, 3, 4, 5).transpose(1, 3), torch.randn(3, 2)):
        copy = duplicate(tensor)
        assert torch.equal(copy, tensor) and copy.stride() == tensor.stride() and copy.data_ptr() != tensor.data_ptr()


def test_tensors_travel_with_dtype_strides_and_bits(tmp_path):
    special = torch.tensor([0.0, -0.0, 1e-45, float("inf"), float("nan")])
    tensors = [
        torch.randn(3, 4).t(), torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(3).bfloat16(), torch.randn(3, dtype=torch.complex64).conj(), torch.tensor([True, False]),
        torch.arange(3), torch.zeros(0, 3), torch.tensor(2.5), special, torch.randn(5).to(torch.float8_e4m3fn),
    ]  # fmt: skip
    for number, tensor in enumerate(tensors):
        back = transport.load_tensor(transport.save_tensor(tensor, tmp_path / f"{number}.bin"))
        assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        plain = tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(back.contiguous().reshape(-1).view(torch.uint8), plain)


def test_a_shelf_gives_its_memory_to_the_next_case(tmp_path):
    first = transport.claim(tmp_path)
    assert transport.claim(tmp_path) != first, "equal cases of one campaign are in flight together"
    big, small = torch.randn(3 << 20), torch.randn(4, 6).t()  # 12 MB: the shelf has to grow
    shelf = transport.Shelf(first)
    forms = [shelf.save(tensor) for tensor in (small, big, torch.zeros(0, 3), small.bfloat16())]
    seen = [transport.load_tensor(form, shared=True) for form in forms]
    assert torch.equal(seen[0], small) and seen[0].stride() == small.stride() and torch.equal(seen[1], big)
    assert seen[2].shape == (0, 3) and torch.equal(seen[3], small.bfloat16())
    assert seen[1].data_ptr() % 64 == 0
    kept = transport.load_tensor(forms[0])
    transport.release(first)
    second = transport.claim(tmp_path)
    assert not first.exists() and transport.Shelf(second).file == forms[0]["file"], "the same memory"
    form = transport.Shelf(second).save(small + 1)
    assert torch.equal(transport.load_tensor(form), small + 1) and torch.equal(kept, small)
    shutil.rmtree(second)
    other = transport.Shelf(transport.claim(tmp_path)).save(big)
    assert torch.equal(transport.load_tensor(other), big)
    assert form["file"] not in transport._maps or form["file"] == other["file"], "removed memory is let go"


def test_a_full_memory_is_an_error_and_not_a_signal(tmp_path, monkeypatch):
    def full(descriptor, start, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        transport.Shelf(transport.claim(tmp_path)).save(torch.ones(3))


def test_features_of_both_sides_are_those_of_their_outputs():
    case = case_of(lambda x: torch.relu(x), torch.linspace(-1, 2, 100))
    (row,) = run([case], progress=False).to_dict("records")
    expected = measure(torch.relu(next(iter(draw_externals(case.to_json()).values()))))
    for side in ("reference", "candidate"):
        assert (row[f"{side}_minimum"], row[f"{side}_maximum"]) == (expected.minimum, expected.maximum)
        # Sums of the same 100 numbers in another order: within their rounding.
        assert row[f"{side}_mean"] == pytest.approx(expected.mean, rel=1e-13)
        assert row[f"{side}_std"] == pytest.approx(expected.std, rel=1e-13)
        assert (row[f"{side}_dtype"], row[f"{side}_shape"], row[f"{side}_nan"]) == ("float32", "[100]", 0)
        assert row[f"{side}_zeros"] == expected.zeros
        assert json.loads(row[f"{side}_quantiles"]) == [float(f"{value:.7g}") for value in expected.quantiles]


def test_quantiles_of_outputs_stated_from_known_values():
    """Quantiles of 0 to 1000 are 1000 times the level; zeros, NaN and infinities take no part."""
    steps = torch.arange(1001.0)
    for tensor in (steps - 500.5, torch.cat([steps - 500.5, torch.tensor([0.0, 0.0, math.nan, math.inf])])):
        found = execution.figures(tensor)["$tensor"]
        assert found["quantiles"] == [1000 * level - 500.5 for level in LEVELS]
        assert found["zeros"] == pytest.approx(2 / 1003 if len(tensor) > 1001 else 0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(5000).relu(), torch.randn(7).double(), torch.randn(64).bfloat16(), torch.full((9,), 2.5),
        torch.randint(-3, 4, (300,)), torch.randn(40, dtype=torch.complex64), torch.tensor(3.0),
        torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64), torch.tensor([math.nan, 1.0, -math.inf, 0.0]),
        torch.zeros(5), torch.tensor([math.nan] * 3), torch.zeros(0, 3), torch.tensor([True, False, True]),
    ],
)  # fmt: skip
def test_quantiles_of_outputs_are_those_of_records(tensor):
    found, expected = execution.figures(tensor)["$tensor"], measure(tensor)
    assert found.get("quantiles", []) == [float(f"{value:.7g}") for value in expected.quantiles]
    assert found.get("zeros", 0.0) == expected.zeros
    json.dumps(found, allow_nan=False)


# ---- differences ----


def test_differences_by_hand():
    a = np.array([1.0, 2.0, 4.0, 0.0], np.float32)
    b = np.array([1.0, 2.5, 4.0, -0.0], np.float32)
    # one of four differs by 0.5, a quarter of 2; one ulp of float32 at 4 is 2**-21
    # Two of four differ in bits, since zero has a sign.
    assert evidence.compare(a, b) == {"max_abs": 0.5, "max_rel": 0.25, "differing": 0.25, "bits": 0.5,
                                      "scale_ulp": 2.0**20, "one_sided": 0.0}  # fmt: skip
    nan, inf = np.nan, np.inf
    a = np.array([nan, inf, -inf, inf, nan, 1, 1, 2], np.float32)
    b = np.array([nan, inf, -inf, -inf, 1, inf, 1, 2], np.float32)
    found = evidence.compare(a, b)
    assert (found["one_sided"], found["differing"], found["max_abs"]) == (3 / 8, 3 / 8, 0.0)
    found = evidence.compare(np.array([1, 2, 3]), np.array([1, 2, 5]))
    assert found == {"max_abs": 2.0, "max_rel": 2 / 3, "differing": 1 / 3, "bits": 1 / 3, "scale_ulp": None,
                     "one_sided": 0.0}  # fmt: skip
    assert evidence.compare(np.zeros(0), np.zeros(0))["max_abs"] == 0


@pytest.mark.parametrize("size", [5, evidence.BLOCK, 3 * evidence.BLOCK + 7])
def test_differences_in_blocks_are_those_of_the_whole(size):
    rng = np.random.default_rng(0)
    a = rng.standard_normal(size).astype(np.float32)
    b = (a + rng.standard_normal(size) * 1e-3 * (rng.random(size) < 0.3)).astype(np.float32)
    a[-1], b[-1] = np.inf, 1
    finite = slice(0, size - 1)
    d = np.abs(a[finite].astype(float) - b[finite])
    found = evidence.compare(a, b)
    assert found["max_abs"] == d.max()
    assert found["max_rel"] == (d[d > 0] / np.abs(a[finite][d > 0].astype(float))).max(initial=0)
    assert found["differing"] == pytest.approx(((d > 0).sum() + 1) / size)
    assert found["one_sided"] == pytest.approx(1 / size)


def test_errors_against_the_truth_by_hand():
    from sortlib.runner.bounds import Bound

    output = np.array([1.0, 2.0, np.inf, 5.0], np.float32)
    truth = evidence.Truth(values=np.array([1.0, 2.5, 3.0, np.inf]))
    limit = Bound((0.0, 0.0, 2.0), (0.0, 1.0, 0.0), 4, np.array([1.0, 0.5, 1.0, 1.0]))
    found = evidence.errors(output, truth, limit, unit=0.25, step=0.0, largest=3e38)
    # the only error is 0.5 at truth 2.5: allowed 2 * 0.25 * 0.5 = 0.25, of its own 0.25 * 2.5 = 0.625
    assert found == {"error": 0.5, "rms": pytest.approx(np.sqrt(0.125)), "ratio": 2.0, "own_ratio": 0.8, "lost": 0.25,
                     "nan_wrong": 0.0, "nan_missing": 0.0}  # fmt: skip
    residual = np.array([0, 0.5, 0, 0], np.float32)
    base = np.array([1, 2, 3, 5], np.float32)
    again = evidence.errors(base, evidence.Truth(residual=residual, base=base), limit, 0.25, 0.0, 3e38)
    assert (again["error"], again["ratio"], again["lost"]) == (0.5, 2.0, 0.0)


# ---- figures in float32 ----


def _close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value, rel=1e-5)), name


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("size", [1, 1000, 3 * single.BLOCK + 7])
def test_figures_in_float32_are_those_in_float64(size, scale):
    from sortlib.runner.bounds import Bound

    rng = np.random.default_rng(size)
    truth = rng.standard_normal(size) * scale
    sides = [(truth * (1 + rng.standard_normal(size) * 1e-7)).astype(np.float32) for _ in range(2)]
    sides[1][::3] = sides[0][::3]
    _close(single.compare(*sides), _in_double(evidence.compare, *sides))
    residual = (truth - sides[0]).astype(np.float32)
    extra = np.abs(rng.standard_normal(size)).astype(np.float32) * np.float32(scale)
    right = evidence.Truth(residual=residual, base=sides[0])
    unit, step = 2.0**-24, 2.0**-149
    for limit in (None, Bound((0.5, 2.0, 3.0), (0.5, 2.0, 0.0), size, extra), Bound((0, 2, 0), (0, 2, 0), size)):
        found = single.errors(*sides, residual, limit, None if limit is None else limit.extra, unit, step)
        expected = [evidence.errors(side, right, limit, unit, step, 3.4e38) for side in sides]
        if found is None:  # errors whose squares float32 does not hold: left to float64
            assert not 1e-15 < expected[0]["error"] < 1e15
            continue
        for one, other in zip(found, expected, strict=True):
            _close(one, other)


def _in_double(compare, a, b):
    """``evidence.compare`` without the short cut, which takes arrays of float32 only: the same values as float64."""
    found = compare(a.astype(np.float64), b.astype(np.float64))
    return {**found, "scale_ulp": found["max_abs"] / float(np.spacing(np.abs(a).max()))}


def test_float32_is_left_where_it_is_too_narrow():
    one = np.float32([1.0, 2.0])
    for other in ([np.nan, 2.0], [np.inf, 2.0], [-3e38, 2.0]):
        assert single.compare(np.float32([3e38, 2.0]), np.float32(other)) is None
        assert single.errors(np.float32([3e38, 2.0]), np.float32(other), None, None, None, 2.0**-24, 0.0) is None
    assert single.compare(np.float32([0.0, 2.0]), one) is None  # the relative difference is infinite
    assert evidence.compare(np.float32([0.0, 2.0]), one)["max_rel"] == np.inf
    tiny = np.float32([1e-20, 0.0])  # whose square is no float32
    assert single.errors(one, one + tiny, tiny, None, None, 2.0**-24, 0.0) is None


def test_a_flushed_denormal_is_beyond_its_bound():
    from sortlib.runner.bounds import Bound

    limit, tiny = Bound((0, 1, 0), (0, 1, 0), 1), np.float32([1e-40])
    found = evidence.errors_of_both(tiny, np.float32([0.0]), evidence.Truth(base=tiny), limit,
                                    [(2.0**-24, 2.0**-149, 3.4e38)] * 2)  # fmt: skip
    assert found[0]["ratio"] == 0
    # The error is the number itself; its own rounding and one step of 2**-149 are allowed.
    number = float(tiny[0])
    assert found[1]["ratio"] == pytest.approx(number / (number * 2.0**-24 + 2.0**-149), rel=1e-5)


def test_reference_waits_for_room_and_goes_on_when_a_folder_is_emptied(tmp_path):
    room, begun = transport.Room(limit=1000), threading.Event()
    first, second = (transport.claim(tmp_path) for _ in range(2))
    with room.fill(first):
        transport.Shelf(first).save(torch.ones(1000))

    def more():
        with room.fill(second):
            begun.set()

    waiting = threading.Thread(target=more)
    waiting.start()
    assert not begun.wait(0.2)
    with room.empty(first):
        assert not begun.is_set()
    waiting.join(10)
    assert begun.is_set()


@pytest.mark.parametrize("flag", [True, 3, [False]])
def test_whatever_python_takes_as_inplace_leaves_shared_values_alone(flag):
    # Fuzzers pass such flags; writing into the input would change what later calls and the other side read.
    executor, x = Executor(require("cpu").to_json()), torch.tensor([-1.0, 2.0])
    node = {"api": "relu", "target": "torch.nn.functional.relu", "inplace": False}
    given = [apis.Argument("input", x, "positional"), apis.Argument("inplace", flag, "keyword")]
    call = executor.call(node, given, 0)
    assert (call.error, call.outputs[0].tolist()) == (None, [0.0, 2.0])
    assert x.tolist() == [-1.0, 2.0]
