"""A file with one wrong bit, or a page that was zeroed, cut off or moved: no operation answers anything wrong.

The environment variable LEDGER_FLIPS says how many bits are tried; `nox -s crash` tries 2000.
"""

import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from damaged_file import DAMAGED, Answers, answers, fill, wrong_answers
from rollout_control_server.ledger.results import Verification
from rollout_control_server.ledger.sqlite.connections import connect

FLIPS = int(os.environ.get("LEDGER_FLIPS", "24"))
PAGES = 400 if FLIPS >= 2000 else 6
"""How many pages are zeroed, cut off and swapped: all of them, or some."""
HEADER_BITS = 800
PAGE_BYTES = 8192

Try = Callable[[bytes], Answers]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of 200 rollouts that nobody has open; not to be opened."""
    path = tmp_path_factory.mktemp("whole") / "ledger.sqlite"
    fill(path)
    return path


@pytest.fixture(scope="module")
def expected(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the whole file answers."""
    copy = tmp_path_factory.mktemp("expected") / "ledger.sqlite"
    copy.write_bytes(whole.read_bytes())
    right = answers(copy)
    assert DAMAGED not in right.values()
    return right


@pytest.fixture
def try_file(tmp_path: Path) -> Try:
    """Returns what a file of this content answers."""

    def answers_of(content: bytes) -> Answers:
        path = tmp_path / "damaged.sqlite"
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        path.write_bytes(content)
        return answers(path)

    return answers_of


def is_named(found: Answers) -> bool:
    """Tells whether the damage is named by `verify`, or keeps the ledger from being opened."""
    verification = found.get("verify", DAMAGED)
    return verification == DAMAGED or (isinstance(verification, Verification) and verification.damages != [])


def check(found: Answers, expected: Answers) -> None:
    assert is_named(found)
    assert {name: answer for name, answer in wrong_answers(found, expected).items() if name != "verify"} == {}


def test_no_bit_that_is_flipped_makes_an_answer_wrong(whole: Path, expected: Answers, try_file: Try) -> None:
    content = whole.read_bytes()
    for number in range(FLIPS):
        bit = random.randrange(HEADER_BITS if number % 8 == 0 else 8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        check(try_file(flipped), expected)


def test_no_bit_of_the_files_beginning_is_missed(whole: Path, try_file: Try) -> None:
    """Those that say what the file is, and that its pages have checksums."""
    content = whole.read_bytes()
    for byte in (0, 15, 17, 18, 19, 20, 60, 68, 71):
        flipped = bytearray(content)
        flipped[byte] ^= 4
        assert is_named(try_file(flipped))


def some_pages(content: bytes, count: int) -> list[int]:
    """Returns pages other than the first, without which nothing tells that the file is a ledger."""
    pages = range(1, len(content) // PAGE_BYTES)
    return random.sample(pages, min(count, len(pages)))


def test_no_page_that_is_zeroed_makes_an_answer_wrong(whole: Path, expected: Answers, try_file: Try) -> None:
    """A page of zeros has the checksum of a page of zeros."""
    content = whole.read_bytes()
    for page in some_pages(content, PAGES):
        zeroed = bytearray(content)
        zeroed[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
        check(try_file(zeroed), expected)


def test_no_file_that_is_cut_off_makes_an_answer_wrong(whole: Path, expected: Answers, try_file: Try) -> None:
    content = whole.read_bytes()
    for page in some_pages(content, PAGES):
        check(try_file(content[: page * PAGE_BYTES]), expected)
        check(try_file(content[: page * PAGE_BYTES + random.randrange(PAGE_BYTES)]), expected)


def test_pages_that_have_changed_places_are_named(whole: Path, try_file: Try) -> None:
    """A checksum says nothing of a page's place, so operations can answer wrongly; `verify` does not."""
    with closing(connect(whole)) as connection:
        trees: dict[str, list[int]] = {}
        for name, page in connection.execute("SELECT name, pageno FROM dbstat WHERE pagetype = 'leaf'"):
            trees.setdefault(name, []).append(page - 1)
    content = whole.read_bytes()
    large = [pages for pages in trees.values() if len(pages) > 1]
    for number in range(PAGES):
        one, other = random.sample(large[number % len(large)], 2)
        swapped = bytearray(content)
        for page, source in ((one, other), (other, one)):
            swapped[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = content[
                source * PAGE_BYTES : (source + 1) * PAGE_BYTES
            ]
        assert is_named(try_file(swapped))
