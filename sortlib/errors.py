"""The one exception class for mistakes that a user can mend, and words for it. Standard library only."""

import difflib


class SortError(Exception):
    """A mistake in the input: what is wrong, where, and the valid choices, in one line.

    The command line prints the message and exits with 2; notebooks show it as it is.
    """


# What a user's code may raise, sys.exit() too, which must not end this process unseen. Not an interrupt, which is meant
# for the whole command.
RAISED = (Exception, SystemExit, GeneratorExit)


def choices(values, limit=12) -> str:
    """The valid choices as text: sorted, and cut with a count where there are many."""
    names = sorted(str(value) for value in values)
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def suggestion(name, known) -> str:
    """``; did you mean 'resnet18'?`` for the near matches of ``name`` among ``known``, or an empty string."""
    near = difflib.get_close_matches(str(name), [str(value) for value in known], n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(value) for value in near)}?" if near else ""
