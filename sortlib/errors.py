"""The one exception class for mistakes that a user can mend."""


class SortError(Exception):
    """A mistake in the input: what is wrong, where, and the valid choices, in one line.

    The command line prints the message and exits with 2; notebooks show it as it is.
    """


def choices(values, limit=12) -> str:
    """The valid choices as text: sorted, and cut with a count where there are many."""
    names = sorted(str(value) for value in values)
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
