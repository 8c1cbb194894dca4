"""Canonical forms of small labelled directed multigraphs, many at a time.

Two patterns are the same exactly when their canonical forms are equal. The order of a pattern's nodes is found by
colour refinement: each node starts with a hash of its label and repeatedly takes up its neighbours' colours. Where
that leaves nodes alike, one of them is marked and the refinement repeated; all choices that could differ are tried
and the smallest form wins. Nodes come out in topological order (by depth, then colour), so a pattern reads as data
flows.

All arrays hold one pattern per row, so that one NumPy call treats every pattern of a level.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

NO_EDGE = -1  # label of the padding in edge arrays
MAX_NODES = 15  # node positions are packed into 4 bits
_as_json = json.JSONEncoder(separators=(",", ":")).encode
_PAD = np.iinfo(np.int64).max
_SALT_IN = np.uint64(0x9E3779B97F4A7C15)
_SALT_MARK = np.uint64(0xD1B54A32D192ED03)


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit integers one by one (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def text_hash(text: str) -> int:
    """A 64-bit hash of a label that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


@dataclass(frozen=True)
class Alphabet:
    """The labels of one mining run: sorted, so that their numbers compare like the texts themselves."""

    apis: tuple[str, ...]
    arguments: tuple[str, ...]

    def __post_init__(self):
        object.__setattr__(self, "api_hash", np.array([text_hash(name) for name in self.apis], np.uint64))
        object.__setattr__(self, "argument_hash", np.array([text_hash(name) for name in self.arguments], np.uint64))


@dataclass
class Batch:
    """Patterns with the same number of nodes.

    Attributes
    ----------
    nodes : (patterns, n) API numbers.
    src, dst, argument, count : (patterns, m); the edges, ``count`` telling how many parallel ones with the same label;
        ``argument`` is NO_EDGE where a pattern has fewer than m different edges.
    """

    nodes: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    argument: np.ndarray
    count: np.ndarray

    def __len__(self):
        return len(self.nodes)

    def take(self, rows) -> Batch:
        return Batch(self.nodes[rows], self.src[rows], self.dst[rows], self.argument[rows], self.count[rows])

    def widen(self, width: int) -> Batch:
        """The same patterns with room for ``width`` different edges."""
        extra = width - self.src.shape[1]
        if extra <= 0:
            return self
        pad = ((0, 0), (0, extra))
        return Batch(
            self.nodes,
            np.pad(self.src, pad),
            np.pad(self.dst, pad),
            np.pad(self.argument, pad, constant_values=NO_EDGE),
            np.pad(self.count, pad),
        )

    @classmethod
    def join(cls, parts: list[Batch]) -> Batch:
        width = max(part.src.shape[1] for part in parts)
        parts = [part.widen(width) for part in parts]
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("nodes", "src", "dst", "argument", "count")
            )
        )


@dataclass
class Canonical:
    """What ``canonical`` finds, one row a pattern.

    Attributes
    ----------
    order : (patterns, n); ``order[i, k]`` is the old position of the node that comes k-th.
    batch : the patterns with nodes and edges in canonical order.
    keys : a bytes object per pattern, equal exactly for equal patterns (within one ``Alphabet``).
    orbit : (patterns, n) in the new order: the first position whose refined colour is the same. In a tree these are
        exactly the nodes that some automorphism maps onto each other.
    tied : whether some nodes share a colour; a pattern that is not tied has no automorphism but the identity.
    """

    order: np.ndarray
    batch: Batch
    keys: list[bytes]
    orbit: np.ndarray
    tied: np.ndarray

    def take(self, rows: np.ndarray) -> Canonical:
        """The same for the patterns numbered ``rows``."""
        keys = [self.keys[k] for k in rows.tolist()]
        return Canonical(self.order[rows], self.batch.take(rows), keys, self.orbit[rows], self.tied[rows])


