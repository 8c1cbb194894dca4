"""Real text as token ids, with a tokenizer that needs no download."""

from __future__ import annotations

from pathlib import Path

from sortlib.config import data_dir
from sortlib.errors import SortError
from sortlib.zoo.spec import Inputs

VOCABULARY = 1024  # token ids are below this, so a model's own vocabulary must be at least as large
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # ids 0 to 4, the order of RoBERTa and BART


def tokens(spec: Inputs, length: int | None = None, skip: int = 0) -> list:
    """Batches of token ids, each row another stretch of the text without padding.

    Parameters
    ----------
    spec : ``batch``, ``count`` and ``tokens`` are used, and ``path`` where its kind is ``text``.
    length : tokens in a row instead of ``spec.tokens``.
    skip : rows to leave out at the beginning.

    Returns
    -------
    list of ``spec.count`` int64 tensors (batch, tokens), ids from 0 to ``VOCABULARY`` - 1.

    Raises
    ------
    SortError
        Package tokenizers missing, a file that cannot be read, or a text that is too short.
    """
    import torch

    length = length or spec.tokens
    path, text = read(spec)
    ids = tokenizer(text).encode(text).ids
    rows, wanted = len(ids) // length - skip, spec.batch * spec.count
    if rows < wanted:
        raise SortError(
            f"{path}: holds {len(ids)} tokens; batch {spec.batch} times count {spec.count} asks for"
            f" {wanted + skip} rows of {length}"
        )
    found = torch.tensor(ids[skip * length : (skip + wanted) * length]).reshape(spec.count, spec.batch, length)
    return [batch.clone() for batch in found.unbind()]


def read(spec: Inputs):
    """Path and content of the text: the entry's own file, or the passage in ``data/text``."""
    path = Path(spec.path) if spec.kind == "text" and spec.path else data_dir() / "text" / "alice.txt"
    try:
        return path, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SortError(f"{path}: cannot be read: is no UTF-8 text") from None
    except OSError as error:
        raise SortError(f"{path}: cannot be read: {error.strerror or error}") from None


def tokenizer(text):
    """A byte-level byte-pair tokenizer trained on the text itself; the same text gives the same one.

    Every byte is a token, so any text can be encoded (Sennrich et al. 2016; bytes as in Radford et al. 2019).
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        raise SortError("kind text needs the package tokenizers: pip install tokenizers") from None
    result = Tokenizer(models.BPE())
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    result.train_from_iterator(text.splitlines(), trainer)
    return result
