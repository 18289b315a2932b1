"""The generate step's own logic; that the output is current is checked by `nox -s generate -- --check`."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CLIENT = Path(__file__).parents[2] / "generated_client" / "rollout_control_client"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", CLIENT / "_codegen" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal trees."""
    for tree in ("fresh", "present"):
        (tmp_path / tree / "models").mkdir(parents=True)
        (tmp_path / tree / "client.py").write_text("one = 1\n")
        (tmp_path / tree / "models" / "call.py").write_text("two = 2\n")
    return tmp_path / "fresh", tmp_path / "present"


def test_equal_trees_have_no_difference(generate: ModuleType, trees: tuple[Path, Path]) -> None:
    fresh, present = trees
    (present / "__pycache__").mkdir()
    (present / "__pycache__" / "client.cpython-311.pyc").write_bytes(b"compiled")

    assert generate.compare(fresh, present) == []


def test_a_missing_an_extra_and_a_changed_file_are_named(generate: ModuleType, trees: tuple[Path, Path]) -> None:
    fresh, present = trees
    (present / "client.py").unlink()
    (present / "models" / "stale.py").write_text("")
    (present / "models" / "call.py").write_text("two = 2 \n")

    assert generate.compare(fresh, present) == [
        "missing: client.py",
        "extra: models/stale.py",
        "differs: models/call.py",
    ]


def test_a_missing_folder_is_a_difference(generate: ModuleType, trees: tuple[Path, Path]) -> None:
    fresh, present = trees

    assert generate.compare(fresh, present / "nowhere") == ["missing: client.py", "missing: models/call.py"]


def test_references_to_scalars_are_inlined_with_what_stands_beside_them(generate: ModuleType) -> None:
    schemas = {
        "Count": {"type": "integer", "minimum": 0, "description": "A number."},
        "Call": {"type": "object", "properties": {}},
    }
    document = {
        "length": {"$ref": "#/components/schemas/Count", "description": "A length."},
        "calls": {"type": "array", "items": {"$ref": "#/components/schemas/Call"}},
        "counts": [{"$ref": "#/components/schemas/Count"}],
        "answer": {"$ref": "#/components/responses/Gone"},
    }

    assert generate.inline_scalars(document, schemas) == {
        "length": {"type": "integer", "minimum": 0, "description": "A length."},
        "calls": {"type": "array", "items": {"$ref": "#/components/schemas/Call"}},
        "counts": [{"type": "integer", "minimum": 0, "description": "A number."}],
        "answer": {"$ref": "#/components/responses/Gone"},
    }


def test_every_generated_module_names_its_source_and_the_command(generate: ModuleType) -> None:
    modules = list((CLIENT / "_generated").rglob("*.py"))

    assert len(modules) > 10
    for module in modules:
        assert module.read_text(encoding="utf-8").startswith(generate.HEADER)
