"""The miner against gBolt (fast-gspan) on graphs of real models: the same directed problem, solved by other means."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from brute_force import form_of

import sortlib as sl
from sortlib.tracing import Tracer

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
MODELS = ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "regnet_y_400mf", "mnasnet0_5")


@pytest.mark.skipif(importlib.util.find_spec("fast_gspan") is None, reason="fast-gspan is not installed")
def test_equal_to_fast_gspan_on_subdivided_graphs_of_real_models():
    # Peers mine undirected graphs: every edge is cut in two by a node, whose sides tell its direction (issue C).
    from mining_peers import fast_gspan
    from torchvision import models

    graphs = []
    for name in MODELS:
        model = getattr(models, name)(weights=None).eval()
        graphs.append(Tracer(name, records=False).run(model, torch.zeros(1, 3, 64, 64))[0])
    patterns = sl.mine(graphs, min_support=2, max_nodes=4)
    largest = max(len(pattern.nodes) + len(pattern.edges) for pattern in patterns)
    _seconds, found = fast_gspan(graphs, 2, 4, max_cut=largest)
    theirs = {form_of(nodes, edges): support for nodes, edges, support in found}
    ours = {form_of(pattern.nodes, pattern.edges): pattern.support for pattern in patterns}
    assert len(ours) == len(patterns) > 50
    assert ours == theirs
