"""The published methods: their constants, their attempts, and what their oracles see.

Probabilities and constants are those of the papers that each module of ``sortlib.baselines`` names; shares are counted
over so many draws that four standard deviations are allowed for.
"""

import ast
import json
import math
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

import sortlib as sl
from sortlib import tables
from sortlib.apis import Argument
from sortlib.baselines import acetest, constraints, deeprel, docs_constraints, docter, freefuzz, masking, mutation
from sortlib.baselines import titanfuzz as titan
from sortlib.baselines.base import DTYPES, Call, Context, build, tensor
from sortlib.baselines.definitions import definition, edit_similarity
from sortlib.baselines.programs import ProgramRunner
from sortlib.baselines.registry import BASELINES, baseline, method_of
from sortlib.errors import SortError
from sortlib.features import CallRecord, TensorFeatures, contiguous_strides, decode
from sortlib.generation import TestCase


def features(dtype, *shape, low=-1.0, high=1.0):
    return TensorFeatures(dtype, shape, contiguous_strides(shape), minimum=low, maximum=high, quantiles=())


def record(api, target, *arguments, node=0):
    bound = tuple(Argument(name, value, "positional") for name, value in arguments)
    return CallRecord("model", node, 0, api, target, "layer", "model.py:1", bound, ())


RECORDS = [
    record("relu", "torch.nn.functional.relu", ("input", features("float32", 2, 3)), ("inplace", False)),
    record("softmax", "torch.nn.functional.softmax", ("input", features("float32", 2, 3)), ("dim", 1), node=1),
    record(
        "conv2d", "torch.nn.functional.conv2d", ("input", features("float32", 1, 4, 6, 6)),
        ("weight", features("float32", 8, 4, 3, 3)), ("bias", None), ("stride", (1, 1)), ("padding", (1, 1)), node=2,
    ),
    record("roll", "torch.roll", ("input", features("int64", 4)), ("shifts", 7), ("dims", 0), node=3),
]  # fmt: skip


@pytest.fixture
def context():
    return Context(RECORDS, seed=3)


def mutator(seed=0, constants=mutation.FREEFUZZ):
    return mutation.Mutator(np.random.Generator(np.random.Philox(seed)), constants)


def share(found, expected, draws):
    """Whether a share is the expected one within four standard deviations."""
    return abs(found - expected) <= 4 * math.sqrt(expected * (1 - expected) / draws)


N = 4000


class TestMutation:
    def test_integers_are_listed_with_one_fifth_and_move_by_64_else(self):
        # From a million, a listed value and a step cannot be mistaken for each other.
        change = mutator()
        values = [change.value(10**6) for _ in range(N)]
        listed = [v for v in values if abs(v) <= 1024]
        assert share(len(listed) / N, 0.2, N)
        assert set(listed) == {-1024, -16, -1, 0, 1, 16, 1024}
        steps = [v - 10**6 for v in values if abs(v) > 1024]
        assert (min(steps), max(steps)) == (-64, 63)

    def test_floats_are_listed_with_one_fifth(self):
        change = mutator()
        values = [change.value(0.5) for _ in range(N)]
        listed = [v for v in values if v in (0, 1, -1, 63, -63, 1024, -1024, 1e20, -1e20)]
        assert share(len(listed) / N, 0.2, N)
        assert {1e20, -1e20} <= set(listed)

    def test_bools_are_flipped_and_lists_go_by_element(self):
        change = mutator()
        assert change.value(True) is False
        assert isinstance(change.value((1, 2.0)), tuple)
        assert [type(v) for v in change.value([1, 2.0, False])] == [int, float, bool]

    def test_values_of_tensors_are_bounds_below_two_to_the_sixteenth(self):
        change = mutator()
        found = [change.value(features("int64", 3)) for _ in range(N)]
        assert {int(f.maximum) for f in found} == {2**k for k in range(16)}
        assert {int(f.minimum) for f in found} == {-(2**k) for k in range(16)}
        assert change.value(features("float32", 3)) == tensor("float32", (3,), 0, 1)

    def test_types_of_tensors_change_rank_size_and_dtype(self):
        change = mutator()
        found = [change.type(features("float32", 5000, 5000)) for _ in range(N)]
        ranks = Counter(len(f.shape) for f in found)
        assert share((ranks[1] + ranks[3]) / N, 0.3, N)
        assert share(ranks[3] / N, 0.15, N)
        kept = [f for f in found if len(f.shape) == 2]
        assert share(sum(f.shape[0] != 5000 for f in kept) / len(kept), 0.3 * (1 - 0.8 / 128), len(kept))
        assert all(size >= 0 for f in found for size in f.shape)
        # Three in ten draw one of twelve dtypes, which may be the same again.
        assert share(sum(f.dtype != "float32" for f in found) / N, 0.3 * 11 / 12, N)
        assert {f.dtype for f in found} == set(DTYPES)

    def test_other_types(self):
        change = mutator()
        assert {type(change.type(3)) for _ in range(200)} == {float, str, bool}
        assert {type(change.type("x")) for _ in range(200)} == {int, float, bool}
        kinds = {type(change.type(None)) for _ in range(400)}
        assert kinds == {int, float, str, bool, list, tuple, TensorFeatures, torch.dtype, complex, type(None)}

    def test_deeprel_is_gentler(self):
        change = mutator(constants=mutation.DEEPREL)
        steps = [v - 1000 for v in (change.value(1000) for _ in range(N)) if v > 100]
        assert (min(steps), max(steps)) == (-4, 3)
        assert {int(change.value(features("int8", 2)).maximum) for _ in range(400)} == {1, 2, 4, 8}
        ranks = Counter(len(change.type(features("float32", 9, 9)).shape) for _ in range(N))
        assert share((ranks[1] + ranks[3]) / N, 0.1, N)
        assert share(ranks[3] / N, 0.02, N)

    def test_number_and_kinds_of_mutations(self):
        made = []

        class Counting(mutation.Mutator):
            def type(self, value):
                made.append("type")
                return value

            def value(self, value):
                made.append("value")
                return value

        def database(name):
            made.append("database")

        rng = np.random.Generator(np.random.Philox(5))
        counts = Counter()
        arguments = RECORDS[2].arguments
        for _ in range(1500):
            before = len(made)
            mutation.mutate(arguments, Counting(rng), database)
            counts[len(made) - before] += 1
        assert set(counts) == {1, 2, 3, 4, 5}
        assert all(share(counts[n] / 1500, 0.2, 1500) for n in counts)
        kinds = Counter(made)
        assert share(kinds["type"] / len(made), 0.2, len(made))
        assert share(kinds["database"] / len(made), 0.8 * 0.2, len(made))


