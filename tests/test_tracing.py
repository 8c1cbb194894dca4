"""The tracer: every pitfall of watching PyTorch through ``TorchFunctionMode``, one test each.

The right values are read off the model's source: what was called, in which order, and whose output each argument was.
"""

import gc
import re
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from sortlib import features, readings
from sortlib.errors import SortError
from sortlib.tracing import TraceError, Tracer, trace

X = torch.arange(6.0).reshape(2, 3) - 2


def apis(graph):
    return [node.api for node in graph.nodes]


def edges(graph):
    return [tuple(edge) for edge in graph.edges]


def arguments(record):
    return {argument.name: argument.value for argument in record.arguments}


def same_but_spelling(*functions):
    """Graphs without targets, sources and flags."""
    graphs = [trace(function, X)[0] for function in functions]
    return [(apis(graph), edges(graph)) for graph in graphs]


# ---- names ----


@pytest.mark.parametrize(
    ("api", "calls"),
    {
        "add": [lambda x: x + x, lambda x: x.add(x), lambda x: torch.add(x, x), lambda x: x.__radd__(x),
                lambda x: x.clone().add_(x), lambda x: x.clone().__iadd__(x), lambda x: torch.ops.aten.add(x, x),
                lambda x: torch.ops.aten.add.Tensor(x, x)],
        "sub": [lambda x: x - 1, lambda x: 1 - x, lambda x: torch.rsub(x, 1), lambda x: x.subtract(1),
                lambda x: x.clone().sub_(1)],
        "mul": [lambda x: x * x, lambda x: 2 * x, lambda x: torch.multiply(x, x), lambda x: x.clone().mul_(x)],
        "div": [lambda x: x / 2, lambda x: 2 / x, lambda x: torch.true_divide(x, 2), lambda x: x.clone().div_(2)],
        "pow": [lambda x: x**2, lambda x: 2**x, lambda x: torch.pow(x, 2), lambda x: x.clone().pow_(2)],
        "remainder": [lambda x: x % 2, lambda x: 2 % x, lambda x: torch.remainder(x, 2)],
        "floor_divide": [lambda x: x // 2, lambda x: 2 // x],
        "matmul": [lambda x: x @ x.view(3, 2), lambda x: torch.matmul(x, x.view(3, 2)),
                   lambda x: torch.linalg.matmul(x, x.view(3, 2))],
        "relu": [F.relu, torch.relu, lambda x: x.relu(), lambda x: F.relu(x.clone(), inplace=True),
                 lambda x: x.clone().relu_(), lambda x: torch.relu_(x.clone())],
        "sigmoid": [F.sigmoid, torch.sigmoid, lambda x: x.sigmoid(), torch.special.expit],
        "softmax": [lambda x: F.softmax(x, -1), lambda x: x.softmax(-1), lambda x: torch.special.softmax(x, -1)],
        "neg": [lambda x: -x, torch.negative], "abs": [abs, torch.absolute],
        "bitwise_and": [lambda x: x.bool() & x.bool(), lambda x: x.bool().bitwise_and(x.bool())],
        "bitwise_left_shift": [lambda x: x.int() << 1, lambda x: x.int().__rlshift__(1)],
        "eq": [lambda x: x == 1, lambda x: x.eq(1)], "getitem": [lambda x: x[0], lambda x: x[:, 1:]],
        "max_pool2d": [lambda x: F.max_pool2d(x[None, None], 2),
                       lambda x: F.max_pool2d(x[None, None], 2, return_indices=True)],
        "unfold": [lambda x: F.unfold(x[None, None], 2)], "Tensor.unfold": [lambda x: x.unfold(1, 2, 1)],
        "bernoulli": [lambda x: torch.bernoulli(x.sigmoid())], "bernoulli_": [lambda x: x.clone().bernoulli_(0.5)],
        "linalg.norm": [torch.linalg.norm], "norm": [torch.norm], "fft.fft": [torch.fft.fft],
        "_foreach_add": [lambda x: torch._foreach_add([x, x], 1)],
    }.items(),
)  # fmt: skip
def test_all_spellings_of_an_api_have_one_name(api, calls):
    for call in calls:
        graph, records = trace(call, X)
        assert graph.nodes[-1].api == api == records[-1].api


def test_a_function_without_official_name_is_named_by_its_attribute_name():
    assert torch.overrides.resolve_name(torch._foreach_neg) is None
    graph, _ = trace(lambda x: torch._foreach_neg([x])[0] * 2, X)
    assert [node.target for node in graph.nodes] == ["torch._foreach_neg", "torch.Tensor.mul"]


def test_operators_of_other_libraries_keep_their_namespace():
    library = torch.library.Library("sort_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    graph, _ = trace(lambda x: torch.ops.sort_test.twice(x + 1).relu(), X)
    assert apis(graph) == ["add", "sort_test.twice", "relu"]
    assert edges(graph) == [(0, 1, "x"), (1, 2, "input")]


def test_in_place_is_a_flag_and_not_another_name():
    graph, records = trace(lambda x: F.relu(x + 1, inplace=True).add_(1).relu(), X)
    assert apis(graph) == ["add", "relu", "add", "relu"]
    assert [node.inplace for node in graph.nodes] == [False, True, True, False] == [r.inplace for r in records]


# ---- noise ----


def test_attribute_queries_are_no_nodes():
    def model(x):
        assert x.shape == x.size() and x.dim() == x.ndim and len(x) and x.numel() and x.dtype and x.device
        assert x.is_contiguous() and not x.is_nested and x.stride() and not x.requires_grad and x.is_floating_point()
        assert not x.requires_grad_(False).is_leaf or repr(x) and x.tolist() and bool((x > 9).any()) is False
        return x.relu() if x.sum().item() else x

    assert apis(trace(model, X)[0]) == ["gt", "any", "sum", "relu"]


# ---- operands and arguments ----


def test_reflected_operands_are_swapped():
    minus, reflected = trace(lambda x: (x + 0) - 1, X)[1][1], trace(lambda x: 1 - (x + 0), X)[1][1]
    assert arguments(minus)["other"] == 1 and arguments(minus)["input"].shape == (2, 3)
    assert arguments(reflected)["input"] == 1 and arguments(reflected)["other"].shape == (2, 3)
    assert same_but_spelling(lambda x: (x + 0) - 1, lambda x: 1 - (x + 0)) == [
        (["add", "sub"], [(0, 1, "input")]),
        (["add", "sub"], [(0, 1, "other")]),
    ]


@pytest.mark.parametrize(
    ("call", "label"),
    [
        (lambda y: 2 / y, "other"), (lambda y: 2**y, "exponent"), (lambda y: y**2, "input"), (lambda y: 2 % y, "other"),
        (lambda y: torch.rsub(y, 1), "other"), (lambda y: torch.rsub(X, other=y), "input"),
        (lambda y: torch.rsub(input=y, other=X), "other"), (lambda y: y.__rmatmul__(X.t()), "other"),
    ],
)  # fmt: skip
def test_edge_names_the_operand_that_the_tensor_is(call, label):
    graph, _ = trace(lambda x: call(x.relu()), X)
    assert (0, len(graph.nodes) - 1, label) in edges(graph)


def test_a_tensor_used_twice_gives_two_parallel_edges_and_an_alias():
    graph, records = trace(lambda x: (lambda y: y * y)(x + 1), X)
    assert edges(graph) == [(0, 1, "operand"), (0, 1, "operand")]
    assert [wire.path for wire in graph.wires] == [("input",), ("other",)]
    assert records[1].aliases == ((("other",), ("input",)),)


@pytest.mark.parametrize(
    ("call", "label"),
    [
        (lambda y: F.linear(X, weight=y), "weight"),
        (lambda y: F.conv2d(X[None, None], y[None, None]), "weight"),
        (lambda y: torch.add(input=X, other=y), "operand"),
        (lambda y: torch.addmm(X[:, :2], y, X.t()), "mat1"),
        (lambda y: torch.where(X > 0, y, X), "input"),
        (lambda y: X.where(y > 0, y), "other"),
        (lambda y: y.where(X > 0, X), "input"),
        (lambda y: torch.max(X, y), "other"),
        (lambda y: X.max(y), "other"),
        (lambda y: X.to(y), "other"),
        (lambda y: torch.embedding(y, torch.tensor([0])), "weight"),
        (lambda y: F.embedding(torch.tensor([0]), y), "weight"),
        (lambda y: torch.instance_norm(X[None], y[0, :2], None, None, None, True, 0.1, 1e-5, False), "weight"),
        (lambda y: torch.batch_norm(X, None, None, y[0], y[0].abs(), False, 0.1, 1e-5, False), "running_mean"),
        (lambda y: torch.split(y, 1), "input"),
        (lambda y: y.split(1), "input"),
        (lambda y: torch.polygamma(1, y), "input"),
        (lambda y: X[y.long().clamp(0, 1)], "indices"),
        (lambda y: X[:, y[0].long().clamp(0, 1)], "indices"),
        (lambda y: nn.init.zeros_(y), "input"),
        (lambda y: X.new_tensor(y), "args"),
        (lambda y: F.scaled_dot_product_attention(X[None], y[None], X[None]), "key"),
    ],
)  # fmt: skip
def test_arguments_of_built_ins_are_bound_to_names(call, label):
    graph, _ = trace(lambda x: call(x.abs()), X)
    last = len(graph.nodes) - 1
    assert label in [edge.argument for edge in graph.edges if edge.dst == last]


def test_containers_and_multiple_outputs_keep_the_output_index_on_the_edge():
    def model(x):
        a, b, c = x.chunk(3, 1)
        values, indices = x.max(dim=1)
        return torch.cat([c, a]), torch.stack((b, a)), torch.einsum("ij,kj->ik", b, c), values + indices

    graph, _ = trace(model, X)
    assert apis(graph) == ["chunk", "max", "cat", "stack", "einsum", "add"]
    assert edges(graph) == [
        (0, 2, "tensors[2]"), (0, 2, "tensors[0]"), (0, 3, "tensors[1]"), (0, 3, "tensors[0]"),
        (0, 4, "operands[1]"), (0, 4, "operands[2]"), (1, 5, "operand[0]"), (1, 5, "operand[1]"),
    ]  # fmt: skip
    assert [wire.path for wire in graph.wires[:2]] == [("tensors", 0), ("tensors", 1)]
    assert [wire.output for wire in graph.wires[:2]] == [2, 0]


def test_recurrent_networks_bind_both_forms_of_their_arguments():
    lstm = nn.LSTM(3, 4)
    plain, _ = trace(lambda x: lstm((x + 1)[:, None]), X)
    packed, _ = trace(lambda x: lstm(nn.utils.rnn.pack_sequence([x + 1, x[:1] + 1])), X)
    assert plain.edges[-1].argument == "hx" and plain.edges[-3].argument == "input"
    assert {edge.argument for edge in packed.edges if packed.nodes[edge.dst].api == "lstm"} >= {"input[0]", "hx"}
    gru, _ = trace(lambda x: nn.GRU(3, 4)((x + 1)[:, None], (x + 1).new_zeros(1, 1, 4)), X)
    assert [e.argument for e in gru.edges if gru.nodes[e.dst].api == "gru"][:2] == ["input", "hx"]


# ---- the same object, in place, views ----


@pytest.mark.parametrize(
    ("api", "call"),
    [
        ("dropout", lambda y: F.dropout(y, 0.5, training=False)),
        ("contiguous", lambda y: y.contiguous()),
        ("to", lambda y: y.to(torch.float32)),
        ("float", lambda y: y.float()),
    ],
)
def test_a_call_that_returns_its_input_is_the_latest_writer(api, call):
    def model(x):
        y = x + 1
        assert call(y) is y or api == "dropout"
        return call(y).relu()

    graph, _ = trace(model, X)
    assert apis(graph) == ["add", api, api, "relu"]
    assert edges(graph)[-1] == (2, 3, "input")


def test_a_write_through_a_view_keeps_the_edge():
    def model(x):
        y = x + 1
        v = y.view(-1)
        v.add_(1)
        return y * 2

    graph, records = trace(model, X)
    assert apis(graph) == ["add", "view", "add", "mul"]
    assert edges(graph) == [(0, 1, "input"), (1, 2, "operand"), (2, 3, "operand@alias")]
    assert graph.wires[-1].alias
    (_, features), *_ = records[3].tensors()
    assert (features.minimum, features.maximum) == (0.0, 5.0)  # X is -2..3, and 1 was added twice


def test_a_write_into_one_half_leaves_the_other_half_alone():
    def model(x):
        y = x.repeat(1, 2)
        left, right = y.chunk(2, 1)
        left.mul_(0)
        return right + 1, y + 1

    graph, _ = trace(model, X)
    assert apis(graph) == ["repeat", "chunk", "mul", "add", "add"]
    assert edges(graph)[2:] == [(1, 3, "operand[1]"), (2, 4, "operand@alias")]


def test_data_shares_memory():
    def model(x):
        y = x + 1
        y.data.mul_(2)
        return y.relu()

    graph, records = trace(model, X)
    assert apis(graph) == ["add", "data", "mul", "relu"]
    assert edges(graph)[-1] == (2, 3, "input@alias")
    assert arguments(records[-1])["input"].maximum == 8.0


def test_assigning_data_moves_the_producer():
    def model(x):
        y, z = x + 1, x - 1
        y.data = z
        return y.relu()

    graph, records = trace(model, X)
    assert apis(graph) == ["add", "sub", "relu"] and edges(graph) == [(1, 2, "input")]
    assert arguments(records[-1])["input"].minimum == -3.0


def test_form_changes_in_place_write_nothing():
    def model(x):
        y = x + 1
        v = y.view(-1)
        y.t_()
        return v * 2, y * 3

    graph, records = trace(model, X)
    assert edges(graph)[2:] == [(1, 3, "operand"), (2, 4, "operand")]
    assert arguments(records[-1])["input"].shape == (3, 2)


def test_in_place_relu_does_not_overwrite_what_was_recorded_for_its_producer():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(inplace=True), nn.Linear(3, 2)).eval()
    graph, records = trace(model, X)
    assert edges(graph) == [(0, 1, "input"), (1, 2, "input")]
    assert records[0].outputs[0].minimum == pytest.approx(-2, rel=1e-4)
    assert arguments(records[1])["input"].minimum == pytest.approx(-2, rel=1e-4)
    assert records[1].outputs[0].minimum == 0 == arguments(records[2])["input"].minimum


def test_setitem_is_a_writer_although_it_returns_nothing():
    def model(x):
        y = torch.zeros(2, 3)
        y[0] = x[0] + 5
        return y.relu()

    graph, records = trace(model, X)
    assert apis(graph) == ["zeros", "getitem", "add", "setitem", "relu"]
    assert edges(graph)[1:] == [(0, 3, "input"), (2, 3, "value"), (3, 4, "input")]
    assert graph.nodes[3].inplace and records[3].outputs[0].maximum == 5.0
    assert arguments(records[3])["input"].maximum == 0.0


def test_out_argument_is_written():
    def model(x):
        out = torch.empty(2, 3)
        view = out.view(6)
        torch.mul(x, 2, out=out)
        return view + 1

    graph, _ = trace(model, X)
    assert apis(graph) == ["empty", "view", "mul", "add"]
    assert edges(graph) == [(0, 1, "input"), (0, 2, "out"), (2, 3, "operand@alias")]


def test_calls_on_lists_in_place_write_every_tensor():
    def model(x):
        many = [x + 1, x + 2]
        torch._foreach_mul_(many, 2)
        return many[1].relu()

    graph, records = trace(model, X)
    assert apis(graph) == ["add", "add", "_foreach_mul", "relu"]
    assert edges(graph)[-1] == (2, 3, "input[1]")
    assert arguments(records[-1])["input"].maximum == 10.0


def test_running_statistics_are_recorded_before_they_are_written():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3, momentum=1.0)

        def forward(self, x):
            return self.norm(x), self.norm.running_mean + 0, self.norm(x * 2)

    graph, records = trace(Model().train(), X)
    first, read, second = [r for r in records if r.api != "mul" and not r.inplace]
    before, after = arguments(first)["running_mean"], arguments(read)["input"]
    assert (before.minimum, before.maximum, before.role) == (0, 0, "buffer")
    assert (after.minimum, after.maximum, after.role) == (-0.5, 1.5, "call")  # column means of X
    assert arguments(second)["running_mean"] == after
    written = [tuple(edge) for edge in graph.edges if "running_mean" in edge.argument or edge.dst == read.node]
    assert written == [(first.node, read.node, "operand@alias"), (first.node, second.node, "running_mean@alias")]


