"""All mutants of one file: mutmut's operators, and a few that fit frozen values and pure functions better.

mutmut itself puts all mutants of a file side by side and switches between them as a process runs. Here a mutant is a
whole source text, so that properties and module-level code take part as well. What only people read is left out:
annotations, decorators, docstrings, sentences, messages of errors, names of constants, and the functions that word
events for traces (`WORDING`); so are assertions, `strict=` among them, which state our own invariants.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_match, operator_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WORDING = {"describe", "describe_message", "__str__", "__repr__"}
TWINS = {
    "active": "members", "members": "active", "alive": "idle", "idle": "alive", "sources": "targets",
    "targets": "sources", "buffers": "locks", "locks": "buffers",
}  # fmt: skip
"""Attributes that are easily taken for one another, both of which exist on the same value."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed source text; `was` and `now` are the lines that differ, which name it wherever it stands."""

    line: int
    operator: str
    was: str
    now: str
    source: str


def if_decided(node: cst.If) -> Iterable[cst.If]:
    """A condition that is always true, and one that is always false."""
    for value in ("True", "False"):
        yield node.with_changes(test=cst.Name(value))


def filter_dropped(node: cst.CompFor) -> Iterable[cst.CompFor]:
    """A comprehension without one of its conditions."""
    for place in range(len(node.ifs)):
        yield node.with_changes(ifs=[*node.ifs[:place], *node.ifs[place + 1 :]])


def statement_dropped(node: cst.Expr) -> Iterable[cst.BaseSmallStatement]:
    """A call for its effect that is not made."""
    if m.matches(node.value, m.Call()):
        yield cst.Pass()


def element_dropped(node: cst.Tuple) -> Iterable[cst.Tuple]:
    """A joined tuple `(*a, b)` without one of its parts."""
    if len(node.elements) > 1 and any(isinstance(element, cst.StarredElement) for element in node.elements):
        for place in range(len(node.elements)):
            rest = [*node.elements[:place], *node.elements[place + 1 :]]
            yield node.with_changes(elements=[element.with_changes(comma=cst.Comma()) for element in rest])


def operand_dropped(node: cst.BooleanOperation) -> Iterable[cst.BaseExpression]:
    """One side of `and` and `or` alone."""
    yield node.left
    yield node.right


def twin(node: cst.Attribute) -> Iterable[cst.Attribute]:
    """One attribute taken for its twin."""
    if node.attr.value in TWINS:
        yield node.with_changes(attr=cst.Name(TWINS[node.attr.value]))


def negated(node: cst.Return) -> Iterable[cst.Return]:
    """The opposite of a condition that is returned."""
    if node.value is not None and m.matches(node.value, m.Comparison() | m.BooleanOperation()):
        value = node.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(value=cst.UnaryOperation(cst.Not(), value))


def one_string(node: cst.SimpleString) -> Iterable[cst.BaseString]:
    """The first of mutmut's three changes of a string: in code of one house, one wrong letter is as good as another.

    A string with a space in it is a sentence, which people read.
    """
    if " " not in node.value:
        yield from list(operator_string(node))[:1]


def argument_dropped(node: cst.Call) -> Iterable[cst.Call]:
    """mutmut's change of arguments, but for `strict=`."""
    for changed in operator_arg_removal(node):
        if _strictness(changed) == _strictness(node):
            yield changed


def _strictness(node: cst.Call) -> list[str]:
    return [arg.value.value for arg in node.args if arg.keyword is not None and arg.keyword.value == "strict"]


