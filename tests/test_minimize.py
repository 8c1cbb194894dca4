"""Smaller cases that keep a verdict: the right size is known, since the faults strike for known shapes and values."""

from dataclasses import replace
from pathlib import Path

import faulty_backend as fault
import numpy as np
import pytest
import torch

from sortlib.checking import _case
from sortlib.errors import SortError
from sortlib.grouping import Cause
from sortlib.minimizing import Target, _halves, limit_of, minimize_with, target_of
from sortlib.platform import Platform, require
from sortlib.reproducing.draft import Draft
from sortlib.reproducing.simpler import simpler_values
from sortlib.reproducing.values import Value, unpack
from sortlib.runner.pair import Pair

HERE = str(Path(__file__).parent)
CPU = Platform("cpu", "cpu")
FAULTY = Platform("faulty", "cpu", imports=("faulty_backend",), env={"PYTHONPATH": HERE, "SORT_TEST_FAULTS": "1"})
CHAIN = "torch.sigmoid(torch.relu(torch.tanh(x)))"


def normal(*shape, shift=0.0):
    return (np.random.default_rng(0).standard_normal(shape) + shift).astype("float32")


@pytest.fixture(scope="module")
def faulty():
    """The backend with faults, kept running."""
    with Pair(CPU, FAULTY) as pair:
        yield pair


def smallest(pair, expression, inputs, folder, rule="evidence", seconds=60, timeout=60):
    """The smallest case of what a rule finds in an expression."""
    folder.mkdir(exist_ok=True)
    case = _case(expression, inputs, folder / "given")
    pair.timeout = timeout
    target = target_of(pair.rows(case), rule=rule)
    return minimize_with(pair, case, target, seconds=seconds, timeout=timeout, folder=folder / "smallest",
                         progress=False)  # fmt: skip


def shapes(minimal):
    return [value.shape for value in minimal.draft.values.values()]


def test_a_real_defect_shrinks_to_a_few_numbers(tmp_path):
    """F.group_norm in channels-last memory loses everything to cancellation where the mean is large."""
    given = ("F.group_norm(x, 8)", {"x": normal(4, 32, 16, 16, shift=1e4)})
    with Pair(CPU, require("cpu:channels_last")) as pair:
        minimal, again = (smallest(pair, *given, tmp_path / name) for name in ("once", "twice"))
        (row,) = pair.rows(minimal.case)
    assert minimal.kept and minimal.finished and minimal.before == (1, 32768)
    # Two channels and two places at least, or the two memory formats are one.
    assert minimal.after[0] == 1 and 4 <= minimal.after[1] <= 16
    assert [name for name, _, _ in minimal.case.nodes[0].arguments] == ["input", "num_groups"]
    target = target_of([row])
    assert (target.verdict, str(target.cause)) == ("suspect", "accuracy on the candidate")
    assert row["candidate_ratio"] > 1, "beyond what conditioning excuses, as in the given case"
    assert (again.case.id, again.steps) == (minimal.case.id, minimal.steps)


@pytest.mark.parametrize(
    ("rows", "verdict", "cause"),
    [
        (fault.WRONG, "suspect", "accuracy on the candidate"),
        (fault.RAISES, "exception", "exception on the candidate: RuntimeError"),
        (fault.NARROW, "suspect", "form on the candidate: shapes"),
    ],
)
def test_a_fault_of_one_call_is_left_alone_with_the_size_that_it_needs(rows, verdict, cause, faulty, tmp_path):
    minimal = smallest(faulty, CHAIN, {"x": normal(rows, 40)}, tmp_path)
    assert minimal.kept and (minimal.row["verdict"], str(minimal.target.cause)) == (verdict, cause)
    assert [node.api for node in minimal.case.nodes] == ["relu"]
    assert shapes(minimal) == [(rows, 1)]  # the fault strikes for this number of rows and for any values
    (value,) = minimal.draft.values.values()
    assert value.code() == f"torch.zeros(({rows}, 1), dtype=torch.float32)"