def test_values_written_by_unseen_code_are_measured_anew():
    def model(x):
        y = x + 1
        z = y.relu()
        y.numpy()[...] = 7
        return z, y.neg()

    _, records = trace(model, X)
    assert arguments(records[-1])["input"].minimum == 7.0


def test_parameters_are_read_once_in_a_process_and_again_after_a_write(monkeypatch):
    model, read = nn.Linear(3, 3), []
    trace(model, X)
    monkeypatch.setattr(readings, "take", lambda tensor: read.append(tensor) or features.take(tensor))
    _, records = trace(model, X)
    assert not any(tensor is p for tensor in read for p in model.parameters())
    # PyTorch counts only the second of these writes.
    for number, write in enumerate((lambda p: p.data.fill_(7), lambda p: p.fill_(8)), 7):
        with torch.no_grad():
            write(model.weight)
        _, records = trace(model, X)
        assert arguments(records[0])["weight"].minimum == arguments(records[0])["weight"].maximum == number


def test_an_id_that_is_used_again_makes_no_edge():
    def model(x):
        for _ in range(5):
            y = x.clone()  # dies at once, its id goes to the next
            del y
        return torch.ones(2, 3).relu()

    graph, _ = trace(model, X)
    assert edges(graph) == [(5, 6, "input")]


