"""A trace proves itself: its calls run again must give every tensor back bit for bit, and a wrong trace must not."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sortlib.errors import SortError
from sortlib.evidence import checksum, digest
from sortlib.graph import ApiGraph
from sortlib.replay import replay
from sortlib.tracing import TraceError, Tracer, trace
from sortlib.zoo import load_zoo, prepare

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def proof(model, *args, open=(), exact=False, **kwargs):
    """Replay twice: the first must leave everything as the second needs it."""
    graph, records = Tracer(open=open, exact=exact).run(model, *args, **kwargs)
    first, second = (graph.replay(records) for _ in range(2))
    assert first == second
    assert first.ok, first.describe()
    assert first.calls + len(first.skipped) == len(graph.nodes)
    return graph, first


def views(x):
    y = x * 1
    v = y.view(-1)
    v.add_(1)
    return y * 2


def uninitialised(x):
    out = torch.empty(4, 6)
    out[0].fill_(3)
    torch.add(x[:1], 1, out=out[1:2])
    return out[:2] * 2


def pointed_elsewhere(x):
    y, z = x * 1, torch.zeros(4, 6)
    z.data = y
    z.add_(1)
    return z + y


def reduced_precision(x):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, x) @ torch.ones(4, 4)


def inference(x):
    with torch.inference_mode():
        y = x * 2
        y += 1
    return y.clone()


def gradient(x):
    with torch.enable_grad():
        w = x.clone().requires_grad_()
        return torch.autograd.grad((w @ w.t()).sum(), w)[0] * 2


def several(x):
    parts = [x * 1, x * 2]
    torch._foreach_mul_(parts, 2.0)
    return parts[0] + parts[1]


def turned(x):
    y = x.clone()
    y.t_()
    return y.unsqueeze_(0).sum(1)


def random(x):
    return F.dropout(x, 0.5) + torch.rand(4, 6) + torch.randn_like(x)


def complex_numbers(x):
    return torch.fft.fft(x).conj().abs() + torch.view_as_real(torch.fft.rfft(x)).sum()


def scattered(x):
    return torch.zeros(4, 6).scatter_add_(0, torch.zeros(4, 6, dtype=torch.long), x)


@pytest.mark.parametrize(
    "model",
    [views, uninitialised, pointed_elsewhere, reduced_precision, inference, gradient, several, turned, random,
     complex_numbers, scattered],
)  # fmt: skip
def test_a_function_replays(model):
    proof(model, X)


class Remembering(nn.Module):
    """Writes its buffers: one directly and through a view, the others inside batch norm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(4, 6))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        before = self.memory + 1
        self.memory[1:].add_(x[1:])
        self.memory[0] = 5
        return self.norm(self.memory * before + x)


def test_buffers_that_the_model_writes_start_again_as_they_were():
    model = Remembering().train()
    proof(model, X)
    assert model.norm.num_batches_tracked == 1  # the run itself; the two replays leave the model alone
    assert torch.equal(model.memory[1:], X[1:]) and (model.memory[0] == 5).all()


def test_an_input_that_the_model_writes_starts_again_as_it_was():
    def doubled(x):
        x.mul_(2)
        return x + 1

    given = X.clone()
    proof(doubled, given)
    assert torch.equal(given, X * 2)


def test_a_tensor_from_outside_may_change_its_form():
    weight = torch.ones(4, 6)

    def model(x):
        first = weight + 1
        weight.t_()
        return first @ weight

    proof(model, X)


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_replays_although_a_product_depends_on_requires_grad(batch_first):
    """A product of a batch with one matrix is folded into one product or not, depending on requires_grad."""
    proof(nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first).eval(), torch.randn(2, 3, 8))


@pytest.mark.parametrize("open", [(), ("lstm",)])
def test_composite_calls_replay_closed_and_opened(open):
    graph, _ = proof(nn.LSTM(6, 5), torch.randn(3, 2, 6), open=open)
    assert ("lstm" in [node.api for node in graph.nodes]) is not bool(open)


def test_what_cannot_be_repeated_is_told():
    def from_numpy(x):
        return x + torch.as_tensor(np.arange(6))

    def mapped(x):
        return torch.vmap(lambda row: row * 2 + 1)(x).sum()

    graph, result = proof(from_numpy, X)
    assert [graph.nodes[k].api for k in result.skipped] == ["as_tensor"]
    assert result.describe() == (
        "from_numpy: 1 calls replayed, 1 outputs identical bit for bit; 1 calls left out (an argument that records do"
        " not hold)"
    )
    graph, result = proof(mapped, X)
    assert [graph.nodes[k].api for k in result.skipped] == ["mul", "add"]


# A wrong trace is found


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).eval()


def test_a_changed_weight_is_found_at_the_first_call_that_reads_it():
    model = two_layers()
    graph, records = trace(model, X)
    with torch.no_grad():
        model[2].weight[0, 0] += 1e-6
    result = replay(graph, records)
    assert not result.ok and (result.node, result.calls) == (2, 2)
    assert result.describe().startswith("Sequential: differs first in call 2 (linear, module 2, test_replay.py:")
    assert result.describe().endswith("output 0: values differ")


