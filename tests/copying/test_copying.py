"""Copies between ledgers, and to and from export files."""

import asyncio
import contextlib
import gzip
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import PostgresServer, running_postgres
from rollout_control_server import (
    CaptureCommit,
    CaptureLedger,
    LedgerCorruptError,
    LedgerError,
    LedgerRefusedError,
    LedgerUnavailableError,
    MemoryLedger,
    open_ledger,
)
from rollout_control_server.copying import (
    CopyCounts,
    CopyJournal,
    ExportFile,
    LedgerSource,
    MixedLedgersError,
    copy_rollouts,
    differing_rollouts,
    write_export_file,
)
from rollout_control_server.ledger.results import RolloutExport
from rollout_control_server.records import ParentLookup
from rollout_control_server.samples import changed, sample_commit, sample_conversation


async def copy(source: CaptureLedger, destination: CaptureLedger, journal: Path, **options: Any) -> CopyCounts:
    return await copy_rollouts(
        LedgerSource(source, "source"), destination, CopyJournal(journal, "source", "destination"), **options
    )


async def different(source: CaptureLedger, destination: CaptureLedger) -> list[str]:
    compared = differing_rollouts(LedgerSource(source, "source"), LedgerSource(destination, "destination"))
    return [rollout_id async for rollout_id in compared]


async def record(ledger: CaptureLedger, commits: list[CaptureCommit]) -> None:
    for commit in commits:
        await ledger.record(commit)


@pytest.fixture
async def source() -> AsyncIterator[MemoryLedger]:
    async with MemoryLedger() as ledger:
        yield ledger


@pytest.fixture
async def destination() -> AsyncIterator[MemoryLedger]:
    async with MemoryLedger() as ledger:
        yield ledger


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


async def test_a_second_pass_copies_what_has_changed(source: Any, destination: Any, journal: Path) -> None:
    """Rows that were added, what was retired or deleted, what began, and what began again."""
    for name in ("same", "grows", "retired", "deleted", "again"):
        await record(source, sample_conversation(name, 3))
    await source.retire(["fence", "lifted"])
    first = await copy(source, destination, journal)
    assert (first.rollouts, first.rows, first.fences, first.unchanged) == (5, 15, 2, 0)
    await record(source, sample_conversation("grows", 5))
    await source.record_failure("same-not", "f", "reason")
    await source.retire(["retired"])
    await source.delete(["deleted", "again", "lifted"])
    await record(source, [sample_commit("again", "another")])
    second = await copy(source, destination, journal)
    assert (second.rollouts, second.rows, second.fences) == (3, 7, 1)
    assert (second.unchanged, second.cleared, second.refused) == (2, 2, [])
    assert await different(source, destination) == []
    third = await copy(source, destination, journal)
    assert third == CopyCounts(unchanged=6)


async def test_without_a_journal_a_copy_goes_on_with_what_it_finds(
    source: Any, destination: Any, tmp_path: Path
) -> None:
    """What is equal is left, and what is the beginning of the source's is its earlier copy."""
    await record(source, sample_conversation("same", 3))
    await record(source, sample_conversation("grows", 3))
    await source.retire(["fence"])
    await copy(source, destination, tmp_path / "one")
    await record(source, sample_conversation("grows", 5))
    await record(source, sample_conversation("new", 2))
    counts = await copy(source, destination, tmp_path / "other")
    assert (counts.rollouts, counts.rows, counts.unchanged, counts.refused) == (2, 7, 2, [])
    assert await different(source, destination) == []


