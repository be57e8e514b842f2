"""Real processes that need not import torch: each is a fork of one that has done nothing but import it.

A `snugfit` command or a simulation's worker spends 3 to 6 seconds of processor time on imports, and the suite starts
hundreds of them. Within `warm_start()`, `subprocess.Popen` has such a process forked by a server: a real process with its
own pid, signals, exit status, environment, folder and standard streams, which runs `python -m ...` as a fresh one does, and
ends as a fresh one does. What starts with another environment (allocator settings, a PYTHONPATH of its own), `--exact-rss`,
`python -c`, scripts and the installed command get a fresh interpreter as ever; so does all under `--fresh-processes`.

Real start-up stays tested: `estimate`, `profile` and `train` are run as the installed command too (`installed=True`), `plan`
by an interpreter that must not load torch, and what is not in `SERVER_OF` (`devices`, `ladder`, `techniques`) always.

The processes of one run of tests share four servers, which are in a session of their own. The first has imported no torch,
for commands that ask a worker and never import it themselves. Each other one is a fork of a server (`FORKED_FROM`), made
when it or one that comes of it is first asked for, and has imported more. Where one is gone, the tests are told what it said
last, and what could not be forked starts afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

ASKED_BY_EACH_STEP = (
    "adapter", "attention", "checkpoint", "compile", "init", "inplace", "loss_impl", "mixed_precision",
    "offload_activations", "tensor_parallel", "tf32",
)  # fmt: skip
"""Techniques that say of each model what they could do, whatever the recipe."""
IMPORTS = {
    "plain": (
        "snugfit.cli.estimate",
        "snugfit.cli.plan",
        "snugfit.planner.plan",
        "snugfit.report.estimate_card",
        "snugfit.report.plan_card",
        "snugfit.simulator.by_gpus",
        "snugfit.simulator.estimate",
    ),
    "torch": (
        "torch",
        "torch._dynamo",  # the first optimizer imports it
        "torch._decomp",  # the first step on meta or fake tensors does
        "torch.utils.serialization.config",  # the first file does
        "safetensors.torch",
        "torch._inductor.compile_fx",  # bitsandbytes does
        "torch._subclasses.schema_check_mode",  # the first fake step does
        "snugfit.cli.profile",
        "snugfit.cli.train",
        "snugfit.measure.cpu",
        "snugfit.operators.host_speeds",
        "snugfit.measure.meter",
        "snugfit.report.train_card",
        "snugfit.runs.execute",
        "snugfit.runs.given",
        "snugfit.runs.planned",
        "snugfit.runs.text_parts",
        "snugfit.runs.train",
        "snugfit.simulator.given_training",
        "snugfit.simulator.own_step",
        *(f"snugfit.techniques.{name}.apply" for name in ASKED_BY_EACH_STEP),
        "snugfit.training.adapter_file",
        "snugfit.runs.loop",
        "snugfit.simulator.real_run",
        "snugfit.workers.skeleton",
    ),
    "planning": ("peft", "bitsandbytes.optim", "torchao.optim", "torchao.quantization"),
    "ranks": ("snugfit.pretend_card.present", "shard_tasks", "tensor_parallel_tasks"),
}
"""Server -> what it imports beside what the one that it is forked from has. No library that a model may bring, because some
code asks whether one is loaded, but for workers of a command that plans: techniques that it tries load these, in each of
them; for workers of the tests themselves, which answer one test after the other and soon have them; for training that is
asked for an adapter, which loads them before all else; and for what tests have ranks do."""
FORKED_FROM = {"torch": "plain", "planning": "torch", "ranks": "torch"}
"""Server -> the one that it is a fork of."""

_WORKER = "snugfit.workers.worker"
SERVER_OF = {
    ("snugfit", "train"): "torch",
    ("snugfit", "profile"): "torch",
    ("snugfit", "estimate"): "plain",
    ("snugfit", "check"): "plain",
    ("snugfit", "plan"): "plain",
    (_WORKER,): "torch",
    ("snugfit.measure.device_probe",): "torch",
    ("snugfit.cli.rank",): "torch",
    ("run_code",): "torch",
    ("run_code", "--without-torch"): "plain",
    ("torch.distributed.run",): "torch",
    ("benchmarks.gpu",): "plain",
    ("benchmarks.gpu.place_probe",): "torch",
    ("benchmarks.zoo_row",): "torch",
    ("rank_processes",): "ranks",
    ("ddp",): "torch",
    ("fsdp2",): "torch",
}
"""The words after `python -m` -> server. Everything else starts afresh."""

_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
_AMONG_OTHERS = {"RANK", "SLURM_PROCID"}
"""Processes that have one of these end with all that Python does, so that what is left of a process group is seen."""
LATE = frozenset(
    {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TOKENIZERS_PARALLELISM", "TORCHINDUCTOR_CACHE_DIR"}
    | {"PYTORCH_NVML_BASED_CUDA_CHECK"}
    | {"COLUMNS", "LINES"}
    | {"TORCH_CPP_LOG_LEVEL", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NAN_IN", "LITTLE_MEMORY", "BREAKS", "WRITE_NUMBERS"}
    | {*_OF_RANKS}
)
"""Variables that libraries set when a test uses them (scikit-learn, datasets, Lightning, bitsandbytes by way of torch's
inductor), and those by which processes of one run find each other. readline puts a terminal's size where only children find
it. No import here reads them."""

_KNOWN_SETTINGS = frozenset({"stdin", "stdout", "stderr", "cwd", "env", "text", "pass_fds", "start_new_session"})
_ENVIRONMENT, _ERRORS = "environment.json", "errors.txt"
_HIGH = 500
"""Files that travel are put above all others before they take their places, so that none takes another's."""
_NUMBER = struct.Struct("!i")
_LENGTH = struct.Struct("!Q")


class WarmPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that a server forks, where that is the same as a fresh one; else a fresh one."""

    folder: str
    environment: dict[str, str]
    """What imports read, as it was when the servers were started."""
    with_libraries: bool
    """Whether workers come with libraries that techniques use."""
    gone: Callable[[], None]
    _status: socket.socket | None = None

    def __init__(self, args, *more, **settings):
        self._server = None if more else self._server_for(args, settings)
        self._session = bool(settings.get("start_new_session"))
        super().__init__(args, *more, **settings)

    def _server_for(self, args, settings) -> str | None:
        words = _words(args)
        if not words or not settings.keys() <= _KNOWN_SETTINGS:
            return None
        if not Path(settings.get("cwd") or ".").is_dir():
            return None  # a fresh one says so
        if "--exact-rss" in words:
            return None
        server = SERVER_OF.get(tuple(words[:2])) or SERVER_OF.get(tuple(words[:1]))
        if (self.with_libraries and words[0] == _WORKER) or (
            words[:2] == ["snugfit", "train"] and "--adapter" in words
        ):
            server = "planning"
        now, then = _read_at_import(settings.get("env") or os.environ), self.environment
        if server in ("plain", "torch"):  # have not imported what reads at import where caches are (transformers)
            now, then = ({**variables, "XDG_CACHE_HOME": ""} for variables in (now, then))
        return server if now == then else None

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
    ):  # fmt: skip
        streams = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "words": _words(args),
            "folder": str(Path.cwd() / (cwd or "")),
            "environment": dict(env or os.environ),
            "ignores_sigint": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            "places": [0, 1, 2, *pass_fds],
            "session": self._session,
        }
        if self._server is None or not self._ask(request, [*streams, *pass_fds]):
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
            return
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _ask(self, request, files) -> bool:
        """Has the process forked; False where the server is gone."""
        asking = socket.socket(socket.AF_UNIX)
        try:
            asking.connect(f"{self.folder}/{self._server}")
            _send(asking, request, files)
            self.pid = _number(asking)
        except OSError:
            asking.close()
            self._server = None
            self.gone()
            return False
        self._status = asking
        return True

    def _try_wait(self, wait_flags):
        """Its parent is the server, which says how it ended."""
        if self._status is None:
            return super()._try_wait(wait_flags)
        if wait_flags == os.WNOHANG:
            with selectors.DefaultSelector() as ready:
                ready.register(self._status, selectors.EVENT_READ)
                if not ready.select(0):
                    return 0, 0
        try:
            return self.pid, _number(self._status)
        except ConnectionError:  # servers take with them what they have forked
            return self.pid, int(signal.SIGKILL)

    def _internal_poll(self, *given, **named):
        if self._status is None:
            return super()._internal_poll(*given, **named)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _handle_exitstatus(self, status, *given):
        super()._handle_exitstatus(status, *given)
        if self._status is not None:
            self._status.close()


class _Servers:
    """The servers of one run of tests, in a session of their own: no signal to the tests' group reaches them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._start()

    def _start(self) -> None:
        Path(self.folder, _ENVIRONMENT).write_text(json.dumps(_read_at_import(os.environ)), encoding="utf-8")
        listening = [_listening(f"{self.folder}/{name}") for name in IMPORTS]
        files = [one.fileno() for one in listening]
        with Path(self.folder, _ERRORS).open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, self.folder, *map(str, files)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, pass_fds=files, start_new_session=True,
            )  # fmt: skip
        for one in listening:
            one.close()

    def start_again(self) -> None:
        """After one of them is gone: the others too, and says so; what could not be forked starts afresh meanwhile."""
        _tell_gone(self.folder)
        self.end()
        self._start()

    def end(self) -> None:
        """Closes their standard input, which ends them and what they have forked."""
        self._process.communicate()