def test_memory_that_is_used_again_makes_no_edge():
    """Memory that is gone is forgotten now and then, so that its address may come again."""

    def model(x):
        for _ in range(100):
            y = x.clone().view(-1)
        for _ in range(100):
            y = y.add(1).view(-1)
        return y

    graph, records = trace(model, X)
    chain = [(198 + 2 * k + 1, 200 + 2 * k, "operand") for k in range(100)]
    views = [(2 * k, 2 * k + 1, "input") for k in range(200)]
    assert edges(graph) == sorted(chain + views, key=lambda edge: edge[1])
    assert graph.replay(records).ok


def test_an_unseen_alias_of_a_produced_tensor_keeps_the_edge():
    graph, records = trace(lambda x: F.linear(x, nn.Parameter(x.t() @ x)), X)
    assert apis(graph) == ["t", "matmul", "linear"]
    assert edges(graph)[-1] == (1, 2, "weight@alias")
    assert arguments(records[-1])["weight"].role == "call"


# ---- where tensors come from ----


def test_roles_of_tensors():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("shift", torch.ones(3))
            self.fixed = [torch.ones(3)]

        def forward(self, x):
            return (x * self.weight + self.shift) + self.fixed[0]

    graph, records = trace(Model(), X)
    roles = [[features.role for _, features in record.tensors()] for record in records]
    assert roles == [["input", "parameter"], ["call", "buffer"], ["call", "constant"]]
    assert [features.requires_grad for _, features in records[0].tensors()] == [False, True]
    assert graph.notes == ()


