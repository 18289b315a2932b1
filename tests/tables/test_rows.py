"""The examples in the docstring of `to_rows` are run with the libraries that they name."""

import doctest
from pathlib import Path

import msgspec
from rollout_control_client import RolloutManifest, rollout_tree

VECTORS = Path(__file__).parents[1] / "peer_vectors"


def test_the_examples() -> None:
    manifest = msgspec.json.decode((VECTORS / "linear-3.manifest.json").read_bytes(), type=RolloutManifest)
    done = doctest.testmod(rollout_tree, extraglobs={"manifest": manifest})
    assert done.attempted >= 5
    assert done.failed == 0
