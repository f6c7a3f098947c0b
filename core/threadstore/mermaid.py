"""Families of threads as a flowchart in Mermaid (https://mermaid.js.org/syntax/flowchart.html).

Names and first words of threads stand in labels. There every character but letters, digits and a few others becomes a
code of the form `#35;`, which Mermaid shows as that character and reads as nothing else: no quotation mark ends a
label, no HTML, Markdown, comment, directive or keyword is found in it. A hyphen between letters or digits, as ids have
it, is none of these; two of them, or one before a blank, might be an arrow or a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from threadstore.family import Member, walk, where
from threadstore.terminal import harmless

_LONGEST = 60  # characters of a name
_AS_IT_IS = frozenset(" ,/")


def label(text: str) -> str:
    """A text between quotation marks, to stand in a flowchart."""
    text = harmless(text)
    around = zip(f" {text}", text, f"{text[1:]} ", strict=False)
    return f'"{"".join(one if _is_harmless(before, one, after) else f"#{ord(one)};" for before, one, after in around)}"'


def _is_harmless(before: str, one: str, after: str) -> bool:
    """True for a character that means nothing to Mermaid between these."""
    return one.isalnum() or one in _AS_IT_IS or (one == "-" and before.isalnum() and after.isalnum())


def flowchart(roots: Iterable[Member], left_out: int = 0) -> Iterator[str]:
    """The lines of a chart of some families. `left_out` threads have no relatives and aren't shown."""
    yield "flowchart TD"
    if left_out:
        yield f"  %% threads without relatives that are left out: {left_out}"
    numbers: dict[str, int] = {}
    archived = []
    for root in roots:
        for member, above in walk(root):
            number = numbers[member.thread] = len(numbers) + 1
            yield f"  t{number}[{_node(member)}]"
            if above is not None:
                arrow = "-.->" if member.how == "agent" else "-->"
                yield f"  t{numbers[above.thread]} {arrow}|{_edge(member)}| t{number}"
            if member.is_archived:
                archived.append(f"t{number}")
    if archived:
        yield "  classDef archived stroke-dasharray: 4"
        yield f"  class {','.join(archived)} archived"


def _node(member: Member) -> str:
    parts = [member.thread]
    summary = member.summary
    parts.append("can't be read" if summary is None else f"{summary.turns} turn{'' if summary.turns == 1 else 's'}")
    if member.tokens:
        parts.append(f"{member.tokens} tokens")
    if len(member.rollouts) > 1:
        parts.append(f"{len(member.rollouts)} generations")
    if member.is_archived:
        parts.append("archived")
    name = harmless(member.name)
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
    return "<br/>".join(filter(None, (label(shown)[1:-1], label(", ".join(parts))[1:-1]))).join('""')


def _edge(member: Member) -> str:
    agent = member.summary.agent if member.summary is not None else None
    return label(" ".join(filter(None, (member.how, (agent or "")[:_LONGEST], where(member)))))