class TestFreeFuzz:
    def test_attempts_are_cases_of_the_api(self, context):
        cases = list(freefuzz.FreeFuzz().attempts("conv2d", 10, context))
        assert [case.pattern for case in cases] == ["freefuzz-C-conv2d"] * 10 + ["freefuzz-P-conv2d"] * 10
        assert [len(case.nodes) for case in cases] == [1] * 10 + [2] * 10
        assert {node.target for case in cases for node in case.nodes} == {"torch.nn.functional.conv2d"}
        assert len({case.id for case in cases}) == 20
        assert TestCase.from_json(json.loads(json.dumps(cases[0].to_json()))) == cases[0]

    def test_equal_seeds_give_equal_attempts(self, context):
        first, again = (list(freefuzz.FreeFuzz().attempts("relu", 5, context)) for _ in range(2))
        assert first == again
        assert first != list(freefuzz.FreeFuzz().attempts("relu", 5, Context(RECORDS, seed=4)))

    def test_low_precision_comes_first(self, context):
        pairs = [case for case in freefuzz.FreeFuzz().attempts("softmax", 40, context) if len(case.nodes) == 2]
        kinds = {tuple(decode(n.arguments[0][1]["$draw"][1]).dtype for n in case.nodes)
                 for case in pairs if "$draw" in str(case.nodes[0].arguments[0][1])}  # fmt: skip
        assert ("float16", "float32") in kinds
        allowed = {"float32": "float16", "float64": "float16", "bfloat16": "float16", "complex64": "complex32",
                   "complex128": "complex32", "int16": "int8", "int32": "int8", "int64": "int8"}  # fmt: skip
        assert all(low == allowed.get(high, high) for low, high in kinds)

    def test_database_gives_values_of_the_same_argument(self, context):
        database = freefuzz._Database("relu", "torch.nn.functional.relu", context, np.random.default_rng(0))
        assert database("shifts") == [7]
        assert database("no_such_argument") is None

    def test_an_api_without_records_has_none(self, context):
        assert list(freefuzz.FreeFuzz().attempts("gelu", 3, context)) == []
        assert freefuzz.FreeFuzz().reason("gelu", context) == "no recorded call to mutate"

    @pytest.mark.parametrize(
        ("low", "high", "symptom"),
        # A bug if the high precision takes more than 1 ms and the low one more than ten times as long.
        [(0.021, 0.002, "perf"), (0.019, 0.002, ""), (0.02, 0.0009, ""), (None, 0.002, "")],
    )
    def test_slow_in_low_precision(self, low, high, symptom):
        nodes = [row("freefuzz-P-relu", node=n, seconds_reference=s) for n, s in enumerate((low, high))]
        found = freefuzz.FreeFuzz().verdicts(pd.DataFrame(nodes), "P")
        assert list(found["symptom"]) == [symptom]

    def test_valid_in_variant_p_if_both_precisions_run(self):
        nodes = [row("freefuzz-P-relu"), row("freefuzz-P-relu", node=1, status="exception", side="both", message="m")]
        found = freefuzz.FreeFuzz().verdicts(pd.DataFrame(nodes), "P")
        assert (found["status"][0], found["message"][0]) == ("exception", "m")

    def test_internal_assertions_are_crashes(self):
        refused = {"status": "exception", "side": "both"}
        rows = [row("freefuzz-C-relu", message="x INTERNAL ASSERT FAILED at", **refused),
                row("freefuzz-C-relu", case="b", message="expected 4-D input", **refused)]  # fmt: skip
        found = freefuzz.FreeFuzz().verdicts(pd.DataFrame(rows), "C")
        assert list(found["symptom"]) == ["crash", ""]


