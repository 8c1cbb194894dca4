"""Exact frequent subgraph mining of directed labelled multigraphs: ``search.mine`` and what it stands on."""

from sortlib.mining.search import KEEP, Occurrences, PatternList, Progress, mine

__all__ = ["KEEP", "Occurrences", "PatternList", "Progress", "mine"]