def _tell_gone(folder: str) -> None:
    said = Path(folder, _ERRORS).read_text(encoding="utf-8", errors="replace")
    warnings.warn(f"a server of warm processes is gone (tests/cpu/warm_start.py); it said: {said or 'nothing'}")


@contextlib.contextmanager
def servers() -> Iterator[_Servers]:
    """Servers with the imports and the environment of now, while the context is open."""
    with tempfile.TemporaryDirectory(prefix="warm") as folder:
        made = _Servers(folder)
        try:
            yield made
        finally:
            made.end()


@contextlib.contextmanager
def warm_start(shared: str | None = None) -> Iterator[_Servers | None]:
    """Has what `SERVER_OF` lists forked by servers, in this process and in those that it starts so.

    Args:
        shared: The folder of servers that another process keeps; None: servers of its own.
    """
    if sys.platform != "linux":
        yield None
        return
    with contextlib.nullcontext() if shared else servers() as own:
        gone = own.start_again if own else lambda: _tell_gone(str(shared))
        before, warm = subprocess.Popen, _popen(own.folder if own else str(shared), gone, with_libraries=True)
        _replace_popen(before, warm)
        try:
            yield own
        finally:
            _replace_popen(warm, before)


def _replace_popen(old: type, new: type) -> None:
    """Also where a module has taken the class itself, as torch elastic's has, which starts ranks."""
    for module in [*sys.modules.values()]:
        if getattr(module, "__dict__", {}).get("Popen") is old:
            module.Popen = new  # type: ignore[attr-defined]


