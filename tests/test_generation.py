"""Joining records along a pattern's edges: what is wired, what is drawn, and what is said when nothing fits."""

import json

import pytest
import torch
import torch.nn.functional as F

import sortlib as sl
from sortlib import generation
from sortlib.drawing import digest
from sortlib.errors import SortError
from sortlib.features import decode
from sortlib.generation import TestCase, generate
from sortlib.graph import ApiGraph, Edge, Embedding, Pattern
from sortlib.platform import Platform
from sortlib.runner.backward import upstream_of
from sortlib.runner.execution import Executor, draw_externals, seed_of
from sortlib.tracing import Tracer
from sortlib.zoo.tiny import ResidualNet, VisionTransformer

CPU = Platform("cpu", "cpu").to_json()


def traced(function, *inputs, name="model", sample=0):
    return Tracer(name, sample).run(function, *inputs)


def whole(graph, nodes=None, number=0, extra=()):
    """The pattern of some nodes of a graph with all edges between them; ``extra`` are places in further graphs."""
    nodes = tuple(range(len(graph.nodes))) if nodes is None else tuple(nodes)
    inside = [i for i, e in enumerate(graph.edges) if e.src in nodes and e.dst in nodes]
    edges = tuple(Edge(nodes.index(e.src), nodes.index(e.dst), e.argument) for e in (graph.edges[i] for i in inside))
    places = tuple(Embedding(graph_number, nodes, tuple(inside)) for graph_number in (number, *extra))
    apis = tuple(graph.nodes[i].api for i in nodes)
    return Pattern("hand-made", apis, edges, len(places), tuple(p.graph for p in places), places)


def wires(case):
    """(node, producer, output) of every operand that comes from inside the case."""
    found = []
    for position, node in enumerate(case.nodes):
        for _, form, _ in node.arguments:
            decode(form, {"$from": lambda c, p=position: found.append((p, *c)), "$draw": lambda c: None,
                          "$device": lambda c: None})  # fmt: skip
    return found


def streams(case):
    found = []
    for node in case.nodes:
        for _, form, _ in node.arguments:
            decode(form, {"$draw": lambda c: found.append(c[0]), "$from": lambda c: None, "$device": lambda c: None})
    return found


def execute(case):
    """Outputs of every node, run in this process; raises what a call raises."""
    form, executor = case.to_json(), Executor(CPU)
    external, produced = draw_externals(form), {}
    for position, node in enumerate(form["nodes"]):
        call = executor.call(node, executor.arguments(node, external, produced), seed_of(form, position))
        if call.error:
            raise call.error
        produced |= {(position, k): tensor for k, tensor in enumerate(call.outputs)}
    return produced


# ---- every operand from inside the pattern is wired ----


def test_both_operands_of_a_matmul_are_wired():
    def attention(x):
        return torch.matmul(torch.relu(x), torch.tanh(x).transpose(-2, -1))

    graph, records = traced(attention, torch.randn(2, 5, 8))
    assert [node.api for node in graph.nodes] == ["relu", "tanh", "transpose", "matmul"]
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1)
    assert sorted(wires(case)) == [(2, 1, 0), (3, 0, 0), (3, 2, 0)]
    outputs = execute(case)
    assert torch.equal(outputs[3, 0], outputs[0, 0] @ outputs[2, 0])


def test_a_residual_add_takes_both_branches_from_the_pattern():
    weight = torch.randn(4, 4, 3, 3)

    def block(x):
        return torch.relu(F.conv2d(x, weight, padding=1)) + F.conv2d(x, weight, padding=1)

    graph, records = traced(block, torch.randn(1, 4, 6, 6))
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1)
    assert wires(case) == [(1, 0, 0), (3, 1, 0), (3, 2, 0)]
    outputs = execute(case)
    assert torch.equal(outputs[3, 0], outputs[1, 0] + outputs[2, 0])


def test_every_tensor_of_a_cat_is_wired():
    graph, records = traced(lambda x: torch.cat([torch.relu(x), torch.tanh(x), torch.sigmoid(x)], 1), torch.randn(2, 3))
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1)
    assert [wire for wire in wires(case) if wire[0] == 3] == [(3, 0, 0), (3, 1, 0), (3, 2, 0)]
    assert execute(case)[3, 0].shape == (2, 9)


