"""Models of Hugging Face transformers, built from a configuration without download."""

from __future__ import annotations

import inspect
import sys

from sortlib.config import suggestion
from sortlib.errors import SortError
from sortlib.zoo.weights import load_checkpoint, wake


def load(entry, seed):
    """The model of a configuration, and what to call it with.

    ``model`` is a model type (``bert``: the bare model) or a class (``BertForMaskedLM``: with its head); ``options``
    are values of its configuration, nested ones for a part (``text_config: {hidden_size: 64}``). With
    ``pretrained: true`` it is a name on the hub or a folder that ``save_pretrained`` wrote.
    """
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    package = _package(entry)
    _quiet(package)
    try:
        model = _published(package, entry) if entry.pretrained else _built(package, entry)
    except ImportError as error:
        reason = next(line for line in str(error).splitlines() if line.strip())
        raise SortError(f"model {entry.name!r}: {entry.model} needs a further package: {reason.strip()}") from None
    if entry.checkpoint:
        load_checkpoint(model, entry.checkpoint, entry.name)
    elif not entry.pretrained:
        wake(model)
    with unset_fake_temporarily():  # real inputs also where the model is built without memory
        return model, _arguments(model, entry)


def call(images, entry):
    """A batch of images; models of text and sound bring their own arguments."""
    return (), {"pixel_values": images}


def _package(entry):
    try:
        import transformers
    except ImportError:
        raise SortError(
            f"model {entry.name!r}: source transformers needs the package transformers: pip install transformers"
        ) from None
    return transformers


def _quiet(package):
    """Without the notices about optional kernels, which come in the middle of a forward pass; errors stay."""
    logging = package.utils.logging
    if logging.get_verbosity() == logging.WARNING:  # the default, so nobody has chosen another one
        logging.set_verbosity_error()


def _classes(package, entry):
    """Configuration class and model class of a model type or a class name."""
    types = package.CONFIG_MAPPING
    if entry.model in types:
        config = types[entry.model]
        if config in package.MODEL_MAPPING:
            found = package.MODEL_MAPPING[config]
            return config, found[0] if isinstance(found, tuple) else found
    found = getattr(package, entry.model, None) if entry.model[:1].isupper() else None
    if isinstance(found, type) and isinstance(getattr(found, "config_class", None), type):
        return found.config_class, found
    near = suggestion(entry.model, [*types.keys(), *(name for name in dir(package) if "For" in name)])
    raise SortError(
        f"model {entry.name!r}: transformers has no model {entry.model!r}{near or ';'}"
        " give a model type such as bert or a class such as BertForMaskedLM"
    )


def _built(package, entry):
    config_class, model_class = _classes(package, entry)
    known = config_class()
    # Some models read values that their configuration class does not list.
    code = inspect.getsource(sys.modules[model_class.__module__])
    for key in entry.options:
        if key != "attn_implementation" and not hasattr(known, key) and f'"{key}"' not in code:
            raise SortError(
                f"model {entry.name!r}: options: {config_class.__name__} has no value {key!r}"
                f"{suggestion(key, known.to_dict()) or ''}"
            )
    try:
        return model_class(config_class(**entry.options))
    except ImportError:
        raise
    except Exception as error:
        # Values are checked in many places; without options the fault is not the zoo file's.
        if not entry.options:
            raise
        text = " ".join(str(error).split())
        raise SortError(f"model {entry.name!r}: options: {config_class.__name__} refuses them: {text}") from error


def _published(package, entry):
    try:
        config = package.AutoConfig.from_pretrained(entry.model, **entry.options)
        names = [name for name in config.architectures or [] if hasattr(package, name)]
        model_class = getattr(package, names[0]) if names else package.AutoModel
        return model_class.from_pretrained(entry.model, config=config)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SortError(
            f"model {entry.name!r}: weights of {entry.model} could not be loaded ({reason}); set pretrained: false, or"
            " name a folder that save_pretrained wrote"
        ) from None


def _arguments(model, entry):
    """Keyword arguments of every forward pass, or None for a model of images alone."""
    from sortlib.zoo.inputs import batches
    from sortlib.zoo.text import tokens

    names = inspect.signature(model.forward).parameters
    spec, config = entry.inputs, model.config
    main = {"text": "input_ids", "sound": "input_features" if "input_features" in names else "input_values"}.get(
        spec.kind, "pixel_values"
    )
    if main not in names:
        takes = [kind for kind, key in _TAKES if key in names]
        raise SortError(
            f"model {entry.name!r}: {type(model).__name__} takes no {main}; set inputs: {{kind: {takes[0]}}}"
            if takes
            else f"model {entry.name!r}: {type(model).__name__} takes neither text, sound nor images"
        )
    has_text = "input_ids" in names and main != "input_ids"
    if main == "pixel_values" and not has_text and "decoder_input_ids" not in names:
        return None
    prepared = [_heard(model, batch, spec) if spec.kind == "sound" else batch for batch in batches(spec)]
    calls = [{main: batch} for batch in prepared]
    if has_text:
        for given, ids in zip(calls, tokens(spec), strict=True):
            given["input_ids"] = _after_image(ids, config)
    if "decoder_input_ids" in names and config.is_encoder_decoder:
        for given, ids in zip(calls, tokens(spec, skip=spec.batch * spec.count), strict=True):
            ids[:, 0] = getattr(config, "decoder_start_token_id", None) or 0
            given["decoder_input_ids"] = ids
    _check_vocabulary(config, entry)
    for given in calls:
        if "input_ids" in given and "attention_mask" in names:
            given["attention_mask"] = given["input_ids"].new_ones(given["input_ids"].shape)
    return [((), given) for given in calls]


_TAKES = (("text", "input_ids"), ("sound", "input_values"), ("sound", "input_features"),
          ("photographs", "pixel_values"))  # fmt: skip


def _after_image(ids, config):
    """The text after the places that the model fills with the image, where it wants such places."""
    import torch

    place = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    length = getattr(config, "image_seq_length", None)
    if place is None or length is None:
        return ids
    return torch.cat([ids.new_full((len(ids), length), place), ids], 1)


def _heard(model, batch, spec):
    """Waveforms as the model's own feature extractor hands them over."""
    from transformers import FEATURE_EXTRACTOR_MAPPING

    extractor = FEATURE_EXTRACTOR_MAPPING[type(model.config)]
    given = {"feature_size": getattr(model.config, "num_mel_bins", None), "chunk_length": round(spec.seconds)}
    accepted = inspect.signature(extractor).parameters
    made = extractor(**{key: value for key, value in given.items() if key in accepted and value})
    (result, *_) = made(list(batch.numpy()), sampling_rate=16_000, return_tensors="pt").values()
    return result


def _check_vocabulary(config, entry):
    from sortlib.zoo.text import VOCABULARY

    size = getattr(config.get_text_config(), "vocab_size", None)
    if size is not None and size < VOCABULARY:
        raise SortError(
            f"model {entry.name!r}: options: vocab_size {size} is below the {VOCABULARY} tokens of the text's tokenizer"
        )
