"""What several test files share."""

import pytest
import torch


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory):
    """The study ``tiny``, complete with its tables, made once for the whole session; tests must not change it."""
    from sortlib.pipeline import complete
    from sortlib.study import Study, load_config

    directory = tmp_path_factory.mktemp("studies") / "tiny"
    return complete(Study.create(load_config("tiny"), directory), progress=False)


@pytest.fixture
def one_thread():
    """Threads that wait for each other take many times as long on a machine that others use as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