def test_gradients_stay_only_where_the_verdict_needs_them(faulty, tmp_path):
    case = _case(CHAIN, {"x": normal(fault.WRONG, 3)}, tmp_path / "given", backward=True)
    faulty.timeout = 60
    target = target_of(faulty.rows(case))
    forward = minimize_with(faulty, case, target, folder=tmp_path / "forward", progress=False)
    assert forward.steps[0] == "no gradients" and not any(node.backward for node in forward.case.nodes)
    env = {"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": "gelu gradient"}
    case = _case("F.gelu(torch.tanh(x))", {"x": normal(4, 3)}, tmp_path / "second", backward=True)
    with Pair(CPU, Platform("off", "cpu", imports=("faulty_arithmetic",), env=env)) as pair:
        target = target_of(pair.rows(case))
        backward = minimize_with(pair, case, target, folder=tmp_path / "backward", progress=False)
    assert backward.kept and backward.row["worst_output"] == "gradient of input"
    assert [(node.api, node.backward, node.frozen) for node in backward.case.nodes] == [("gelu", True, [])]


def test_cases_with_and_without_gradients_are_two(tmp_path):
    with_gradients = Draft.of(_case("torch.relu(x)", {"x": normal(3)}, tmp_path / "given", backward=True), 0)
    node = with_gradients.nodes[0]
    drafts = [with_gradients, *(replace(with_gradients, nodes=(replace(node, **changes),))
                                for changes in ({"backward": False}, {"frozen": ["input"]}))]  # fmt: skip
    assert len({draft.materialised(tmp_path / "values").id for draft in drafts}) == 3


def test_a_hang_is_seen_in_less_than_the_whole_time_limit():
    row = {"api": "relu", "seconds_reference": 0.01}
    target = Target(0, "evidence", 1e-3, "timeout", Cause("hang", "candidate"), row)
    assert limit_of(target, 60) == 5 and limit_of(target, 2) == 2
    assert limit_of(replace(target, row={**row, "seconds_reference": 1.0}), 60) == 20


def test_a_propagated_difference_keeps_the_call_that_causes_it(tmp_path):
    """Under the paper's rule mul fails only because conv2d before it is off by 1e-4: both are needed, tanh is not."""
    env = {"PYTHONPATH": HERE, "SORT_TEST_CONV_OFFSET": "1e-4"}
    inputs = {"x": normal(2, 3, 8, 8), "w": normal(4, 3, 3, 3)}
    with Pair(CPU, Platform("off", "cpu", imports=("faulty_backend",), env=env)) as pair:
        minimal = smallest(pair, "F.conv2d(torch.tanh(x), w) * 100.0", inputs, tmp_path, rule="paper")
    assert [node.api for node in minimal.case.nodes] == ["conv2d", "mul"]
    assert minimal.row["propagated_max_abs"] > 1e-3 >= minimal.row["local_max_abs"]
    assert minimal.after[1] < 10


def test_without_time_the_given_case_comes_back(faulty, tmp_path):
    minimal = smallest(faulty, CHAIN, {"x": normal(fault.WRONG, 40)}, tmp_path, seconds=0)
    assert minimal.kept and not minimal.finished and minimal.after == minimal.before == (2, 720)
    assert minimal.steps == ()


def test_what_rounding_explains_is_nothing_to_shrink(faulty, tmp_path):
    with pytest.raises(SortError, match="the case: nothing to reproduce; the evidence rule says identical"):
        smallest(faulty, "torch.relu(x)", {"x": normal(3)}, tmp_path)


def test_sizes_are_tried_from_the_smallest():
    assert _halves(12) == [1, 2, 4, 6, 8]
    assert _halves(2) == [1]
    assert _halves(7) == [1, 2, 3, 4]


def test_simpler_values_come_to_an_end():
    """Each is simpler than what it replaces, whatever is accepted."""
    value, seen = Value.stored(torch.randn(40, generator=torch.Generator().manual_seed(0)) * 3 + 20), []
    while options := simpler_values(value, 0):
        seen.append(value.key)
        value = options[-1]
        assert value.key not in seen and value.shape == (40,)
    assert value.kind == "constant" and value.tensor().eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("count", [4, 100])
def test_a_value_is_what_its_text_makes(dtype, count):
    tensor = torch.arange(count, dtype=torch.float32).reshape(2, -1).to(dtype)
    value = Value.stored(tensor)
    assert torch.equal(eval(value.code(), {"torch": torch, "np": np, "unpack": unpack}), tensor)


def test_resizing_keeps_the_memory_format():
    tensor = torch.randn(2, 6, 4, 4).contiguous(memory_format=torch.channels_last)
    value = Value.stored(tensor).resized((2, 3, 2, 2))
    assert torch.equal(value.tensor(), tensor[:, :3, :2, :2])
    assert value.tensor().is_contiguous(memory_format=torch.channels_last)
