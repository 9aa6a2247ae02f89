"""Labels and patterns: what is printed parses back, and what cannot be a label says so."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hidet_build.errors import Location, UsageError
from hidet_build.label import Label, Pattern, parse_label, parse_pattern

# Text that looks like a label often enough to get past the first check.
LABEL_LIKE = st.text(st.sampled_from("ab:/.*@- \\\n\u00ef\u8bbe\ud800"), max_size=14) | st.text(max_size=14)
SEGMENT = st.text(st.sampled_from("ab.-_ $1\u00ef\u8bbe"), min_size=1, max_size=5).filter(lambda text: text.strip("."))
PATH = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)
LABELS = st.builds(Label, PATH | st.just(""), PATH)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("//a/b:c", Label("a/b", "c")),
        ("//a/b", Label("a/b", "b")),
        ("//:c", Label("", "c")),
        (":c", Label("here", "c")),
        ("c", Label("here", "c")),
        ("sub/c.py", Label("here", "sub/c.py")),
        ("//a:sub/c.py", Label("a", "sub/c.py")),
        ("na\u00efve kernel$1.py", Label("here", "na\u00efve kernel$1.py")),
        ("\u8bbe\u5907.py", Label("here", "\u8bbe\u5907.py")),
    ],
)
def test_a_label_is_read_from_its_package(text: str, expected: Label) -> None:
    """Absolute, shortened and relative labels, and file names people really have."""
    actual = parse_label(text, "here")

    assert expected == actual


@pytest.mark.parametrize(
    "text",
    [
        *["", ":", "//", "//a:", "//a/", "//a//b", "/a:b", "a/../b", "./a", "//../a:b", "a:b.py", ":..."],
        *["//a/.../b:c", "a*b", "a\\b", "a\nb", "\ud800", "@other//a:b", "//a:/b"],
    ],
)
def test_what_is_no_label_is_refused_at_its_place(text: str) -> None:
    """The error is the user's and points at the place that was given."""
    place = Location("BUILD.yaml", 3, 7)

    with pytest.raises(UsageError) as caught:
        parse_label(text, "here", place)

    assert place == caught.value.location
    assert caught.value.message.startswith((f"{text!r} ", f"{text!r}:"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("/a:b", "'/a:b' is not a label: it begins with one slash", "did you mean '//a:b'?"),
        ("/a", "'/a' is not a label: it begins with one slash", "did you mean '//a'?"),
        ("/a/...", "'/a/...' is not a label: it begins with one slash", "did you mean '//a/...'?"),
        ("-/a:b", "'-/a:b' is not a label: it begins with one slash", "did you mean '-//a:b'?"),
        (
            "/a/b.py",
            "'/a/b.py' is not a label: it begins with one slash",
            "a file is named by its path from the folder of the BUILD.yaml",
        ),
        ("a//b", "'a//b' is not a label: 'a//b' has an empty, '.', '..' or '...' segment", None),
        ("", "'' names no target", None),
        ("//", "'//' names no target", "a target of the root is `//:name`"),
        ("a:", "'a:' has no name after the ':'", None),
    ],
)
def test_what_is_refused_is_shown_as_it_was_typed(text: str, message: str, hint: str | None) -> None:
    """No slash or colon more, and with what was meant where that is plain."""
    with pytest.raises(UsageError) as caught:
        parse_pattern(text)

    assert message == caught.value.message
    assert hint is None or hint == caught.value.hint


@given(LABELS)
def test_a_label_parses_back(label: Label) -> None:
    """What `str` and `short` print names the same target, from any package."""
    actual = {parse_label(str(label), "elsewhere"), parse_label(label.short, "elsewhere")}

    assert {label} == actual


@given(LABEL_LIKE)
@example("//a//...")
@example("@a")
def test_any_text_is_a_label_or_refused(text: str) -> None:
    """No text raises anything but UsageError, and what is accepted parses back."""
    try:
        label = parse_label(text, "here")
    except UsageError:
        return

    assert label == parse_label(str(label), "elsewhere")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("//a/b:c", ("target", "a/b", "c", False, False)),
        ("a/b:c", ("target", "a/b", "c", False, False)),
        ("a/b", ("target", "a/b", "b", False, False)),
        ("//a/b/", ("target", "a/b", "b", False, False)),
        ("c", ("target", "here", "c", False, False)),
        (":c", ("target", "here", "c", False, False)),
        ("//a:all", ("package", "a", "", False, False)),
        ("//a:*", ("package", "a", "", True, False)),
        ("//:all", ("package", "", "", False, False)),
        ("all", ("package", "here", "", False, False)),
        ("*", ("package", "here", "", True, False)),
        ("//...", ("recursive", "", "", False, False)),
        ("...", ("recursive", "here", "", False, False)),
        ("...:*", ("recursive", "here", "", True, False)),
        ("//a/...", ("recursive", "a", "", False, False)),
        ("//a/...:all", ("recursive", "a", "", False, False)),
        ("a/...", ("recursive", "a", "", False, False)),
        ("//a/...:*", ("recursive", "a", "", True, False)),
        ("-//a/skip/...", ("recursive", "a/skip", "", False, True)),
        ("-:c", ("target", "here", "c", False, True)),
    ],
)
def test_a_pattern_is_read_from_its_folder(text: str, expected: tuple[str, str, str, bool, bool]) -> None:
    """Every form the command line takes."""
    actual = parse_pattern(text, "here")

    assert Pattern(text, *expected) == actual


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "//",
        "//a//...",
        "//a/...:b",
        "@other//a",
        "@a",
        "-@a",
        "//*",
        "//a/../...",
        ":...",
        "//a/.../b",
        "a:b:c",
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    """A pattern that could mean nothing is an error of the command line."""
    with pytest.raises(UsageError):
        parse_pattern(text, "here")


@given(LABEL_LIKE, st.sampled_from(["", "here"]))
def test_any_text_is_a_pattern_or_refused(text: str, package: str) -> None:
    """No text raises anything but UsageError; a pattern of one target covers that target and not its neighbour."""
    try:
        pattern = parse_pattern(text, package)
    except UsageError:
        return
    target = Label(pattern.package, pattern.name or "x")
    neighbour = Label(pattern.package + "x", target.name)
    expected = (True, pattern.kind == "recursive" and not pattern.package)

    assert expected == (pattern.covers(target), pattern.covers(neighbour))


@given(LABELS.filter(lambda label: label.name not in ("all", "all-targets")))
def test_a_label_is_the_pattern_of_itself(label: Label) -> None:
    """A label typed on the command line means that target, and `...` above it covers it."""
    above = label.package.rpartition("/")[0]
    recursive = parse_pattern(f"//{above}/..." if above else "//...")

    assert [True, True] == [parse_pattern(str(label)).covers(label), recursive.covers(label)]
