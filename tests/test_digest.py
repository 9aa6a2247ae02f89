"""Digests of bytes, text and files."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidet_build import digest


@given(st.binary())
def test_bytes(content: bytes) -> None:
    """The digest is SHA-256 in hex, and the length."""
    assert digest.Digest(hashlib.sha256(content).hexdigest(), len(content)) == digest.of_bytes(content)


def test_empty() -> None:
    """The empty digest is that of no bytes."""
    assert digest.of_bytes(b"") == digest.EMPTY


def test_text_is_utf8() -> None:
    """Text is hashed as UTF-8."""
    assert digest.of_bytes("设备".encode()) == digest.of_text("设备")


@pytest.mark.parametrize("size", [0, 1, digest.CHUNK - 1, digest.CHUNK, digest.CHUNK + 1, 3 * digest.CHUNK + 7])
def test_file(tmp_path: Path, size: int) -> None:
    """Files of every size around the chunk are hashed whole."""
    content = bytes(index % 251 for index in range(size))
    path = tmp_path / "file"
    path.write_bytes(content)

    assert digest.of_bytes(content) == digest.of_file(str(path))


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is an OSError of the usual kind."""
    with pytest.raises(FileNotFoundError):
        digest.of_file(str(tmp_path / "nothing"))


def test_shown_with_size() -> None:
    """A digest reads `hash/size`, as remote APIs write it."""
    assert f"{'0' * 64}/12" == str(digest.Digest("0" * 64, 12))