OWN = (
    (cst.If, if_decided), (cst.CompFor, filter_dropped), (cst.Expr, statement_dropped), (cst.Tuple, element_dropped),
    (cst.BooleanOperation, operand_dropped), (cst.Attribute, twin), (cst.Return, negated),
    (cst.SimpleString, one_string), (cst.Call, argument_dropped),
)  # fmt: skip
REPLACED = (operator_string, operator_arg_removal)
OPERATORS = (*((kind, change) for kind, change in mutation_operators if change not in REPLACED), *OWN)


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (ByteSpanPositionProvider, PositionProvider)

    def __init__(self, module: cst.Module, source: bytes) -> None:
        self.module, self.source = module, source
        self.changes: list[Callable[[], tuple[int, str, bytes]]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_left_out(node):
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                for changed in operator(node):
                    self.changes.append(self._change(node, operator, changed))
        return True

    def _change(
        self, node: cst.CSTNode, operator: object, changed: cst.CSTNode
    ) -> Callable[[], tuple[int, str, bytes]]:
        line = self.get_metadata(PositionProvider, node).start.line
        name = operator.__name__.removeprefix("operator_")
        if operator is operator_match or isinstance(node, cst.If):
            return lambda: (line, name, self.module.deep_replace(node, changed).bytes)
        span = self.get_metadata(ByteSpanPositionProvider, node)
        before, after = self.source[: span.start], self.source[span.start + span.length :]
        return lambda: (line, name, before + self.module.code_for_node(changed).encode() + after)


def _is_left_out(node: cst.CSTNode) -> bool:
    """Whether nothing in a node is changed: wording, types, and what only states an invariant of our own."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom() | cst.Raise() | cst.Assert():
            return True
        case cst.FunctionDef(name=cst.Name(value=name)):
            return name in WORDING
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            return True
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
            return _names_strings(target, value) or _is_type(value)
        case cst.AnnAssign(value=cst.Call(func=cst.Name(value="field")) | cst.Name(value="False")):
            return True  # a field that is set later; a switch that is off, for which None would do as well
        case cst.Call(func=cst.Name(value="len" | "isinstance" | "field" | "TypeVar" | "cast")):
            return True
        case cst.FormattedString(parts=parts):
            return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in parts)
        case cst.Arg(keyword=cst.Name(value="strict")):
            return True
    return False


def _names_strings(target: cst.BaseAssignTargetExpression, value: cst.BaseExpression) -> bool:
    """Whether an assignment gives constants their strings: `ASKED, DONE = "asked", "done"`, `__all__ = […]`."""
    names = m.Name() | m.Tuple(elements=[m.AtLeastN(m.Element(m.Name()), n=1)])
    strings = m.SimpleString() | m.Tuple(elements=[m.AtLeastN(m.Element(m.SimpleString()), n=1)])
    if m.matches(target, m.Name("__all__")):
        return True
    text = cst.Module([]).code_for_node(target)
    return text.isupper() and m.matches(target, names) and m.matches(value, strings)


def _is_type(value: cst.BaseExpression) -> bool:
    """Whether a module-level assignment names a type: `Outcome = tuple[State, …]`, `Reply = A | B`."""
    names = m.Name() | m.Attribute()
    names_of_types = ("tuple", "dict", "list", "Callable", "Iterator", "Literal")
    generic = m.OneOf(*map(m.Name, names_of_types))
    union = m.BinaryOperation(left=names | m.BinaryOperation(), operator=m.BitOr(), right=m.Name())
    return m.matches(value, m.Subscript(value=generic) | union | m.Call(func=m.Name("TypeVar")))


def mutants_of(source: str, *, seed: int | None = None) -> Iterator[Mutant]:
    """Every mutant of a source text that compiles and differs in meaning from it and from those before it.

    They come in the order of the text, or with a seed in a random one.
    """
    raw = source.encode()
    wrapper = MetadataWrapper(cst.parse_module(raw))
    visitor = _Visitor(wrapper.module, raw)
    wrapper.visit(visitor)
    seen = {ast.dump(ast.parse(raw))}
    if seed is not None:
        random.Random(seed).shuffle(visitor.changes)
    for change in visitor.changes:
        line, operator, changed = change()
        try:
            meaning = ast.dump(ast.parse(changed))
            compile(changed, "mutant", "exec")
        except SyntaxError:
            continue
        if meaning not in seen:
            seen.add(meaning)
            was, now = _difference(source, changed.decode())
            yield Mutant(line, operator, was, now, changed.decode())


def _difference(before: str, after: str) -> tuple[str, str]:
    """The lines between the first and the last that differ, in both texts."""
    old, new = before.splitlines(), after.splitlines()
    start = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    rest = min(len(old), len(new)) - start
    tail = next((k for k in range(rest) if old[-1 - k] != new[-1 - k]), rest)
    was, now = old[start : len(old) - tail], new[start : len(new) - tail]
    return "\n".join(line.strip() for line in was), "\n".join(line.strip() for line in now)
