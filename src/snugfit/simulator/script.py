"""Runs a program as `python SCRIPT args...` or `python -m MODULE args...` would: its argv, its `__main__`, its path."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import runpy
import sys
import traceback
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from snugfit.errors import InputError
from snugfit.simulator import notebook_script

_WATCHING = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("fake_device", "recorder", "simulator"))
"""Where the code lies that stands between a script and its libraries."""


class EnoughSeen(BaseException):
    """Ends a script from inside; `except Exception` does not catch it, and `finally` blocks run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A file that Python runs."""

    path: Path
    """The file."""
    module: str | None = None
    """The name by which `python -m` runs it; None: it is run as a file."""
    cells: tuple[notebook_script.Cell, ...] = ()
    """Those of a notebook; empty for a file of Python."""

    def parts(self) -> Mapping[str, bytes]:
        """Returns the text of the file, or of each cell of the notebook, by the name that its lines are told by."""
        if not self.cells:
            return {str(self.path): self.path.read_bytes()}
        name_of = notebook_script.name_of_cell
        return {name_of(self.path, number): cell.text.encode() for number, cell in enumerate(self.cells, 1)}

    def owns(self, file: str) -> bool:
        """Whether code of a file is that of the program."""
        return file.startswith(f"{self.path}[cell ") if self.cells else Path(file).resolve() == self.path.resolve()

    def names(self) -> dict[str, Any]:
        """Returns what Python sets in the main module of the program before it runs; imports the packages it is in."""
        if self.cells:
            return {}
        if self.module is None:
            return {"__file__": str(self.path)}
        package = self.module.rpartition(".")[0]
        if package:
            importlib.import_module(package)
        spec = importlib.util.spec_from_file_location(self.module, self.path)
        return {"__file__": str(self.path), "__package__": package, "__spec__": spec}


def check_script(script: str) -> Program:
    """Returns the program of a file, or of `-m MODULE`; `InputError` for what is none of Python."""
    if script.startswith("-m "):
        return _module(script.removeprefix("-m "))
    path, todo = Path(script), "Give the path of a Python file, then its own arguments."
    if not script.strip() or not path.is_file():
        what = "names no file" if not script.strip() else "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"script {script!r} {what}. {todo}")
    if path.suffix == notebook_script.SUFFIX:
        notebook = Program(path, cells=notebook_script.cells_of(path))
        notebook_script.tell_lines(notebook.parts())
        return notebook
    try:
        if path.suffix != ".pyc" and not zipfile.is_zipfile(path):  # which Python runs as well
            compile(path.read_bytes(), script, "exec", dont_inherit=True)
    except OSError as error:
        raise InputError(f"script {script!r} cannot be read: {error.strerror or error}. {todo}") from error
    except (SyntaxError, ValueError) as error:  # a ValueError for null bytes, until Python 3.12
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(
            f"script {script!r}{line} is no Python: {getattr(error, 'msg', None) or error}. Mend it; nothing was run."
        ) from error
    return Program(path)


def _module(name: str) -> Program:
    """Where `python -m` would find a module; nothing is imported, as its packages are the program's own code."""
    inside = Path(*name.split("."))
    for folder in (Path.cwd(), *map(Path, sys.path)) if all(name.split(".")) else ():
        for path, full in ((folder / inside / "__main__.py", f"{name}.__main__"), (folder / f"{inside}.py", name)):
            if path.is_file():
                check_script(str(path))
                return Program(path, full)
    raise InputError(
        f"module {name!r} is not found. Give it as for `python -m`, from the folder in which that works: -m package.module "
        "for package/module.py, then its own arguments."
    )


