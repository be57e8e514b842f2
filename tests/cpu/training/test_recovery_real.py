"""Memory that really runs out: the operating system refuses a child process more, and its training goes on."""

import json
import sys
import textwrap

import pytest
from run_code import run_code

CHILD = """
    import ctypes, gc, json, resource, warnings
    import torch
    torch.set_num_threads(1)
    from recovery_runs import difference, trained

    # Large blocks go back to the system at once; otherwise what the run before left free comes on top of the limit.
    M_MMAP_THRESHOLD = -3
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    plain, _ = trained("cpu", **FIELDS)

    def limit(step):
        if step == 0:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/status") as lines:
                now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
            resource.setrlimit(resource.RLIMIT_DATA, (now + 44 * 2**20, resource.RLIM_INFINITY))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        weights, trainer = trained("cpu", before_step=limit, **FIELDS)
    messages = [str(one.message) for one in said if "ran out of memory" in str(one.message)]
    print(json.dumps({
        "messages": messages, "difference": difference(weights, plain), "microbatch_size": trainer.recipe.microbatch_size,
        "steps": trainer.steps_done,
    }))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, where RLIMIT_DATA counts all private memory")
@pytest.mark.parametrize("fields", [{}, {"offload_optimizer": True}], ids=str)
def test_the_first_step_does_not_fit(fields):
    """About 110 MiB of activations, 24 MiB of weights, momentum and gradients, and 44 MiB to hold what is not there yet."""
    done = run_code(f"FIELDS = {fields}\n{textwrap.dedent(CHILD)}")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["messages"][0].startswith("step 1 ran out of memory (the whole batch of 2048 in ")
    assert "DefaultCPUAllocator: can't allocate memory" in result["messages"][0]
    assert result["steps"] == 2 and result["microbatch_size"] <= 1024 and result["difference"] < 1e-9
