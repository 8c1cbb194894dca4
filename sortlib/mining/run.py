"""The course of a mining run: which patterns to try next, and which way to grow each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sortlib.mining.canonical import NO_EDGE, Batch, Canonical, canonical
from sortlib.mining.corpus import Corpus
from sortlib.mining.growth import Jobs
from sortlib.mining.subpatterns import without_edge, without_leaf
from sortlib.mining.team import Team


@dataclass
class Found:
    """Frequent patterns with the same number of nodes and edges.

    ``graphs`` and ``partial`` are packed bits, a row a pattern: the graphs that hold it, and those among them where
    not all embeddings are at hand (None if there are none). ``held`` counts the embeddings; ``kept`` are those to be
    returned.
    """

    form: Canonical
    graphs: np.ndarray
    partial: np.ndarray | None
    held: np.ndarray
    kept: list[tuple[np.ndarray, np.ndarray]]

    @property
    def batch(self):
        return self.form.batch


def support(graphs: np.ndarray) -> np.ndarray:
    """Number of graphs in each row of packed bits."""
    return np.bitwise_count(graphs).sum(axis=1, dtype=np.int64)


def _merge_counts(answers):
    """One list of extensions with their graphs, from those of all shards."""
    columns = [np.concatenate(parts) for parts in zip(*answers, strict=True)]
    if len(answers) == 1 or not len(columns[0]):
        return columns
    order = np.lexsort(columns[-2::-1])
    columns = [column[order] for column in columns]
    names = np.stack(columns[:-1])
    start = np.flatnonzero(np.append(True, (names[:, 1:] != names[:, :-1]).any(axis=0)))
    size = np.diff(np.append(start, len(order)))
    graphs = columns[-1][start]
    for k in range(1, len(answers)):  # each shard names an extension once
        graphs[size > k] |= columns[-1][start[size > k] + k]
    return [*(column[start] for column in columns[:-1]), graphs]


def _merge_state(answers):
    counts = sum(answer[0] for answer in answers)
    graphs = np.bitwise_or.reduce([answer[1] for answer in answers])
    partial = [answer[2] for answer in answers if answer[2] is not None]
    return counts, graphs, np.bitwise_or.reduce(partial) if partial else None


class Run:
    """One run; ``found`` holds the results of the sizes up to ``complete``."""

    def __init__(self, corpus: Corpus, min_support, max_nodes, limit, team: Team, report):
        self.corpus, self.alphabet, self.min_support, self.max_nodes = corpus, corpus.alphabet, min_support, max_nodes
        self.limit, self.report = limit, report
        self.found: list[Found] = []
        self.complete, self.covered, self.total = 1, {}, 0
        self.dense_sizes: set[int] = set()
        self.team = team
        team.share(corpus, limit)

    def mine(self):
        """Find everything; may be ended by KeyboardInterrupt between or within sizes."""
        trees = self._seeds()
        for size in range(2, self.max_nodes + 1):
            if size > 2:
                trees = self._grow(trees, size)
                if trees is None:
                    break
            self.covered[size] = np.bitwise_or.reduce(self.team.call("reached"))
            found = [trees, *self._close(trees)]
            if any(part.partial is not None for part in found):
                self.dense_sizes.add(size)
            self.found += found
            self.total += sum(len(part.batch) for part in found)
            self.complete = size
            self.report(size, 1.0, self.total)
        self.complete = self.max_nodes

    def _seeds(self):
        triples = self.corpus.triples
        zero, one = np.zeros((len(triples), 1), np.int64), np.ones((len(triples), 1), np.int64)
        form = canonical(Batch(triples[:, [0, 2]], zero, one, triples[:, 1:2], one), self.alphabet, tree=True)
        counts, graphs, partial = _merge_state(self.team.call("seed"))
        return Found(form, graphs, partial, counts, self.team.call("kept"))

    # growing trees by a node

    def _grow(self, trees: Found, size: int):
        """All frequent trees with one node more than ``trees``; None if there are none."""
        loose = np.zeros(len(trees.batch), np.int64) if trees.partial is None else support(trees.partial)
        # where embeddings are missing, an extension may be frequent that is seen in fewer graphs
        threshold = np.maximum(1, self.min_support - loose)
        pattern, at, kind, graphs = self._seen_new_nodes(trees, threshold)
        self.report(size, 0.3, self.total)
        if trees.partial is not None:
            pattern, at, kind, graphs = self._all_new_nodes(trees, loose, pattern, at, kind, graphs)
        likely = support(graphs) + loose[pattern] >= self.min_support
        pattern, at, kind, graphs = pattern[likely], at[likely], kind[likely], graphs[likely]
        if not len(pattern):
            return None
        # an extension of a symmetric pattern at any of several interchangeable nodes is one and the same
        code, place = np.nonzero(trees.form.orbit[pattern] == at[:, None])
        form = canonical(self._with_node(trees.batch, pattern[code], place, kind[code]), self.alphabet, tree=True)
        width = np.bincount(code, minlength=len(pattern))
        lead = np.concatenate([[0], np.cumsum(width)[:-1]])
        name = _numbered([form.keys[k] for k in lead.tolist()])
        new, known = self._supported(form.take(lead), name, graphs, [trees], without_leaf)
        cost = trees.held[pattern] * width + loose[pattern] * (1 << 40)
        best = _cheapest(name, cost, new)
        if not len(best):
            return None
        target = np.full(len(pattern), -1)
        target[best] = np.arange(len(best))
        job = np.flatnonzero(target[code] >= 0)
        jobs = Jobs(target[code[job]], pattern[code[job]], place[job], kind[code[job]], form.order[job])
        form = form.take(lead[best])
        thin = self.limit if size == self.max_nodes else None
        state = self.team.call("grow", jobs, form.batch, form.tied, thin)
        self.report(size, 0.8, self.total)
        return self._settled(state, form, known[name[best]], trees=True)

    def _seen_new_nodes(self, trees, threshold):
        """The extensions by a node that occur in enough graphs, by all shards together."""
        size, kinds = trees.batch.nodes.shape[1], max(self.corpus.kinds, 1)
        least = threshold if not self.team.workers else np.ones_like(threshold)
        answers = self.team.call("count_nodes", trees.form.orbit, least)
        code, which = np.unique(np.concatenate([answer[0] for answer in answers]), return_inverse=True)
        count = np.bincount(which, weights=np.concatenate([answer[1] for answer in answers]), minlength=len(code))
        code = code[count >= threshold[code // (size * kinds)]]
        graphs = np.bitwise_or.reduce(self.team.call("extension_graphs", code))
        return code // (size * kinds), code // kinds % size, code % kinds, graphs

    def _all_new_nodes(self, trees, loose, pattern, at, kind, graphs):
        """Add the extensions that no embedding at hand shows, of patterns dense in enough graphs."""
        patterns, size = trees.batch.nodes.shape
        kinds = self.corpus.kinds
        seen = np.zeros((patterns, size, kinds), bool)
        seen[pattern, at, kind] = True
        extra = (self.corpus.kind_api >= 0)[trees.batch.nodes] & ~seen
        extra &= (trees.form.orbit == np.arange(size))[:, :, None] & (loose >= self.min_support)[:, None, None]
        more = np.nonzero(extra)
        none = np.zeros((len(more[0]), graphs.shape[1]), np.uint8)
        return [np.concatenate(pair) for pair in zip((pattern, at, kind, graphs), (*more, none), strict=True)]

    def _with_node(self, old, pattern, place, kind):
        """Patterns with one node more, hanging on ``place`` over a slot of ``kind``."""
        batch, size, corpus = old.take(pattern), old.nodes.shape[1], self.corpus
        api = batch.nodes[np.arange(len(pattern)), place]
        out = corpus.kind_out[api, kind] == 1
        new = (
            corpus.kind_api[api, kind],
            np.where(out, place, size),
            np.where(out, size, place),
            corpus.kind_argument[api, kind],
            np.ones(len(pattern), np.int64),
        )
        old_columns = (batch.nodes, batch.src, batch.dst, batch.argument, batch.count)
        return Batch(*(np.concatenate([a, b[:, None]], axis=1) for a, b in zip(old_columns, new, strict=True)))

    # closing edges

    def _close(self, trees: Found):
        """Cyclic patterns on the nodes of ``trees``, one edge more at a time."""
        old = trees
        while (step := self._close_one(old)) is not None:
            yield step
            old = step

    def _close_one(self, old: Found):
        batch, tied = old.batch, old.form.tied
        loose = np.zeros(len(batch), np.int64) if old.partial is None else support(old.partial)
        columns = _merge_counts(self.team.call("count_edges", batch))
        if old.partial is not None:
            columns = self._all_new_edges(batch, loose, *columns)
        # equal extensions of a symmetric pattern may have different names, so their support is known only together
        likely = tied[columns[0]] | (support(columns[4]) + loose[columns[0]] >= self.min_support)
        pattern, src, dst, argument, graphs = (column[likely] for column in columns)
        if not len(pattern):
            return None
        form = canonical(_with_edge(batch, pattern, src, dst, argument), self.alphabet)
        name = _numbered(form.keys)
        new, known = self._supported(form, name, graphs, [old], without_edge)
        # the ways to a new pattern: all its names in one old pattern
        order = np.lexsort((pattern, name))
        start = np.append(True, np.diff(name[order]).astype(bool) | np.diff(pattern[order]).astype(bool))
        group = np.cumsum(start) - 1
        lead = order[start]
        cost = old.held[pattern[lead]] * np.bincount(group) + loose[pattern[lead]] * (1 << 40)
        best = _cheapest(name[lead], cost, new)
        if not len(best):
            return None
        target = np.full(len(lead), -1)
        target[best] = np.arange(len(best))
        wanted = (target[group] >= 0) & (start | tied[pattern[order]])  # one name is enough without symmetry
        job = order[wanted]
        jobs = Jobs(target[group[wanted]], pattern[job], src[job], dst[job], form.order[job], argument[job])
        form = form.take(lead[best])
        state = self.team.call("close", jobs, batch, form.batch, form.tied)
        return self._settled(state, form, known[name[lead[best]]], trees=False)

    def _all_new_edges(self, batch, loose, pattern, src, dst, argument, graphs):
        """Add the edges that no embedding at hand shows, in patterns dense in enough graphs."""
        patterns, size = batch.nodes.shape
        corpus, labels = self.corpus, len(self.alphabet.arguments)
        code = ((pattern * size + src) * size + dst) * labels + argument
        often = np.zeros((len(self.alphabet.apis), labels, len(self.alphabet.apis)), np.int64)
        ends = corpus.node_api[corpus.link_src], corpus.link_argument, corpus.node_api[corpus.link_dst]
        np.maximum.at(often, ends, corpus.link_count)
        parts = []
        for k in np.flatnonzero(loose >= self.min_support).tolist():
            have, behind = {}, np.eye(size, dtype=bool)
            links = [column[k].tolist() for column in (batch.src, batch.dst, batch.argument, batch.count)]
            links = [link for link in zip(*links, strict=True) if link[2] != NO_EDGE]
            for s, d, a, count in links:
                have[s, d, a] = count
            for _ in range(size):
                for s, d, _a, _count in links:
                    behind[d] |= behind[s]  # behind[d, s]: s comes before d
            for s in range(size):
                for d in range(size):
                    if s != d and not behind[s, d]:
                        room = often[batch.nodes[k, s], :, batch.nodes[k, d]]
                        fits = [a for a in np.flatnonzero(room).tolist() if room[a] > have.get((s, d, a), 0)]
                        parts += [(k, s, d, a) for a in fits]
        more = np.array(parts, np.int64).reshape(-1, 4)
        more = more[~np.isin(((more[:, 0] * size + more[:, 1]) * size + more[:, 2]) * labels + more[:, 3], code)]
        none = np.zeros((len(more), graphs.shape[1]), np.uint8)
        old = (pattern, src, dst, argument, graphs)
        return [np.concatenate(pair) for pair in zip(old, (*more.T, none), strict=True)]

    # support

    def _supported(self, form, name, graphs, before, smaller):
        """Which of the named new patterns are frequent, and the graphs that hold each.

        Without dense patterns an extension's own count is the whole truth. Otherwise the graphs are those where some
        way to the pattern shows it, and those where a search finds it; a search is needed only where every smaller
        pattern is dense.
        """
        order = np.argsort(name, kind="stable")
        start = np.flatnonzero(np.append(True, np.diff(name[order]) != 0))
        known = np.bitwise_or.reduceat(graphs[order], start, axis=0)
        if before[0].partial is None:
            return support(known) >= self.min_support, known
        old = before[0]
        place = {key: k for k, key in enumerate(old.form.keys)}
        batch = form.batch.take(order[start])
        keys = [form.keys[k] for k in order[start].tolist()]
        open_ = np.full_like(known, 255)
        for owner, less in smaller(batch):
            number = np.array([place.get(key, -1) for key in canonical(less, self.alphabet).keys], np.int64)
            # where a smaller pattern is missing or completely known, what it shows is the whole truth
            bits = np.where((number >= 0)[:, None], old.partial[number] & old.graphs[number], 0)
            open_[owner] &= bits.astype(np.uint8)
        open_ &= ~known
        open_[support(open_ | known) < self.min_support] = 0
        for answer in self.team.call("look", keys, batch, open_):
            known |= answer
        return support(known) >= self.min_support, known

    def _settled(self, answers, form, graphs, trees):
        """The new patterns, with a searched embedding in each graph that the embeddings at hand do not reach."""
        counts, shown, partial = _merge_state(answers)
        missing = graphs & ~shown
        if missing.any():
            answers = self.team.call("supply", form.keys, form.batch, missing, trees)
            counts, shown, partial = _merge_state(answers)
        if partial is not None:
            partial &= graphs
            partial = partial if partial.any() else None
        return Found(form, graphs, partial, counts, self.team.call("kept"))


def _numbered(keys):
    """Equal keys get equal numbers, counted from 0 in order of appearance."""
    number = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], np.int64)


def _cheapest(name, cost, wanted):
    """For each wanted name the place of its cheapest entry, in ascending order of place."""
    order = np.lexsort((cost, name))
    first = order[np.append(True, np.diff(name[order]) != 0)]
    return np.sort(first[wanted[name[first]]])


def _with_edge(old, pattern, src, dst, argument):
    """Patterns with one edge more: a new one, or one more beside an equal one."""
    batch = old.take(pattern).widen(old.src.shape[1] + 1)
    batch = replace(batch, **{name: getattr(batch, name).copy() for name in ("src", "dst", "argument", "count")})
    same = (batch.src == src[:, None]) & (batch.dst == dst[:, None]) & (batch.argument == argument[:, None])
    row, column = np.nonzero(same)
    batch.count[row, column] += 1
    row = np.flatnonzero(~same.any(axis=1))
    column = np.argmax(batch.argument[row] == NO_EDGE, axis=1)
    for column_name, value in (("src", src), ("dst", dst), ("argument", argument)):
        getattr(batch, column_name)[row, column] = value[row]
    batch.count[row, column] = 1
    return batch
