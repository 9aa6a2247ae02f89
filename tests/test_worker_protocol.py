"""The words between front end and worker: lines, failures, command lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hidet_build.worker.protocol import COMMAND, FAILURE_MARK, Failure, Lines, encode, split_failure, step_arguments

_MESSAGES = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()), max_size=5)


@given(_MESSAGES, st.integers(min_value=1, max_value=7))
def test_messages_come_through_in_pieces(messages: list[dict[str, object]], size: int) -> None:
    """However a pipe cuts the lines, the messages come out whole and in order."""
    sent = b"".join(encode(message) for message in messages)
    lines = Lines()
    received = [message for at in range(0, len(sent), size) for message in lines.feed(sent[at : at + size])]

    assert received == messages


@given(st.binary(), st.text(), st.text())
def test_a_failure_line_is_found_after_any_output(output: bytes, message: str, text: str) -> None:
    """What the kernel printed before stays as it is, whatever it was."""
    failure = Failure("kernel", message, file="a.py", line=3, text=text)
    before = output if not output or output.endswith(b"\n") else output + b"\n"

    assert split_failure(before + failure.as_line().encode() + b"\n") == (before, failure)


def test_output_without_a_failure_is_left_alone() -> None:
    """The mark within a line is no failure."""
    output = b"a kernel that prints " + FAILURE_MARK.encode() + b"{}\n"

    assert split_failure(output) == (output, None)
    assert split_failure(b"") == (b"", None)


def test_only_the_workers_command_lines_are_steps() -> None:
    """A command line that is not a worker's is none of ours."""
    assert step_arguments((*COMMAND, "lower", "--src", "a.py")) == ("lower", "--src", "a.py")
    assert step_arguments(("python3", "lower.py")) is None
