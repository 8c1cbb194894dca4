"""Graphs shaped like those of well-known networks, built by rule, for benchmarks that need no model."""

from __future__ import annotations

import random

from sortlib import ApiGraph


class _Net:
    """Adds calls one after another; each call takes (producer, argument) pairs."""

    def __init__(self):
        self.apis, self.edges = [], []

    def call(self, api, *inputs, argument="input"):
        self.apis.append(api)
        here = len(self.apis) - 1
        for item in inputs:
            src, name = item if isinstance(item, tuple) else (item, argument)
            if src is not None:
                self.edges.append((src, here, name))
        return here

    def chain(self, x, *apis):
        for api in apis:
            x = self.call(api, x)
        return x

    def add(self, *parts):
        return self.call("add", *parts, argument="operand")

    def cat(self, *parts):
        return self.call("cat", *parts, argument="tensors")

    def graph(self, name):
        return ApiGraph.from_edges(self.apis, self.edges, name)


def vgg(depths=(2, 2, 3, 3, 3), norm=True):
    net, x = _Net(), None
    for depth in depths:
        for _ in range(depth):
            x = net.call("conv2d", x)
            x = net.chain(x, *(["batch_norm"] if norm else []), "relu")
        x = net.call("max_pool2d", x)
    net.chain(x, "adaptive_avg_pool2d", "flatten", "linear", "relu", "dropout", "linear", "relu", "dropout", "linear")
    return net.graph(f"vgg{sum(depths)}")


def resnet(depths=(3, 4, 6, 3), convs=3, squeeze=False, act="relu"):
    net = _Net()
    x = net.chain(None, "conv2d", "batch_norm", act, "max_pool2d")
    for depth in depths:
        for block in range(depth):
            y = x
            for k in range(convs):
                y = net.chain(y, "conv2d", "batch_norm", *([act] if k < convs - 1 else []))
            if squeeze:
                gate = net.chain(y, "adaptive_avg_pool2d", "conv2d", "relu", "conv2d", "sigmoid")
                y = net.call("mul", y, gate, argument="operand")
            skip = net.chain(x, "conv2d", "batch_norm") if block == 0 else x
            x = net.call(act, net.add(y, skip))
    net.chain(x, "adaptive_avg_pool2d", "flatten", "linear")
    return net.graph(f"resnet{sum(depths) * convs + 2}{'se' * squeeze}")


def densenet(depths=(6, 12, 24, 16)):
    net = _Net()
    x = net.chain(None, "conv2d", "batch_norm", "relu", "max_pool2d")
    for depth in depths:
        parts = [x]
        for _ in range(depth):
            joined = net.cat(*parts)
            parts.append(net.chain(joined, "batch_norm", "relu", "conv2d", "batch_norm", "relu", "conv2d"))
        x = net.chain(net.cat(*parts), "batch_norm", "relu", "conv2d", "avg_pool2d")
    net.chain(x, "batch_norm", "relu", "adaptive_avg_pool2d", "flatten", "linear")
    return net.graph(f"densenet{2 * sum(depths) + 5}")


def inception(blocks=9, branches=4):
    net = _Net()
    x = net.chain(None, "conv2d", "batch_norm", "relu", "max_pool2d")
    for _ in range(blocks):
        parts = [net.chain(x, *["conv2d", "batch_norm", "relu"] * (1 + k % 3)) for k in range(branches - 1)]
        x = net.cat(*parts, net.chain(x, "avg_pool2d", "conv2d", "batch_norm", "relu"))
    net.chain(x, "adaptive_avg_pool2d", "flatten", "dropout", "linear")
    return net.graph(f"inception{blocks}")


def mobilenet(blocks=17, act="hardtanh", squeeze=False):
    net = _Net()
    x = net.chain(None, "conv2d", "batch_norm", act)
    for block in range(blocks):
        y = net.chain(x, "conv2d", "batch_norm", act, "conv2d", "batch_norm", act)
        if squeeze:
            gate = net.chain(y, "adaptive_avg_pool2d", "conv2d", "relu", "conv2d", "hardsigmoid")
            y = net.call("mul", y, gate, argument="operand")
        y = net.chain(y, "conv2d", "batch_norm")
        x = net.add(y, x) if block % 3 else y
    net.chain(x, "conv2d", "batch_norm", act, "adaptive_avg_pool2d", "flatten", "linear")
    return net.graph(f"mobilenet{blocks}")


def csp(blocks=(1, 2, 8, 8, 4)):
    net = _Net()
    x = net.chain(None, "conv2d", "batch_norm", "leaky_relu")
    for depth in blocks:
        x = net.chain(x, *["conv2d", "batch_norm", "leaky_relu"] * 2)
        halves = net.call("chunk", x)
        left, y = (halves, "tensors[0]"), (halves, "input[1]")
        for _ in range(depth):
            z = net.call("conv2d", y)
            z = net.chain(z, "batch_norm", "leaky_relu", "conv2d", "batch_norm", "leaky_relu")
            y = net.add(z, y if isinstance(y, int) else (halves, "operand[1]"))
        x = net.call("cat", left, (net.chain(y, "conv2d", "batch_norm", "leaky_relu"), "tensors"))
    net.chain(x, "adaptive_avg_pool2d", "flatten", "linear")
    return net.graph(f"csp{sum(blocks)}")