def test_tensors_created_inside_the_model_have_their_factory_as_producer():
    graph, records = trace(lambda x: x + torch.arange(3) * torch.tensor([2.0]), X)
    assert apis(graph) == ["arange", "tensor", "mul", "add"]
    assert edges(graph) == [(0, 2, "operand"), (1, 2, "operand"), (2, 3, "operand")]
    assert records[0].outputs[0].maximum == 2


def test_inputs_in_dataclasses_and_dictionaries_are_inputs():
    @dataclass
    class Batch:
        image: torch.Tensor

    _, records = trace(lambda batch, more: batch.image + more["shift"][0], Batch(X), {"shift": [X]})
    assert [features.role for _, features in records[0].tensors()] == ["input", "input"]


def test_models_that_return_dictionaries_or_dataclasses():
    @dataclass
    class Output:
        logits: torch.Tensor

    for wrap in (lambda y: {"logits": y}, Output):
        graph, _ = trace(lambda x, wrap=wrap: wrap(x.relu() + 1), X)
        assert apis(graph) == ["relu", "add"] and edges(graph) == [(0, 1, "operand")]


def test_a_module_called_twice_gives_two_nodes_with_one_path():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.same = self.layer  # a shared module is named by its first path

        def forward(self, x):
            return self.same(self.layer(x))

    graph, _ = trace(Model(), X)
    assert [node.module_path for node in graph.nodes] == ["layer", "layer"] and edges(graph) == [(0, 1, "input")]


