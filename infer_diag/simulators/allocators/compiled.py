"""The one door to numba: typed decorators, and functions whose body depends on the kind of allocator.

Numba keeps compiled code beside the sources and notices changes of the file that holds a function, not of the files
that it calls; after editing one of them, delete the `__pycache__` folders of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import overload

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A function that compiled code calls, and nothing else: what Python needs to call it is left out, to save time."""
    return cast(Function, numba.njit(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def entry(function: Function) -> Function:
    """The function compiled at its first call from Python and kept on disk for the next process."""
    return cast(Function, numba.njit(cache=True)(function))


def chosen_by_policy(generic: Callable[..., Any], bodies: dict[type, Callable[..., Any]]) -> None:
    """Lets compiled code call `generic`, whose body is the one of `bodies` for the class of the argument `policy`.

    The choice is made when the caller is compiled, so one loop serves every allocator without a branch per event.
    Every body takes the arguments of `generic`, `policy` first.
    """

    def body(policy: Any, *arguments: Any) -> Any:
        found = bodies[policy.instance_class]
        return getattr(found, "py_func", found)

    overload(generic, strict=False)(body)