def _attention(net, x, fused):
    if fused:
        three = net.chain(x, "linear", "reshape", "permute")
        q, k, v = ((net.call("getitem", three)) for _ in range(3))
    else:
        q, k, v = (net.chain(x, "linear", "reshape", "permute") for _ in range(3))
    scores = net.call("matmul", (net.call("mul", q, argument="operand"), "input"), (net.call("transpose", k), "other"))
    weights = net.chain(scores, "softmax", "dropout")
    return net.chain(net.call("matmul", (weights, "input"), (v, "other")), "transpose", "reshape", "linear", "dropout")


def vit(depth=12, fused=True, scale=False):
    net = _Net()
    x = net.chain(None, "conv2d", "flatten", "transpose")
    x = net.call("dropout", net.add(net.cat(net.call("expand"), x)))
    for _ in range(depth):
        y = _attention(net, net.call("layer_norm", x), fused)
        x = net.add(x, net.call("mul", y, argument="operand") if scale else y)
        y = net.chain(x, "layer_norm", "linear", "gelu", "dropout", "linear", "dropout")
        x = net.add(x, net.call("mul", y, argument="operand") if scale else y)
    net.chain(x, "layer_norm", "getitem", "linear")
    return net.graph(f"vit{depth}")


def swin(depths=(2, 2, 6, 2)):
    net = _Net()
    x = net.chain(None, "conv2d", "flatten", "transpose", "layer_norm", "dropout")
    for stage, depth in enumerate(depths):
        for block in range(depth):
            y = net.chain(x, "layer_norm", "view", "pad")
            y = net.chain(y, *(["roll"] if block % 2 else []), "view", "permute", "reshape")
            y = net.chain(_attention(net, y, True), "view", "permute", "reshape", *(["roll"] if block % 2 else []))
            x = net.add(net.chain(y, "view"), x)
            x = net.add(net.chain(x, "layer_norm", "linear", "gelu", "dropout", "linear", "dropout"), x)
        if stage < len(depths) - 1:
            whole = net.call("view", x)
            x = net.chain(net.cat(*(net.call("getitem", whole) for _ in range(4))), "view", "layer_norm", "linear")
    net.chain(x, "layer_norm", "transpose", "adaptive_avg_pool2d", "flatten", "linear")
    return net.graph(f"swin{sum(depths)}")


def mixer(depth=12):
    net = _Net()
    x = net.chain(None, "conv2d", "flatten", "transpose")
    for _ in range(depth):
        y = net.chain(x, "layer_norm", "transpose", "linear", "gelu", "dropout", "linear", "dropout", "transpose")
        x = net.add(y, x)
        x = net.add(net.chain(x, "layer_norm", "linear", "gelu", "dropout", "linear", "dropout"), x)
    net.chain(x, "layer_norm", "mean", "linear")
    return net.graph(f"mixer{depth}")


def convnext(depths=(3, 3, 9, 3)):
    net = _Net()
    x = net.chain(None, "conv2d", "permute", "layer_norm", "permute")
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            y = net.chain(x, "conv2d", "permute", "layer_norm", "linear", "gelu", "linear", "permute")
            x = net.add(net.call("mul", y, argument="operand"), x)
        if stage < len(depths) - 1:
            x = net.chain(x, "permute", "layer_norm", "permute", "conv2d")
    net.chain(x, "mean", "layer_norm", "linear")
    return net.graph(f"convnext{sum(depths)}")


def zoo():
    """49 graphs, one per network of a zoo like the paper's."""
    return [
        vgg(), vgg((1, 1, 2, 2, 2)), vgg(norm=False), vgg((2, 2, 4, 4, 4)),
        resnet((2, 2, 2, 2), 2), resnet((3, 4, 6, 3), 2), resnet(), resnet((3, 4, 23, 3)), resnet((3, 8, 36, 3)),
        resnet(squeeze=True), resnet((3, 4, 23, 3), squeeze=True), resnet(act="silu"), resnet((2, 2, 2, 2), 3),
        densenet(), densenet((6, 12, 36, 24)), inception(), inception(11, 5), inception(6, 6),
        mobilenet(), mobilenet(15, "hardswish", True), mobilenet(16, "silu", True), mobilenet(40, "silu", True),
        mobilenet(20, "relu"), csp(), csp((1, 2, 6, 6, 3)), csp((3, 6, 9, 3)),
        vit(), vit(24), vit(12, False), vit(24, False), vit(12, True, True), vit(12, False, True), vit(6),
        vit(8, False), vit(14), vit(18, True, True), swin(), swin((2, 2, 18, 2)), swin((2, 2, 5, 3)),
        swin((1, 1, 8, 6)), mixer(), mixer(24), mixer(8), convnext(), convnext((3, 3, 27, 3)), convnext((2, 2, 6, 2)),
        resnet((6, 6, 6, 6), 2), mobilenet(12, "relu6", True), inception(4, 3),
    ]  # fmt: skip


def many(count, seed=0, graphs=None):
    """``count`` variants of ``graphs`` (of ``zoo()`` if None): a few calls of each get another API.

    Every copy is changed in its own way, so that a miner cannot profit from equal graphs.
    """
    graphs, draw = graphs or zoo(), random.Random(seed)
    result = []
    for number in range(count):
        graph = graphs[number % len(graphs)]
        apis = [node.api for node in graph.nodes]
        for place in draw.sample(range(len(apis)), max(1, len(apis) // 50)):
            apis[place] = draw.choice(["identity", "clamp", "tanh", "abs"])
        result.append(ApiGraph.from_edges(apis, graph.edges, f"{graph.name}-{number}"))
    return result
