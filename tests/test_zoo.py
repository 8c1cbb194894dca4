"""The model zoo: files, sources, inputs, calibration, and the line that a person reads when something is wrong."""

import pickle
import re
import subprocess
import sys
import urllib.error

import numpy as np
import pytest
import torch
from PIL import Image

import sortlib
from sortlib.apis import PAPER_APIS
from sortlib.config import data_dir
from sortlib.errors import SortError
from sortlib.pipeline import complete
from sortlib.study import Study, load_config
from sortlib.zoo import Inputs, ZooEntry, build, load_zoo, prepare, samples
from sortlib.zoo.calibration import calibrate, calibration_inputs
from sortlib.zoo.weights import wake
from sortlib.zoo_tracing import trace_zoo

RESIDUAL = "{name: net, source: custom, model: 'sortlib.zoo.tiny:ResidualNet'}"
RESNET18 = "{name: net, source: openmmlab, model: resnet18_8xb32_in1k}"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def zoo(here):
    """``zoo(text)`` loads a zoo file with that text."""

    def load(text):
        (here / "my.yaml").write_text(text)
        return load_zoo("my.yaml")

    return load


def message(action, *args, **kwargs) -> str:
    """The one line that a mistake is told in."""
    with pytest.raises(SortError) as caught:
        action(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def first(zoo):
    """Prepare the first entry of a zoo."""
    return prepare(zoo.models[0], zoo)


def same_weights(one, other) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# Zoo files


def test_quick_holds_one_model_of_each_kind_and_those_that_share_the_rare_apis():
    names = [entry.name for entry in load_zoo("quick").models]
    assert names == ["resnet18", "vgg11bn", "densenet121", "mobilenet-v2", "deit-tiny", "swin-tiny", "conformer-tiny",
                     "convnext-tiny", "mobilenet-v3-small", "efficientformer-l1", "levit-128s"]  # fmt: skip
    assert set(names) < {entry.name for entry in load_zoo("paper").models}


@pytest.mark.slow
def test_quick_has_a_pattern_of_three_models_for_each_of_the_papers_apis(tmp_path):
    """Tracing without computing is enough to see the graphs."""
    pytest.importorskip("mmpretrain")
    trace_zoo("quick", out=tmp_path, progress=False, fake=True)
    graphs = [sortlib.ApiGraph.load(path) for path in sorted(tmp_path.glob("*.json"))]
    patterns = sortlib.mine(graphs, min_support=3, max_nodes=2)
    held = {api for pattern in patterns if not any("@alias" in edge.argument for edge in pattern.edges)
            for api in pattern.nodes}  # fmt: skip
    assert set(PAPER_APIS) <= held


def test_paper_has_the_statistics_that_its_comment_claims():
    """49 models, 339 calls on average, 29 to 1,171; the paper has 339, 29 and 1,143."""
    entries = load_zoo("paper").models
    text = (data_dir() / "zoo" / "paper.yaml").read_text()
    calls = [int(number) for number in re.findall(r"model: \S+}\s+# (\d+)$", text, re.MULTILINE)]
    assert len(entries) == len(calls) == 49
    assert (sum(calls), min(calls), max(calls)) == (49 * 339, 29, 1171)


def test_every_bundled_openmmlab_model_is_in_mmpretrain():
    mmpretrain = pytest.importorskip("mmpretrain")
    wanted = {entry.model for name in ("quick", "paper") for entry in load_zoo(name).models}
    assert wanted <= set(mmpretrain.list_models())


def test_importing_the_zoo_does_not_import_torch():
    code = "import sys, sortlib.zoo; print(sorted({'torch', 'mmpretrain', 'skimage', 'PIL'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_entry_inputs_are_the_zoos_with_its_own_keys_over_them(zoo, here):
    (here / "pictures").mkdir()
    loaded = zoo(f"""
        inputs: {{kind: folder, path: pictures, batch: 2, size: [32, 48]}}
        models:
          - {RESIDUAL}
          - {{source: custom, model: 'a:f', inputs: {{kind: photographs, batch: 3}}}}
    """)
    assert loaded.models[0].inputs == loaded.inputs.model_copy(update={"path": here / "pictures"})
    assert loaded.models[1].inputs == Inputs(batch=3, size=(32, 48))  # the path belongs to the other kind
    assert loaded.models[1].name == "f"


def test_relative_paths_start_at_the_zoo_files_folder(here):
    (here / "project").mkdir()
    (here / "project" / "mine.py").write_text(
        "import torch\ndef net(): return torch.nn.Linear(3, 2), torch.ones(1, 3)\n"
    )
    (here / "project" / "zoo.yaml").write_text("models: [{source: custom, model: 'mine.py:net'}]")
    model, [(args, kwargs)] = first(load_zoo("project/zoo.yaml"))
    assert model(*args, **kwargs).shape == (1, 2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "sed: 1",
            "my.yaml: sed: unknown key; did you mean 'seed'? valid keys: name, seed, inputs, models (and 1 more)",
        ),
        ("seed: 1", "my.yaml: models: this key is required"),
        ("models: []", "my.yaml: models: must be a list of 1 at least, not []"),
        ("models: [resnet18]", "my.yaml: models[0]: must be keys and values, not 'resnet18'"),
        (f"seed: -1\nmodels: [{RESIDUAL}]", "my.yaml: seed: must be 0 or more, not -1"),
        (f"seed: one\nmodels: [{RESIDUAL}]", "my.yaml: seed: must be a whole number, not 'one'"),
        (f"inputs: {{batch: 0}}\nmodels: [{RESIDUAL}]", "my.yaml: inputs.batch: must be 1 or more, not 0"),
        (
            f"inputs: {{kind: folders}}\nmodels: [{RESIDUAL}]",
            "my.yaml: inputs.kind: 'folders' is not one of 'photographs', 'folder', 'cifar10', 'imagenet', 'text' or"
            " 'sound'; did you mean 'folder'?",
        ),
        (f"inputs: {{kind: folder}}\nmodels: [{RESIDUAL}]", "my.yaml: inputs: path: required by kind folder"),
        (
            f"inputs: {{std: [1, 0, 1]}}\nmodels: [{RESIDUAL}]",
            "my.yaml: inputs.std: must be above 0 for every channel, not (1.0, 0.0, 1.0)",
        ),
        (
            "models: [{source: opemmlab, model: resnet18}]",
            "my.yaml: models[0].source: 'opemmlab' is not one of 'openmmlab', 'torchvision', 'timm', 'transformers' or"
            " 'custom'; did you mean 'openmmlab'?",
        ),
        (
            "models: [{source: custom, model: 'a:f', inputs: {sise: 3}}]",
            "my.yaml: models[0].inputs.sise: unknown key; did you mean 'size'?"
            " valid keys: kind, path, batch, count, size, mean, std, tokens, seconds",
        ),
        (f"models: [{RESIDUAL}, {RESIDUAL}]", "my.yaml: models: the name 'net' occurs 2 times; give each its own name"),
        (
            "models: [{name: a/b, source: custom, model: 'a:f'}]",
            "my.yaml: models[0].name: 'a/b' must be letters, digits and . _ + - only, since files are named after it",
        ),
        (
            "models: [{source: timm, model: a, pretrained: true, checkpoint: b.pth}]",
            "my.yaml: models[0]: checkpoint: not together with pretrained: true; choose one",
        ),
        ("seed: 1\nmodels: [\n  {a: b\n", "my.yaml, line 4: broken YAML: expected ',' or '}', but got '<stream end>'"),
        ("- resnet18", "my.yaml: holds a list; the top level must be keys and values"),
        ("", "my.yaml: is empty; the top level must be keys and values"),
    ],
)
def test_a_wrong_zoo_file_is_told_in_one_line(zoo, text, line):
    assert message(zoo, text) == line


