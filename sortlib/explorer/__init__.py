"""Looking into a study by hand: choose a pattern and a case, see what was recorded, drawn and computed, run it anew."""

from __future__ import annotations


def explore(study, pattern_id: str = "", case_id: str = ""):
    """An explorer of a study: a widget in a notebook, and a still picture where a notebook is run without a browser.

    Parameters
    ----------
    study : study whose patterns were mined; what was not run yet can be run in the explorer.
    pattern_id : pattern to start with; that of the case, or one with a join, if not given.
    case_id : case to start with; the most telling one of the pattern if not given.

    Returns
    -------
    sortlib.explorer.widget.Explorer

    Raises
    ------
    SortError
        No such pattern or case.
    """
    from sortlib.explorer.widget import Explorer
    from sortlib.study import opened

    return Explorer(opened(study, "explore"), pattern_id, case_id)