def test_shared_parameters_are_no_edge():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, index):
            return self.head(self.embed(index))

    graph, records = trace(Model(), torch.tensor([1, 2]))
    assert edges(graph) == [(0, 1, "input")]
    assert arguments(records[0])["weight"] == arguments(records[1])["weight"]
    assert arguments(records[1])["weight"].role == "parameter"


def test_tensor_subclasses_are_seen():
    class Marked(torch.Tensor):
        pass

    model = nn.Linear(3, 2)
    model.register_buffer("shift", nn.Buffer(torch.ones(2)))
    graph, records = trace(lambda x: model(x.as_subclass(Marked)) + model.shift, X)
    assert apis(graph) == ["linear", "add"] and edges(graph) == [(0, 1, "operand")]
    assert arguments(records[0])["input"].maximum == 3.0


def test_source_line_is_the_models_own_line():
    graph, _ = trace(nn.Sequential(nn.ReLU()), X)
    assert re.fullmatch(r"test_tracing\.py:\d+", graph.nodes[0].source)
    torchvision = pytest.importorskip("torchvision")
    block = torchvision.ops.SqueezeExcitation(3, 1)
    graph, _ = trace(block, torch.ones(1, 3, 4, 4))
    assert graph.nodes[-1].api == "mul" and graph.nodes[-1].source.startswith("torchvision/ops/misc.py:")