@pytest.mark.parametrize("own", ["other rows", "more rows", "a fence", "another id"])
async def test_ledgers_are_not_mixed_unless_asked(own: str, source: Any, destination: Any, journal: Path) -> None:
    await record(source, sample_conversation("r", 3))
    await record(source, sample_conversation("s", 3))
    match own:
        case "other rows":
            await record(destination, [sample_commit("r", "own")])
        case "more rows":
            await copy(source, destination, journal.with_name("first"))
            await record(destination, [sample_commit("r", "own")])
        case "a fence":
            await destination.retire(["r"])
        case "another id":
            await record(destination, [sample_commit("own", "own")])
    before = [await destination.export(rollout_id) for rollout_id in ("own", "r", "s")]
    with pytest.raises(MixedLedgersError, match="'own'" if own == "another id" else "'r'"):
        await copy(source, destination, journal)
    assert [await destination.export(rollout_id) for rollout_id in ("own", "r", "s")] == before
    counts = await copy(source, destination, journal, into_existing=True)
    assert counts.refused == ([] if own == "another id" else ["r"])
    assert [await destination.export(rollout_id) for rollout_id in ("own", "r")] == (
        before[:2] if own != "another id" else [before[0], await source.export("r")]
    )
    assert await destination.export("s") == await source.export("s")
    # A refused rollout does not become this copy's by another pass.
    assert (await copy(source, destination, journal, into_existing=True)).refused == counts.refused


def test_a_journal_belongs_to_one_copy(journal: Path) -> None:
    first = CopyJournal(journal, "source", "destination")
    assert list(first.begin_pass()) == []
    first.end_pass()
    for other in (("source", "elsewhere"), ("elsewhere", "destination")):
        with pytest.raises(LedgerRefusedError, match="is not the journal of a copy"):
            CopyJournal(journal, *other)
    journal.write_text("rubbish\n")
    with pytest.raises(LedgerRefusedError, match="is not the journal of a copy"):
        CopyJournal(journal, "source", "destination")


class KilledError(Exception):
    """Ends a pass as a signal would: nothing is written any more."""


class DiesAtImport(MemoryLedger):
    """A destination before or after one of whose imports the copy ends."""

    imports_left = 10**9
    acknowledges = False

    async def _import(self, rollouts: list[RolloutExport]) -> None:
        self.imports_left -= 1
        if self.imports_left < 0 and not self.acknowledges:
            raise KilledError
        await super()._import(rollouts)
        if self.imports_left < 0:
            raise KilledError


@pytest.mark.parametrize("acknowledges", [False, True])
async def test_a_copy_that_was_killed_is_made_again_whatever_the_source_did(
    acknowledges: bool, source: Any, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that was written and not yet noted as written is this copy's too."""
    monkeypatch.setattr("rollout_control_server.copying.copier._BATCH_ROLLOUTS", 4)
    for number in range(30):
        await record(source, sample_conversation(f"r{number:02}", 2))
    async with DiesAtImport() as destination:
        destination.acknowledges = acknowledges
        for attempt in range(12):
            destination.imports_left = attempt % 5
            with contextlib.suppress(KilledError):
                await copy(source, destination, journal)
            # After each, what was copied may be retired, go or grow before the next attempt.
            await source.retire([f"r{attempt:02}"])
            await source.delete([f"r{attempt + 12:02}"])
            await source.record(sample_commit(f"r{attempt + 18:02}", f"more-{attempt}"))
        destination.imports_left = 10**9
        counts = await copy(source, destination, journal)
        assert counts.refused == []
        assert await different(source, destination) == []


async def test_nothing_is_lost_that_a_writer_was_acknowledged_for(tmp_path: Path, journal: Path) -> None:
    """A copy of a source in use, and a last pass after the writer has stopped."""
    stop = asyncio.Event()
    acknowledged: list[tuple[str, str]] = []
    async with open_ledger(f"sqlite:///{tmp_path}/source.sqlite") as source:

        async def write(writer: int) -> None:
            number = 0
            while not stop.is_set():
                rollout_id, call_id = f"w{writer}-{number % 7}", f"call-{number}"
                await source.record(sample_commit(rollout_id, call_id))
                acknowledged.append((rollout_id, call_id))
                number += 1

        writers = [asyncio.create_task(write(writer)) for writer in range(4)]
        async with open_ledger(f"sqlite:///{tmp_path}/destination.sqlite") as destination:
            for _ in range(5):
                await copy(source, destination, journal)
            stop.set()
            await asyncio.gather(*writers)
            await copy(source, destination, journal)
            assert await different(source, destination) == []
            copied = set()
            for rollout_id in {rollout_id for rollout_id, _ in acknowledged}:
                export = await destination.export(rollout_id)
                copied |= {(rollout_id, row.row.model_call_id) for row in export.rows}
    assert copied == set(acknowledged)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "é"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
FIELDS = st.dictionaries(st.sampled_from(["x", "y", "\x00", "é"]), JSON, max_size=2)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "rollout": st.sampled_from(["a", "a-a1", "A", "b.c", "_", "zz"]),
            "does": st.sampled_from(
                ["root", "child", "child", "child", "failure", "failure of it", "retire", "delete"]
            ),
            "of": st.integers(0, 20),
            "chain": st.sampled_from(["usual", "usual", "none", "own"]),
            "lookup": st.sampled_from(["own", "shared", "none"]),
            "capture_key": st.sampled_from([msgspec.UNSET, "a", "other"]),
            "further": FIELDS,
            "unserved": FIELDS,
        }
    ),
    max_size=25,
)


