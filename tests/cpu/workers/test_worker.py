"""Worker processes: what travels, what comes back, and what happens when one dies."""

import importlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import patience
import pytest
import torch
from run_code import run_code
from torch.nn.utils import parametrizations

import snugfit
from snugfit.errors import CannotSimulateError, InputError, RecipeError
from snugfit.recorder import registration
from snugfit.workers import skeleton
from snugfit.workers.forked import FORKS, forked
from snugfit.workers.pool import Pool


@pytest.fixture(scope="module")
def pool():
    made = Pool()
    yield made
    made.close()


def mean(output, batch):
    return output.mean()


def test_switches_of_torch_go_with_each_request(pool, monkeypatch):
    def seen():
        einsum = sys.modules["torch.backends.opt_einsum"]
        return torch.get_default_dtype(), einsum.enabled, registration._threads

    ordered = torch.backends.opt_einsum.is_available()
    assert pool.call(seen) == (torch.float32, ordered, torch.get_num_threads())
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.set_default_dtype(torch.float64)
    try:
        assert pool.call(seen) == (torch.float64, False, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert pool.call(seen)[0] is torch.float32


def test_code_is_simulated_only_while_it_is_recorded(pool):
    """A process that knows the fake accelerator, as after a rehearsal, may train for real: what watches that must see it."""

    def seen():
        from snugfit.fake_device.personality import Personality
        from snugfit.recorder.record import record

        inside = []
        record(lambda _: inside.append(registration.is_simulation()), Personality())
        return registration._registered, inside, registration.is_simulation()

    assert pool.call(seen) == (True, [True], False)


def test_lambdas_and_closures_run_in_a_warm_process(pool):
    base = 40
    first = pool.call(lambda: (base + 2, os.getpid()))
    second = pool.call(lambda: (base + 3, os.getpid()))
    assert (first[0], second[0]) == (42, 43)
    assert first[1] == second[1] != os.getpid()


def test_skeleton_has_no_weights_and_keeps_ties():
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000, bias=False))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    model.eval()
    model.register_buffer("table", torch.arange(4))
    data = skeleton.dumps((model, model[0].weight))
    assert len(data) < 20_000
    made, weight = skeleton.loads(data)
    assert made[0].weight is made[1].weight is weight
    assert weight.is_meta and weight.shape == (1000, 64) and not weight.requires_grad and not made.training
    assert made.table.tolist() == [0, 1, 2, 3]


def test_skeleton_keeps_shared_storage():
    base = torch.zeros(10_000)
    first, second = skeleton.loads(skeleton.dumps((base[:6000].requires_grad_(), base[5000:])))
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    assert second.storage_offset() == 5000


def test_the_asking_process_stays_as_it_was():
    """In a process of its own: another test of this one may have put a pretend card into it."""
    done = run_code(
        "import torch\nfrom snugfit.workers.pool import Pool\npool = Pool()\n"
        "assert pool.call(lambda: hasattr(__import__('torch'), 'sim'))\npool.close()\n"
        "assert not hasattr(torch, 'sim')\n"
    )
    assert done.returncode == 0, done.stderr


def test_errors_come_back_whole(pool):
    def fail():
        raise RecipeError(["one", "two"])

    with pytest.raises(RecipeError, match="2 problems") as caught:
        pool.call(fail)
    assert caught.value.problems == ("one", "two")


def test_a_dead_worker_is_replaced(pool):
    before = pool.call(os.getpid)
    with pytest.raises(CannotSimulateError, match="status 7"):
        pool.call(lambda: os._exit(7))
    assert pool.call(os.getpid) != before


class EndsItself(torch.nn.Module):
    """A model whose forward takes the whole process with it."""

    def __init__(self, how):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.how = how

    def forward(self, batch):
        if self.how == "abort":
            os.write(2, b"terminate called after throwing an instance of std::bad_alloc\n")
            os.abort()
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(9)
        if self.how == "sys.exit":
            sys.exit("please log in first")
        return self.layer(batch)