# ---- composites ----


def attention():
    torch.manual_seed(0)
    return nn.MultiheadAttention(4, 2).eval(), torch.randn(3, 1, 4)


def test_attention_is_one_node_and_skips_the_fused_path():
    model, x = attention()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expected = model(x, x, x)[0]
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    graph, _ = trace(model, x, x, x)
    assert apis(graph) == ["multi_head_attention_forward"]
    assert torch.equal(seen[0], expected)
    assert torch.backends.mha.get_fastpath_enabled()


def test_transformer_layer_in_eval_mode_shows_its_calls():
    graph, _ = trace(nn.TransformerEncoderLayer(4, 2, 8).eval(), attention()[1])
    assert apis(graph) == [
        "multi_head_attention_forward", "dropout", "add", "layer_norm", "linear", "relu", "dropout", "linear",
        "dropout", "add", "layer_norm",
    ]  # fmt: skip
    assert (3, 9, "operand") in edges(graph)  # the second residual


def test_attention_opens_on_request():
    model, x = attention()
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    trace(model, x, x, x)
    graph, records = Tracer(open=("multi_head_attention_forward",)).run(model, x, x, x)
    assert "multi_head_attention_forward" not in apis(graph)
    assert apis(graph).count("linear") == 2 and apis(graph).count("bmm") == 2 and apis(graph).count("softmax") == 1
    assert torch.equal(seen[0], seen[1]) and len(records) == len(graph.nodes)
    softmax = apis(graph).index("softmax")
    assert (softmax - 1, softmax, "input") in edges(graph) and (softmax, softmax + 1, "input") in edges(graph)


def test_cross_entropy_opens_on_request():
    target = torch.tensor([0, 2])
    closed, _ = trace(lambda x: F.cross_entropy(x + 0, target), X)
    opened, _ = Tracer(open="cross_entropy").run(lambda x: F.cross_entropy(x + 0, target), X)
    assert apis(closed) == ["add", "cross_entropy"] and apis(opened) == ["add", "cross_entropy_loss"]


def test_lstm_opens_into_its_gates_with_the_same_values_up_to_rounding():
    torch.manual_seed(0)
    model, x = nn.LSTM(3, 4), torch.randn(2, 1, 3)
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    assert apis(trace(model, x)[0]) == ["zeros", "zeros", "lstm"]
    graph, _ = Tracer(open=("lstm",)).run(model, x)
    assert apis(graph).count("sigmoid") == 6 and apis(graph).count("tanh") == 4  # three and two for each of two steps
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("conv2d", "is built-in, its inside cannot be seen"), ("no_such_api", "is no API")],
)
def test_what_cannot_be_opened_is_one_clear_error(name, reason):
    with pytest.raises(SortError, match=f"^cannot open '{name}': it {reason}; valid: [^\n]+ more$"):
        Tracer(open=(name,))