def row(pattern, case="a", node=0, **facts):
    """An outcome row in which both platforms agree."""
    agreeing = dict.fromkeys(
        ["local_max_abs", "local_differing", "local_one_sided", "propagated_max_abs", "propagated_differing",
         "propagated_one_sided", "incoming", "reference_nan", "candidate_nan", "reference_ratio", "candidate_ratio",
         "reference_error", "candidate_error", "truth_finite_lost"], 0.0)  # fmt: skip
    base = {"case": case, "pattern": pattern, "node": node, "api": "relu", "target": "torch.relu", "source": "",
            "reference": "cpu", "candidate": "cpu:baseline", "status": "ok", "side": "", "message": "",
            "random": False, "nan_inputs": False, "truth_missing": "", "seconds_reference": 0.0,
            "reference_shape": "[2]", "reference_minimum": 1.0, "reference_maximum": 1.0}  # fmt: skip
    return {**base, **agreeing, **facts}


class TestDefinitions:
    @pytest.mark.parametrize(
        ("a", "b", "similarity"),
        [("kitten", "sitting", 1 - 3 / 7), ("abc", "abc", 1), ("", "ab", 0), ("", "", 1)],
    )
    def test_edit_similarity(self, a, b, similarity):
        assert edit_similarity(a, b) == pytest.approx(similarity)

    def test_parameters_from_all_sources(self):
        relu = definition("torch.nn.functional.relu")  # has a signature
        assert [(p.name, p.required) for p in relu.parameters] == [("input", True), ("inplace", False)]
        conv = definition("torch.nn.functional.conv2d")  # is a built-in with documentation
        assert [p.name for p in conv.parameters][:3] == ["input", "weight", "bias"]
        assert not conv.parameters[2].required
        method = definition("torch.Tensor.mul")  # says "See torch.mul"
        assert [p.name for p in method.parameters] == ["input", "other"]
        assert definition("torch.add").text == "torch.add(input, other, *, alpha=1)"


