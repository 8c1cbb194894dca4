"""Graphs of models that are too big to run."""

import subprocess
import sys

import pytest

from sortlib.errors import SortError
from sortlib.fake import NOTE, fake_trace
from sortlib.tracing import Tracer
from sortlib.zoo import ZooEntry, load_zoo, prepare

BIG = """
import json, resource, time
from sortlib.fake import fake_trace
from sortlib.zoo import ZooEntry
started = time.monotonic()
entry = ZooEntry(source="transformers", model="LlamaForCausalLM", inputs={"kind": "text", "tokens": 128})
graph, records = fake_trace(entry)
seconds = time.monotonic() - started
weights = {(r.module_path, p): f.numel for r in records for p, f in r.tensors() if f.role == "parameter"}
print(json.dumps({"linear": sum(n.api == "linear" for n in graph.nodes), "parameters": sum(weights.values()),
                  "seconds": seconds, "kilobytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


@pytest.mark.parametrize("name", ["tiny-residual", "tiny-transformer"])
def test_the_graph_is_that_of_the_real_run_and_the_records_have_forms_without_values(name):
    tiny = load_zoo("tiny")
    graph, records = fake_trace(tiny.entry(name), tiny.seed)
    model, [(args, kwargs), _] = prepare(tiny.entry(name), tiny)
    real, measured = Tracer(name).run(model, *args, **kwargs)
    assert [(n.api, n.module_path) for n in graph.nodes] == [(n.api, n.module_path) for n in real.nodes]
    assert graph.edges == real.edges and graph.wires == real.wires
    assert graph.notes == (NOTE,)
    for fake, record in zip(records, measured, strict=True):
        pairs = list(zip(fake.tensors(), record.tensors(), strict=True))
        assert all(one.signature == other.signature for (_, one), (_, other) in pairs)
        assert all(one.minimum is None and not one.quantiles for (_, one), _ in pairs)


def test_seven_billion_parameters_take_less_than_a_minute_and_4_gb():
    """Llama with 32 layers of width 4096: 7 products a layer and the head; 6.74 billion parameters (Touvron 2023)."""
    pytest.importorskip("transformers")
    import json

    result = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["linear"] == 32 * 7 + 1
    assert round(seen["parameters"] / 1e9, 2) == 6.74
    assert seen["seconds"] < 60 and seen["kilobytes"] < 4 * 2**20


def test_a_constructor_that_computes_with_values_is_built_as_usual(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rates = [float(rate) for rate in torch.linspace(0, 1, 3)]\n"
        "        self.scale = torch.nn.Parameter(torch.ones(3, 1, 1))\n"
        "    def forward(self, x): return x * self.scale\n"
    )
    entry = ZooEntry(name="net", source="custom", model=f"{tmp_path / 'mine.py'}:Net", inputs={"size": 8})
    graph, [record] = fake_trace(entry)
    assert [node.api for node in graph.nodes] == ["mul"]
    assert record.arguments[1].value.role == "parameter" and record.arguments[1].value.minimum is None


def test_a_model_that_decides_by_values_is_told_in_one_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x + 1 if x.sum() > 0 else x - 1\n"
    )
    entry = ZooEntry(name="net", source="custom", model=f"{tmp_path / 'mine.py'}:Net", inputs={"size": 8})
    with pytest.raises(SortError) as caught:
        fake_trace(entry)
    assert str(caught.value) == (
        "model 'net': takes a decision by the values of a tensor after call 1 (gt, mine.py:3); it cannot be captured"
        " without values, trace it as usual"
    )