# ---- modes ----


def test_checkpointed_parts_are_seen_once():
    for reentrant in (True, False):
        graph, _ = trace(lambda x, r=reentrant: checkpoint(lambda t: (t + 1).relu(), x, use_reentrant=r) * 2, X)
        assert apis(graph) == ["add", "relu", "mul"]
        assert [edge.src for edge in graph.edges] == [0, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes_inside_the_model_change_nothing(mode):
    def model(x):
        with mode():
            y = x + 1
            v = y.view(-1)
            v.add_(1)
            y.t_()
            return y * 2

    graph, records = trace(model, X)
    assert apis(graph) == ["add", "view", "add", "t", "mul"]
    assert edges(graph)[2:] == [(2, 3, "input@alias"), (3, 4, "operand")]
    assert arguments(records[-1])["input"].shape == (3, 2) and arguments(records[-1])["input"].maximum == 5.0


def test_custom_autograd_functions_are_seen_through():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.relu() * 2

    graph, _ = trace(lambda x: Twice.apply(x + 1) - 1, X)
    assert apis(graph) == ["add", "relu", "mul", "sub"]
    assert edges(graph) == [(0, 1, "input"), (1, 2, "operand"), (2, 3, "input")]


def test_calls_below_vmap_are_seen_with_the_form_of_one_example():
    graph, records = trace(lambda x: torch.vmap(lambda row: row * 2)(x + 1) - 1, X)
    assert apis(graph) == ["add", "mul", "sub"]
    assert edges(graph) == [(0, 1, "operand@alias"), (1, 2, "input@alias")]
    row = arguments(records[1])["input"]
    assert (row.shape, row.minimum, row.maximum) == ((3,), -1.0, 4.0)


def test_gradients_taken_inside_the_model_are_noted():
    graph, _ = trace(lambda x: torch.func.grad(lambda t: (t * 2).sum())(x + 1) - 3, X)
    assert apis(graph) == ["add", "mul", "sum", "sub"]
    assert any("gradients" in note for note in graph.notes)


def test_a_scripted_function_inside_leaves_a_note():
    @torch.jit.script
    def twice(x):
        return x * 2

    graph, _ = trace(lambda x: twice(x + 1).relu(), X)
    assert apis(graph) == ["add", "relu"] and edges(graph) == []
    assert graph.notes == ("tensors that come from unseen code: 1, the first in call 1 (relu), argument input",)


def compiled_call():
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].compile()
    return model


@pytest.mark.parametrize(
    ("make", "place", "kind"),
    [
        (lambda: torch.jit.script(nn.Linear(3, 3)), r"\(top\)", "scripted"),
        (lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.Linear(3, 3))), "1", "scripted"),
        (lambda: torch.jit.trace(nn.Linear(3, 3), X), r"\(top\)", "scripted"),
        (lambda: torch.jit.script(F.relu), r"\(top\)", "scripted"),
        (lambda: torch.compile(nn.Linear(3, 3)), r"\(top\)", "compiled"),
        (lambda: nn.Sequential(torch.compile(nn.Linear(3, 3))), "0", "compiled"),
        (lambda: torch.compile(F.relu), r"\(top\)", "compiled"),
        (compiled_call, "0", "compiled"),
    ],
)
def test_scripted_and_compiled_models_are_refused_in_one_line(make, place, kind):
    with pytest.raises(SortError, match=f"^\\w+: {place} is {kind}[^\n]*cannot be seen; trace the original nn.Module"):
        trace(make(), X)


# ---- bad input ----


def test_a_model_that_raises_keeps_the_trace_and_names_module_and_call():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    with pytest.raises(TraceError) as caught:
        trace(model, X)
    message = str(caught.value)
    assert message.startswith("Sequential raised RuntimeError in module 1.1, call 2 (linear), after call 1 (relu): ")
    assert "\n" not in message
    assert apis(caught.value.graph) == ["linear", "relu"] and len(caught.value.records) == 2
    assert isinstance(caught.value, SortError)