def test_repeated_keys_and_python_objects_are_refused_with_their_line(zoo):
    assert message(zoo, "seed: 1\nseed: 2").startswith("my.yaml, line 2: broken YAML: found duplicate key")
    assert "my.yaml, line 1: broken YAML: could not determine a constructor" in message(
        zoo, "a: !!python/name:os.system"
    )


def test_an_unknown_zoo_is_told_with_the_bundled_ones(here):
    assert message(load_zoo, "quik") == (
        "unknown zoo 'quik': choose a YAML file or one of: paper, quick, timm, tiny, torchvision, transformers;"
        " did you mean 'quick'?"
    )
    assert message(load_zoo, "mine/zoo.yaml") == (
        "mine/zoo.yaml: no such zoo file; bundled ones by name: paper, quick, timm, tiny, torchvision, transformers"
    )
    assert message(load_zoo, here).endswith(
        "is a directory; a zoo file is a YAML file or one of: paper, quick, timm, tiny, torchvision, transformers"
    )
    (here / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert message(load_zoo, "bytes.yaml") == "bytes.yaml: cannot be read: is no UTF-8 text"


def test_an_unknown_entry_is_told_with_near_matches():
    assert message(load_zoo("tiny").entry, "tiny-residul") == (
        "zoo 'tiny' has no model 'tiny-residul'; did you mean 'tiny-residual'? models: tiny-residual, tiny-transformer"
    )


# Building and calibrating


@pytest.mark.parametrize("name", ["tiny-residual", "tiny-transformer"])
def test_a_prepared_model_is_the_same_every_time_and_leaves_the_generators_alone(name):
    tiny = load_zoo("tiny")
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    one, calls = prepare(tiny.entry(name), tiny)
    other, _ = prepare(tiny.entry(name), tiny)
    assert same_weights(one, other)
    assert not same_weights(one, prepare(tiny.entry(name), tiny.model_copy(update={"seed": 1}))[0])
    assert torch.equal(torch.random.get_rng_state(), before[0]) and (np.random.get_state()[1] == before[1]).all()
    assert not any(module.training for module in one.modules())
    outputs = [one(*args, **kwargs) for args, kwargs in calls]
    assert [out.shape for out in outputs] == [(2, 10), (2, 10)]
    assert not torch.equal(*outputs)


def test_calibration_averages_the_statistics_of_the_passes():
    """The first norm's mean and variance, computed here from the first convolution of the untouched model."""
    tiny = load_zoo("tiny")
    entry = tiny.entry("tiny-residual")
    untouched, (model, _) = build(entry, tiny.seed), prepare(entry, tiny)
    assert torch.equal(untouched.norm.running_mean, torch.zeros(8))
    with torch.no_grad():
        seen = [untouched.stem(*args) for args, _ in samples(calibration_inputs(entry))]
    assert len(seen) == 2
    mean = sum(out.mean((0, 2, 3)) for out in seen) / 2
    variance = sum(out.var((0, 2, 3)) for out in seen) / 2
    torch.testing.assert_close(model.norm.running_mean, mean)
    torch.testing.assert_close(model.norm.running_var, variance)
    assert model.norm.momentum == 0.1 and model.norm.num_batches_tracked == 2


def test_calibration_leaves_dropout_off_and_skips_models_without_batch_norm():
    class Dropped(torch.nn.Sequential):
        pass

    model = Dropped(torch.nn.Dropout(0.9), torch.nn.BatchNorm2d(3))
    ones = torch.ones(2, 3, 4, 4)
    assert calibrate(model, lambda: [((ones,), {})]) == 1
    assert torch.equal(model[1].running_mean, torch.ones(3))  # dropout at 0.9 would leave about 0.1 x 10 in places
    assert torch.equal(model[1].running_var, torch.zeros(3))
    assert calibrate(torch.nn.Linear(2, 2), lambda: pytest.fail("no need for images")) == 0


def test_a_forward_pass_that_fails_in_calibration_is_told(zoo):
    loaded = zoo(f"inputs: {{size: 2}}\nmodels: [{RESIDUAL}]")
    assert message(first, loaded).startswith(
        "my.yaml: model 'net': forward pass for batch-norm calibration failed: RuntimeError: Given input size: (8x1x1)."
    )


def test_wake_fills_zero_tokens_and_layer_scales_only():
    class Idle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token = torch.nn.Parameter(torch.zeros(1, 1, 64))
            self.scale = torch.nn.Parameter(torch.full((64,), 1e-6))
            self.bias = torch.nn.Parameter(torch.zeros(64))
            self.weight = torch.nn.Parameter(torch.ones(64))

    model = Idle()
    assert wake(model) == 2
    assert 0 < model.token.abs().max() < 0.1  # standard deviation 0.02
    assert (model.scale == 0.1).all() and not model.bias.any() and (model.weight == 1).all()


# Inputs


def test_photographs_are_real_distinct_and_normalised():
    size = 32
    batches = [args[0] for args, _ in samples(Inputs(batch=4, count=2, size=size))]
    assert [batch.shape for batch in batches] == [(4, 3, size, size)] * 2
    assert all(batch.dtype == torch.float32 and batch.is_contiguous() for batch in batches)
    everything = torch.cat(batches)
    assert len({image.numpy().tobytes() for image in everything}) == 8
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = (everything * std.reshape(3, 1, 1) + mean.reshape(3, 1, 1)) * 255
    assert (pixels - pixels.round()).abs().max() < 1e-3 and pixels.min() > -0.5 and pixels.max() < 255.5


def test_photographs_need_no_download(monkeypatch):
    """All of them are files inside the scikit-image package."""
    from skimage.data import _fetchers

    from sortlib.zoo.inputs import PHOTOGRAPHS

    monkeypatch.setattr(_fetchers, "_image_fetcher", None)  # what scikit-image itself does without pooch
    assert samples(Inputs(batch=len(PHOTOGRAPHS), size=8))[0][0][0].shape == (8, 3, 8, 8)


def test_more_images_than_photographs_are_further_views_up_to_ten_of_each():
    images = samples(Inputs(batch=16, size=24))[0][0][0]
    assert torch.equal(images[8], images[0].flip(-1))  # the second view is the mirror image
    assert len({image.numpy().tobytes() for image in samples(Inputs(batch=80, size=24))[0][0][0]}) == 80
    assert message(samples, Inputs(batch=27, count=3)) == (
        "kind photographs: batch 27 times count 3 asks for 81 images; there are 80 (8 photographs in 10 views each)"
    )


def picture(path, colour, size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def shown(kind, path, **more):
    """Pixel at the centre of every image, 0 to 255."""
    inputs = Inputs(kind=kind, path=path, size=8, mean=(0, 0, 0), std=(1, 1, 1), **more)
    return [tuple((image[:, 4, 4] * 255).round().int().tolist()) for (batch,), _ in samples(inputs) for image in batch]


def test_a_folder_gives_its_images_in_the_order_of_their_paths(here):
    picture(here / "b.jpg", (0, 0, 250))
    picture(here / "a.png", (250, 0, 0))
    picture(here / "c" / "a.png", (0, 250, 0))
    (here / "notes.txt").write_text("not an image")
    red, blue, green = shown("folder", here, batch=1, count=3)
    assert (red, green) == ((250, 0, 0), (0, 250, 0))
    assert blue[2] > 240  # JPEG is not exact


def test_an_image_with_one_channel_or_transparency_is_read_as_colour(here):
    Image.new("L", (20, 20), 100).save(here / "a.png")
    Image.new("RGBA", (20, 20), (10, 20, 30, 128)).save(here / "b.png")
    assert shown("folder", here, batch=2) == [(100, 100, 100), (10, 20, 30)]


def test_imagenet_shows_every_class_in_turn(here):
    for number, name in enumerate(["n01", "n02"]):
        for k in range(2):
            picture(here / "val" / name / f"{k}.png", (100 * number, 50 * k, 0))
    assert shown("imagenet", here, batch=3) == [(0, 0, 0), (100, 0, 0), (0, 50, 0)]


def cifar_batch(path, colours):
    """A file as Python 2 with an old NumPy wrote it: protocol 2, and the array's module under its old name."""
    rows = np.array([np.repeat(np.array(colour, np.uint8), 1024) for colour in colours])
    path.parent.mkdir(exist_ok=True)
    content = pickle.dumps({b"data": rows, b"labels": [0] * len(rows)}, protocol=2)
    path.write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))


