"""timm, torchvision and transformers as sources: models without download, and text and sound as inputs."""

import re
import sys
import wave

import numpy as np
import pytest
import torch

from sortlib.config import data_dir
from sortlib.errors import SortError
from sortlib.replay import replay
from sortlib.tracing import Tracer, trace
from sortlib.zoo import Inputs, ZooEntry, load_zoo, prepare, samples
from sortlib.zoo.sound import RATE, VOWELS, spoken
from sortlib.zoo.text import VOCABULARY, read, tokenizer

ZOOS = ("timm", "torchvision", "transformers")
ENTRIES = [(zoo, entry.name) for zoo in ZOOS for entry in load_zoo(zoo).models]
# One of each form of input and output: a batch, a list of images, token ids, sound, images with text.
FEW = [("timm", "resnet10t"), ("torchvision", "lraspp_mobilenet_v3_large"), ("torchvision", "alexnet"),
       ("transformers", "bert"), ("transformers", "llama"), ("transformers", "t5"), ("transformers", "whisper"),
       ("transformers", "llava")]  # fmt: skip
SMALL = {"vocab_size": 1024, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 64}  # fmt: skip


def bert(model="bert", **entry):
    entry = {"options": SMALL, "inputs": {"kind": "text"}, **entry}
    return ZooEntry(name="net", source="transformers", model=model, **entry)


def message(action, *args, **kwargs) -> str:
    with pytest.raises(SortError) as caught:
        action(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def prepared(zoo, name):
    pytest.importorskip(zoo)
    loaded = load_zoo(zoo)
    return prepare(loaded.entry(name), loaded)


# The zoo files


@pytest.mark.parametrize("zoo", ZOOS)
def test_a_bundled_zoo_holds_twenty_models_of_its_source(zoo):
    models = load_zoo(zoo).models
    assert len(models) == 20
    assert {entry.source for entry in models} == {zoo}
    assert not any(entry.pretrained or entry.checkpoint for entry in models)


def test_the_torchvision_zoo_has_detection_and_segmentation():
    names = {entry.model.partition("_")[0] for entry in load_zoo("torchvision").models}
    assert {"fasterrcnn", "maskrcnn", "retinanet", "ssdlite320", "deeplabv3", "lraspp"} <= names


@pytest.mark.parametrize(("zoo", "name"), FEW)
def test_a_model_is_traced_and_its_trace_replays_bit_for_bit(zoo, name):
    model, calls = prepared(zoo, name)
    args, kwargs = calls[0]
    result = replay(*Tracer(name).run(model, *args, **kwargs))
    assert result.ok and not result.skipped, result.describe()
    assert result.calls > 20


@pytest.mark.slow
@pytest.mark.parametrize(("zoo", "name"), [pair for pair in ENTRIES if pair not in FEW])
def test_every_model_is_traced_and_its_trace_replays_bit_for_bit(one_thread, zoo, name):
    test_a_model_is_traced_and_its_trace_replays_bit_for_bit(zoo, name)


def test_a_segmentation_model_returns_a_dictionary_and_a_detection_model_takes_a_list():
    options = {"num_classes": 3, "weights_backbone": None}
    entry = ZooEntry(source="torchvision", model="lraspp_mobilenet_v3_large", options=options, inputs={"size": 64})
    model, [(args, kwargs)] = prepare(entry)
    assert model(*args, **kwargs)["out"].shape == (1, 3, 64, 64)
    entry = load_zoo("torchvision").entry("ssdlite320_mobilenet_v3_large")
    [(args, _), _] = samples(entry)
    assert [image.shape for image in args[0]] == [(3, 128, 128)]
    assert args[0][0].min() >= 0 and args[0][0].max() <= 1  # the model normalises by itself


# transformers: configurations


def test_options_are_values_of_the_configuration():
    pytest.importorskip("transformers")
    model, [((), kwargs)] = prepare(bert("BertForMaskedLM", inputs={"kind": "text", "tokens": 7, "batch": 3}))
    assert model(**kwargs).logits.shape == (3, 7, 1024)
    assert len(model.bert.encoder.layer) == 1
    assert type(prepare(bert())[0]).__name__ == "BertModel"


def test_attention_is_opened_by_an_option():
    """Eager attention is a product, a softmax and a product; the default is one fused call."""
    pytest.importorskip("transformers")
    seen = {}
    for kind in ("eager", "sdpa"):
        model, [(_, kwargs)] = prepare(bert(options={**SMALL, "attn_implementation": kind}))
        seen[kind] = [node.api for node in trace(model, **kwargs)[0].nodes]
    assert [seen["eager"].count(api) for api in ("matmul", "softmax", "scaled_dot_product_attention")] == [2, 1, 0]
    assert [seen["sdpa"].count(api) for api in ("matmul", "softmax", "scaled_dot_product_attention")] == [0, 0, 1]


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"model": "bertt"}, "transformers has no model 'bertt'; did you mean 'bert'"),
        ({"model": "BertForMaskedLm"}, "transformers has no model 'BertForMaskedLm'; did you mean 'BertForMaskedLM'"),
        ({"model": "BertConfig"}, "transformers has no model 'BertConfig'"),
        (
            {"options": {"hiden_size": 3}},
            "options: BertConfig has no value 'hiden_size'; did you mean 'hidden_size' or",
        ),
        ({"options": {**SMALL, "num_attention_heads": 5}}, "options: BertConfig refuses them: "),
        ({"options": {**SMALL, "vocab_size": 99}}, "options: vocab_size 99 is below the 1024 tokens"),
        ({"inputs": {}}, "BertModel takes no pixel_values; set inputs: {kind: text}"),
        ({"model": "/nowhere", "pretrained": True, "options": {}}, "weights of /nowhere could not be loaded ("),
    ],
)
def test_a_wrong_entry_is_told_in_one_line(entry, line):
    pytest.importorskip("transformers")
    assert message(prepare, bert(**entry)).startswith(f"model 'net': {line}")