def test_an_error_between_calls_and_a_missing_package_are_named():
    class Block(nn.Module):
        def forward(self, x):
            x.relu()
            import no_such_package  # noqa: F401

    with pytest.raises(TraceError, match=r"in module 0, after call 0 \(relu\): No module named 'no_such_package'"):
        trace(nn.Sequential(Block()), X)
    with pytest.raises(TraceError, match=r"in module \(top\), before the first call: no"):
        trace(lambda x: (_ for _ in ()).throw(ValueError("no")), X)


def test_an_error_that_the_model_catches_leaves_the_module_path_right():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bad, self.good = nn.Linear(4, 4), nn.Linear(3, 3)

        def forward(self, x):
            try:
                return self.bad(x)
            except RuntimeError:
                return self.good(x) + 1

    graph, _ = trace(Model(), X)
    assert [(node.api, node.module_path) for node in graph.nodes] == [("linear", "good"), ("add", "")]


def test_calls_of_a_modules_own_hooks():
    """PyTorch runs a pre-hook before ``forward`` and a hook on what it returned, when the module has ended."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    model[0].register_forward_pre_hook(lambda module, inputs: (torch.sigmoid(inputs[0]),))
    model[0].register_forward_hook(lambda module, inputs, output: torch.tanh(output))
    graph, _ = trace(model, X)
    assert [(node.api, node.module_path) for node in graph.nodes] == [
        ("sigmoid", "0"), ("linear", "0"), ("tanh", ""), ("relu", "1"),
    ]  # fmt: skip


def test_nan_and_infinity_in_records_are_data():
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]])
    _, records = trace(lambda x: x.relu() / 0, x)
    features = arguments(records[0])["input"]
    assert (features.nan, features.posinf, features.neginf) == (0.25, 0.25, 0.25)
    assert (features.minimum, features.maximum) == (1.0, 1.0)
    assert records[1].outputs[0].minimum is None  # NaN, inf, NaN and inf


def test_hooks_and_modes_are_removed_also_after_an_error():
    before = len(torch.nn.modules.module._global_forward_hooks)
    with pytest.raises(TraceError):
        trace(nn.Linear(4, 4), X)
    assert len(torch.nn.modules.module._global_forward_hooks) == before
    assert torch.overrides._get_current_function_mode_stack() == []


# ---- cost ----


def test_nothing_holds_activations():
    alive, memory = [], []

    def model(x):
        y = (x + 1).view(-1)
        alive.append(weakref.ref(y))
        memory.append(StorageWeakRef(y.untyped_storage()))
        out = y[: torch.tensor(4)].relu()
        del y
        assert alive[-1]() is None and memory[-1].expired()  # already during the run
        return out

    trace(model, X)
    tracer = Tracer()
    graph, records = tracer.run(model, X)
    gc.collect()
    assert [reference() for reference in alive] == [None, None] and all(m.expired() for m in memory)
    assert graph.nodes and records and tracer


def test_objects_in_arguments_are_not_kept():
    class Strange:
        def __init__(self, tensor):
            self.tensor = tensor

        def __call__(self, x, y):
            return (x - y).abs().sum(-1)

    alive = []

    def model(x):
        strange = Strange(x + 1)
        alive.append(weakref.ref(strange))
        return F.triplet_margin_with_distance_loss(x, x, x + 1, distance_function=strange)

    _, records = trace(model, X)
    gc.collect()
    assert alive[0]() is None
    assert "Strange" in arguments(records[-1])["distance_function"].text


def test_without_records_the_graph_is_the_same():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.BatchNorm1d(3)).eval()
    full, records = trace(model, X)
    graph, none = Tracer(records=False).run(model, X)
    assert [(n.api, n.module_path) for n in graph.nodes] == [(n.api, n.module_path) for n in full.nodes]
    assert (graph.edges, graph.wires) == (full.edges, full.wires)
    assert none == [] and len(records) == 3


def test_node_and_record_are_the_same_call():
    graph, records = Tracer("mine", sample=3).run(nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval(), X)
    for number, (node, record) in enumerate(zip(graph.nodes, records, strict=True)):
        assert record.key == ("mine", 3, number)
        assert (record.api, record.target, record.module_path) == (node.api, node.target, node.module_path)
    assert not records[1].random  # eval mode
    assert trace(nn.Dropout().train(), X)[1][0].random
