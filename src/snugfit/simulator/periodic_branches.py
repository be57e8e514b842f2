"""What a loop of a person's own does every so many steps (`if step % 500 == 0: evaluate()`), which three steps do not reach.

Behind the steps that are looked at such a branch is taken once, if it was not taken behind another: in code around the
steps, by a test of `%` on what is counted up there. What leaves the loop then is not, and what leaves it else goes on.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from snugfit.fake_device.rewritten_code import rewriting
from snugfit.simulator.compiled_code import is_traced
from snugfit.simulator.script_seen import is_own, is_own_file, outwards

if TYPE_CHECKING:
    from snugfit.simulator.watched_script import WatchedScript

_NAME = "__snugfit_is_due__"
_LEAVES = (ast.Break, ast.Continue, ast.Raise, ast.Return)


class PeriodicBranches(ast.NodeTransformer):
    """The branches of one script and its own modules."""

    def __init__(self, watched: WatchedScript) -> None:
        """Has seen none of a script that is watched."""
        self._watched = watched
        self._stepping: set[CodeType] = set()
        self._seen: set[tuple[str, int]] = set()
        """Files and lines of those that were taken behind a step, when there is optimizer state."""
        self._waiting: set[tuple[str, int]] = set()
        """Those that were not taken yet."""
        self._counted: set[str] = set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which code that is run or imported takes such branches."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        with ExitStack() as around:
            around.callback(register_optimizer_step_pre_hook(self._steps).remove)
            around.enter_context(rewriting(self))
            self._watched.loaders.branch_waits = lambda: bool(self._waiting)
            around.callback(setattr, builtins, _NAME, None)
            setattr(builtins, _NAME, self._is_due)
            yield

    def _steps(self, *_: Any) -> None:
        self._stepping.update(frame.f_code for frame in outwards(sys._getframe(1)))

    def _is_due(self, value: Any) -> Any:
        if is_traced() or type(value) is not bool:
            return value
        frame = sys._getframe(1)
        place = frame.f_code.co_filename, frame.f_lineno
        if place in self._seen or not self._is_around_steps(frame):
            return value
        if self._watched.enough or (value and self._watched.steps):
            self._seen.add(place)
            self._waiting.discard(place)
            return True
        self._waiting.add(place)
        return value

    def _is_around_steps(self, frame: FrameType) -> bool:
        """Whether code is that of the training, or called by it: not by torch or a library, as models and data sets are."""
        own = itertools.takewhile(is_own, outwards(frame))
        return any(one.f_code in self._stepping for one in own)

    # -- the text

    def asks(self, source: bytes, path: str) -> bool:
        """Whether a file is the person's own and may have such branches."""
        return b"%" in source and b"if " in source and is_own_file(path)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Finds out what is counted up."""
        added = (one.target for one in ast.walk(node) if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add))
        loops = (one.target for one in ast.walk(node) if isinstance(one, ast.For | ast.AsyncFor))
        self._counted = {name for target in (*added, *loops) for name in _names_in(target)}
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        """Asks us where the test of a branch is one of `%` on what is counted; what leaves the loop is to leave it less."""
        self.generic_visit(node)
        leaves = any(isinstance(one, _LEAVES) for part in node.body for one in ast.walk(part))
        node.test = _Tests(self._is_counted, ast.NotEq if leaves else ast.Eq).visit(node.test)
        return node

    def _visit_value(self, node: Any) -> Any:
        """The same for a test that is kept, or returned: `due = step % 500 == 0`."""
        if node.value is not None:
            node.value = _Tests(self._is_counted, ast.Eq).visit(node.value)
        return node

    visit_Assign = visit_Return = _visit_value

    def _is_counted(self, value: ast.expr) -> bool:
        computed = any(isinstance(one, ast.Call | ast.Subscript) for one in ast.walk(value))  # of a batch, say
        return not computed and not self._counted.isdisjoint(_names_in(value))


class _Tests(ast.NodeTransformer):
    """Puts a call around `counter % n == m` and `not counter % n`, or one that is denied around `counter % n != m`."""

    def __init__(self, is_counted: Callable[[ast.expr], bool], compared: type[ast.cmpop]) -> None:
        """`compared`: by which of the two."""
        self._is_counted, self._compared = is_counted, compared

    def _is_rest(self, node: ast.expr) -> bool:
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and self._is_counted(node.left)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1 or not isinstance(node.ops[0], self._compared) or not self._is_rest(node.left):
            return node
        if self._compared is ast.Eq:
            return _asked(node)
        equal = ast.copy_location(ast.Compare(node.left, [ast.Eq()], node.comparators), node)
        return ast.copy_location(ast.UnaryOp(ast.Not(), _asked(equal)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        rest = isinstance(node.op, ast.Not) and self._is_rest(node.operand)
        return _asked(node) if rest and self._compared is ast.Eq else node


def _asked(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(_NAME, ast.Load()), [node], []), node)


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yields names and attributes (`self.step`) that an expression reads or sets."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _names_in(part)
