"""Real inputs as tensors."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from sortlib.errors import SortError
from sortlib.zoo.spec import Inputs

# Colour photographs inside the scikit-image package itself; its other ones would be downloaded.
PHOTOGRAPHS = (
    "astronaut",
    "coffee",
    "chelsea",
    "rocket",
    "stereo_motorcycle",
    "retina",
    "hubble_deep_field",
    "immunohistochemistry",
)
# An image is seen up to ten times: centre and four corners, each also mirrored.
VIEWS = 10
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}


def batches(spec: Inputs) -> list:
    """Batches of what a kind gives: images, token ids (``sortlib.zoo.text``) or sound (``sortlib.zoo.sound``)."""
    if spec.kind == "text":
        from sortlib.zoo.text import tokens

        return tokens(spec)
    if spec.kind == "sound":
        from sortlib.zoo.sound import waveforms

        return waveforms(spec)
    return images(spec)


def images(spec: Inputs) -> list:
    """Batches of real images.

    Returns
    -------
    list of ``spec.count`` float32 tensors (batch, 3, height, width), normalised with ``spec.mean`` and ``spec.std``.

    Raises
    ------
    SortError
        Folder missing or empty, an image that cannot be read (named), or fewer images than asked for.
    """
    import torch

    wanted = spec.batch * spec.count
    shown = _READERS[spec.kind](spec, wanted)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (spec.mean, spec.std))
    stack = np.empty((spec.count, spec.batch, 3, *spec.size), np.float32)  # contiguous, batches in memory order
    for place, pixels in zip(stack.reshape(wanted, 3, *spec.size), shown, strict=True):
        place[:] = (pixels.transpose(2, 0, 1) / np.float32(255) - mean) / std
    return [torch.from_numpy(batch.copy()) for batch in stack]


def view(image, size, number=0):
    """One crop of an image as uint8 (height, width, 3).

    The short side is resized to 256/224 of the crop (bilinear, antialiased), as is usual for ImageNet.

    Parameters
    ----------
    image : PIL image.
    size : (height, width) in pixels.
    number : 0 centre, 2, 4, 6, 8 the corners; odd numbers are the mirror image of the one before.
    """
    from PIL import Image, ImageOps

    height, width = size
    scale = 256 / 224 * max(height / image.height, width / image.width)
    resized = image.resize(
        (max(width, round(image.width * scale)), max(height, round(image.height * scale))), Image.Resampling.BILINEAR
    )
    spare_y, spare_x = resized.height - height, resized.width - width
    places = [(spare_y // 2, spare_x // 2), (0, 0), (0, spare_x), (spare_y, 0), (spare_y, spare_x)]
    top, left = places[number // 2]
    crop = resized.crop((left, top, left + width, top + height))
    return np.asarray(ImageOps.mirror(crop) if number % 2 else crop)


def _photographs(spec, wanted):
    """Every photograph once, then every one in its next view."""
    from PIL import Image

    if wanted > len(PHOTOGRAPHS) * VIEWS:
        raise SortError(
            f"kind photographs: batch {spec.batch} times count {spec.count} asks for {wanted} images;"
            f" there are {len(PHOTOGRAPHS) * VIEWS} ({len(PHOTOGRAPHS)} photographs in {VIEWS} views each)"
        )
    try:
        from skimage import data
    except ImportError:
        raise SortError("kind photographs needs the package scikit-image: pip install scikit-image") from None
    loaded = []
    for name in PHOTOGRAPHS[:wanted]:
        pixels = getattr(data, name)()
        # The stereo pair comes as (left, right, disparity).
        loaded.append(Image.fromarray(pixels[0] if isinstance(pixels, tuple) else pixels))
    return [view(loaded[i % len(loaded)], spec.size, i // len(loaded)) for i in range(wanted)]


def _folder(spec, wanted):
    """Images below a folder in the order of their paths."""
    return _read(_enough(_image_files(spec.path), spec, wanted), spec)


def _imagenet(spec, wanted):
    """One image of every class in turn, so that few images already show many classes."""
    root = next((spec.path / part for part in ("val", "train") if (spec.path / part).is_dir()), spec.path)
    _image_files(root)
    classes = [sorted(_images_below(folder)) for folder in sorted(root.iterdir()) if folder.is_dir()]
    if not any(classes):
        raise SortError(f"{root}: images lie here, but in no folder per class; use kind: folder for such a folder")
    deepest = max(map(len, classes))
    turns = [files[turn] for turn in range(deepest) for files in classes if turn < len(files)]
    return _read(_enough(turns, spec, wanted), spec)


def _cifar10(spec, wanted):
    """Images of the dataset's python batches: the test batch first, then the training batches."""
    from PIL import Image

    inner = spec.path / "cifar-10-batches-py"
    root = inner if inner.is_dir() else spec.path
    files = [root / name for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6)))]
    found = [file for file in files if file.is_file()]
    if not found:
        raise SortError(
            f"{spec.path}: no CIFAR-10 here; expected cifar-10-batches-py/test_batch of the python version of the"
            " dataset (https://www.cs.toronto.edu/~kriz/cifar.html)"
        )
    rows = []
    for file in found:
        rows.extend(_cifar_rows(file))
        if len(rows) >= wanted:
            break
    pixels = [row.reshape(3, 32, 32).transpose(1, 2, 0) for row in _enough(rows, spec, wanted)]
    return [view(Image.fromarray(np.ascontiguousarray(each)), spec.size) for each in pixels]


def _cifar_rows(file):
    """(n, 3072) uint8, a row per image: 1024 red, 1024 green, 1024 blue values."""
    try:
        with file.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
        rows = np.asarray(content[b"data"])
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
            raise ValueError(f"data is {rows.dtype} {rows.shape}, not uint8 (n, 3072)")
    except Exception as error:  # a pickle can fail in many ways, and all mean the same to the user
        text = " ".join(str(error).split())
        raise SortError(f"{file}: no readable CIFAR-10 batch: {text}") from None
    return rows


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled NumPy arrays and refuses every other object, since a pickle can run code."""

    def find_class(self, module, name):
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in (
            "ndarray",
            "dtype",
            "_reconstruct",
        ):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, which is no array")


def _image_files(folder):
    """Image files below a folder, or one line that says why there are none."""
    if not folder.exists():
        raise SortError(f"{folder}: image folder does not exist")
    if not folder.is_dir():
        raise SortError(f"{folder}: is a file, not an image folder")
    files = sorted(_images_below(folder))
    if not files:
        raise SortError(f"{folder}: no images in this folder; file names that count: *{', *'.join(sorted(SUFFIXES))}")
    return files


def _images_below(folder):
    return [path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]


def _enough(found, spec, wanted):
    if len(found) < wanted:
        raise SortError(
            f"{spec.path}: holds {len(found)} of the {wanted} images that batch {spec.batch} times count {spec.count}"
            " ask for"
        )
    return found[:wanted]


def _read(files, spec):
    from PIL import Image, UnidentifiedImageError

    views = []
    for file in files:
        try:
            with Image.open(file) as image:
                views.append(view(image.convert("RGB"), spec.size))
        except UnidentifiedImageError:
            raise SortError(f"{file}: cannot be read as an image") from None
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise SortError(f"{file}: cannot be read as an image: {error}") from None
    return views


_READERS = {"photographs": _photographs, "folder": _folder, "cifar10": _cifar10, "imagenet": _imagenet}