def test_cifar10_reads_test_batch_and_then_the_training_batches(here):
    cifar_batch(here / "cifar-10-batches-py" / "test_batch", [(1, 2, 3), (4, 5, 6)])
    cifar_batch(here / "cifar-10-batches-py" / "data_batch_1", [(7, 8, 9)])
    expected = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    assert shown("cifar10", here, count=3) == expected
    assert shown("cifar10", here / "cifar-10-batches-py", count=3) == expected


class Harmful:
    def __reduce__(self):
        return print, ("this code must not run",)


def test_images_that_cannot_be_read_are_named(here, capsys):
    folder = here / "pictures"
    two = {"kind": "folder", "path": folder, "count": 2, "size": 8}
    assert message(samples, Inputs(**two)) == f"{folder}: image folder does not exist"
    folder.mkdir()
    assert message(samples, Inputs(**two)).startswith(
        f"{folder}: no images in this folder; file names that count: *.bmp"
    )
    picture(folder / "a.png", (1, 2, 3))
    assert message(samples, Inputs(**two)) == f"{folder}: holds 1 of the 2 images that batch 1 times count 2 ask for"
    (folder / "b.png").write_text("no image")
    assert message(samples, Inputs(**two)) == f"{folder / 'b.png'}: cannot be read as an image"
    whole = (folder / "a.png").read_bytes()
    (folder / "b.png").write_bytes(whole[: len(whole) // 2])
    assert message(samples, Inputs(**two)).startswith(f"{folder / 'b.png'}: cannot be read as an image: ")
    assert "use kind: folder" in message(samples, Inputs(kind="imagenet", path=folder))
    assert message(samples, Inputs(kind="folder", path=folder / "a.png")).endswith("is a file, not an image folder")
    assert message(samples, Inputs(kind="cifar10", path=folder)).startswith(f"{folder}: no CIFAR-10 here; expected")
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": Harmful()}))
    assert message(samples, Inputs(kind="cifar10", path=folder)) == (
        f"{folder / 'test_batch'}: no readable CIFAR-10 batch: holds builtins.print, which is no array"
    )
    assert "must not run" not in capsys.readouterr().out


def test_an_entrys_images_are_told_with_zoo_file_and_model(zoo):
    loaded = zoo(f"inputs: {{kind: folder, path: nowhere}}\nmodels: [{RESIDUAL}]")
    assert re.fullmatch(
        r"my.yaml: model 'net': inputs: \S+nowhere: image folder does not exist", message(first, loaded)
    )


# Custom models


def test_custom_code_may_bring_its_own_arguments_and_take_options(zoo, here):
    (here / "helper.py").write_text("WIDTH = 3\n")
    (here / "mine.py").write_text(
        "import torch\nfrom helper import WIDTH\n"
        "from collections import UserDict\n"  # as transformers' tokenizers return
        "def net(out): return torch.nn.Bilinear(WIDTH, 2, out), (torch.ones(4, 3), torch.rand(4, 2)), UserDict()\n"
    )
    loaded = zoo("models: [{source: custom, model: 'mine.py:net', options: {out: 5}}]")
    model, [(args, kwargs)] = first(loaded)
    assert model(*args, **kwargs).shape == (4, 5)
    again = first(loaded)[1][0][0]
    assert torch.equal(args[1], again[1])  # the function runs under the zoo's seed


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("tiny", "'tiny' must be package.module:function or path/to/file.py:function"),
        ("nowhere.py:net", "file nowhere.py does not exist"),
        ("nowhere.models:net", "no module 'nowhere'; install it, or run where its folder lies"),
        ("sortlib.zoo.tiny:ResidualNe", "sortlib.zoo.tiny has no function 'ResidualNe'; did you mean 'ResidualNet'"),
        ("mine.py:needs", "mine.py needs the package no_such_package: pip install no_such_package"),
        ("mine.py:raises", "mine.py:raises raised ValueError: width 7 is odd ("),
        ("mine.py:nothing", "mine.py:nothing must return a torch.nn.Module, (module, args) or (module, args, kwargs),"),
        ("mine.py:three", "(module, args, kwargs), not ReLU, Tensor, int"),
        ("broken.py:net", "broken.py, line 1: "),
    ],
)
def test_custom_code_that_cannot_be_used_is_told(zoo, here, model, line):
    needs = "import no_such_package\n" if "needs" in model else ""
    (here / "mine.py").write_text(
        needs + "def raises(): raise ValueError('width 7 is odd')\ndef nothing(): return None\n"
        "def three(): import torch; return torch.nn.ReLU(), torch.ones(2), 5\n"
    )
    (here / "broken.py").write_text("def net(:\n")
    text = message(first, zoo(f"models: [{{name: net, source: custom, model: '{model}'}}]")).replace(f"{here}/", "")
    assert text.startswith("my.yaml: model 'net': ") and line in text