async def fill(ledger: CaptureLedger, steps: list[dict[str, Any]], part: str) -> list[tuple[str, str]]:
    """Carries out the steps, and returns the rollouts and fingerprints of all lookups.

    The names of calls begin with the part's name.
    """
    commits: dict[str, list[CaptureCommit]] = {}
    lookups: list[tuple[str, str]] = []
    for number, step in enumerate(steps):
        rollout_id = step["rollout"]
        earlier = commits.setdefault(rollout_id, [])
        parent = earlier[step["of"] % len(earlier)] if earlier else None
        match step["does"]:
            case "retire" | "delete":
                await (ledger.retire if step["does"] == "retire" else ledger.delete)([rollout_id])
                earlier.clear()
            case "failure":
                await ledger.record_failure(rollout_id, f"{part}-f{number}", "reason")
            case "failure of it" if parent is not None:
                await ledger.record_failure(rollout_id, parent.record.model_call_id, "reason")
            case _:
                commit = sample_commit(rollout_id, f"{part}-c{number}", None if step["does"] == "root" else parent)
                fingerprint = "shared" if step["lookup"] == "shared" else f"{part}-{number}"
                lookups.append((rollout_id, fingerprint))
                commit = msgspec.structs.replace(
                    changed(commit, capture_key=step["capture_key"]),
                    staging_chain={"usual": commit.staging_chain, "none": (), "own": ("q", "r")}[step["chain"]],
                    lookup=None if step["lookup"] == "none" else ParentLookup(fingerprint, number, "digest"),
                    further_fields=step["further"],
                    unserved_fields={name: value for name, value in step["unserved"].items() if name != "x"},
                )
                if await ledger.record(commit):
                    earlier.append(commit)
    return lookups


async def assert_equal(ours: CaptureLedger, theirs: CaptureLedger, lookups: list[tuple[str, str]]) -> None:
    """Compares what every reading gives, beside the rows themselves."""
    assert await different(ours, theirs) == []
    listings = [(await ledger.rollouts()).rollouts for ledger in (ours, theirs)]
    assert [entry[:-1] for entry in listings[0]] == [entry[:-1] for entry in listings[1]]
    live = [entry.rollout_id for entry in listings[0] if entry.state == "live"]
    assert await ours.manifests(live, 10**9) == await theirs.manifests(live, 10**9)
    for rollout_id, fingerprint in lookups:
        if rollout_id in live:
            found = [await ledger.find_parent(rollout_id, fingerprint, 2) for ledger in (ours, theirs)]
            assert found[0] == found[1]