def test_what_lies_outside_the_pattern_is_drawn():
    graph, records = traced(lambda x, y: torch.relu(x) + torch.tanh(y), torch.randn(2, 3), torch.randn(2, 3))
    (case,) = generate([whole(graph, nodes=(0, 2))], records, [graph], per_pattern=1)
    assert wires(case) == [(1, 0, 0)]
    assert streams(case) == ["0.input", "1.other"]


def test_a_product_of_a_tensor_with_itself_is_wired_twice():
    def square(x):
        y = torch.relu(x)
        return y * y

    graph, records = traced(square, torch.randn(2, 3))
    pattern = whole(graph)
    assert pattern.edges == ((0, 1, "operand"), (0, 1, "operand"))
    (case,) = generate([pattern], records, [graph], per_pattern=1)
    assert wires(case) == [(1, 0, 0), (1, 0, 0)]
    outputs = execute(case)
    assert torch.equal(outputs[1, 0], outputs[0, 0] ** 2)
    # Also where the pattern holds only one of the two edges: in the model both operands were one tensor.
    single = Pattern("one edge", pattern.nodes, pattern.edges[:1], 1, (0,), (Embedding(0, (0, 1), (0,)),))
    assert wires(generate([single], records, [graph], per_pattern=1)[0]) == [(1, 0, 0), (1, 0, 0)]


def test_the_second_output_of_a_call_is_wired_as_such():
    graph, records = traced(lambda x: torch.relu(torch.chunk(x, 3, dim=1)[1]), torch.randn(2, 9))
    pattern = whole(graph)
    assert pattern.edges == ((0, 1, "input[1]"),)
    (case,) = generate([pattern], records, [graph], per_pattern=1)
    assert wires(case) == [(1, 0, 1)]
    outputs = execute(case)
    assert torch.equal(outputs[1, 0], torch.relu(outputs[0, 1]))


def test_nodes_run_after_their_producers_whatever_the_patterns_order():
    graph, records = traced(lambda x: torch.relu(torch.tanh(torch.sigmoid(x))), torch.randn(3))
    place = Embedding(0, (2, 0, 1), (1, 0))
    edges = (Edge(2, 0, "input"), Edge(1, 2, "input"))
    pattern = Pattern("backwards", ("relu", "sigmoid", "tanh"), edges, 1, (0,), (place,))
    (case,) = generate([pattern], records, [graph], per_pattern=1)
    assert [node.api for node in case.nodes] == ["sigmoid", "tanh", "relu"]
    assert case.edges == ((1, 2, "input"), (0, 1, "input"))


# ---- joins ----


def test_joins_agree_in_dtype_shape_and_strides_of_all_operands():
    inputs = [
        torch.randn(2, 3), torch.randn(4, 5), torch.randn(5, 4).t(), torch.randn(4, 5, dtype=torch.float64),
        torch.randn(4, 5), torch.randn(2, 3),
    ]  # fmt: skip
    graphs, records = [], []
    for number, x in enumerate(inputs):
        graph, found = traced(lambda x: torch.relu(x) + torch.tanh(x), x, name=f"model{number}")
        graphs.append(graph)
        records += found
    pattern = whole(graphs[0], extra=range(1, len(graphs)))
    known = {record.key: record for record in records}
    cases = generate([pattern], records, graphs, per_pattern=40)
    assert len(cases) == 40
    for case in cases:
        relu, tanh, add = (known[node.record] for node in case.nodes)
        operands = {path[0]: features.signature for path, features in add.tensors()}
        assert operands == {"input": relu.outputs[0].signature, "other": tanh.outputs[0].signature}
        assert len(wires(case)) == 2
        execute(case)
    # Records of different models are combined where they fit, and every form of input is reached.
    assert any(len({node.record[0] for node in case.nodes}) > 1 for case in cases)
    assert len({known[case.nodes[0].record].outputs[0].signature for case in cases}) == 4


