"""Digests: the SHA-256 and size that name content everywhere. Knows bytes and files, not actions."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import NamedTuple

CHUNK = 1 << 20


class Digest(NamedTuple):
    """The name of some bytes: their SHA-256 in lower-case hex, and how many there are."""

    hash: str
    size: int

    def __str__(self) -> str:
        return f"{self.hash}/{self.size}"


EMPTY = Digest(sha256(b"").hexdigest(), 0)


def of_bytes(content: bytes) -> Digest:
    """The digest of `content`."""
    return Digest(sha256(content).hexdigest(), len(content))


def of_text(text: str) -> Digest:
    """The digest of `text` as UTF-8."""
    return of_bytes(text.encode())


def of_file(path: str) -> Digest:
    """The digest of the file's bytes as they are now; OSError as `open` raises it."""
    # Raw reads: a small file costs 5.7 us this way and 13 us through pathlib.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, CHUNK)
        if len(content) < CHUNK:
            rest = os.read(descriptor, CHUNK)
            if not rest:
                return of_bytes(content)
            content += rest
        hasher, size = sha256(content), len(content)
        while content := os.read(descriptor, CHUNK):
            hasher.update(content)
            size += len(content)
        return Digest(hasher.hexdigest(), size)
    finally:
        os.close(descriptor)