def _listening(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    Path(path).unlink(missing_ok=True)
    made.bind(path)
    made.listen(64)
    return made


def _words(args: object) -> list[str]:
    """What stands behind `python -m`; torchrun adds -u, which is nothing to who waits for the end."""
    words = [*args] if isinstance(args, list | tuple) else []
    if words[1:2] == ["-u"]:
        del words[1]
    return words[2:] if words[:2] == [sys.executable, "-m"] else []


def _popen(folder: str, gone: Callable[[], None] = lambda: None, with_libraries: bool = False) -> type:
    environment = json.loads(Path(folder, _ENVIRONMENT).read_text(encoding="utf-8"))
    own = {"folder": folder, "environment": environment, "gone": staticmethod(gone), "with_libraries": with_libraries}
    return type("WarmPopen", (WarmPopen,), own)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """All variables but those that change while tests run: the tests' own, inductor's and those of libraries."""
    changing = ("PYTEST_", "_TORCHINDUCTOR_", "TORCHELASTIC_", "ROLE_", "GROUP_", "SLURM_")
    return {name: value for name, value in environment.items() if name not in LATE and not name.startswith(changing)}


def _send(to: socket.socket, request: object, files: list[int]) -> None:
    message = json.dumps(request).encode()
    socket.send_fds(to, [_LENGTH.pack(len(message))], files)
    to.sendall(message)


def _number(of: socket.socket) -> int:
    """What the server says next."""
    data = of.recv(_NUMBER.size, socket.MSG_WAITALL)
    if len(data) < _NUMBER.size:
        raise ConnectionResetError("the server is gone, or could not fork")
    number: int = _NUMBER.unpack(data)[0]
    return number


# -- the servers


def _serve(files: list[int]) -> dict:
    """Forks on request; returns in each process that it forks, with what that shall run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    listening = {name: socket.socket(fileno=file) for name, file in zip(IMPORTS, files, strict=True)}
    name = next(iter(IMPORTS))
    while True:
        _bring(name)
        forked = _Server(name, listening).run()
        if not isinstance(forked, str):
            return forked
        name = forked


def _comes_of(name: str, other: str) -> bool:
    """Whether a server is another one, or a fork of it or of one of its forks."""
    return name == other or (name in FORKED_FROM and _comes_of(FORKED_FROM[name], other))


def _bring(name: str) -> None:
    """Imports what a server has, and does what is done once in a process, where it survives a fork."""
    for module in IMPORTS[name]:
        importlib.import_module(module)
    if name == "torch" and _may_compute():
        importlib.import_module("snugfit.measure.allocator_events").first_step(1)
    for ending in weakref.finalize._registry:  # type: ignore[attr-defined]
        ending.atexit = False  # of libraries
    gc.collect()
    gc.freeze()  # a page that no collection looks through stays shared


def _may_compute() -> bool:
    """Whether what a first step leaves survives a fork: threads of computation, and those of a card, would not."""
    return os.environ.get("OMP_NUM_THREADS") == "1" and not Path("/dev/nvidiactl").exists()


class _Server:
    """Waits for requests, for the end of what it has forked, and for that of the tests."""

    def __init__(self, name: str, listening: dict[str, socket.socket]) -> None:
        """Has its own socket, and those of the servers that come of it, by name."""
        self._name, self._listening = name, listening
        self._ended, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self._ended.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._running: dict[int, socket.socket] = {}
        self._closing = [self._ended, wakeup]
        self._waiting = selectors.DefaultSelector()
        for file in (0, self._ended):
            self._waiting.register(file, selectors.EVENT_READ)
        for server, one in listening.items():
            self._waiting.register(one, selectors.EVENT_READ, server)

    def run(self) -> dict | str:
        """Returns in a forked process: with its request, or with its name where it is another server."""
        try:
            return self._run()
        finally:
            self._kill()

    def _run(self) -> dict | str:
        while True:
            for key, _ in self._waiting.select():
                if key.fileobj == 0:
                    self._kill()
                    with contextlib.suppress(ChildProcessError):
                        while True:  # the next server sees the same end
                            os.wait()
                    sys.exit()
                if key.fileobj is self._ended:
                    with contextlib.suppress(BlockingIOError):
                        self._ended.recv(4096)
                elif key.data == self._name:
                    if (request := self._forked()) is not None:
                        return request
                elif key.data in self._listening and (server := self._next_server(key.data)) is not None:
                    return server
            self._tell()

    def _next_server(self, wanted: str) -> str | None:
        """Forks the server that a server comes of, or that itself, and hands on the sockets; its name in that process."""
        server = next(one for one, before in FORKED_FROM.items() if before == self._name and _comes_of(wanted, one))
        in_server = os.fork() == 0
        if in_server:
            self._forget()
        for name in [name for name in self._listening if _comes_of(name, server) != in_server]:
            one = self._listening.pop(name)
            if not in_server:
                self._waiting.unregister(one)
            one.close()
        return server if in_server else None

    def _forked(self) -> dict | None:
        asking, _ = self._listening[self._name].accept()
        files: list[int] = []
        try:
            head, files, _, _ = socket.recv_fds(asking, _LENGTH.size, 64)
            message = asking.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
            request = json.loads(message)
            pid = os.fork()
        except (OSError, ValueError, struct.error):  # killed while it asked; or there is no place for another process
            pid = None
        if pid == 0:
            self._leave(asking, files, request)
            return request
        for file in files:
            os.close(file)
        if pid is None:
            asking.close()
        else:
            self._running[pid] = asking
        return None

    def _leave(self, asking: socket.socket, files: list[int], request: dict) -> None:
        """In a forked process: takes its files and folder, and says its number."""
        self._forget()
        high = fcntl.fcntl(asking, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        for one in (asking, *self._listening.values()):
            one.close()
        if request["session"]:
            os.setsid()
        _take_places(files, request["places"])
        os.chdir(request["folder"])
        with contextlib.suppress(OSError), socket.socket(fileno=high) as told:  # killed since
            told.sendall(_NUMBER.pack(os.getpid()))

    def _forget(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._waiting.close()
        for one in (*self._closing, *self._running.values()):
            one.close()
        self._running = {}

    def _kill(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        self._running = {}

    def _tell(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._running:
                with contextlib.suppress(OSError), self._running.pop(pid) as asking:  # nobody may be left to be told
                    asking.sendall(_NUMBER.pack(status))


def _take_places(files: list[int], places: list[int]) -> None:
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH) for file in files]
    for file in files:
        os.close(file)
    for file, place in zip(high, places, strict=True):
        os.dup2(file, place)
        os.close(file)


def _become(folder: str, request: dict) -> None:
    """Makes this process what a fresh one would be that was started so."""
    module, *words = request["words"]
    subprocess.Popen = _popen(folder, with_libraries="plan" in words or "--budget" in words)  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.SIG_IGN if request["ignores_sigint"] else signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [module, *words]
    sys.orig_argv = [sys.executable, "-m", module, *words]
    sys.path[0] = str(Path.cwd())
    if "numpy" in sys.modules:  # Python's own random numbers begin anew in each process, torch's always in the same way
        sys.modules["numpy"].random.seed()
    imported, mapped = frozenset(sys.modules), _mapped()
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if _AMONG_OTHERS & os.environ.keys() or not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if not _AMONG_OTHERS & os.environ.keys():
        _end(status, sys.modules.keys() - imported, mapped)


def _end(status: int, brought: Set[str], mapped: Set[str]) -> None:
    """Ends as Python does, but leaves alone what the server had imported: taking that apart is most of a short command.

    Threads are waited for, and what was registered for the end is called; modules that the process brought and all garbage
    are taken apart, streams written out, and where it loaded a library that is not Python, libraries' own ends (C's `exit`)
    run.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for name in brought:
        vars(sys.modules[name]).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if _mapped() <= mapped:
        os._exit(status & 0xFF)
    ctypes.PyDLL(None).exit(status)  # keeps the lock: no other thread of Python goes on, as at an ordinary end


def _mapped() -> frozenset[str]:
    """The libraries that are in this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return frozenset(line.split(maxsplit=5)[-1] for line in lines if ".so" in line)


if __name__ == "__main__":
    _become(sys.argv[1], _serve([int(word) for word in sys.argv[2:]]))
