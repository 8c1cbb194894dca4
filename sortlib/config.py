"""Files that people write: where they lie, how they are read, and what is said when one is wrong."""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path

from pydantic import BaseModel, ValidationError

from sortlib.arguments import path as as_path
from sortlib.arguments import shown
from sortlib.errors import SortError, choices, suggestion


def data_dir() -> Path:
    """The repository's ``data`` directory: zoo files, study files, published numbers."""
    return Path(__file__).resolve().parent.parent / "data"


def data_file(name_or_path, kind) -> Path:
    """The file that a person means by the name of a bundled file or by a path.

    Parameters
    ----------
    name_or_path : ``"quick"`` for ``data/<kind>/quick.yaml``, or the path of any YAML file.
    kind : folder below ``data``: ``"zoo"``, ``"studies"`` or ``"sweeps"``.

    Raises
    ------
    SortError
        Neither a file nor a bundled name; the message lists the bundled names.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    bundled = data_dir() / kind
    if (bundled / f"{text}.yaml").is_file():
        return bundled / f"{text}.yaml"
    names = [file.stem for file in bundled.glob("*.yaml")]
    what = {"studies": "study", "sweeps": "sweep"}.get(kind, kind)
    if path.is_dir():
        raise SortError(f"{text}: is a directory; a {what} file is a YAML file or one of: {choices(names)}")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise SortError(f"{text}: no such {what} file; bundled ones by name: {choices(names)}")
    raise SortError(f"unknown {what} {text!r}: choose a YAML file or one of: {choices(names)}{suggestion(text, names)}")


def read_yaml(path, listed=""):
    """The mapping in a YAML file, or the list of mappings, read in safe mode (plain values only, no Python objects).

    Parameters
    ----------
    path : of the file.
    listed : for a file whose top level is a list: what it lists, for the message, such as "entries with id".

    Raises
    ------
    SortError
        The file cannot be read, is no valid YAML (with the line number), repeats a key, or is no mapping, or no list of
        at least one.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        text = as_path(path, "the file").read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SortError(f"{path}: cannot be read: is no UTF-8 text") from None
    except OSError as error:
        raise SortError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        raw = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        problem = (error.problem or error.context or "no valid YAML").partition("\n")[0]
        raise SortError(f"{path}{where}: broken YAML: {problem}") from None
    except YAMLError as error:
        raise SortError(f"{path}: broken YAML: {str(error).strip().partition(chr(10))[0]}") from None
    except ValueError as error:
        # The reader itself raises this for values such as the date 2020-13-45.
        raise SortError(f"{path}: broken YAML: {error}") from None
    found = "is empty" if not raw and raw in (None, []) else f"holds a {type(raw).__name__}"
    if listed:
        if not isinstance(raw, list) or not raw:
            raise SortError(f"{path}: {found}; must be a list of {listed}")
        for number, item in enumerate(raw, 1):
            if not isinstance(item, dict):
                raise SortError(f"{path}: item {number} is {shown(item)}; must be a list of {listed}")
    elif not isinstance(raw, dict):
        raise SortError(f"{path}: {found}; the top level must be keys and values")
    return raw


def validated(model_class, raw, where):
    """An instance of a pydantic model, or one line that says which key is wrong and what is valid.

    Parameters
    ----------
    model_class : pydantic model, best with ``extra="forbid"``.
    raw : mapping as read from a file.
    where : name of the file for the message.

    Raises
    ------
    SortError
        ``study.yaml: models[2].sorce: unknown key; did you mean 'source'? valid keys: ...``
    """
    try:
        return model_class.model_validate(raw)
    except ValidationError as error:
        # An unknown key is often a misspelt one, and then the reason why another key is missing.
        first, *others = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    more = f" (and {len(others)} more)" if others else ""
    raise SortError(f"{where}: {_explain(model_class, first)}{more}")


def _explain(model_class, error) -> str:
    """One line for one pydantic error: key, what is wrong, valid choices."""
    loc, kind, context = error["loc"], error["type"], error.get("ctx", {})
    key = _dotted(loc)
    if kind == "extra_forbidden":
        known = list(_model_at(model_class, loc[:-1]).model_fields)
        return f"{key}: unknown key{suggestion(loc[-1], known) or ';'} valid keys: {', '.join(known)}"
    if kind == "missing":
        return f"{key}: this key is required"
    if kind in ("literal_error", "enum"):
        near = suggestion(error["input"], re.findall("'([^']*)'", context["expected"]))
        return f"{key}: {error['input']!r} is not one of {context['expected']}{near}"
    if kind == "value_error":
        # Raised by a validator of ours: its text is written for people already.
        return f"{key}: {context['error']}" if key else str(context["error"])
    wanted = _WANTED.get(kind)
    text = wanted.format(**context) if wanted else error["msg"].removeprefix("Input should be ")
    return f"{key or 'top level'}: must be {text}, not {error['input']!r}"


# pydantic's error types in the words of a file's reader.
_WANTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "{ge} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "below {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    "model_attributes_type": "keys and values",
    "model_type": "keys and values",
    "path_type": "a path",
    "string_type": "text",
    "too_long": "a list of {max_length} at most",
    "too_short": "a list of {min_length} at least",
    "tuple_type": "a list",
}


def _dotted(loc) -> str:
    """``("models", 2, "source")`` as ``models[2].source``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _model_at(model_class, loc):
    """The pydantic model that holds the keys at ``loc``."""
    for part in loc:
        field = model_class.model_fields.get(part) if isinstance(part, str) else None
        model_class = next(_models_in(field.annotation), model_class) if field else model_class
    return model_class


def _models_in(annotation):
    """Pydantic models named anywhere in a type annotation, such as ``list[Entry] | None``."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)