def _refine(colour, batch: Batch, out_hash, in_hash, rounds):
    """Colour refinement; ``colour`` is (n, patterns)."""
    size, total = colour.shape
    row = np.arange(total)
    width = batch.src.shape[1]
    sources = [batch.src[:, k] * total + row for k in range(width)]
    targets = [batch.dst[:, k] * total + row for k in range(width)]
    for _ in range(rounds):
        flat = colour.reshape(-1)
        heard = np.zeros(size * total, np.uint64)
        for k in range(width):
            heard[sources[k]] += mix(flat[targets[k]] + out_hash[k]) * (out_hash[k] != 0)
            heard[targets[k]] += mix(flat[sources[k]] + in_hash[k]) * (out_hash[k] != 0)
        colour = mix(colour + _SALT_IN + mix(heard.reshape(size, total)))
    return colour


def _depth(batch: Batch):
    """Longest way from a source to each node, (n, patterns)."""
    total, size = batch.nodes.shape
    row = np.arange(total)
    depth = np.zeros((size, total), np.int64)
    for _ in range(size - 1):
        before = depth.copy()
        for k in range(batch.src.shape[1]):
            real = batch.argument[:, k] != NO_EDGE
            source, target, at = batch.src[real, k], batch.dst[real, k], row[real]
            depth[target, at] = np.maximum(depth[target, at], depth[source, at] + 1)
        if np.array_equal(before, depth):
            break
    return depth


def _twin_signature(batch: Batch, out_hash, in_hash):
    """Equal for two nodes exactly when they have the same neighbours over the same edges, (n, patterns)."""
    total, size = batch.nodes.shape
    row = np.arange(total)
    result = np.zeros((size, total), np.uint64)
    for k in range(batch.src.shape[1]):
        real = out_hash[k] != 0
        result[batch.src[:, k], row] += mix(out_hash[k] + mix(batch.dst[:, k].astype(np.uint64))) * real
        result[batch.dst[:, k], row] += mix(in_hash[k] + mix(batch.src[:, k].astype(np.uint64))) * real
    return result


def _ranked(colour, depth):
    return (depth.astype(np.uint64) << np.uint64(59)) | (colour >> np.uint64(5))


def canonical(batch: Batch, alphabet: Alphabet, tree: bool = False) -> Canonical:
    """Canonical order and form of every pattern of a batch.

    Parameters
    ----------
    batch : the patterns, at most ``MAX_NODES`` nodes each, without directed cycles.
    alphabet : the labels that the numbers in ``batch`` stand for.
    tree : all patterns are trees, in which nodes of one colour are always interchangeable, so nothing is tried twice.
    """
    total, size = batch.nodes.shape
    width = batch.src.shape[1]
    edge_hash = np.where(
        batch.argument == NO_EDGE,
        np.uint64(0),
        mix(alphabet.argument_hash[batch.argument] + batch.count.astype(np.uint64)) | np.uint64(1),
    ).T.reshape(width, total)
    out_hash, in_hash = edge_hash, mix(edge_hash ^ _SALT_IN)
    depth = _depth(batch)
    colour = _refine(mix(alphabet.api_hash[batch.nodes.T]), batch, out_hash, in_hash, size)
    ranked = _ranked(colour, depth)
    ordered = np.sort(ranked, axis=0)
    tied = (ordered[1:] == ordered[:-1]).any(axis=0)
    order = np.argsort(ranked, axis=0, kind="stable")
    if tied.any():
        owners, orders = _break_ties(batch.take(tied), colour[:, tied], depth[:, tied], out_hash[:, tied],
                                     in_hash[:, tied], tree)  # fmt: skip
        chosen = np.flatnonzero(tied)[owners]
    else:
        owners = chosen = np.zeros(0, np.int64)
        orders = np.zeros((size, 0), np.int64)
    if len(np.unique(owners)) != len(owners):
        # several markings remain: the smallest form of each pattern wins
        forms = _forms(batch.take(chosen), orders, alphabet)[1]
        by_form = np.lexsort(tuple(forms.T[::-1]) + (owners,))
        first = np.ones(len(owners), bool)
        first[1:] = owners[by_form][1:] != owners[by_form][:-1]
        best = by_form[first]
        chosen, orders = chosen[best], orders[:, best]
    order[:, chosen] = orders
    renamed, form = _forms(batch, order, alphabet)
    ranked = np.take_along_axis(ranked, order, axis=0)
    orbit = np.tile(np.arange(size)[:, None], total)
    for k in range(1, size):
        for j in range(k - 1, -1, -1):
            orbit[k] = np.where(ranked[j] == ranked[k], j, orbit[k])
    return Canonical(order.T, renamed, _keys(renamed, form), orbit.T, tied)