# Models that raise, exit, call no API or start threads

RAISING = """
import sys, threading, time
import torch

def odd():
    class Odd(Exception):
        pass
    raise Odd("first line\\nsecond")

WAYS = {
    "exit": lambda: sys.exit(0), "key": lambda: {}["lost"], "memory": lambda: [None] * (1 << 60),
    "attribute": lambda: torch.nn.Identity().weight, "generator": lambda: (_ for _ in ()).throw(GeneratorExit()),
    "stop": lambda: next(iter(())), "odd": odd, "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
}

class Forward(torch.nn.Module):
    def __init__(self, way, norm):
        super().__init__()
        self.way, self.norm = way, torch.nn.BatchNorm2d(3) if norm else torch.nn.ReLU()

    def forward(self, x):
        return WAYS[self.way](), self.norm(x)

def calibrated(way):
    return Forward(way, True)

def traced(way):
    return Forward(way, False)

def built(way):
    return WAYS[way]()

class Evaluated(torch.nn.ReLU):
    def eval(self):
        raise KeyError("eval")

class Text(torch.nn.Module):
    def forward(self, x):
        return "text"

class Threaded(torch.nn.ReLU):
    def forward(self, x):
        threading.Thread(target=time.sleep, args=(600,), name="heartbeat").start()
        return super().forward(x)
"""
GOOD = "{name: good, source: custom, model: 'torch.nn:ReLU'}"
TYPES = {"exit": "SystemExit: 0", "key": "KeyError: 'lost'", "memory": "MemoryError",
         "attribute": "AttributeError: 'Identity' object has no attribute 'weight'", "generator": "GeneratorExit",
         "stop": "StopIteration", "odd": "Odd: first line"}  # fmt: skip


