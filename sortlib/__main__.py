"""``python -m sortlib``: the command line. ``run`` works with torch and numpy alone, the rest needs all of sortlib."""

import sys


def main():
    """Entry point of ``sortlib``."""
    if sys.argv[1:2] == ["run"]:
        from sortlib.runner.command import main as run

        run(sys.argv[2:])
        return
    try:
        from sortlib.cli import main as everything
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sortlib":
            raise
        sys.exit(
            f"sortlib: {error.name} is missing here, so only 'sortlib run --against' works; see sortlib run --help"
        )
    everything()


if __name__ == "__main__":
    main()