@pytest.fixture(scope="module")
def postgres() -> Any:
    with running_postgres() as server:
        yield server


schemas = iter(range(10**9))


@settings(deadline=None, max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, changes=STEPS, dies_after=st.integers(0, 3))
def test_random_ledgers_are_equal_after_three_copies(
    postgres: PostgresServer, steps: list[dict[str, Any]], changes: list[dict[str, Any]], dies_after: int
) -> None:
    """SQLite to PostgreSQL, in two passes of which the first may die; to a file; to SQLite."""

    async def copy_around(folder: Path) -> None:
        async with (
            open_ledger(f"sqlite:///{folder}/first.sqlite") as first,
            open_ledger(f"{postgres.url}?schema=copy_{next(schemas)}") as second,
            open_ledger(f"sqlite:///{folder}/third.sqlite") as third,
        ):
            lookups = await fill(first, steps, "first")
            left = iter(range(dies_after))

            def advance(_: int) -> None:
                if next(left, None) is None:
                    raise KilledError

            with contextlib.suppress(KilledError):
                await copy(first, second, folder / "journal", advance=advance)
            lookups += await fill(first, changes, "second")
            await copy(first, second, folder / "journal")
            await assert_equal(first, second, lookups)
            file = folder / "export.jsonl.gz"
            await write_export_file(LedgerSource(second, "second"), file, lambda _: None)
            journal = CopyJournal(folder / "another", "file", "third")
            await copy_rollouts(ExportFile(file), third, journal)
            await assert_equal(first, third, lookups)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(copy_around(Path(folder)))


Damage = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: lines[:-1], "was cut off"),
        (lambda lines: [*lines[:-1], lines[-1][:5]], "damaged"),
        (lambda lines: [*lines[:2], lines[2][:50], *lines[3:]], "line 3 of .* is damaged"),
        (lambda lines: [lines[0], *lines[2:]], "counts other rollouts"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "not in the order"),
        (lambda lines: [lines[0], lines[1], lines[1], *lines[3:]], "not in the order"),
        (lambda lines: [*lines, lines[1]], "something follows"),
        (lambda lines: [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]], "version 2; this program reads"),
        (lambda lines: lines[1:], "is no export file"),
        (lambda lines: [], "is no export file"),
        (lambda lines: [lines[0], lines[1].replace(b'"delta_len":', b'"delta_len":9'), *lines[2:]], "damaged"),
    ],
)
def test_a_damaged_export_file_is_named_with_its_line(damage: Damage, says: str, tmp_path: Path) -> None:
    for name, open_file in (("export.jsonl", open), ("export.jsonl.gz", gzip.open)):
        file = tmp_path / name
        asyncio.run(export_three(file))
        with open_file(file, "rb") as opened:
            lines = opened.readlines()
        with open_file(file, "wb") as opened:
            opened.writelines(damage(lines))
        with pytest.raises(LedgerError, match=says):
            asyncio.run(read_all(file, tmp_path))


async def export_three(file: Path) -> None:
    async with MemoryLedger() as ledger:
        for number in range(3):
            await record(ledger, sample_conversation(f"r{number}", 2))
        assert await write_export_file(LedgerSource(ledger, "source"), file, lambda _: None) == (3, 6, 0)


async def read_all(file: Path, folder: Path) -> None:
    async with MemoryLedger() as ledger:
        await copy_rollouts(ExportFile(file), ledger, CopyJournal(folder / "journal", "file", "there"))


def test_a_file_that_is_torn_or_missing_or_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl.gz"
    asyncio.run(export_three(file))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(LedgerCorruptError, match="was cut off"):
        asyncio.run(read_all(file, tmp_path))
    with pytest.raises(LedgerUnavailableError, match="cannot read"):
        ExportFile(tmp_path / "missing").check_format()
    with pytest.raises(LedgerUnavailableError, match="cannot write"):
        asyncio.run(export_three(tmp_path / "no" / "export"))
