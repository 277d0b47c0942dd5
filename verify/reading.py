# ruff: noqa: ANN401 - values of any type stand in the code that is read
"""Read the code of a function for all workers at once: an interpreter of a small, closed part of Python.

The run-time's own functions are read from their source, which must compile to the very code that is installed, and
carried out on `Affine` numbers: the digits of a general node. The language is closed. It knows assignments to names,
`return`, `if` and `for` over what does not depend on the worker, list comprehensions, generator expressions, + − · //
%, comparisons of plain numbers, attributes of the schedule's own values, and calls of functions that can be read in the
same way, of `Group` and `RuleView`, and of a few builtins. Anything else is refused with an `UnprovedError`: a truth
test, a comparison, a length, an index or a slice of what depends on the worker, `isinstance` of it, other names and
builtins, closures, exceptions, state. So code that treats one node, one radix or one size differently is not read.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from partreduce.topo.phase import ONE, Group
from partreduce.topo.rule import Block, RuleView
from partreduce.verify.affine import (
    Affine,
    GroupRead,
    Listed,
    Loop,
    Symbol,
    UnprovedError,
    as_affine,
    is_plain,
    refuse,
    renamed,
    settled,
)
from partreduce.verify.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_STEPS = 2_000_000
MAX_RANGE = 64
"""Ranges of plain numbers up to this long are written out; longer ones are loops. Both are exact."""

OPAQUE = frozenset({"node_radices", "radices", "num_workers", "num_nodes", "workers_per_node"})
"""Attributes whose numbers code may compute with but not branch on."""

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _Returned(Exception):  # noqa: N818 - control flow, not an error
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _key(value: Any) -> Any:
    """What tells equal arguments apart from others, types included; None where that would cost too much."""
    if type(value) is tuple:
        parts = tuple(_key(part) for part in value)
        return None if None in parts else parts
    if isinstance(value, Affine | Block | FunctionType | CodeType):
        return value
    return (type(value), value) if is_plain(value) else None


@dataclass
class Reader:
    """Carries functions out; one instance for one schedule, so that equal calls are read once."""

    steps: int = 0
    fresh: int = 0
    divisions: int = 0
    known: dict[Any, Any] = field(default_factory=dict)

    def call(self, function: Any, arguments: Sequence[Any], keywords: dict[str, Any] | None = None) -> Any:
        """What a function returns.

        Raises:
            UnprovedError: it goes outside the language.
        """
        if isinstance(function, MethodType):
            return self.call(function.__func__, (function.__self__, *arguments), keywords)
        if function is Group:
            bound = dict(zip(("members", "relax"), arguments, strict=False)) | (keywords or {})
            members = bound.get("members")
            if isinstance(members, Listed) and not members.is_tuple:
                raise refuse("a group whose members are no tuple")
            return GroupRead(members, bound.get("relax", ONE))
        if function is RuleView and not keywords:
            return RuleView(*arguments)
        if isinstance(function, FunctionType):
            return self._read(function, tuple(arguments), keywords or {})
        return self._builtin(function, tuple(arguments), keywords or {})

    def _read(self, function: FunctionType, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if function.__closure__ is not None or function.__kwdefaults__:
            raise refuse(f"{function.__qualname__}, which has a closure or keyword defaults,")
        tree = source_of(function.__code__)
        names = [argument.arg for argument in tree.args.args]
        if tree.args.kwonlyargs or len(arguments) > len(names) or set(keywords) - set(names[len(arguments) :]):
            raise refuse(f"the call of {function.__qualname__}")
        defaults = function.__defaults__ or ()
        scope = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        scope |= dict(zip(names, arguments, strict=False)) | keywords
        if len(scope) != len(names):
            raise refuse(f"the call of {function.__qualname__} with too few arguments")
        key = _key((function, function.__code__, *scope.values()))
        if key is not None and key in self.known:
            return self.known[key]
        result = None
        try:
            self._run(tree.body, scope, function)
        except _Returned as returned:
            result = returned.value
        if key is not None:
            self.known[key] = result
        return result

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any], function: FunctionType) -> None:
        for statement in body:
            self._statement(statement, scope, function)

    def _statement(  # noqa: C901, PLR0912 - one case for each kind of statement
        self, statement: ast.stmt, scope: dict[str, Any], function: FunctionType
    ) -> None:
        match statement:
            case ast.Expr(ast.Constant()) | ast.Pass():
                pass
            case ast.Return(value):
                raise _Returned(None if value is None else self._value(value, scope, function))
            case ast.Assign([target], value):
                self._bind(target, self._value(value, scope, function), scope)
            case ast.AnnAssign(ast.Name() as target, _, ast.expr() as value):
                self._bind(target, self._value(value, scope, function), scope)
            case ast.AugAssign(ast.Name(name) as target, op, value):
                if name not in scope:
                    raise refuse(f"+= on {name}")
                self._bind(target, self._arithmetic(op, scope[name], self._value(value, scope, function)), scope)
            case ast.If(test, body, orelse):
                self._run(body if self._truth(test, scope, function) else orelse, scope, function)
            case ast.For(target, over, body, []):
                values = self._value(over, scope, function)
                if type(values) is not tuple:
                    raise refuse("a for statement over what depends on the worker")
                for value in values:
                    self._bind(target, value, scope)
                    self._run(body, scope, function)
            case ast.Assert(test, _):
                if not self._truth(test, scope, function):
                    raise refuse("an assertion that fails")
            case _:
                raise refuse(f"{type(statement).__name__.lower()} in {function.__qualname__}")

    def _bind(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        match target:
            case ast.Name(name):
                scope[name] = value
            case ast.Tuple(parts) if type(value) is tuple and len(value) == len(parts):
                for part, item in zip(parts, value, strict=True):
                    self._bind(part, item, scope)
            case _:
                raise refuse(f"an assignment to {ast.unparse(target)}")

    def _value(  # noqa: C901, PLR0912 - one case for each kind of expression
        self, node: ast.expr, scope: dict[str, Any], function: FunctionType
    ) -> Any:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise UnprovedError(f"{function.__qualname__} takes over {MAX_STEPS} steps to read")
        match node:
            case ast.Constant(value) if is_plain(value):
                return value
            case ast.Name(name):
                return scope[name] if name in scope else self._global(name, function)
            case ast.Attribute(owner, name):
                return self._attribute(self._value(owner, scope, function), name)
            case ast.Subscript(owner, index):
                return self._item(self._value(owner, scope, function), index, scope, function)
            case ast.BinOp(left, op, right):
                return self._arithmetic(op, self._value(left, scope, function), self._value(right, scope, function))
            case ast.UnaryOp(ast.USub(), operand):
                return self._arithmetic(ast.Sub(), 0, self._value(operand, scope, function))
            case ast.UnaryOp(ast.Not(), operand):
                return not self._truth(operand, scope, function)
            case ast.Compare():
                return self._compare(node, scope, function)
            case ast.BoolOp(op, values):
                return self._either(values, scope, function, stop=isinstance(op, ast.Or))
            case ast.IfExp(test, body, orelse):
                return self._value(body if self._truth(test, scope, function) else orelse, scope, function)
            case ast.Tuple(parts) | ast.List(parts) if not any(isinstance(part, ast.Starred) for part in parts):
                return tuple(self._value(part, scope, function) for part in parts)
            case ast.ListComp(element, generators):
                return settled(self._elements(element, generators, dict(scope), function))
            case ast.Call(called, arguments, keywords):
                if any(isinstance(a, ast.Starred) for a in arguments) or any(k.arg is None for k in keywords):
                    raise refuse("a call with * or **")
                target = self._value(called, scope, function)
                given = [self._argument(argument, target, scope, function) for argument in arguments]
                named = {str(k.arg): self._value(k.value, scope, function) for k in keywords}
                return self.call(target, given, named)
        raise refuse(f"{ast.unparse(node)!r} in {function.__qualname__}")

    def _argument(self, node: ast.expr, target: Any, scope: dict[str, Any], function: FunctionType) -> Any:
        """An argument; a generator only where a builtin uses it up at once, since a second use would find it empty."""
        if isinstance(node, ast.GeneratorExp) and any(target is one for one in (tuple, list, sum, sorted, math.prod)):
            return settled(self._elements(node.elt, node.generators, dict(scope), function))
        return self._value(node, scope, function)

    def _global(self, name: str, function: FunctionType) -> Any:
        """A name of the module or a builtin: a function or class only, since another value may change."""
        value = function.__globals__.get(name, getattr(builtins, name, None))
        if callable(value):
            return value
        raise refuse(f"the name {name!r} in {function.__qualname__}")

    def _attribute(self, owner: Any, name: str) -> Any:
        if is_plain(owner) or isinstance(owner, Affine | Listed | Loop | GroupRead | FunctionType | type):
            raise refuse(f"attribute {name!r} of {type(owner).__name__}")
        if not type(owner).__module__.startswith("partreduce.topo."):
            raise refuse(f"attribute {name!r} of {type(owner).__name__}")
        value = getattr(owner, name)
        if name in OPAQUE and value is not None:
            return tuple(map(as_affine, value)) if type(value) is tuple else as_affine(value)
        return value

    def _item(self, owner: Any, index: ast.expr, scope: dict[str, Any], function: FunctionType) -> Any:
        if type(owner) is not tuple:
            raise refuse(f"an index or slice of {type(owner).__name__}")
        if isinstance(index, ast.Slice):
            parts = (index.lower, index.upper, index.step)
            values = [part and self._value(part, scope, function) for part in parts]
            plain = all(type(value) is int or value is None for value in values)
            place: Any = slice(*values)
        else:
            place = self._value(index, scope, function)
            plain = type(place) is int
        if not plain:
            raise refuse("an index that depends on the worker or the radices")
        try:
            return owner[place]
        except (IndexError, ValueError) as error:
            raise UnprovedError(f"{function.__qualname__} fails: {error}") from None

    def _arithmetic(self, op: ast.operator, left: Any, right: Any) -> Any:
        one, two = as_affine(left), as_affine(right)
        match op:
            case ast.Add():
                result = one.plus(two)
            case ast.Sub():
                result = one.plus(two, -1)
            case ast.Mult():
                result = one.times(two)
            case ast.FloorDiv() | ast.Mod():
                if (
                    one.terms
                    and type(right) is int
                    and right != 1
                    and not all(symbol.orders for symbol, _ in one.terms)
                ):
                    raise refuse(f"a division by {right}, a number that stands in the code,")
                result = one.divided(two)[isinstance(op, ast.Mod)]
                self.divisions += 1
                if one.terms and not result.terms:
                    return result.constant  # the local rank of a worker: the same for all nodes
            case _:
                raise refuse(f"the operator {type(op).__name__}")
        return result.constant if type(left) is int and type(right) is int else result

    def _compare(self, node: ast.Compare, scope: dict[str, Any], function: FunctionType) -> bool:
        left = self._value(node.left, scope, function)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self._value(comparator, scope, function)
            if not self._holds(op, left, right):
                return False
            left = right
        return True

    def _holds(self, op: ast.cmpop, left: Any, right: Any) -> bool:
        if isinstance(op, ast.Is | ast.IsNot) and (left is None or right is None):
            return (left is right) is isinstance(op, ast.Is)
        if is_plain(left) and is_plain(right):
            try:
                if isinstance(op, ast.In | ast.NotIn):
                    return (left in right) is isinstance(op, ast.In)
                return COMPARISONS[type(op)](left, right)
            except (TypeError, KeyError):
                raise refuse(f"the comparison {type(op).__name__}") from None
        if isinstance(left, Affine | int) and isinstance(right, Affine | int) and isinstance(op, ast.Lt | ast.GtE):
            # Only the number of the round is compared, with the prologue: decided by the bounds or not at all.
            difference = as_affine(left).plus(as_affine(right), -1)
            if difference.terms and all(symbol.orders for symbol, _ in difference.terms):
                if difference.most < 0:
                    return isinstance(op, ast.Lt)
                if difference.least >= 0:
                    return isinstance(op, ast.GtE)
        raise refuse("a comparison that depends on the worker or the radices")

    def _either(self, values: list[ast.expr], scope: dict[str, Any], function: FunctionType, *, stop: bool) -> Any:
        """The first value whose truth is `stop`, else the last: `or` and `and`."""
        for value in values[:-1]:
            found = self._value(value, scope, function)
            if not is_plain(found):
                raise refuse(f"the truth of {ast.unparse(value)!r} in {function.__qualname__}")
            if bool(found) is stop:
                return found
        return self._value(values[-1], scope, function)

    def _truth(self, node: ast.expr, scope: dict[str, Any], function: FunctionType) -> bool:
        value = self._value(node, scope, function)
        if not is_plain(value):
            raise refuse(f"the truth of {ast.unparse(node)!r} in {function.__qualname__}")
        return bool(value)

    def _elements(
        self, element: ast.expr, generators: list[ast.comprehension], scope: dict[str, Any], function: FunctionType
    ) -> list[Any]:
        if not generators:
            return [self._value(element, scope, function)]
        first, *rest = generators
        if first.is_async:
            raise refuse("an asynchronous loop")
        values = self._value(first.iter, scope, function)
        items = values.items if isinstance(values, Listed) else values
        if type(items) is not tuple:
            raise refuse(f"a loop over {type(items).__name__}")
        return self._over(items, first, element, rest, scope=scope, function=function)

    def _over(
        self,
        items: tuple[Any, ...],
        first: ast.comprehension,
        element: ast.expr,
        rest: list[ast.comprehension],
        *,
        scope: dict[str, Any],
        function: FunctionType,
    ) -> list[Any]:
        """One `for` of a comprehension; a loop stays a loop, over a symbol of its own."""
        result: list[Any] = []
        for item in items:
            if isinstance(item, Loop):
                symbol = self.symbol(item.symbol.bound)
                body = tuple(renamed(part, item.symbol, symbol) for part in item.body)
                result.append(
                    Loop(symbol, tuple(self._over(body, first, element, rest, scope=scope, function=function)))
                )
                continue
            inner = dict(scope)
            self._bind(first.target, item, inner)
            if all(self._truth(test, inner, function) for test in first.ifs):
                result += self._elements(element, rest, inner, function)
        return result

    def symbol(self, bound: int) -> Symbol:
        """A new symbol."""
        self.fresh += 1
        return Symbol(f"v{self.fresh}", bound)

    def _builtin(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """`range`, `sorted`, `tuple`, `list`, `len`, `sum` and `prod`, of what they are understood for."""
        if keywords or not arguments:
            raise refuse(f"the call of {getattr(function, '__name__', function)!r}")
        value = arguments[0]
        if function is range and len(arguments) == 1:
            return self._range(value)
        is_sequence = type(value) is tuple or isinstance(value, Listed)
        if len(arguments) == 1 and is_sequence and (function is tuple or function is list):
            return Listed(value.items, function is tuple) if isinstance(value, Listed) else value
        if len(arguments) == 1 and type(value) is tuple:
            if function is len:
                return len(value)
            if function is sorted and all(type(item) is int for item in value):
                return tuple(sorted(value))
            if function is sum or function is math.prod:
                total: Any = 0 if function is sum else 1
                for item in value:
                    total = self._arithmetic(ast.Add() if function is sum else ast.Mult(), total, item)
                return total
        raise refuse(f"the call of {getattr(function, '__name__', function)!r} with {type(value).__name__}")

    def _range(self, stop: Any) -> Any:
        size = as_affine(stop)
        if size.terms:
            raise refuse("a range whose length depends on the worker")
        if type(stop) is int and stop <= MAX_RANGE:
            return tuple(range(stop))
        if size.constant < 1:
            return ()
        symbol = self.symbol(size.constant)
        return Listed((Loop(symbol, (Affine(0, ((symbol, 1),)),)),))