ENDS = {
    "abort": ("ended by signal SIGABRT at ", "test_worker.py", " in forward", "std::bad_alloc", "without snugfit"),
    "kill": ("ended by signal SIGKILL", "host memory", "fewer microbatches"),
    "exit": ("ended with status 9", "os._exit"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_model_that_ends_the_process_is_told_with_what_was_done(pool, how):
    with pytest.raises(CannotSimulateError) as caught:
        snugfit.estimate(EndsItself(how), torch.zeros(2, 4), loss=mean, device="cpu", pool=pool)
    message = str(caught.value)
    for part in ("a training step of EndsItself", "the simulation's own process", *ENDS[how]):
        assert part in message, message
    assert snugfit.estimate(EndsItself("not"), torch.zeros(2, 4), loss=mean, device="cpu", pool=pool).total_bytes > 0


def test_a_model_that_calls_sys_exit_does_not_end_the_worker(pool):
    before = pool.call(os.getpid)
    with pytest.raises(InputError, match="please log in first"):
        snugfit.estimate(EndsItself("sys.exit"), torch.zeros(2, 4), loss=mean, device="cpu", pool=pool)
    assert pool.call(os.getpid) == before


def test_what_was_written_for_an_earlier_request_is_not_told(pool):
    pool.call(lambda: os.write(2, b"an old warning\n"))
    while not pool._started[-1]._last_words._lines:  # read by a thread of its own
        time.sleep(0.01)
    with pytest.raises(CannotSimulateError) as caught:
        pool.call(lambda: (os.write(2, b"the new one\n"), os._exit(3)))
    assert "the new one" in str(caught.value) and "an old warning" not in str(caught.value)


def test_what_a_worker_writes_still_reaches_the_person(pool, capfd):
    pool.call(lambda: os.write(2, b"from the worker\n"))
    pool.close()
    assert "from the worker" in capfd.readouterr().err


def test_an_interrupted_request_does_not_answer_the_next(pool):
    pool.call(lambda: None)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.call(lambda: time.sleep(3) or "late")
    assert pool.call(lambda: "next") == "next"


def test_ctrl_c_is_left_to_the_process_that_asks(pool):
    assert pool.call(lambda: os.kill(os.getpid(), signal.SIGINT) or "alive") == "alive"


def test_a_stuck_worker_is_stopped(pool):
    pool.call(lambda: None)
    with pytest.raises(CannotSimulateError, match="longer than"):
        pool.call(lambda: time.sleep(60), timeout_seconds=0.5)
    assert pool.call(lambda: 1) == 1


def test_what_cannot_travel_is_said(pool):
    running = (number for number in range(3))
    with pytest.raises(CannotSimulateError, match=r"uses .*variable running, an object of type generator"):
        pool.call(lambda: list(running))


def test_what_cannot_travel_does_no_harm_where_nobody_uses_it(pool, tmp_path):
    class Logged:
        def __init__(self):
            self.file = (tmp_path / "log.txt").open("w")
            self.lock = threading.Lock()

        def __call__(self):
            with self.lock:
                return 3

    logged = Logged()
    with logged.file:
        assert pool.call(logged) == 3
        with pytest.raises(CannotSimulateError, match="TextIOWrapper"):
            pool.call(lambda: logged.file.write("x"))


@pytest.mark.parametrize(
    "found", [torch.ops, torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default, torch.classes]
)
def test_what_is_found_under_torch_travels_by_its_name(pool, found):
    kind, text = type(found).__name__, str(found)
    assert pool.call(lambda: (type(found).__name__, str(found))) == (kind, text)


def test_weak_references_and_loggers_travel(pool):
    held = torch.nn.Linear(2, 3)
    there, log = weakref.ref(held), logging.getLogger("a.b")
    assert pool.call(lambda: (held is there(), log.name)) == (True, "a.b")


@pytest.mark.parametrize(
    "norm", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_parametrized_modules_travel(norm):
    model = torch.nn.Sequential(norm(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 2))
    made = skeleton.loads(skeleton.dumps(model))
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert type(made[0]).__name__ == type(model[0]).__name__ and isinstance(made[0], torch.nn.Linear)
    assert made[0].weight.is_meta and made[0].weight.shape == (4, 4)


def test_lazy_parameters_travel_without_a_shape():
    made = skeleton.loads(skeleton.dumps(torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d())))
    assert made[0].has_uninitialized_params() and made[1].has_uninitialized_params()
    made(torch.empty(2, 5, device="meta"))
    assert made[0].weight.shape == (3, 5) and made[1].running_mean.shape == (3,)


def test_a_folder_that_joins_the_path_later_is_found(pool, tmp_path, monkeypatch):
    pool.call(lambda: None)
    (tmp_path / "snugfit_late_module.py").write_text("def three():\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("snugfit_late_module")
    try:
        assert pool.call(late.three) == 3
    finally:
        del sys.modules["snugfit_late_module"]


def test_relative_paths_count_from_the_folder_that_asks(pool, tmp_path, monkeypatch):
    pool.call(lambda: None)
    monkeypatch.chdir(tmp_path)
    assert pool.call(os.getcwd) == str(tmp_path)


def test_a_module_that_no_folder_has_travels_with_its_code(pool, tmp_path):
    path = tmp_path / "by_hand.py"
    path.write_text("BASE = 40\ndef more(x):\n    return BASE + x\n")
    spec = importlib.util.spec_from_file_location("snugfit_by_hand", path)
    module = sys.modules["snugfit_by_hand"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        assert pool.call(module.more, 2) == 42
    finally:
        del sys.modules["snugfit_by_hand"]


def test_a_script_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('started')\n"
        "from snugfit.workers.pool import Pool\n"
        "def twice(x): return 2 * x\n"
        "pool = Pool()\n"
        "print(pool.call(twice, 21))\n"
        "pool.close()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=patience.SECONDS, check=True
    )
    assert done.stdout.split() == ["started", "42"]


ASKING = """
import os, sys, time
from snugfit.workers.pool import Pool
pool = Pool()
pool.start()
if sys.argv[1] == "loading":
    print("now", flush=True)

def slow():
    os.write(2, b"now")
    time.sleep(1.5)
    return "x" * 10**6

pool.call(slow)
"""


@pytest.mark.parametrize("moment", ["loading", "answering"])
def test_a_worker_ends_quietly_when_the_process_that_asked_is_killed(moment):
    asking = subprocess.Popen([sys.executable, "-c", ASKING, moment], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert asking.stdout is not None and asking.stderr is not None
    place = asking.stdout if moment == "loading" else asking.stderr
    assert place.read(3) == b"now"
    asking.kill()
    # The end of standard error: the worker, which has it too, is gone.
    assert asking.stderr.read() in (b"", b"now")
    asking.wait()


def test_parts_of_a_package_whose_import_was_broken_off_are_forgotten(monkeypatch):
    from types import ModuleType

    from snugfit.workers.worker import _forget_halves

    before = set(sys.modules)
    for name in ("half.inner", "half.inner.leaf", "whole", "whole.inner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    _forget_halves(before)
    assert "half.inner" not in sys.modules and "half.inner.leaf" not in sys.modules
    assert "whole.inner" in sys.modules


@pytest.mark.skipif(not FORKS, reason="processes are not copied on this system")
def test_threads_of_a_copy_may_all_begin_at_once(pool):
    def convert():
        from concurrent.futures import ThreadPoolExecutor

        rows = [torch.empty(512, 512) for _ in range(64)]
        with ThreadPoolExecutor(8) as threads:
            return sum(one.dtype == torch.bfloat16 for one in threads.map(lambda row: row.to(torch.bfloat16), rows))

    def begun():
        torch.ones(2048, 2048).to(torch.bfloat16)  # the worker has a pool of threads, of which a copy has none

    pool.call(begun)
    for _ in range(10):  # without care half of them fail
        assert pool.call(forked, convert) == 64
