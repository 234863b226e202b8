"""Exceptions that can be made from their message alone, as code does that rebuilds a child's error from type and text."""

import functools
import inspect
from typing import Any, TypeVar

_Error = TypeVar("_Error", bound=BaseException)


def made_from_text(kind: type[_Error]) -> type[_Error]:
    """Let one string stand for all arguments of an exception: it is the message, and every field is None.

    Args:
        kind: The class, whose ``__init__`` needs two arguments or more.
    """
    init: Any = kind.__init__
    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def made(self: BaseException, *args: Any, **named: Any) -> None:
        if not _is_text(args) or named:
            init(self, *args, **named)
            return
        super(kind, self).__init__(*args)
        vars(self).update(dict.fromkeys(names))

    setattr(kind, "__init__", made)  # noqa: B010 - a type checker refuses the plain assignment
    if "__str__" in vars(kind):
        show: Any = kind.__str__

        @functools.wraps(show)
        def shown(self: BaseException) -> str:
            return self.args[0] if _is_text(self.args) else show(self)

        setattr(kind, "__str__", shown)  # noqa: B010 - as above
    return kind


def _is_text(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], str)
