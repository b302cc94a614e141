"""Whether a program can see its arguments at all, by its source and without running it.

A program that gets arguments and reads none would run as if they had not been given. What is told for sure
is told; whatever this cannot follow (a launch context that is stored, or handed to a library) counts as
read.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from art.distributed.errors import ProgramError

_FIELD = "arguments"
_DEPTH = 8


def check_arguments_are_read(function: Callable[..., Any], arguments: tuple[str, ...], name: str) -> None:
    """Refuses arguments that the program cannot see.

    Args:
        function: the program; its first parameter is the launch context.
        arguments: what stands behind ``--``.
        name: of the program, for people.

    Raises:
        ProgramError: there are arguments, and the program does not read ``launch.arguments``.
    """
    if arguments and not may_read_arguments(function):
        raise ProgramError(
            f"{name} takes no arguments, since it does not read launch.arguments, but it was given "
            f"{' '.join(arguments)}; leave out `--` and what stands behind it"
        )


def may_read_arguments(function: Callable[..., Any], position: int | str = 0, depth: int = _DEPTH) -> bool:
    """Whether ``function`` reads the arguments of the launch context that it gets.

    Args:
        function: as written; one whose source is not there counts as reading them.
        position: of the parameter: a number, or its name.
        depth: of calls that are followed.
    """
    function = inspect.unwrap(function)
    if depth == 0 or not inspect.isfunction(function):
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return True
    definition = tree.body[0] if tree.body else None
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    named = [parameter.arg for parameter in (*parameters, *definition.args.kwonlyargs)]
    if isinstance(position, int):
        if position >= len(parameters):
            return True  # it is one of *args
        position = parameters[position].arg
    if position not in named:
        return True
    return _is_read(definition, position, function, depth)


def _is_read(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str, function: Any, depth: int
) -> bool:
    harmless: set[int] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and _is_name(node.value, parameter):
            if node.attr == _FIELD:
                return True
            harmless.add(id(node.value))
        elif isinstance(node, ast.Call):
            for key, value in _passed(node):
                if _is_name(value, parameter):
                    called = _called(node.func, function)
                    if called is None or may_read_arguments(called, key, depth - 1):
                        return True
                    harmless.add(id(value))
    return any(
        _is_name(node, parameter) and id(node) not in harmless for node in ast.walk(definition)
    ) or _sees_all_names(definition)


def _passed(call: ast.Call) -> list[tuple[int | str, ast.expr]]:
    by_place: list[tuple[int | str, ast.expr]] = [*enumerate(call.args)]
    return by_place + [(item.arg, item.value) for item in call.keywords if item.arg is not None]


def _called(node: ast.expr, function: Any) -> Any:
    """The function of the module that a call names, or None for anything else."""
    found = function.__globals__.get(node.id) if isinstance(node, ast.Name) else None
    return found if inspect.isfunction(found) else None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _sees_all_names(definition: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id in ("locals", "vars", "eval", "exec")
        for node in ast.walk(definition)
    )
