"""Training mode: recorded gradients are those that autograd computes, and nothing else changes."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sortlib.errors import SortError
from sortlib.gradients import mean_square
from sortlib.tracing import Tracer

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def traced(model, *args, loss=None):
    return Tracer(backward=True, loss=loss).run(model, *args)


def inputs(record):
    return {path[0]: features for path, features in record.input_gradients}


def same(features, gradient):
    assert (features.role, features.dtype, features.shape) == ("gradient", "float32", tuple(gradient.shape))
    assert (features.minimum, features.maximum) == (gradient.min(), gradient.max())
    assert features.mean == pytest.approx(gradient.double().mean().item())


def test_gradients_are_those_of_autograd():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).train()
    _, (first, tanh, last) = traced(model, X)
    hidden = model[0](X)
    active = torch.tanh(hidden)
    output = model[2](active)
    wanted = [hidden, active, output, *model.parameters()]
    g = dict(zip(("hidden", "active", "output", "w0", "b0", "w2", "b2"),
                 torch.autograd.grad(output.square().mean(), wanted), strict=True))  # fmt: skip
    assert set(inputs(first)) == {"weight", "bias"}  # the input requires no gradient
    same(inputs(first)["weight"], g["w0"])
    same(inputs(first)["bias"], g["b0"])
    same(first.output_gradients[0], g["hidden"])
    assert inputs(tanh)["input"] == first.output_gradients[0]
    same(inputs(last)["input"], g["active"])
    same(inputs(last)["weight"], g["w2"])
    same(last.output_gradients[0], g["output"])


def test_a_tensor_read_twice_has_the_gradient_of_both():
    w = nn.Parameter(torch.ones(3))

    def model(x):
        y = x * w
        return y + y.exp()

    _, records = traced(model, torch.zeros(3), loss=torch.sum)
    assert [r.api for r in records] == ["mul", "exp", "add"]
    assert records[0].output_gradients[0].mean == 2.0  # 1 + exp(0)
    assert inputs(records[1])["input"].mean == 2.0 and records[1].output_gradients[0].mean == 1.0


def test_in_place_calls_have_the_gradients_of_before_and_after():
    w = nn.Parameter(torch.ones(3))

    def model(x):
        y = w * 2
        y.mul_(5)
        return y * 3

    _, (double, five, three) = traced(model, X, loss=torch.sum)
    assert (double.output_gradients[0].mean, inputs(five)["input"].mean) == (15.0, 15.0)
    assert (five.output_gradients[0].mean, inputs(three)["input"].mean) == (3.0, 3.0)
    assert inputs(double)["input"].mean == 30.0


def test_several_outputs_and_those_without_gradient():
    w = nn.Parameter(torch.arange(6.0))

    def model(x):
        values, places = w.reshape(2, 3).max(1)
        halves = w.chunk(2)
        return values.sum() + halves[0].sum() + places.sum()

    _, records = traced(model, X)
    by_api = {r.api: r for r in records if r.api in ("max", "chunk")}
    values, places = by_api["max"].output_gradients
    assert values.shape == (2,) and places is None
    used, unused = by_api["chunk"].output_gradients
    assert used.shape == (3,) and (unused is None or unused.maximum == 0)


def test_grad_of_the_parameters_and_the_hooks_are_as_before():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).train()
    before = torch.ones(5)
    model[0].bias.grad = before
    traced(model, X)
    assert model[0].bias.grad is before and torch.equal(before, torch.ones(5)) and model[0].weight.grad is None
    assert not any(p._backward_hooks for p in model.parameters())
    assert model[1].num_batches_tracked == 1  # buffers as after a training step


def test_the_forward_pass_is_proven_as_without_gradients():
    graph, records = traced(nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.BatchNorm1d(5), nn.ReLU(True)).train(), X)
    result = graph.replay(records)
    assert result.ok and result.calls == len(records), result.describe()


def test_nothing_holds_activations():
    alive = []

    def model(x):
        y = (x * weight).exp()
        alive.append(weakref.ref(y))
        return y.sum()

    weight = nn.Parameter(torch.ones(6))
    graph, records = traced(model, X)
    gc.collect()
    assert alive[0]() is None and graph.nodes and records


def test_checkpointed_parts_are_seen_once():
    line = nn.Linear(6, 6)

    def model(x):
        return checkpoint(lambda y: line(y).relu(), x * 1, use_reentrant=False)

    graph, records = traced(model, X)
    assert [node.api for node in graph.nodes] == ["mul", "linear", "relu"]
    assert records[1].output_gradients[0].shape == (4, 6)


def test_the_default_loss_reads_every_output():
    one, two = (torch.full((2,), value, requires_grad=True) for value in (2.0, 3.0))
    assert mean_square({"a": one, "b": [two, torch.ones(1)]}).item() == 13.0


def test_mistakes_are_one_line():
    model = nn.Linear(6, 2)
    with pytest.raises(
        SortError, match=r"^Linear: the loss must be a tensor with one element, not a tensor of shape \(4, 2\)$"
    ):
        traced(model, X, loss=lambda output: output)
    with pytest.raises(SortError, match="^Linear: the loss must be a tensor with one element, not float$"):
        traced(model, X, loss=lambda output: 1.0)
    with pytest.raises(
        SortError, match="^Linear: the loss depends on no tensor that requires a gradient; is the model frozen"
    ):
        traced(model.requires_grad_(False), X)
    with pytest.raises(SortError, match="^backward=True needs records=True"):
        Tracer(backward=True, records=False)

    def broken(x):
        y = (x * weight).exp()
        z = y.sin()
        y.data.zero_()
        y.add_(1)
        return z.sum() + y.sum()

    weight = nn.Parameter(torch.ones(6))
    with pytest.raises(SortError, match="^broken: the backward pass raised RuntimeError: one of the variables needed"):
        traced(broken, X)
    assert not weight._backward_hooks


def test_nan_in_a_gradient_is_data():
    weight = nn.Parameter(torch.zeros(3))
    _, records = traced(lambda x: (weight * x).sqrt(), torch.zeros(3), loss=torch.sum)
    assert inputs(records[0])["input"].nan == 1.0 and np.isnan(records[0].output_gradients[0].minimum or np.nan)