class TestDeepREL:
    # Best total 0.9 + 0.8 = 1.7, though row 0 alone would take column 0 with 1.0 (then 1.0 + 0.1).
    SCORES = np.array([[1.0, 0.9], [0.8, 0.1]])

    def test_assignment_is_the_best_as_a_whole(self):
        assert deeprel.assignment(self.SCORES) == [(0, 1), (1, 0)]
        assert deeprel.assignment(np.array([[0.1, 0.9, 0.2]])) == [(0, 1)]

    def test_assignment_without_scipy(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        assert deeprel.assignment(self.SCORES) == [(0, 1), (1, 0)]

    def test_arguments_are_matched_by_name_type_and_place(self):
        softmax, log = (definition(f"torch.nn.functional.{name}") for name in ("softmax", "log_softmax"))
        pair = deeprel.match(softmax, log)
        assert pair.arguments == (("input", "input"), ("dim", "dim"), ("dtype", "dtype"))

    def test_a_required_argument_without_partner_rejects(self):
        relu, linear = (definition(f"torch.nn.functional.{name}") for name in ("relu", "linear"))
        bilinear = definition("torch.nn.functional.bilinear")  # needs a fourth tensor
        assert deeprel.match(linear, bilinear) is None
        assert deeprel.match(relu, definition("torch.nn.functional.silu")) is not None

    def test_related_apis_are_similar_ones(self):
        assert "torch.nn.functional.log_softmax" in deeprel.related("torch.nn.functional.softmax")
        assert len(deeprel.related("torch.nn.functional.softmax")) == 10

    def test_target_gets_the_sources_tensors(self):
        pair = deeprel.Pair("torch.nn.functional.relu", "torch.relu", (("input", "input"),))
        case = build("deeprel", "V", "relu", 0, deeprel.calls_of(pair, RECORDS[0].arguments, RECORDS[0]), 0)
        streams = [node.arguments[0][1]["$draw"][0] for node in case.nodes[:2]]
        assert streams == ["input", "input"]
        assert [node.target for node in case.nodes] == ["torch.nn.functional.relu", "torch.relu", "torch.isclose"]
        assert case.edges == ((0, 2, "input"), (1, 2, "other"))

    def verdict(self, variant, *nodes):
        rows = [row(f"deeprel-{variant}-relu", node=n, **facts) for n, facts in enumerate(nodes)]
        return baseline("deeprel").verdicts(pd.DataFrame(rows), variant).iloc[0]

    def test_unequal_values_break_value_equivalence_only(self):
        differ = ({}, {}, {"reference_minimum": 0.0})
        assert self.verdict("V", *differ)["symptom"] == "precision"
        assert self.verdict("S", *differ)["symptom"] == ""
        assert self.verdict("V", {}, {}, {})["symptom"] == ""
        assert self.verdict("V", {}, {"reference_shape": "[1, 2]"}, {})["symptom"] == "precision"

    def test_unequal_status_breaks_both(self):
        refused = {"status": "exception", "side": "both", "message": "RuntimeError: bad size"}
        for variant in ("V", "S"):
            found = self.verdict(variant, {}, refused, {"status": "unreached"})
            assert found["symptom"] == "crash"
            assert found["status"] == "ok"  # the source call counts for validity

    def test_a_target_without_the_feature_is_no_bug(self):
        lacking = {"status": "exception", "side": "both", "message": 'NotImplementedError: "f" not implemented for'}
        assert self.verdict("S", {}, lacking, {"status": "unreached"})["symptom"] == ""


class TestConstraintLanguage:
    def test_intervals(self):
        found = constraints.interval("float:(0,1]")
        assert (found.low, found.high, found.low_open, found.high_open, found.dtype) == (0, 1, True, False, "float")
        assert constraints.interval("[0,inf)").high == math.inf
        with pytest.raises(SortError, match=r"'0 to 1' is no interval such as \[0,inf\)"):
            constraints.interval("0 to 1")

    def test_expressions(self):
        values = {"iH": 5, "padding": 2, "k": 3}
        assert constraints.evaluate("iH+2*padding-&k", values.get) == 6
        assert constraints.evaluate("iH/2", values.get) == 2
        with pytest.raises(ValueError):
            constraints.evaluate("print(1)", values.get)

    def test_families_of_dtypes(self):
        assert constraints.dtypes_of(("int",)) == ["int8", "int16", "int32", "int64", "uint8"]
        assert constraints.dtypes_of(("dtype:&x",), {"x": "bool"}.get) == ["bool"]


YAML = """
title: torch.nn.functional.relu
package: torch
version: "2"
target: torch.nn.functional.relu
inputs: {required: [input, other], optional: [alpha, mode], keyword_only: [mode]}
constraints:
  input: {descp: the input, dtype: [torch.float32], tensor_t: [torch.tensor], ndim: ["2"]}
  other: {dtype: ["dtype:&input"], tensor_t: [torch.tensor], shape: ["[&k,len:&sizes]", "shape:&input"]}
  alpha: {dtype: [int], structure: [scalar], range: ["[0,inf)"]}
  mode: {dtype: [string], enum: [mean, sum]}
"""


class TestDocTer:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "relu.yaml").write_text(YAML)
        (tmp_path / "layer.yaml").write_text("target: torch.nn.ReLU\nlayer_constructor: true\ninputs: {}\n"
                                             "constraints: {}\n")  # fmt: skip
        return tmp_path

    def inputs(self, folder, number, violate):
        known = constraints.read_folder(folder)["torch.nn.functional.relu"]
        rng = np.random.Generator(np.random.Philox(number))
        return docter.Generator(known, rng, set()).inputs(violate)

    def test_reads_the_published_form_and_leaves_layers_out(self, folder):
        found = constraints.read_folder(folder)
        assert list(found) == ["torch.nn.functional.relu"]
        assert found["torch.nn.functional.relu"].of("input").categories == ["dtype", "structure", "shape"]
        assert found["torch.nn.functional.relu"].of("mode").enum == ("mean", "sum")

    def test_conforming_inputs_conform(self, folder):
        seen = Counter()
        for number in range(400):
            values, note = self.inputs(folder, number, False)
            if "boundary" in note:
                seen["boundary"] += 1
                continue
            assert note == "conforming"
            assert values["input"].dtype == "float32" and len(values["input"].shape) == 2
            assert max(values["input"].shape) <= 20
            assert values["input"].maximum == np.finfo(np.float32).max
            assert values["other"].dtype == "float32" and len(values["other"].shape) == 2
            seen["same shape"] += values["other"].shape == values["input"].shape
            if "alpha" in values:
                seen["alpha"] += 1
                assert values["alpha"] >= 0
            assert values.get("mode") in (None, "mean", "sum")
        assert share(seen["boundary"] / 400, 0.2, 400)
        assert share(seen["alpha"] / (400 - seen["boundary"]), 0.6, 400 - seen["boundary"])
        assert seen["same shape"] > 100  # the second of two alternatives

    def test_violating_inputs_violate_exactly_one_parameter(self, folder):
        victims = Counter()
        for number in range(300):
            values, note = self.inputs(folder, number, True)
            if "boundary" in note:
                continue
            victim, _, categories = note.removeprefix("violating ").partition(": ")
            victims[victim] += 1
            if victim == "mode" and "dtype" not in categories and "shape" not in categories:
                assert values["mode"] not in ("mean", "sum")
            if victim == "alpha" and categories == "value":
                assert values["alpha"] < 0
            if victim == "input" and categories == "dtype":
                assert values["input"] is None or isinstance(values["input"], str) or (
                    values["input"].dtype not in ("float16", "float32"))  # fmt: skip
            if victim == "input" and categories == "shape":
                assert len(values["input"].shape) != 2
            if victim != "alpha" and "alpha" in values:
                assert values["alpha"] >= 0
        assert set(victims) == {"input", "other", "alpha", "mode"}

    def test_two_of_five_attempts_violate(self, folder):
        context = Context([], options={"constraints": str(folder)})
        cases = list(docter.DocTer().attempts("relu", 10, context))
        assert [case.nodes[0].source.startswith("violating") for case in cases] == [False, False, False, True, True] * 2
        assert list(docter.DocTer().attempts("gelu", 3, context)) == []
        assert str(folder) in docter.DocTer().reason("gelu", context)

    def test_constraints_of_the_installed_documentation(self):
        conv = docs_constraints.extract("torch.nn.functional.conv2d")
        assert conv.of("input").shape == ("[minibatch,in_channels,iH,iW]",)
        assert conv.of("weight").shape == ("[out_channels,in_channels/groups,kH,kW]",)
        assert conv.of("groups").dtype == ("int",)
        assert docs_constraints.extract("torch.nn.functional.dropout").of("p").range == ("[0,1]",)
        assert docs_constraints.extract("torch.div").of("rounding_mode").enum == ("trunc", "floor")
        pool = docs_constraints.extract("torch.nn.functional.max_pool2d")
        assert pool.of("dilation").range == ("(0,inf)",)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("target: x\nconstraints: {}\n", "inputs: missing, or no mapping; is this a DocTer constraint file"),
            ("inputs: {}\nconstraints: {}\n", "target: missing"),
            ("target: x\ninputs: {required: 3}\nconstraints: {}\n", "inputs.required: must be a list of names, not 3"),
            ("target: x\ninputs: {}\nconstraints: {p: 3}\n", "constraints.p: must be keys and values, not 3"),
            ("target: x\ninputs: {}\nconstraints: {p: {range: [much]}}\n", "constraints.p: 'much' is no interval"),
            ("target: [x\n", "broken YAML"),
        ],
    )
    def test_bad_files_are_named_with_the_mistake(self, tmp_path, text, message):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(SortError) as caught:
            constraints.read_folder(tmp_path)
        assert "bad.yaml" in str(caught.value) and message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_folder_without_files(self, tmp_path):
        with pytest.raises(SortError, match="no folder with DocTer's constraint files"):
            constraints.read_folder(tmp_path / "nowhere")