def test_the_occurrence_in_a_model_is_the_witness(monkeypatch):
    """Where the search for other joins gives up, the calls of a real occurrence are taken."""
    monkeypatch.setattr(generation, "_join", lambda *args: None)
    graph, records = traced(lambda x: torch.relu(x) + torch.tanh(x), torch.randn(2, 3))
    other, more = traced(lambda x: torch.relu(x) + torch.tanh(x), torch.randn(2, 3), sample=1)
    cases = generate([whole(graph)], records + more, [graph], per_pattern=20)
    assert {tuple(node.record for node in case.nodes) for case in cases} == {
        tuple(("model", sample, node) for node in range(3)) for sample in (0, 1)
    }


def test_every_pattern_of_real_models_gives_valid_cases_with_all_edges_wired():
    graphs, records = [], []
    for model in (ResidualNet(), VisionTransformer()):
        torch.manual_seed(0)
        graph, found = sl.trace(model.eval(), torch.randn(2, 3, 32, 32))
        graphs.append(graph)
        records += found
    patterns = sl.mine(graphs, min_support=2, max_nodes=5)
    assert any(pattern.has_join for pattern in patterns)
    cases = generate(patterns, records, graphs, per_pattern=2)
    assert cases.skipped == {} and len(cases) == 2 * len(patterns)
    for case in cases:
        assert len(wires(case)) == len(case.edges)
        assert {(src, dst) for src, dst, _ in case.edges} == {(src, dst) for dst, src, _ in wires(case)}
        execute(case)


# ---- what is drawn ----


def test_arguments_that_were_one_tensor_are_drawn_once():
    graph, records = traced(lambda x: F.scaled_dot_product_attention(x, x, x), torch.randn(2, 4, 8))
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1)
    assert streams(case) == ["0.query"] * 3
    assert list(draw_externals(case.to_json())) == ["0.query"]


def test_equal_seeds_give_equal_cases_and_inputs_and_others_do_not():
    graph, records = traced(lambda x: torch.relu(x) + torch.tanh(x), torch.randn(2, 3))

    def made(seed):
        cases = generate([whole(graph)], records, [graph], per_pattern=3, seed=seed)
        return [case.id for case in cases], [digest(draw_externals(case.to_json()).values()) for case in cases]

    first, again, other = made(0), made(0), made(1)
    assert first == again
    assert not set(first[0]) & set(other[0]) and not set(first[1]) & set(other[1])
    # Cases of one pattern differ, here where there is only one join in the drawn values.
    assert len(set(first[0])) == 3 and len(set(first[1])) == 3


def test_the_uniform_sampler_stays_between_the_recorded_ends():
    graph, records = traced(torch.relu, torch.linspace(-2, 6, 1000))
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1, sampler="uniform")
    (drawn,) = draw_externals(case.to_json()).values()
    assert -2 <= drawn.min() < -1.9 and 5.9 < drawn.max() <= 6
    assert abs(float(drawn.mean()) - 2) < 0.3  # the middle of the range; standard error 2.31 / sqrt(1000) = 0.07


def test_a_case_survives_json():
    def call(x):
        return F.max_pool2d(torch.relu(x)[:, 1:], (2, 2), stride=None).to(torch.float64)

    graph, records = traced(call, torch.randn(1, 3, 4, 4))
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1)
    again = TestCase.from_json(json.loads(json.dumps(case.to_json())))
    assert again == case
    assert torch.equal(execute(again)[3, 0], execute(case)[3, 0])


# ---- what cannot be generated ----


def test_shared_memory_between_calls_is_skipped_with_its_reason():
    def write_through_a_view(x):
        y = torch.tanh(x)
        y[0].add_(1)
        return torch.relu(y)

    graph, records = traced(write_through_a_view, torch.randn(2, 3))
    alias = [edge for edge in graph.edges if edge.argument.endswith("@alias")]
    assert alias, "the write to a row is seen through the whole tensor's memory"
    cases = generate([whole(graph, nodes=(alias[0].src, alias[0].dst))], records, [graph])
    assert list(cases) == []
    assert cases.skipped == {"hand-made": "an edge stands for shared memory, which a case cannot rebuild"}


