"""The journal: what was appended is read back, whatever else happened to the file, and compacting loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidet_build.state import Journal, Record, State

MANY = {f"name {number}": ("value " * 20, number) for number in range(10_000)}


def journal(tmp_path: Path) -> Journal:
    """A new look at the journal."""
    return Journal(str(tmp_path / "journal"))


def test_appended_is_read(tmp_path: Path) -> None:
    """The last value of a name counts, for the writer and for who comes later; a name without one has None."""
    writer = journal(tmp_path)
    writer.append({"a": 1, "b": ("x", 2)})
    writer.append({"a": 3})

    for one in (writer, journal(tmp_path)):
        assert (3, ("x", 2), None) == (one.get("a"), one.get("b"), one.get("c"))
        assert {"a", "b"} == set(one.names())


TAILS = {
    "zeros": b"\0" * 100,
    "a head": b"\xf5hb\x02",
    "a head with a length": b"\xf5hb\x02\xff\x00\x00\x00\x01\x02\x03\x04",
    "noise": b"\xf5hb\x02 half of something",
}


@pytest.mark.parametrize("tail", TAILS)
def test_torn_tail_hides_nothing(tmp_path: Path, tail: str) -> None:
    """What a crash left at the end is passed over, and what is appended after it is found."""
    journal(tmp_path).append({"a": 1})
    with (tmp_path / "journal").open("ab") as file:
        file.write(TAILS[tail])
    journal(tmp_path).append({"b": 2})

    assert (1, 2) == (journal(tmp_path).get("a"), journal(tmp_path).get("b"))


def test_cut_frame_is_none(tmp_path: Path) -> None:
    """A frame that lost its end counts for nothing."""
    journal(tmp_path).append({"a": 1})
    whole = (tmp_path / "journal").read_bytes()
    journal(tmp_path).append({"a": 2})
    content = (tmp_path / "journal").read_bytes()
    for end in range(len(whole), len(content)):
        (tmp_path / "journal").write_bytes(content[:end])

        assert 1 == journal(tmp_path).get("a")


def test_changed_byte_is_noticed(tmp_path: Path) -> None:
    """A frame of which a bit flipped counts for nothing, and those after it do."""
    journal(tmp_path).append({"a": 1})
    first = len((tmp_path / "journal").read_bytes())
    journal(tmp_path).append({"b": 2})
    content = bytearray((tmp_path / "journal").read_bytes())
    content[first - 1] ^= 1
    (tmp_path / "journal").write_bytes(content)

    assert (None, 2) == (journal(tmp_path).get("a"), journal(tmp_path).get("b"))


def test_two_writers(tmp_path: Path) -> None:
    """Writers that do not know of each other lose nothing, and who compacts keeps what the other wrote."""
    one, other = journal(tmp_path), journal(tmp_path)
    one.append(MANY)
    other.append({"other": 1})
    one.append(MANY)
    one.append(MANY)
    large = one.size()
    one.compact()
    other.append({"later": 2})

    assert one.size() < large / 2
    assert (1, 2) == (journal(tmp_path).get("other"), journal(tmp_path).get("later"))
    assert set(MANY) | {"other", "later"} == set(journal(tmp_path).names())
    assert MANY["name 77"] == journal(tmp_path).get("name 77")


def test_compacting_waits_until_it_is_worth_it(tmp_path: Path) -> None:
    """A journal without history, or a small one, stays as it is."""
    one = journal(tmp_path)
    one.append(MANY)
    before = (tmp_path / "journal").stat().st_ino
    one.compact()
    small = Journal(str(tmp_path / "small"))
    for number in range(100):
        small.append({"a": number})
    small.compact()

    assert before == (tmp_path / "journal").stat().st_ino
    assert (tmp_path / "small").stat().st_size > 2000


def test_unread_journal_is_compacted_by_size(tmp_path: Path) -> None:
    """One that nobody has read is read to be compacted only when it is larger than so many bytes."""
    for _ in range(3):
        journal(tmp_path).append(MANY)
    large = journal(tmp_path).size()
    journal(tmp_path).compact(larger_than=2 * large)
    unchanged = journal(tmp_path).size()
    journal(tmp_path).compact(larger_than=large // 2)

    assert large == unchanged
    assert journal(tmp_path).size() < large / 2
    assert set(MANY) == set(journal(tmp_path).names())


def test_remembered_at_once(tmp_path: Path) -> None:
    """What an action made is known at once, and to others when it is written."""
    state = State(str(tmp_path / "state"), str(tmp_path))
    record = Record("signature", "key", (("o", "0" * 64, 1, False),), ())
    state.remember("/p/k/a/o", record, (("argument 0", "x"),))

    assert record == state.record("/p/k/a/o")
    assert (("argument 0", "x"),) == state.description("/p/k/a/o")

    state.save()
    other = State(str(tmp_path / "state"), str(tmp_path))

    assert record == other.record("/p/k/a/o")
    assert (("argument 0", "x"),) == other.description("/p/k/a/o")
