"""A second optimizer that steps less often is waited for by a profile."""

import textwrap

import pytest

from snugfit.profiler.profile import profile_script

GAN = """
import torch
critic, maker = torch.nn.Linear(8, 8), torch.nn.Linear(8, 65536)
each = [torch.optim.Adam(part.parameters()) for part in (critic, maker)]
for step in range({rounds}):
    for _ in range({often}):
        critic(torch.rand(4, 8)).sum().backward()
        each[0].step()
    if step < {most}:
        maker(torch.rand(4, 8)).sum().backward()
        each[1].step()
"""
STATE = 2 * 4 * 9 * 65536


@pytest.mark.parametrize(
    ("often", "most", "steps", "seen", "told"),
    [
        (4, 9, 3, 9, False),  # the ninth stands behind the other's second step
        (1, 9, 1, 2, False),
        (20, 9, 3, 12, True),
        (4, 0, 3, 12, True),
        (20, 9, 45, 45, False),
    ],
)
def test_the_second_optimizer_is_waited_for(tmp_path, often, most, steps, seen, told):
    script = tmp_path / "gan.py"
    script.write_text(textwrap.dedent(GAN.format(rounds=9, often=often, most=most)))
    found = profile_script(str(script), steps=steps, with_advice=False)
    assert found.steps == seen
    assert any("took no step" in note for note in found.notes) == told
    assert (found.anatomy.bytes_by_category["optimizer_state"] > STATE) == (not told)