@pytest.fixture
def raising(zoo, here):
    """``raising(function, way)``: a zoo file of a model that raises and of one that does not."""

    def write(function, way=None):
        (here / "mine.py").write_text(RAISING)
        options = f", options: {{way: {way}}}" if way else ""
        bad = f"{{name: net, source: custom, model: 'mine.py:{function}'{options}}}"
        zoo(f"inputs: {{size: 8}}\nmodels: [{bad}, {GOOD}]")
        (here / "study.yaml").write_text("zoo: my.yaml\n")
        return "my.yaml"

    return write


def traced_study(here):
    """The study of ``raising``'s zoo, traced."""
    return complete(Study.create(load_config("study.yaml"), here / "study"), "trace", progress=False)


@pytest.mark.parametrize("way", TYPES)
@pytest.mark.parametrize("function", ["built", "calibrated", "traced"])
def test_whatever_a_model_raises_is_one_line_and_the_others_are_traced(raising, here, function, way):
    found = trace_zoo(raising(function, way), progress=False)
    assert list(found.table["model"]) == ["good"] and list(found.failures) == ["net"]
    (text,) = found.failures.values()
    assert "\n" not in text
    if function == "traced":
        kind, _, rest = TYPES[way].partition(":")
        assert text.startswith(f"net raised {kind} in module (top), before the first call") and text.endswith(rest)
    else:
        what = "mine.py:built raised" if function == "built" else "forward pass for batch-norm calibration failed:"
        assert f"{what} {TYPES[way]}" in text and re.search(r"mine\.py, line \d+\)$", text)
    assert message(traced_study, here).endswith(text.removeprefix("my.yaml: "))