def run_script(program: Program, arguments: Sequence[str], *, before_exit: Callable[[], None]) -> int:
    """Runs a script in this process and returns the exit code Python would have; errors go to stderr.

    `before_exit`: called however the script ended, before its error is printed.
    """
    try:
        try:
            with as_main(program, arguments):
                if program.cells:
                    with main_module(program) as names:
                        run_parts(program, names)
                elif program.module is None:
                    runpy.run_path(str(program.path), run_name="__main__")
                else:
                    runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        finally:
            before_exit()
    except EnoughSeen:
        return 0
    except SystemExit as end:
        return exit_code(end)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        print_error(error, program)
        return 1
    return 0


def run_parts(
    program: Program,
    names: dict[str, Any],
    changed: Mapping[str, str] | None = None,
    goes_on: Callable[[str, BaseException], bool] = lambda *_: False,
) -> None:
    """Runs a program's file, or its cells, in its main module.

    `changed`: file -> text that is run in its place.
    `goes_on`: whether cells are run behind one that ended with an error; EnoughSeen ends them in silence.
    """
    from snugfit.fake_device.rewritten_code import other_text, rewriting, rewritten

    if program.cells:
        notebook_script.tell_lines(program.parts())
        notebook_script.add_names(names, program.cells)
    written: dict[str, str] = {}
    texts = {file: (changed or {}).get(file) or text for file, text in program.parts().items()}
    of_notebook = program.cells or any("get_ipython()" in str(text) for text in texts.values())  # saved as a script

    def run(file: str, code: str | bytes) -> None:
        compiled = rewritten(code, file, notebook_script.FLAGS if of_notebook else 0)
        if compiled.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(compiled, names))
        else:
            exec(compiled, names)

    def run_file(file: str) -> None:
        for part, code in check_script(file).parts().items():
            run(part, code)

    with ExitStack() as around:
        if of_notebook:
            around.enter_context(notebook_script.elsewhere())
            around.enter_context(rewriting(notebook_script.ShownValues()))
            around.enter_context(other_text(written))
        for number, (file, text) in enumerate(texts.items()):
            if of_notebook:
                run_here = functools.partial(run, file)
                names["get_ipython"] = functools.partial(notebook_script.Shell, run_here, run_file, written)
            try:
                run(file, text)
            except BaseException as error:
                if program.cells and program.cells[number].fails_with(error):
                    what = f"{file} ended with {type(error).__name__}, as it did before; what follows is run."
                    sys.stdout.write(f"{what}\n")
                elif not goes_on(file, error):
                    raise


@contextmanager
def main_module(program: Program) -> Iterator[dict[str, Any]]:
    """Context in which a new module, without code, is the program's main one."""
    before, module = sys.modules["__main__"], types.ModuleType("__main__")
    vars(module).update(program.names())
    sys.modules["__main__"] = module
    try:
        yield vars(module)
    finally:
        sys.modules["__main__"] = before


@contextmanager
def as_main(program: Program, arguments: Sequence[str]) -> Iterator[None]:
    """Context in which arguments and path are those of a program that Python runs."""
    before = sys.argv, list(sys.path), Path.cwd()
    sys.argv = [str(program.path), *arguments]
    # What Python puts first is the script's folder. For `python -m snugfit` it was the current one, in which a folder may
    # have the name of an installed library.
    others = sys.path[1:] if sys.path[:1] in ([""], [str(Path.cwd())]) else sys.path
    sys.path[:] = [str(program.path.resolve().parent if program.module is None else Path.cwd()), *others]
    if program.cells:  # where Jupyter runs it
        os.chdir(program.path.resolve().parent)
    try:
        yield
    finally:
        sys.argv = before[0]
        sys.path[:] = before[1]
        os.chdir(before[2])


def exit_code(end: SystemExit) -> int:
    """Returns the exit code that Python would have; a message instead of one goes to stderr."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def print_error(error: BaseException, program: Program) -> None:
    """Prints a traceback that begins in the script, as if it had been run alone."""
    trace = error.__traceback__
    while trace is not None and not program.owns(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    told = traceback.TracebackException(type(error), error, trace)
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(_WATCHING)]
    sys.stderr.write("".join(told.format()))  # a script may have put something in its place that can only write