def test_a_wrong_edge_a_wrong_argument_and_a_wrong_api_are_found():
    def model(x):
        one, two = x.relu(), x.abs()
        return F.leaky_relu(one - two, 0.1)

    graph, records = trace(model, X)
    edges = tuple(e._replace(src=1 - e.src) if e.dst == 2 else e for e in graph.edges)
    result = replay(dataclasses.replace(graph, edges=edges), records)
    assert result.node == 2 and result.difference.endswith("output 0: values differ")
    last = records[3]
    slope = tuple(a._replace(value=0.2) if a.value == 0.1 else a for a in last.arguments)
    result = replay(graph, [*records[:3], dataclasses.replace(last, arguments=slope)])
    assert result.node == 3
    result = replay(graph, [dataclasses.replace(records[0], target="torch.Tensor.sigmoid"), *records[1:]])
    assert result.node == 0
    wires = tuple(w._replace(output=1) for w in graph.wires)
    result = replay(dataclasses.replace(graph, wires=wires), records)
    assert result.difference.endswith("raised LookupError: argument input: call 0 has no output 1")


def test_a_digest_tells_form_and_every_bit():
    zero = torch.zeros(2, 3)
    assert digest(zero) == digest(torch.zeros(2, 3))
    assert digest(zero) != digest(-zero)  # the sign of zero is a bit
    assert digest(zero) != digest(zero.reshape(3, 2)) and digest(zero) != digest(zero.half())
    assert digest(zero).values == digest(zero.t().contiguous().t()).values  # same values in another order of memory
    assert digest(zero) != digest(zero.t().contiguous().t())
    assert digest(zero.to_sparse()).values == digest(zero).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.complex64])
def test_a_checksum_sees_every_single_bit_of_a_large_tensor(dtype):
    words = 3 * 1021 * 8 + 5  # three rows and a rest
    data = torch.arange(3 * words, dtype=torch.int32).view(torch.uint8)[: words * 8]
    tensor = data.view(dtype)
    right = checksum(tensor)
    for place in (0, 1021 * 8, 2 * 1021 * 8 + 4, words * 8 - 1):
        for bit in (1, 128):
            data[place] ^= bit
            assert checksum(tensor) != right
            data[place] ^= bit
    assert checksum(tensor) == right == checksum(tensor.clone())
    assert checksum(tensor) != checksum(tensor.roll(1)) and checksum(tensor) != checksum(tensor.flip(0))


def test_what_a_checksum_cannot_see_an_exact_one_does():
    """Two rows of 1021 words that change places; its docstring says so."""
    tensor = torch.arange(4 * 1021, dtype=torch.int64)
    swapped = tensor.reshape(4, 1021)[[1, 0, 2, 3]].reshape(-1).contiguous()
    assert checksum(tensor) == checksum(swapped) and checksum(tensor, exact=True) != checksum(swapped, exact=True)


def test_a_replay_by_exact_hashes():
    proof(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()), torch.randn(2, 3, 40, 40), exact=True)


def test_views_of_a_tensor_share_its_checksum():
    def model(x):
        return [(x * 2).view(-1).view(x.shape).transpose(0, 1), x.mul(2).to(memory_format=torch.channels_last)]

    graph, _ = proof(model, torch.randn(2, 32, 24, 24))
    form = {node.api: d[0] for node, d in zip(graph.nodes, graph.evidence.digests, strict=True)}
    assert form["view"].values == form["transpose"].values and form["view"].strides != form["transpose"].strides


def test_a_graph_from_a_file_says_what_a_replay_needs(tmp_path):
    graph, records = trace(two_layers(), X)
    graph.save(tmp_path / "graph.json")
    message = (
        "^graph 'Sequential' was loaded, sent here or traced without records; a replay needs parameters and inputs:"
        " trace the model again and replay what sortlib.trace returns$"
    )
    for other in (ApiGraph.load(tmp_path / "graph.json"), pickle.loads(pickle.dumps(graph)), graph.without_evidence()):
        assert other == graph
        with pytest.raises(SortError, match=message):
            other.replay(records)
    with pytest.raises(SortError, match="^graph 'Sequential' has 3 calls, but 2 records were given$"):
        graph.replay(records[:2])
    assert Tracer(records=False).run(two_layers(), X)[0].evidence is None


def test_the_evidence_holds_parameters_and_inputs_and_no_activation():
    model, x = two_layers(), X.clone()
    graph, _ = trace(model, x)
    held = {id(external.tensor) for external in graph.evidence.externals}
    assert held == {id(x), *map(id, model.parameters())} and not graph.evidence.before


def test_the_random_generator_goes_on_as_if_nothing_had_happened():
    graph, records = trace(random, X)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert replay(graph, records).ok
    assert torch.equal(torch.rand(2), expected)


def test_a_model_that_raises_keeps_what_was_seen():
    def broken(x):
        return x.relu() @ torch.ones(7, 7)

    with pytest.raises(TraceError, match=r"broken raised RuntimeError in .*call 2 \(matmul\)") as caught:
        trace(broken, X)
    assert [node.api for node in caught.value.graph.nodes] == ["relu", "ones"]


@pytest.mark.parametrize("name", ["tiny-residual", "tiny-transformer"])
def test_the_tiny_models_replay(name):
    tiny = load_zoo("tiny")
    model, calls = prepare(tiny.entry(name), tiny)
    for args, kwargs in calls:
        proof(model, *args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in load_zoo("quick").models])
def test_the_quick_zoo_replays(one_thread, name):
    pytest.importorskip("mmpretrain")
    quick = load_zoo("quick")
    model, [(args, kwargs), _] = prepare(quick.entry(name), quick)
    result = replay(*Tracer(name).run(model, *args, **kwargs))
    assert result.ok and not result.skipped, result.describe()