CHECKED = """
def f(input, dim, sizes, mode):
    torch._check(input.ndim > 1, lambda: "too few")
    if dim < 0 or dim >= input.ndim:
        raise IndexError("dim")
    if mode == "none":
        assert len(sizes) == input.shape[0]
    elif mode != "sum":
        raise ValueError("mode")
    unknown_call(dim)
    return input
"""


class TestACETest:
    def goals(self, source=CHECKED, kinds=None):
        validation = pytest.importorskip("sortlib.baselines.validation")
        function = validation.Function("f", ast.parse(source).body[0], {"torch": torch})
        kinds = kinds or {"input": "tensor", "dim": "int", "sizes": "list", "mode": "str"}
        return acetest.goals_of(function, "torch.flatten", kinds)

    def test_every_path_that_does_not_raise_is_a_goal(self):
        # Two paths return: mode "none" with as many sizes as rows, and mode "sum".
        assert len(self.goals()) == 2

    def test_models_fulfil_the_path(self):
        for goal in self.goals():
            texts = {number: text for text, number in goal.strings.items()}
            for number in range(12):
                model = goal.sample(np.random.default_rng(number), number)
                assert 1 < model["input.ndim"] <= 6
                assert 0 <= model["dim.value"] < model["input.ndim"]
                mode = texts.get(model["mode.value"])
                assert mode in ("none", "sum")
                if mode == "none":
                    assert model["sizes.len"] == model["input.size0"]

    def test_no_model_comes_twice_and_all_are_found(self):
        goals = self.goals("def f(input):\n    torch._check(input.ndim < 3)\n", {"input": "tensor"})
        # Dimensions 0, 1 and 2, once in each of the four extensions.
        found = []
        for number in range(20):
            model = goals[0].sample(np.random.default_rng(number), number)
            found += [model["input.ndim"]] if model else []
        assert Counter(found) == {0: 4, 1: 4, 2: 4}
        assert not goals[0].alive

    def test_loops_run_once_and_quantifiers_hold_for_all(self):
        source = "def f(sizes):\n    torch._check(len(sizes) > 1)\n    torch._check(all(s > 3 for s in sizes))\n"
        goal = self.goals(source, {"sizes": "list"})[0]
        model = goal.sample(np.random.default_rng(0), 0)
        assert model["sizes.len"] > 1
        assert all(model[f"sizes.item{i}"] > 3 for i in range(min(8, model["sizes.len"])))

    def test_real_validation_code_gives_relations(self, context):
        pytest.importorskip("z3")
        cases = list(acetest.ACETest().attempts("conv2d", 8, context))
        assert len(cases) == 8 and {case.pattern for case in cases} == {"acetest-conv2d"}
        for case in cases:
            values = {name: decode(form, {"$draw": lambda content: decode(content[1])})
                      for name, form, _ in case.nodes[0].arguments}  # fmt: skip
            # meta_conv: the weight's second size times the groups is the number of channels.
            assert values["weight"].shape[1] * values["groups"] == values["input"].shape[1]

    def test_free_fields_are_huge_in_one_of_a_hundred(self):
        free = acetest._Free(np.random.default_rng(0), acetest.LARGE)
        sizes = [free.size() for _ in range(N)]
        assert share(sum(size >= 2**32 for size in sizes) / N, 0.01, N)
        assert {size for size in sizes if size < 2**32} == set(range(17))
        numbers = [free.number() for _ in range(N)]
        assert share(sum(abs(n) > 128 for n in numbers) / N, 0.01, N)

    def test_the_accelerator_has_its_own_column(self):
        rows = pd.DataFrame([row("acetest-relu", candidate="cuda", status="exception", side="candidate", message="m")])
        method = acetest.ACETest()
        assert list(method.verdicts(rows, "C")["side"]) == ["candidate"]  # valid on the CPU
        assert list(method.verdicts(rows, "G")["side"]) == ["both"]
        assert len(method.verdicts(rows.assign(candidate="cpu:baseline"), "G")) == 0

    def test_without_the_solver_it_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "z3", None)
        assert acetest.ACETest().available() == "the solver Z3; install it with: pip install z3-solver"


PROGRAM = "import torch\nx = torch.randn(2, 3)\ny = torch.nn.functional.relu(x + 1)\nz = y.sum()\n"
RELU = "torch.nn.functional.relu"


