"""What several test files share."""

import pytest


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory):
    """The study ``tiny``, complete with its tables, made once for the whole session; tests must not change it."""
    from sortlib.pipeline import complete
    from sortlib.study import Study, load_config

    directory = tmp_path_factory.mktemp("studies") / "tiny"
    return complete(Study.create(load_config("tiny"), directory), progress=False)
