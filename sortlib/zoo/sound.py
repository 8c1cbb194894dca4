"""Speech-like sound as waveforms.

No recording ships with the packages that the workbench needs, so the default sound is made: vowels from their
measured formants. A recording of one's own is named in the zoo file, ``inputs: {kind: sound, path: mine.wav}``.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from sortlib.errors import SortError
from sortlib.zoo.spec import Inputs

RATE = 16_000  # samples per second, what speech models take

# Fundamental and first three formants in hertz: average of 33 men (Peterson and Barney 1952, table II), in the order
# of "heed, hid, head, had, hod, hawed, hood, who'd, hud, heard".
VOWELS = (
    (136, 270, 2290, 3010), (135, 390, 1990, 2550), (130, 530, 1840, 2480), (127, 660, 1720, 2410),
    (124, 730, 1090, 2440), (129, 570, 840, 2410), (137, 440, 1020, 2240), (141, 300, 870, 2240),
    (130, 640, 1190, 2390), (133, 490, 1350, 1690),
)  # fmt: skip
BANDWIDTHS = (60.0, 90.0, 150.0)  # of the formants in hertz (Klatt 1980)
VOWEL_SECONDS = 0.2
BREATH = 0.003  # amplitude of the noise between the vowels, so that no stretch is exactly silent


def waveforms(spec: Inputs) -> list:
    """Batches of sound.

    Returns
    -------
    list of ``spec.count`` float32 tensors (batch, samples) in -1 to 1 at ``RATE``, ``spec.seconds`` long.

    Raises
    ------
    SortError
        A file that is no WAV of 16 bit, mono or stereo, at ``RATE``, or that is too short.
    """
    import torch

    length = round(spec.seconds * RATE)
    wanted = spec.batch * spec.count
    if spec.path:
        samples = _recorded(Path(spec.path))
        if len(samples) < length * wanted:
            raise SortError(
                f"{spec.path}: {len(samples) / RATE:g} s long; batch {spec.batch} times count {spec.count} asks for"
                f" {wanted} stretches of {spec.seconds:g} s"
            )
        rows = samples[: length * wanted].reshape(wanted, length)
    else:
        rows = np.stack([spoken(length, number) for number in range(wanted)])
    # 16 bits like a recording, which also hides the last bits in which sine functions differ between machines.
    rows = np.round(rows * 32767).astype(np.float32) / np.float32(32768)
    return list(torch.from_numpy(rows.reshape(spec.count, spec.batch, length)))


def spoken(length, number=0):
    """A row of vowels as float64 (length,), peak 0.5; another order and pitch for each number.

    Harmonics of a falling and rising pitch, each as loud as the three formants let it through.
    """
    time = np.arange(length) / RATE
    place = (time / VOWEL_SECONDS).astype(int)
    order = (number + place * (1 + 2 * (number % 5))) % len(VOWELS)
    table = np.array(VOWELS, float)[order]
    pitch = table[:, 0] * (1 + 0.05 * number / (number + 1)) * (1 + 0.04 * np.sin(2 * np.pi * 3 * time))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    sound = np.zeros(length)
    for harmonic in range(1, 29):
        frequency = harmonic * pitch
        gain = sum(_resonance(frequency, table[:, 1 + k], BANDWIDTHS[k]) / (k + 1) for k in range(3))
        sound += np.where(frequency < RATE / 2, gain, 0) / harmonic * np.sin(harmonic * phase)
    within = time / VOWEL_SECONDS - place
    sound *= np.sin(np.pi * within) ** 2  # every vowel rises and dies away
    noise = np.random.Generator(np.random.Philox(number)).standard_normal(length)
    return 0.5 * sound / np.abs(sound).max() + BREATH * noise


def _resonance(frequency, centre, bandwidth):
    return 1 / np.sqrt(1 + ((frequency - centre) / (bandwidth / 2)) ** 2)


def _recorded(path):
    try:
        with wave.open(str(path)) as file:
            form = file.getframerate(), file.getsampwidth() * 8, file.getnchannels()
            content = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise SortError(f"{path}: cannot be read as a WAV file: {getattr(error, 'strerror', None) or error}") from None
    rate, bits, channels = form
    if rate != RATE or bits != 16 or channels not in (1, 2):
        raise SortError(f"{path}: {rate} Hz, {bits} bit, {channels} channels; needed: {RATE} Hz, 16 bit, 1 or 2")
    return np.frombuffer(content, "<i2").reshape(-1, channels).mean(1) / 32768