def test_an_error_of_a_models_own_eval_is_told(raising):
    text = trace_zoo(raising("Evaluated"), progress=False).failures["net"]
    assert "model 'net': " in text and "mine.py:Evaluated of source custom raised KeyError: 'eval' (" in text


def test_a_module_that_exits_when_it_is_imported_is_told(zoo, here):
    (here / "mine.py").write_text("import sys\nsys.exit()\n")
    text = message(first, zoo("models: [{name: net, source: custom, model: 'mine.py:net'}]"))
    assert re.search(r"mine\.py raised SystemExit \(\S+mine\.py, line 2\)$", text)


@pytest.mark.parametrize("function", ["built", "calibrated", "traced"])
def test_an_interrupt_is_the_users_and_ends_the_command(raising, function):
    with pytest.raises(KeyboardInterrupt):
        trace_zoo(raising(function, "interrupt"), progress=False)


def test_an_exit_in_a_backward_pass_is_told(here, zoo):
    (here / "mine.py").write_text(
        "import sys, torch\n\nclass Exits(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(context, x): return x * 2\n"
        "    @staticmethod\n    def backward(context, gradient): sys.exit(0)\n\n"
        "class Net(torch.nn.Linear):\n    def forward(self, x): return Exits.apply(super().forward(x))\n\n"
        "def net(): return Net(3, 2), torch.ones(1, 3)\n"
    )
    zoo("models: [{name: net, source: custom, model: 'mine.py:net'}]")
    assert trace_zoo("my.yaml", progress=False, train=True).failures == {
        "net": "net: the backward pass raised SystemExit: 0"
    }