class TestPrograms:
    @pytest.mark.parametrize(
        ("operator", "expected"),
        [
            ("argument", "y = torch.nn.functional.relu(<SPAN>)"),
            ("keyword", "y = torch.nn.functional.relu(x + 1, <SPAN>=<SPAN>)"),
            ("method", "y = torch.<SPAN>(x + 1)"),
        ],
    )
    def test_gaps_in_the_call(self, operator, expected):
        masked = masking.mask(PROGRAM, RELU, operator, np.random.default_rng(0)).splitlines()
        assert masked == [*PROGRAM.splitlines()[:2], expected, PROGRAM.splitlines()[3]]

    def test_gaps_before_and_after_the_call(self):
        rng = np.random.default_rng(0)
        lines = PROGRAM.splitlines()
        assert masking.mask(PROGRAM, RELU, "prefix", rng).splitlines() == [lines[0], "<SPAN>", *lines[2:]]
        assert masking.mask(PROGRAM, RELU, "suffix", rng).splitlines() == [*lines[:3], "<SPAN>"]
        both = masking.mask(PROGRAM, RELU, "prefix-argument", rng).splitlines()
        assert both == [lines[0], "<SPAN>", "y = torch.nn.functional.relu(<SPAN>)", lines[3]]
        assert masking.mask("x = 1", RELU, "argument", rng) is None
        assert len(masking.OPERATORS) == 7

    def test_tidying(self):
        code = "import torch\nx = torch.ones(2).cuda()  # data\nunused = 3\nprint(x)\nout = torch.relu(x)\n"
        assert masking.tidy(code, "torch.relu") == "import torch\nx = torch.ones(2)\nout = torch.relu(x)"
        assert masking.tidy("import torch\nx = torch.ones(2)", "torch.relu") is None
        assert masking.tidy("x = (", "torch.relu") is None

    @pytest.mark.parametrize(
        ("code", "value"),
        [
            # Depth 2 (ones, relu), 2 different APIs, 1 call repeated: 2 + 2 - 1.
            ("import torch\nx = torch.ones(2)\ny = torch.relu(x)\nz = torch.relu(x)", 3),
            # Depth 3, 3 APIs, none repeated.
            ("import torch\nx = torch.ones(2)\ny = torch.relu(x)\nz = torch.exp(y)", 6),
            ("x = 1", 0),
        ],
    )
    def test_fitness(self, code, value):
        assert masking.fitness(code) == value

    def test_programs_run_apart(self):
        with ProgramRunner(timeout=2) as runner:
            good = runner.run(PROGRAM)
            assert (good.ended, [node["api"] for node in good.nodes]) == ("ok", ["add", "relu", "sum"])
            assert good.nodes[1]["arguments"][0][1] == {"$from": [0, 0]}
            failed = runner.run("import torch\ntorch.ones(3).view(2)")
            assert (failed.ended, failed.in_call) == ("exception", True)
            assert failed.message == "RuntimeError: shape '[2]' is invalid for input of size 3"
            wrong = runner.run("import torch\ny = undefined")
            assert (wrong.ended, wrong.message) == ("exception", "NameError: name 'undefined' is not defined")
            dead = runner.run("import os, torch\ntorch.relu(torch.ones(2))\nos.abort()")
            assert (dead.ended, dead.message, len(dead.nodes)) == ("crash", "killed by SIGABRT", 1)
            assert runner.run("while True:\n    pass").ended == "timeout"
            assert runner.run(PROGRAM).ended == "ok"


@pytest.fixture
def scripted():
    """A model of the ``llm`` library that answers seeds and gaps by a script."""
    llm = pytest.importorskip("llm")
    from llm.plugins import pm

    class Scripted(llm.Model):
        model_id = "scripted"
        asked = 0

        def execute(self, prompt, stream, response, conversation):
            Scripted.asked += 1
            if masking.SPAN in prompt.prompt:
                program = prompt.prompt.partition("only.\n\n")[2]
                program = program.replace("<SPAN>=<SPAN>", "inplace=True").replace("(<SPAN>)", "(x * 2)")
                yield f"Here it is:\n```python\n{program.replace('<SPAN>', 'pass')}\n```\nDone."
            else:
                yield (PROGRAM, "import torch\nx = torch.ones(3).view(2)\ntorch.nn.functional.relu(x)\n")[
                    Scripted.asked % 2
                ]

    class Plugin:
        __name__ = "scripted-plugin"

        @llm.hookimpl
        def register_models(self, register):
            register(Scripted())

    plugin = Plugin()
    pm.register(plugin, name="scripted-plugin")
    yield Scripted
    pm.unregister(plugin)


