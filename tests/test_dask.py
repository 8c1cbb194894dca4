"""A study on a real Dask cluster: two workers, faults that stay inside their task, and no tensor that is pickled."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import faulty_backend as fault
import pandas as pd
import pytest
import torch
from test_platforms import one_line
from test_runner import HERE, chain, faulty, summary, without_times

import sortlib as sl
from sortlib.cluster import connect, resources_of
from sortlib.runner import campaign
from sortlib.runner.campaign import run
from sortlib.study import Study

distributed = pytest.importorskip("distributed", reason="needs Dask: pip install 'dask[distributed]'")


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of one thread, the second with a GPU by name; they import the tests' backend."""
    from dask import config

    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    with (
        config.set({"distributed.nanny.pre-spawn-environ.PYTHONPATH": path}),
        distributed.SpecCluster(
            scheduler={"cls": distributed.Scheduler, "options": {"dashboard_address": None, "port": 0}},
            workers={
                name: {"cls": distributed.Nanny, "options": {"nthreads": 1, "dashboard_address": None, **resources}}
                for name, resources in (("plain", {}), ("gpu", {"resources": {"GPU": 1}}))
            },
        ) as made,
    ):
        yield made


def forbid(cls, name):
    """Whoever pickles or unpickles a tensor gets an error, in whatever way it is done."""

    def refused(self, *arguments):
        raise AssertionError(f"a {type(self).__name__} was pickled")

    setattr(cls, name, refused)


def forbid_tensors(dask_worker=None):
    """In this process: no tensor, storage or array of numbers can be pickled."""
    forbid(torch.Tensor, "__reduce_ex__")
    forbid(torch.UntypedStorage, "__reduce__")
    import copyreg

    import numpy as np

    def refused(array):
        raise AssertionError("an array was pickled")

    copyreg.pickle(np.ndarray, refused)
    return os.getpid()


def allow_tensors(dask_worker=None):
    """Undo ``forbid_tensors``, as the class had no method of its own for arrays."""
    import copyreg

    import numpy as np

    copyreg.dispatch_table.pop(np.ndarray, None)


@pytest.fixture
def no_tensor_travels(cluster, monkeypatch):
    """In this process and in both workers, pickling a tensor or an array is an error."""
    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", None)
    monkeypatch.setattr(torch.UntypedStorage, "__reduce__", None)
    forbid_tensors()
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        found = client.run(forbid_tensors)
        assert len(set(found.values()) | {os.getpid()}) == 3
        yield
        client.run(allow_tensors)
    allow_tensors()


def test_the_guard_catches_a_tensor(no_tensor_travels):
    import pickle

    for thing in (torch.ones(2), torch.ones(2).numpy()):
        with pytest.raises(AssertionError, match="was pickled"):
            pickle.dumps(thing)


def test_two_workers_give_the_outcomes_of_this_process_and_pickle_no_tensor(cluster, monkeypatch, no_tensor_travels):
    monkeypatch.setattr(campaign, "SHARE", 2)
    monkeypatch.setattr(campaign, "LARGEST_SHARE", 2)
    rows = [3, fault.SEGFAULT, fault.ENDLESS, 5]
    cases = [chain(n) for n in rows]
    with connect(cluster.scheduler_address) as executor:
        outcomes = run(cases, "cpu", faulty(), executor=executor, timeout=5, progress=False)
    direct = run(cases, "cpu", faulty(), timeout=5, progress=False)
    pd.testing.assert_frame_equal(without_times(outcomes), without_times(direct))
    found = dict(zip(rows, summary(outcomes), strict=True))
    assert found[3] == found[5] == [("ok", "")] * 3
    assert [found[n][1] for n in (fault.SEGFAULT, fault.ENDLESS)] == [("crash", "candidate"), ("timeout", "candidate")]
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        assert len(client.scheduler_info()["workers"]) == 2, "neither of Dask's own workers died"


def test_resources_place_tasks(cluster):
    with connect(cluster.scheduler_address, {"GPU": 1}) as executor:
        places = {executor.submit(lambda n: distributed.get_worker().name, n).result() for n in range(4)}
    assert places == {"gpu"}


def test_a_study_runs_on_an_existing_cluster(cluster, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "zoo: tiny\nmining: {min_support: 2, max_nodes: 3}\nplatforms: {candidate: 'cpu:baseline'}\n"
        "generation: {per_pattern: 1, inputs_per_api: 1, max_patterns: 6}\n"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "sortlib", "study", file, "--out", tmp_path / "run", "--upto", "run", "--quiet",
         "--scheduler", cluster.scheduler_address, "--resource", "GPU=1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    study = Study(tmp_path / "run")
    assert set(study.all_outcomes["case"]) == {case.id for case in study.cases}
    assert (study.all_outcomes.status == "ok").all()
    workers = json.loads((tmp_path / "run" / "manifest.json").read_text())["workers"]
    assert set(workers) == {"cpu", "cpu:baseline"} and workers["cpu"]["torch"] == torch.__version__


def test_a_lost_machine_is_one_line():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        process = pool.submit(os.getpid).result()
        busy = pool.submit(time.sleep, 60)  # the share waits behind it
        timer = threading.Timer(0.5, os.kill, (process, signal.SIGKILL))
        timer.start()
        one_line(lambda: run([chain(3)], executor=pool, progress=False), "lost a share of 1 cases", "BrokenProcessPool")
        assert busy.exception() is not None


def test_an_address_that_is_none_leaves_no_traceback(tmp_path):
    """Dask's client, once made, complains of itself 20 s later."""
    found = subprocess.run([sys.executable, "-m", "sortlib", "study", "tiny", "--scheduler", "8786",
                            "--out", tmp_path / "run", "--quiet"],
                           capture_output=True, text=True)  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.strip() == ("sortlib: scheduler 8786: no Dask scheduler answers there: "
                                    "missing port number in address '8786'")  # fmt: skip


def test_mistakes_about_a_cluster_are_one_line(cluster, monkeypatch):
    def opened(*arguments):
        with connect(*arguments):
            pass

    monkeypatch.setattr("sortlib.cluster._PATIENCE", 2)
    started = time.monotonic()
    one_line(lambda: opened("tcp://127.0.0.1:9"), "tcp://127.0.0.1:9", "no Dask scheduler answers")
    assert time.monotonic() - started < 60
    one_line(lambda: opened("nonsense://x"), "nonsense://x")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:  # a server, but no scheduler
        threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"tcp://127.0.0.1:{other.server_port}"
        one_line(lambda: opened(address), address, "no Dask scheduler answers")
        other.shutdown()
    one_line(lambda: opened(cluster.scheduler_address, {"GPU": 2}), "no worker offers GPU=2", "GPU=1")
    one_line(lambda: opened(cluster.scheduler_address, {"TPU": 1}), "no worker offers TPU=1")
    for text in ("GPU", "GPU=", "=1", "GPU=0", "GPU=many", "GPU=nan"):
        one_line(lambda text=text: resources_of([text]), repr(text), "GPU=1")
    assert resources_of(["GPU=1", "memory=2e9"]) == {"GPU": 1.0, "memory": 2e9}
    monkeypatch.setattr(sl, "__version__", "0.0.1")
    one_line(lambda: opened(cluster.scheduler_address), "has sortlib", "here is 0.0.1")
