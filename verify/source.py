"""The source of an installed function: its syntax tree, if that compiles to the very code that runs."""

from __future__ import annotations

import ast
import copy
import inspect
from functools import lru_cache
from types import CodeType

from partreduce.verify.affine import UnprovedError, refuse


@lru_cache(maxsize=256)
def source_of(code: CodeType) -> ast.FunctionDef:
    """The syntax tree of a function's code, if it compiles to the code that is installed.

    Raises:
        UnprovedError: no source, another source, or another form than a plain `def`.
    """
    name = code.co_qualname
    try:
        text = inspect.getsource(code)
        # Under an `if`, so that a method keeps its indentation and with it the white space of its docstring.
        body = ast.parse("if True:\n" + text).body[0].body if text[:1].isspace() else ast.parse(text).body  # type: ignore[attr-defined]
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise UnprovedError(f"the source of {name} cannot be read: {error}") from None
    tree = body[0] if len(body) == 1 else None
    if not isinstance(tree, ast.FunctionDef) or tree.args.vararg or tree.args.kwarg or tree.args.posonlyargs:
        raise refuse(f"{name}, which is no plain def,")
    compiled = compile(ast.Module([_bare(tree)], []), "<read>", "exec", dont_inherit=True)
    codes = [constant for constant in compiled.co_consts if isinstance(constant, CodeType)]
    if len(codes) != 1 or not _same_code(codes[0], code):
        raise UnprovedError(f"the source of {name} is not what is installed")
    return tree


def _bare(tree: ast.FunctionDef) -> ast.FunctionDef:
    """The function without decorators, annotations and defaults, which are not part of its code."""
    bare = copy.deepcopy(tree)
    bare.decorator_list, bare.returns = [], None
    bare.args.defaults, bare.args.kw_defaults = [], [None] * len(bare.args.kwonlyargs)
    for argument in (*bare.args.args, *bare.args.kwonlyargs):
        argument.annotation = None
    return bare


def _same_code(one: CodeType, two: CodeType) -> bool:
    parts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_exceptiontable")
    if any(getattr(one, part) != getattr(two, part) for part in parts) or len(one.co_consts) != len(two.co_consts):
        return False
    for a, b in zip(one.co_consts, two.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            if not _same_code(a, b):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True