class TestTitanFuzz:
    def test_says_what_is_missing(self, scripted, tmp_path, monkeypatch):
        method = titan.TitanFuzz()
        assert "a language model; install llm" in method.available(Context([]))
        assert "llm knows none named 'nobody'" in method.available(Context([], options={"model": "nobody"}))
        assert method.available(Context([], options={"model": "scripted"})) == ""
        missing = method.available(Context([], options={"programs": str(tmp_path / "none")}))
        assert missing == f"the folder of programs {tmp_path / 'none'}"
        monkeypatch.setitem(sys.modules, "llm", None)
        assert method.available(Context([], options={"model": "x"})).startswith("the library llm; install it with")

    def test_a_model_writes_and_completes_programs(self, scripted):
        cases = list(titan.TitanFuzz().attempts("relu", 12, Context([], options={"model": "scripted"})))
        notes = Counter(case.nodes[0].source.partition(":")[0].rpartition(" ")[2] for case in cases)
        assert notes == {"seed": 4, "mutant": 8}  # a third of a budget below 75 are seeds
        assert {case.pattern for case in cases} == {"titanfuzz-relu"}

    def test_operators_are_drawn_by_their_success(self, scripted):
        runner = object()
        search = titan._Search("relu", RELU, 700, Context([], options={"model": "scripted"}), runner)
        assert search.arms == dict.fromkeys(masking.OPERATORS, [1, 2])
        search.arms["suffix"] = [95, 100]
        search.arms = {name: [5, 100] if name != "suffix" else arm for name, arm in search.arms.items()}
        drawn = Counter(search._operator() for _ in range(200))
        assert drawn["suffix"] == 200  # Beta(95, 5) lies above Beta(5, 95) but for one in 10^40

    def test_valid_new_programs_enter_the_pool(self, scripted):
        search = titan._Search("relu", RELU, 70, Context([], options={"model": "scripted"}), None)
        search.current = "argument"
        search.learn(PROGRAM, True)
        search.learn(PROGRAM, True)  # no new one
        search.learn(PROGRAM + "w = 1\n", False)
        assert list(search.pool) == [PROGRAM] and search.arms["argument"] == [2, 2]
        for number in range(15):
            search.learn(PROGRAM.replace("1", str(number + 2)), True)
        assert len(search.pool) == 10

    def test_a_folder_of_programs(self, tmp_path):
        (tmp_path / "a.py").write_text(PROGRAM)
        (tmp_path / "b.py").write_text("import torch\ntorch.ones(2)\n")
        (tmp_path / "c.py").write_text("import torch\ntorch.nn.functional.relu(undefined)\n")
        cases = list(titan.TitanFuzz().attempts("relu", 5, Context([], options={"programs": str(tmp_path)})))
        assert [[node.api for node in case.nodes] for case in cases] == [["add", "relu", "sum"], ["python"]]
        assert cases[1].nodes[0].source == "written: NameError: name 'undefined' is not defined"

    def test_programs_in_answers(self):
        assert titan.program_in("Sure:\n```python\nx = 1\n```\nBye") == "x = 1\n"
        assert titan.program_in("x = 1") == "x = 1\n"


