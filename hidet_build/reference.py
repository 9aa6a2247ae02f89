"""Rules as text for people, from their own definitions. Knows what a rule says of itself, not where it is used."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from hidet_build.rule import COMMON, Attribute, Rule

_WIDTH = 100


def describe(rule: Rule) -> str:
    """A page on one rule: what it is for and its attributes."""
    parts = [f"{rule.name}: {_paragraphs(rule.doc)}", f"attributes:\n{_attributes(rule.attributes)}"]
    parts.append(f"attributes of every target:\n{_attributes(COMMON)}")
    return "\n\n".join(parts) + "\n"


def summarize(rules: Mapping[str, Rule]) -> str:
    """A line for each rule."""
    width = max(map(len, rules), default=0)
    return "\n".join(f"  {name:<{width}}  {rules[name].doc.partition(chr(10))[0]}" for name in sorted(rules))


def _paragraphs(doc: str) -> str:
    blocks = textwrap.dedent(doc).split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(block.split()), _WIDTH) for block in blocks)


def _attributes(attributes: Mapping[str, Attribute]) -> str:
    width = max((len(name) for name in attributes), default=0)
    lines = []
    for name, attribute in attributes.items():
        about = [attribute.kind.expected, "required" if attribute.required else ""]
        if attribute.choices:
            about.append("one of " + ", ".join(attribute.choices))
        if attribute.suffixes:
            about.append("ends with " + " or ".join(attribute.suffixes))
        text = f"{attribute.doc} ({'; '.join(part for part in about if part)})"
        indent = " " * (width + 4)
        lines.append(textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<{width}}  ", subsequent_indent=indent))
    return "\n".join(lines)