def _break_ties(batch, colour, depth, out_hash, in_hash, tree):
    """Mark one of several equal nodes and refine, until all differ. Returns (owner, order) of every marking tried."""
    size = colour.shape[0]
    owner = np.arange(colour.shape[1])
    twin = _twin_signature(batch, out_hash, in_hash)
    done_owner, done_order = [], []
    while len(owner):
        ranked = _ranked(colour, depth)
        ordered = np.sort(ranked, axis=0)
        same = ordered[1:] == ordered[:-1]
        open_ = same.any(axis=0)
        done_owner.append(owner[~open_])
        done_order.append(np.argsort(ranked[:, ~open_], axis=0, kind="stable"))
        if not open_.any():
            break
        owner, colour, depth, ranked = owner[open_], colour[:, open_], depth[:, open_], ranked[:, open_]
        out_hash, in_hash, twin = out_hash[:, open_], in_hash[:, open_], twin[:, open_]
        first = np.argmax(same[:, open_], axis=0)
        value = ordered[:, open_][first, np.arange(len(owner))]
        member = ranked == value
        lead = np.argmax(member, axis=0)
        alike = np.where(member, twin == twin[lead, np.arange(len(owner))], True).all(axis=0) | tree
        pick = member & (~alike | (np.arange(size)[:, None] == lead))
        node, row = np.nonzero(pick)
        owner, colour, depth = owner[row], colour[:, row], depth[:, row]
        out_hash, in_hash, twin = out_hash[:, row], in_hash[:, row], twin[:, row]
        colour[node, np.arange(len(row))] = mix(colour[node, np.arange(len(row))] + _SALT_MARK)
        colour = _refine(colour, batch.take(owner), out_hash, in_hash, size)
    return np.concatenate(done_owner), np.concatenate(done_order, axis=1)


def _forms(batch, order, alphabet):
    """The patterns with nodes renamed by ``order`` (n, patterns), and one row of integers each that says all."""
    total, size = batch.nodes.shape
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(size)[:, None], axis=0)
    row = np.arange(total)[:, None]
    real = batch.argument != NO_EDGE
    src, dst = place[batch.src, row], place[batch.dst, row]
    labels = len(alphabet.arguments)
    packed = np.where(real, (src * 16 + dst) * labels + batch.argument, _PAD)
    by_edge = np.argsort(packed, axis=1, kind="stable")
    pick = lambda values: np.take_along_axis(values, by_edge, axis=1)  # noqa: E731
    src, dst, argument, count = pick(src * real), pick(dst * real), pick(batch.argument), pick(batch.count)
    nodes = np.take_along_axis(batch.nodes, order.T, axis=1)
    return Batch(nodes, src, dst, argument, count), np.concatenate([nodes, pick(packed), count], axis=1)


def _keys(batch, form):
    """The rows of ``form`` as bytes, without the padding, so that equal patterns agree whatever their batch's width."""
    size, width = batch.nodes.shape[1], batch.src.shape[1]
    used = (batch.argument != NO_EDGE).sum(axis=1)
    if (used == width).all():
        return [row.tobytes() for row in form]
    return [np.concatenate([row[: size + n], row[size + width : size + width + n]]).tobytes()
            for row, n in zip(form, used, strict=True)]  # fmt: skip


def pattern_id(apis, edges) -> str:
    """``p`` and 12 hexadecimal digits of the SHA-256 of a pattern in canonical order."""
    text = _as_json([list(apis), [list(edge) for edge in edges]])
    return "p" + hashlib.sha256(text.encode()).hexdigest()[:12]