def test_weights_are_read_from_a_folder(tmp_path):
    pytest.importorskip("transformers")
    saved, _ = prepare(bert("BertForMaskedLM"))
    saved.save_pretrained(tmp_path / "mine")
    model, [((), kwargs)] = prepare(bert(str(tmp_path / "mine"), options={}, pretrained=True))
    assert type(model) is type(saved)
    with torch.no_grad():
        assert torch.equal(model(**kwargs).logits, saved(**kwargs).logits)


@pytest.mark.parametrize("source", ["timm", "transformers", "torchvision"])
def test_a_missing_package_is_named_with_its_pip_command(monkeypatch, source):
    monkeypatch.setitem(sys.modules, source, None)
    entry = ZooEntry(name="net", source=source, model="resnet18")
    assert message(prepare, entry) == (f"model 'net': source {source} needs the package {source}: pip install {source}")


def test_sources_of_images_refuse_text_when_the_file_is_read(tmp_path):
    (tmp_path / "my.yaml").write_text("inputs: {kind: text}\nmodels: [{source: timm, model: resnet10t}]")
    assert message(load_zoo, tmp_path / "my.yaml") == (
        f"{tmp_path / 'my.yaml'}: models[0]: inputs.kind: source timm takes images, not text;"
        " valid: cifar10, folder, imagenet, photographs"
    )


# Text


def test_text_is_the_bundled_passage_in_order_and_without_padding():
    pytest.importorskip("tokenizers")
    path, text = read(Inputs(kind="text"))
    assert path == data_dir() / "text" / "alice.txt" and text.startswith("CHAPTER I.")
    calls = samples(Inputs(kind="text", batch=2, count=3, tokens=16))
    rows = torch.cat([args[0] for args, _ in calls])
    assert rows.shape == (6, 16) and rows.dtype == torch.int64
    assert rows.min() >= 0 and rows.max() < VOCABULARY
    ids = tokenizer(text).encode(text).ids
    assert rows.flatten().tolist() == ids[: 6 * 16]
    assert tokenizer(text).get_vocab() == tokenizer(text).get_vocab()


def test_a_text_of_ones_own_is_read_whatever_its_script(tmp_path):
    pytest.importorskip("tokenizers")
    file = tmp_path / "mine.txt"
    file.write_text("Übermut tut selten gut. 猫は鼠を捕る。 " * 5, encoding="utf-8")
    [((ids,), _)] = samples(Inputs(kind="text", path=file, tokens=8))
    assert ids.shape == (1, 8)
    assert re.fullmatch(
        rf"{file}: holds \d+ tokens; batch 9 times count 1 asks for 9 rows of 800",
        message(samples, Inputs(kind="text", path=file, batch=9, tokens=800)),
    )
    file.write_bytes(b"\xff\xfe")
    assert message(samples, Inputs(kind="text", path=file)) == f"{file}: cannot be read: is no UTF-8 text"
    gone = tmp_path / "gone.txt"
    assert message(samples, Inputs(kind="text", path=gone)) == f"{gone}: cannot be read: No such file or directory"


def test_text_without_the_tokenizers_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert message(samples, Inputs(kind="text")) == "kind text needs the package tokenizers: pip install tokenizers"


def test_decoders_go_on_where_the_encoders_text_ends():
    pytest.importorskip("transformers")
    zoo = load_zoo("transformers")
    _, calls = prepare(zoo.entry("t5"), zoo)
    whole = torch.cat([args[0] for args, _ in samples(Inputs(kind="text", batch=2, count=4, tokens=32))])
    given = torch.cat([kwargs["input_ids"] for _, kwargs in calls])
    target = torch.cat([kwargs["decoder_input_ids"] for _, kwargs in calls])
    assert torch.equal(given, whole[:4]) and torch.equal(target[:, 1:], whole[4:, 1:])
    assert (target[:, 0] == 0).all()  # T5 starts decoding with its padding token, id 0