@pytest.mark.parametrize("fake", [False, True])
def test_a_model_without_a_call_is_refused_as_in_a_study(raising, here, fake):
    found = trace_zoo(raising("Text"), progress=False, fake=fake)
    assert found.failures == {"net": "model net: no API call was seen"} and list(found.table["model"]) == ["good"]
    assert message(traced_study, here) == found.failures["net"]


@pytest.mark.parametrize(("function", "way", "status"), [("Threaded", None, 0), ("built", "key", 1)])
def test_a_thread_that_a_model_leaves_running_keeps_no_command_from_ending(raising, here, function, way, status):
    raising(function, way)
    code = "import sys\nfrom sortlib import cli, threads\nthreads.GRACE = 0.2\ncli.main()"
    shown = subprocess.run([sys.executable, "-c", code, "trace", "my.yaml", "--quiet"], capture_output=True, text=True,
                           cwd=here, timeout=120, check=False)  # fmt: skip
    assert shown.returncode == status and f"{2 - status} models: 1 calls on average" in shown.stdout, shown.stderr
    left = "sortlib: not waited for threads that a model has left running: heartbeat\n"
    assert (shown.stderr == left) == (function == "Threaded")


# Files of a trace


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_takes_no_files_is_told_before_anything_is_traced(here, monkeypatch, place):
    (here / "file").write_text("kept")
    monkeypatch.setattr("sortlib.zoo_tracing.prepare", lambda *_: pytest.fail("traced"))
    assert message(trace_zoo, "tiny", out=here / place).startswith(f"{here / place}: ")
    assert (here / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["json", "parquet"])
def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_file(here, name):
    """The limit on the size of files is the system's own, and errors come as from a full disk."""
    pytest.importorskip("resource")
    trace_zoo("tiny", ["tiny-residual"], "whole", False, records=True)
    files = [here / "whole" / f"tiny-residual.{kind}" for kind in ("json", "parquet")]
    limit = files[0].stat().st_size if name == "parquet" else 1000
    assert limit < files[name == "parquet"].stat().st_size
    code = f"""if True:
        import resource
        from sortlib.errors import SortError
        from sortlib.zoo_tracing import trace_zoo
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        try:
            trace_zoo("tiny", ["tiny-residual"], "out", False, records=True)
        except SortError as error:
            print(error)
    """
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=here, check=True)
    assert re.fullmatch(rf"out/tiny-residual\.{name}: cannot be written: .*File too large.*\n", shown.stdout)
    left = [path.name for path in (here / "out").iterdir()]
    assert left == ([] if name == "json" else ["tiny-residual.json"])


# OpenMMLab, torchvision, timm


def test_openmmlab_resnet18_is_run_with_its_head_and_is_reproducible(zoo):
    pytest.importorskip("mmpretrain")
    loaded = zoo(f"inputs: {{batch: 2, size: 64}}\nmodels: [{RESNET18}]")
    model, [(args, kwargs)] = first(loaded)
    assert kwargs == {"mode": "tensor"}
    assert model(*args, **kwargs).shape == (2, 1000)
    assert same_weights(model, first(loaded)[0])


def test_resnet18_has_the_69_api_calls_and_76_edges_that_were_counted_for_the_paper_zoo():
    """He et al. 2016: 20 convolutions, each with a norm, 17 relus, 8 additions, two poolings, flatten, linear."""
    pytest.importorskip("mmpretrain")
    quick = load_zoo("quick")
    model, calls = prepare(quick.entry("resnet18"), quick)
    args, kwargs = calls[0]
    graph, _ = sortlib.trace(model, *args, **kwargs)
    apis = [node.api for node in graph.nodes]
    assert (len(graph.nodes), len(graph.edges)) == (69, 76)
    assert [apis.count(api) for api in ("conv2d", "batch_norm", "relu", "add", "linear")] == [20, 20, 17, 8, 1]


def test_an_unknown_model_is_told_with_near_matches(zoo):
    pytest.importorskip("mmpretrain")
    text = message(first, zoo("models: [{name: net, source: openmmlab, model: resnet18_8xb32}]"))
    assert text.startswith(
        "my.yaml: model 'net': OpenMMLab has no model 'resnet18_8xb32'; did you mean 'resnet18_8xb32_in1k' or"
    )
    text = message(first, zoo("models: [{name: net, source: torchvision, model: resnet19}]"))
    assert text.startswith("my.yaml: model 'net': torchvision has no model 'resnet19'; did you mean 'resnet18' or")


