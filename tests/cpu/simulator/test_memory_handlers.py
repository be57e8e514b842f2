"""What a script does where memory runs out is said to be no part of its estimate."""

from own_scripts import LOOP, TRAINS, estimated, written

from snugfit.simulator.memory_handlers import memory_handlers

CATCHES = """
from accelerate.utils import find_executable_batch_size

@find_executable_batch_size(starting_batch_size=512)
def train(batch_size):
    pass

@property
def fits(self):
    try:
        return True
    except (ValueError, torch.cuda.OutOfMemoryError):
        return False
    except RuntimeError as error:
        return "CUDA out of memory" in str(error)
    except KeyError:
        return "out of" == error

arguments = TrainingArguments("out", auto_find_batch_size=True), TrainingArguments("out", auto_find_batch_size=False)
"""
TRIES = """
def fits(rows):
    try:
        model(torch.randn(rows, 32, device=device)).sum().backward()
        return True
    except torch.OutOfMemoryError:
        return False
rows = 64
while rows < 2**13 and fits(rows * 2):
    rows *= 2
optimizer = """


def test_lines_that_catch_memory_that_runs_out():
    assert memory_handlers(CATCHES) == [5, 12, 15, 19]
    assert memory_handlers(LOOP) == []


def test_a_script_that_tries_batches_before_it_trains_is_estimated_with_the_largest(tmp_path, capsys):
    text = TRAINS.replace("optimizer = ", TRIES) + LOOP.replace("batch_size=64", "batch_size=rows")
    text = text.replace("randn(640, 32), torch.arange(640)", "randn(2**15, 32), torch.arange(2**15)")
    path = written(tmp_path, text)
    _, found, err = estimated(capsys, path)
    assert found is not None and found["batch_shape"] == "8192 x 32" and "by hand" not in err, err
    line = text.splitlines().index("    except torch.OutOfMemoryError:") + 1
    assert f"what {path} does where memory runs out (line {line}) is not looked at" in err