# Sound


def test_sound_is_speech_like_and_every_row_is_another():
    calls = samples(Inputs(kind="sound", batch=2, count=2, seconds=0.5))
    rows = torch.cat([args[0] for args, _ in calls])
    assert rows.shape == (4, RATE // 2) and rows.dtype == torch.float32
    assert 0.4 < rows.abs().max() <= 0.6 and len({row.numpy().tobytes() for row in rows}) == 4
    assert torch.equal(rows * 32768, (rows * 32768).round())  # 16 bits, like a recording


def test_a_vowels_strongest_sound_lies_at_its_first_formant():
    """The first vowel of number 0 is that of "heed": 136 Hz, first formant 270 Hz (Peterson and Barney 1952)."""
    spectrum = np.abs(np.fft.rfft(spoken(RATE // 5)))
    strongest = np.argmax(spectrum) * 5  # 0.2 s: lines are 5 Hz apart
    assert VOWELS[0][:2] == (136, 270)
    assert abs(strongest - 2 * 136) < 20  # the harmonic nearest to the formant


def recorded(path, rate=RATE, bits=16, channels=1, seconds=1.0):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels), file.setsampwidth(bits // 8), file.setframerate(rate)
        file.writeframes(np.full(int(rate * seconds) * channels * bits // 16, 8192, "<i2").tobytes())
    return path


def test_a_recording_of_ones_own_is_read_and_a_wrong_one_told(tmp_path):
    [((sound,), _)] = samples(Inputs(kind="sound", path=recorded(tmp_path / "a.wav", channels=2), seconds=0.25))
    assert sound.shape == (1, RATE // 4) and torch.allclose(sound, torch.tensor(0.25), atol=1e-4)  # 8192 of 32768
    wrong = recorded(tmp_path / "b.wav", rate=8000)
    assert message(samples, Inputs(kind="sound", path=wrong)) == (
        f"{wrong}: 8000 Hz, 16 bit, 1 channels; needed: 16000 Hz, 16 bit, 1 or 2"
    )
    assert message(samples, Inputs(kind="sound", path=tmp_path / "a.wav", count=2)) == (
        f"{tmp_path / 'a.wav'}: 1 s long; batch 1 times count 2 asks for 2 stretches of 1 s"
    )
    (tmp_path / "c.wav").write_text("no sound")
    assert "c.wav: cannot be read as a WAV file: " in message(samples, Inputs(kind="sound", path=tmp_path / "c.wav"))


def test_speech_models_get_what_their_own_feature_extractor_makes():
    pytest.importorskip("transformers")
    zoo = load_zoo("transformers")
    _, calls = prepare(zoo.entry("whisper"), zoo)
    assert calls[0][1]["input_features"].shape == (2, 80, 200)  # 2 s in steps of 10 ms, 80 mel bands
    _, calls = prepare(zoo.entry("wav2vec2"), zoo)
    heard = calls[0][1]["input_values"]
    assert heard.shape == (2, RATE)
    assert abs(heard.mean()) < 1e-5 and abs(heard.std() - 1) < 1e-3  # wav2vec2 normalises every recording


# Images and text


def test_vision_language_models_get_photographs_and_text_with_places_for_the_image():
    pytest.importorskip("transformers")
    zoo = load_zoo("transformers")
    _, calls = prepare(zoo.entry("llava"), zoo)
    kwargs = calls[0][1]
    assert kwargs["pixel_values"].shape == (2, 3, 64, 64)
    places = kwargs["input_ids"] == 1030
    assert places.sum(1).tolist() == [16, 16]  # 64 / 16 squared patches for each image
    assert kwargs["input_ids"].shape == kwargs["attention_mask"].shape == (2, 48)


def test_the_same_seed_gives_the_same_graph_and_records():
    first, second = (Tracer("bert").run(model, **kwargs) for model, [(_, kwargs), _] in
                     (prepared("transformers", "bert") for _ in range(2)))  # fmt: skip
    assert first[0] == second[0] and first[1] == second[1]


@pytest.mark.parametrize("source", ["timm", "torchvision", "custom"])
def test_a_package_that_only_one_model_needs_is_named(tmp_path, monkeypatch, source):
    def needs(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'natten.functional'", name="natten.functional")

    if source == "custom":
        file = tmp_path / "mine.py"
        file.write_text("def net():\n    import natten.functional\n")
        entry = ZooEntry(name="net", source="custom", model=f"{file}:net")
    else:
        module = pytest.importorskip("timm" if source == "timm" else "torchvision.models")
        monkeypatch.setattr(module, "create_model" if source == "timm" else "get_model", needs)
        entry = ZooEntry(name="net", source=source, model="resnet18")
    with pytest.raises(SortError, match="^model 'net' needs the package natten: pip install natten$"):
        prepare(entry)