def test_large_tensors_are_left_out_and_counted():
    big, big_records = traced(torch.relu, torch.randn(2000), name="big")
    small, small_records = traced(torch.relu, torch.randn(20), name="small")
    pattern = whole(big, extra=(1,))
    cases = generate([pattern], big_records + small_records, [big, small], per_pattern=5, max_elements=100)
    assert {case.nodes[0].record[0] for case in cases} == {"small"}
    assert cases.left_out == {"a tensor has more than 100 elements": 1}
    none = generate([whole(big)], big_records, [big, small], max_elements=100)
    assert none.skipped == {
        "hand-made": "no recorded occurrence can be used (1 records left out: a tensor has more than 100 elements)"
    }


def test_records_of_other_graphs_are_named_as_the_reason():
    graph = ApiGraph.from_edges(["relu", "tanh"], [(0, 1, "input")])
    cases = generate([whole(graph)], [], [graph])
    assert cases.skipped == {"hand-made": "no recorded occurrence can be used (the records are of other graphs)"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sampler": "gauss"}, "unknown sampler 'gauss'; valid: "),
        ({"per_pattern": 0}, "generate: per_pattern must be a whole number from 1 on, not 0"),
    ],
)
def test_mistakes_get_one_line(options, message):
    with pytest.raises(SortError) as error:
        generate([], [], [], **options)
    assert str(error.value).startswith(message)


def test_models_of_one_class_keep_their_own_records():
    """Records find their graph by name, so a second ``Sequential`` must not overwrite the first one's."""
    models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(2)]
    models.append(torch.nn.Sequential(torch.nn.Flatten(0)))
    graphs, records = zip(*(sl.trace(model, torch.ones(2, 4)) for model in models), strict=True)
    patterns = sl.mine(graphs, min_support=2)
    cases = sl.generate(patterns, records, graphs, per_pattern=3)
    assert [[node.api for node in case.nodes] for case in cases] == [["linear", "relu"]] * 3
    flat = [record for part in records for record in part]
    with pytest.raises(SortError, match="3 graphs are called 'Sequential'.*give records as a list for each graph"):
        sl.generate(patterns, flat, graphs)


# ---- forward and backward ----


def _small_network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten())
    model[0].bias.requires_grad_(False)
    return model


def test_backward_cases_give_every_operand_a_gradient_that_wanted_one():
    graph, records = traced(_small_network().eval(), torch.randn(2, 3, 6, 6))
    plain, case = (generate([whole(graph)], records, [graph], per_pattern=1, backward=way)[0] for way in (False, True))
    assert plain.id != case.id and not any(node.backward or node.frozen for node in plain.nodes)
    assert TestCase.from_json(json.loads(json.dumps(case.to_json()))) == case
    # Traced without gradients: activations want one as in training; a frozen parameter and buffers do not.
    frozen = {node.api: node.frozen for node in case.nodes}
    assert frozen == {"conv2d": ["bias"], "batch_norm": ["running_mean", "running_var"], "gelu": [], "flatten": []}
    found = execute(case)
    outputs = [sum(node == place for node, _ in found) for place in range(4)]
    assert outputs == [1 + 2, 1 + 3, 1 + 1, 1 + 1]  # a result, and a gradient of each operand that wants one


def test_what_was_traced_with_gradients_wants_them_as_recorded():
    graph, records = Tracer("model", backward=True).run(_small_network().train(), torch.randn(2, 3, 6, 6))
    places = [place for place, node in enumerate(graph.nodes) if node.api in ("conv2d", "batch_norm", "gelu")]
    (case,) = generate([whole(graph, places)], records, [graph], per_pattern=1, backward=True)
    assert case.nodes[0].frozen == ["input", "bias"]  # the image wanted none
    assert case.nodes[1].frozen == ["running_mean", "running_var"]
    outputs = execute(case)
    assert (0, 1) in outputs and (0, 2) not in outputs and outputs[0, 1].shape == (4, 3, 3, 3)


def test_gradients_of_a_pattern_are_those_of_autograd_call_by_call():
    graph, records = traced(lambda x: torch.tanh(torch.relu(x)), torch.randn(5))
    (case,) = generate([whole(graph)], records, [graph], per_pattern=1, backward=True)
    found = execute(case)
    x = found[0, 0].requires_grad_()
    upstream = upstream_of(found[1, 0], f"{seed_of(case.to_json(), 1)}/0", "drawn")
    (right,) = torch.autograd.grad(torch.tanh(x), x, upstream)
    assert torch.equal(found[1, 1], right)