def test_options_reach_the_constructor_and_wrong_ones_are_told(zoo):
    pytest.importorskip("mmpretrain")
    text = "inputs: {size: 32}\nmodels: [{name: net, source: openmmlab, model: resnet18_8xb32_in1k, options: %s}]"
    model, [(args, kwargs)] = first(zoo(text % "{head: {num_classes: 7}}"))
    assert model(*args, **kwargs).shape == (1, 7)
    assert message(first, zoo(text % "{backbone: {depth: 17}}")) == (
        "my.yaml: model 'net': options: resnet18_8xb32_in1k refuses them: 'invalid depth 17 for resnet'"
    )


@pytest.mark.parametrize(("source", "package"), [("timm", "timm"), ("openmmlab", "mmpretrain")])
def test_a_missing_package_is_named_with_what_to_install(zoo, monkeypatch, source, package):
    monkeypatch.setitem(sys.modules, package, None)
    text = message(first, zoo(f"models: [{{name: net, source: {source}, model: resnet18}}]"))
    assert package in text and f"pip install {package}" in text


def test_torchvision_models_are_built(zoo):
    loaded = zoo("inputs: {size: 32}\nmodels: [{source: torchvision, model: squeezenet1_1, options: {num_classes: 5}}]")
    model, [(args, kwargs)] = first(loaded)
    assert model(*args, **kwargs).shape == (1, 5)


# Weights


@pytest.fixture
def hub(here, monkeypatch):
    """An empty cache of downloaded checkpoints."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(here / "hub"))
    return here / "hub" / "checkpoints"


def test_pretrained_without_a_network_says_what_and_what_to_do(zoo, hub, monkeypatch):
    pytest.importorskip("mmpretrain")

    def unreachable(url, *args, **kwargs):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    text = message(first, zoo(f"models: [{RESNET18[:-1]}, pretrained: true}}]"))
    assert re.fullmatch(
        r"my.yaml: model 'net': checkpoint (resnet18_8xb32_in1k_\S+\.pth) could not be downloaded from https://\S+\1"
        r" \(Name or service not known\); set pretrained: false, or load the file by hand and name it in"
        r" checkpoint: /path/file.pth",
        text,
    )


def test_pretrained_loads_the_downloaded_checkpoint_and_keeps_its_statistics(zoo, hub, monkeypatch):
    pytest.importorskip("mmpretrain")
    published = build(zoo(f"models: [{RESNET18}]").models[0], seed=7)
    published.backbone.bn1.running_mean.fill_(3)

    def download(url, target, **kwargs):
        torch.save({"meta": {"epoch": 100}, "state_dict": published.state_dict()}, target)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    model, _ = first(zoo(f"inputs: {{size: 32}}\nmodels: [{RESNET18[:-1]}, pretrained: true}}]"))
    assert same_weights(model, published)
    assert len(list(hub.iterdir())) == 1


def test_a_checkpoint_file_is_loaded_with_plain_tensors_only(zoo, here, capsys):
    entry = f"models: [{RESIDUAL[:-1]}, checkpoint: weights.pth, inputs: {{size: 32}}}}]"
    where = f"my.yaml: model 'net': checkpoint {here / 'weights.pth'}"
    assert message(first, zoo(entry)).endswith("weights.pth does not exist")
    weights = here / "weights.pth"
    weights.write_text("no weights")
    assert message(first, zoo(entry)) == f"{where} is no readable file of weights"
    torch.save({"state_dict": Harmful()}, weights)
    assert message(first, zoo(entry)) == (
        f"{where} holds print beside tensors, which could run code: save its state_dict alone"
    )
    assert "must not run" not in capsys.readouterr().out
    torch.save({"epoch": 3}, weights)
    assert message(first, zoo(entry)) == f"{where} holds no state dictionary of tensors"
    other = build(ZooEntry(source="custom", model="sortlib.zoo.tiny:ResidualNet"), seed=9).state_dict()
    torch.save({key: value for key, value in other.items() if key != "head.bias"}, weights)
    assert message(first, zoo(entry)) == f"{where} lacks 1 of the model's 17 parameters, first head.bias"
    torch.save({**other, "head.bias": torch.ones(3)}, weights)
    assert message(first, zoo(entry)).startswith(f"{where} does not fit: size mismatch for head.bias")
    torch.save({"state_dict": {f"module.{key}": value for key, value in other.items()}}, weights)
    model, _ = first(zoo(entry))
    assert all(torch.equal(value, other[key]) for key, value in model.state_dict().items())