# ---- attempts that are really run ----


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Outcomes of a few attempts of every method on two platforms, and of attempts that cannot be made."""
    context = Context(RECORDS, seed=1)
    programs = tmp_path_factory.mktemp("programs")
    (programs / "a.py").write_text(PROGRAM)
    (programs / "b.py").write_text("import torch\nx = torch.ones(3).view(2)\ntorch.nn.functional.relu(x)\n")
    context.options["programs"] = str(programs)
    cases = []
    for key in BASELINES:
        method = baseline(key)
        if not method.available(context):
            cases += method.attempts("relu", 3, context)
        method.close()
    cases += [huge(0, "float32", (2**20, 2**20)), huge(1, "int8", (2**64, 2**40)),
              huge(2, "float32", (2, 2), pad=10**13), huge(3, "float32", (2, 3))]  # fmt: skip
    return cases, sl.run(cases, progress=False, timeout=20)


def huge(number, dtype, shape, pad=None):
    """An attempt that would need terabytes: as its input, or as its output."""
    arguments = [Argument("input", tensor(dtype, shape), "positional")]
    if pad:
        arguments.append(Argument("pad", (0, pad), "positional"))
    target = "torch.nn.functional.pad" if pad else RELU
    return build("freefuzz", "C", "huge", number, [Call(target, tuple(arguments))], 0)


class TestRun:
    def test_every_method_has_valid_attempts(self, run):
        _, outcomes = run
        for key in ("freefuzz", "deeprel", "docter", "titanfuzz"):
            method = baseline(key)
            for variant in method.variants or ("",):
                found = method.verdicts(outcomes, variant)
                found = found[found["api"] == "relu"]
                assert len(found) == (2 if key == "titanfuzz" else 3), (key, variant)
                assert set(found["status"]) <= {"ok", "exception", "mismatch"}
                assert (found["status"] == "ok").any(), (key, variant)

    def test_relu_and_its_twins_agree(self, run):
        _, outcomes = run
        found = baseline("deeprel").verdicts(outcomes, "V")
        assert list(found["symptom"]) == [""] * 3

    def test_a_program_that_fails_is_an_invalid_attempt(self, run):
        _, outcomes = run
        found = baseline("titanfuzz").verdicts(outcomes)
        assert list(found["status"]) == ["ok", "exception"]
        assert found["message"][1] == "RuntimeError: shape '[2]' is invalid for input of size 3"

    def test_terabytes_are_an_outcome_and_do_no_harm(self, run):
        cases, outcomes = run
        rows = outcomes.set_index("case").loc[[case.id for case in cases[-4:]]]
        assert list(rows["status"]) == ["exception", "exception", "exception", "ok"]
        assert "Unable to allocate" in rows["message"].iloc[0]
        assert "can't allocate memory" in rows["message"].iloc[2] or "memory" in rows["message"].iloc[2].lower()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    from sortlib.baselines.stage import generate_baselines, run_baselines
    from sortlib.graph import ApiGraph
    from sortlib.study import Study, StudyConfig

    config = StudyConfig(name="by-hand", zoo="tiny", methods=("freefuzz", "titanfuzz"),
                         generation={"inputs_per_api": 2})  # fmt: skip
    study = Study.create(config, tmp_path_factory.mktemp("study"))
    study.note("trace", fingerprint="x", models=[])
    study.note("run", fingerprint="y", reference="cpu", candidate="cpu:baseline")
    study.note("generate", without_case={}, patterns_mined=0, patterns_tested=0)
    empty = pd.DataFrame(columns=[*row("p"), "module_path"])
    study.__dict__.update(records=RECORDS, outcomes=empty, single=empty, patterns=[], cases=[],
                          graphs=[ApiGraph.from_edges(["relu"], [])])  # fmt: skip
    generate_baselines(study, progress=False)
    run_baselines(study, "cpu", "cpu:baseline", progress=False)
    return study


class TestStudy:
    """Attempts and outcomes in a study's directory, and in its tables."""

    def test_every_method_has_the_same_budget(self, study):
        assert [(case.pattern, case.id in set(study.baseline_outcomes["case"])) for case in
                study.baseline_cases["freefuzz"] if case.pattern.endswith("relu")] == [
            ("freefuzz-C-relu", True), ("freefuzz-C-relu", True), ("freefuzz-P-relu", True), ("freefuzz-P-relu", True),
        ]  # fmt: skip

    def test_a_second_time_nothing_is_done(self, study):
        from sortlib.baselines.stage import generate_baselines, run_baselines

        before = json.dumps(study.manifest)
        generate_baselines(study, progress=False)
        run_baselines(study, "cpu", "cpu:baseline", progress=False)
        assert json.dumps(study.manifest) == before

    def test_times_are_in_the_manifest_only(self, study):
        assert set(study.manifest["times"]) == {"freefuzz", "titanfuzz"}
        assert list(tables.times(study)["method"]) == ["freefuzz", "titanfuzz"]

    def test_validity_has_a_column_per_variant_and_a_reason_per_slash(self, study):
        table = tables.validity(study).set_index("api")
        assert table.loc["relu", "freefuzz-C_attempts"] == 2
        assert table.loc["gelu", "freefuzz-C_attempts"] == "/"
        assert table.loc["relu", "titanfuzz_ratio"] == "/"
        notes = tables.validity(study).attrs["footnotes"]
        assert any(note.startswith("FreeFuzz-C and FreeFuzz-P") and "no recorded call to mutate" in note
                   for note in notes)  # fmt: skip
        assert any(note.startswith("TitanFuzz") and "needs a language model" in note for note in notes)

    def test_bugs_have_a_timing_column_where_times_are_compared(self, study):
        table = tables.bugs(study).set_index("api")
        assert table.loc["relu", "freefuzz-P_perf"] in (0, 1, 2)
        assert table.loc["relu", "freefuzz-C_perf"] == "/"
        assert table.loc["relu", "freefuzz-C_crash"] == 0

    def test_invalid_attempts_have_examples(self, study):
        table = tables.invalid(study)
        expected = {"method", "api", "kind", "attempts", "side", "example", "case", "node"}
        assert set(table) == expected
        assert set(table["method"]) <= {"FreeFuzz-C", "FreeFuzz-P"}
        assert len(table) and table["example"].str.len().min() > 0

    def test_cases_are_found_by_id(self, study):
        wanted = study.baseline_cases["freefuzz"][0]
        assert study.case(wanted.id) == wanted

    def test_settings_from_file_and_command_line(self, tmp_path):
        from sortlib.study import load_config, with_methods

        file = tmp_path / "s.yaml"
        file.write_text("zoo: tiny\nmethods: [docter]\nbaselines: {constraints: here, timeout: 3}\n")
        config = load_config(file)
        assert config.baselines.constraints == str(tmp_path / "here")  # beside the file
        changed = with_methods(config, ["titanfuzz"], {"model": "m", "constraints": None})
        assert changed.methods == ("titanfuzz",)
        assert (changed.baselines.model, changed.baselines.timeout) == ("m", 3)
        assert changed.baselines.constraints == config.baselines.constraints
        with pytest.raises(SortError, match="'x' is not one of"):
            with_methods(config, ["x"])

    def test_mistakes_in_a_study_file(self, tmp_path):
        from sortlib.pipeline import check_ahead
        from sortlib.study import load_config

        file = tmp_path / "s.yaml"
        file.write_text("zoo: tiny\nmethods: [fuzzfree]\n")
        with pytest.raises(SortError, match="methods.*'fuzzfree' is not one of"):
            load_config(file)
        file.write_text(f"zoo: tiny\nmethods: [docter]\nbaselines: {{constraints: {tmp_path / 'none'}}}\n")
        with pytest.raises(SortError, match="no folder with DocTer's constraint files"):
            check_ahead(load_config(file))


def test_pattern_ids_name_the_method():
    assert method_of("freefuzz-C-relu") == "freefuzz"
    assert method_of("single-relu") == method_of("p0123456789ab") == ""
    with pytest.raises(SortError, match="unknown method 'x'; valid: acetest, deeprel, docter, freefuzz, titanfuzz"):
        baseline("x")


@pytest.mark.parametrize("key", list(BASELINES))
def test_every_method_cites_its_paper(key):
    doc = sys.modules[BASELINES[key].__module__].__doc__
    assert any(venue in doc for venue in ("ICSE 2022", "ESEC/FSE 2022", "ISSTA 2022", "ISSTA 2023"))
