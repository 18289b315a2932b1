"""The synchronous client: the same surface and promises, in threads, beside a running loop and after a fork."""

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rollout_control_client import (
    RolloutControlClient,
    RolloutControlError,
    RolloutRetiredError,
    SyncManifestIterator,
    SyncRolloutControlClient,
)
from rollout_control_server import MemoryLedger
from rollout_control_server.samples import sample_conversation
from served import TOKEN, controlled


def public(of: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(of) if not name.startswith("_")}


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    asynchronous, synchronous = public(RolloutControlClient), public(SyncRolloutControlClient)
    asynchronous["close"] = asynchronous.pop("aclose")
    assert asynchronous.keys() == synchronous.keys()
    for name in asynchronous:
        expected, own = inspect.signature(asynchronous[name]), inspect.signature(synchronous[name])
        assert expected.parameters == own.parameters, name
    init = inspect.signature(RolloutControlClient)
    assert init.parameters == inspect.signature(SyncRolloutControlClient).parameters


@pytest.fixture
def base_url() -> Any:
    ledger = MemoryLedger()
    for index in range(20):
        for commit in sample_conversation(f"r{index}", 5):
            asyncio.run(ledger.record(commit))
    asyncio.run(ledger.retire(["gone"]))
    with controlled(ledger) as control:
        yield control.base_url


def test_a_rollout_is_read_and_retired(base_url: str) -> None:
    with SyncRolloutControlClient(base_url, TOKEN) as client:
        assert len(client.manifest("r0").records) == 5
        with pytest.raises(RolloutRetiredError):
            client.manifest("gone")
        manifests = client.manifests(["r1", "gone", "r2", "r1"])
        assert manifests.total == 3
        outcomes = dict(manifests)
        assert isinstance(outcomes["gone"], RolloutRetiredError)
        assert sorted(outcomes) == ["gone", "r1", "r2"]
        assert client.retire(["r0", "r1"], wait_s=1).removed == ["r0", "r1"]
        assert client.delete(["r1", "r2"]).removed == ["r2"]
        with pytest.raises(ValueError, match="invalid rollout id"):
            client.manifest("a/b")
    for call in (lambda: client.manifest("r0"), lambda: client.manifests(["r0"]), lambda: client.retire(["r0"])):
        with pytest.raises(RolloutControlError, match="closed"):
            call()


def test_an_iteration_may_be_left_early(base_url: str) -> None:
    with SyncRolloutControlClient(base_url, TOKEN) as client:
        manifests = client.manifests([f"r{index}" for index in range(20)])
        next(manifests)
        manifests.close()
        assert list(manifests) == []
        assert isinstance(client.manifests(["r3"]), SyncManifestIterator)


async def test_it_works_beside_a_running_loop_as_in_a_notebook(base_url: str) -> None:
    with SyncRolloutControlClient(base_url, TOKEN) as client:
        assert len(client.manifest("r4").records) == 5


def test_threads_share_one(base_url: str) -> None:
    with SyncRolloutControlClient(base_url, TOKEN) as client, ThreadPoolExecutor(8) as threads:
        read = threads.map(lambda index: len(client.manifest(f"r{index % 20}").records), range(1000))
        assert set(read) == {5}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_begins_anew(base_url: str) -> None:
    with SyncRolloutControlClient(base_url, TOKEN) as client:
        assert len(client.manifest("r5").records) == 5
        pid = os.fork()
        if pid == 0:
            try:
                good = len(client.manifest("r6").records) == 5
                client.close()
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(client.manifest("r7").records) == 5


def test_a_client_that_is_dropped_leaves_neither_thread_nor_socket(base_url: str) -> None:
    before = threading.active_count()
    client = SyncRolloutControlClient(base_url, TOKEN)
    client.manifest("r8")
    assert threading.active_count() == before + 1
    del client
    gc.collect()
    assert threading.active_count() == before


def test_a_client_that_is_left_open_lets_the_interpreter_end_without_a_warning(base_url: str) -> None:
    program = (
        "import sys; from rollout_control_client import SyncRolloutControlClient\n"
        "client = SyncRolloutControlClient(*sys.argv[1:])\n"
        "print(len(client.manifest('r9').records)); next(client.manifests(['r9', 'r10']))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, base_url, TOKEN],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("5\n", "")


INTERRUPTED = """
import asyncio, os, signal, threading
import httpx
from rollout_control_client import SyncRolloutControlClient

cancelled = threading.Event()

async def hang(request):
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        cancelled.set()

def interrupt(number, frame):
    if frame.f_code.co_name == "wait":  # the call waits for its answer
        raise KeyboardInterrupt
    signal.raise_signal(number)  # it does not wait yet: the signal comes again

signal.signal(signal.SIGINT, interrupt)
client = SyncRolloutControlClient("http://control.test", "token", transport=httpx.MockTransport(hang))
try:
    client.manifest("r")
except KeyboardInterrupt:
    print("interrupted", cancelled.wait(30))
"""


def test_an_interrupted_call_is_cancelled() -> None:
    """In a process of its own: whoever runs these tests in several processes may ignore SIGINT in them."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("interrupted True\n", "")


def test_the_asynchronous_client_says_what_to_write_in_place_of_with_and_for() -> None:
    client = RolloutControlClient("http://control.test", "token")
    with pytest.raises(TypeError, match="'async with', or use SyncRolloutControlClient"), client:
        pass
    with pytest.raises(TypeError, match="'async for', or use SyncRolloutControlClient"):
        iter(client.manifests(["r"]))
