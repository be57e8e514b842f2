"""Lines put into the text of a script: where they go, and where there is no room."""

import subprocess

import pytest

from snugfit.errors import InputError
from snugfit.simulator.script_seen import Place
from snugfit.simulator.script_text import ScriptText, diff

TOP = "import a\nimport b.c\n"
PUT = [
    (TOP + "opt = make(model)\n", 3, TOP + "import snugfit\nON\nopt = make(model)\n"),
    ("def f():\n\topt = make(\n\t\tmodel\n\t)\n", 3, "import snugfit\ndef f():\n\tON\n\topt = make(\n\t\tmodel\n\t)\n"),
    (TOP + "if big: opt = make(model)\n", 3, TOP + "import snugfit\nif big: ON; opt = make(model)\n"),
    (TOP + "for x in make(model):\n    pass\n", 3, TOP + "import snugfit\nON\nfor x in make(model):\n    pass\n"),
    ('"""Essay."""\nfrom __future__ import annotations\nopt = 1', 3,
     '"""Essay."""\nfrom __future__ import annotations\nimport snugfit\nON\nopt = 1'),
    ("import snugfit\r\nopt = make(model)\r\n", 2, "import snugfit\r\nON\r\nopt = make(model)\r\n"),
    ("from a import (\n    b,\n)\nx = 'ä'; y = 2\nopt = 1\n", 5,
     "from a import (\n    b,\n)\nimport snugfit\nx = 'ä'; y = 2\nON\nopt = 1\n"),
]  # fmt: skip


def at(line, column=None):
    return Place(file="train.py", line=line, column=column)


@pytest.mark.parametrize("before, line, after", PUT)
def test_statements_go_before_the_line_that_runs(before, line, after):
    text = ScriptText("train.py", before)
    text.put_before(at(line), ["ON"])
    text.imports("snugfit")
    assert text.changed() == after


@pytest.mark.parametrize(
    "before, line",
    [
        ("model = net(); opt = make(model)\n", 1),
        ("if a:\n    pass\nelif make(model):\n    pass\n", 3),
        ("x = 1\n\n", 2),
    ],
    ids=["two on a line", "elif", "no statement"],
)
def test_where_there_is_no_room_it_is_said(before, line):
    with pytest.raises(InputError, match=r"train\.py:\d has no room"):
        text = ScriptText("train.py", before)
        text.put_before(at(line), ["ON"])
        text.changed()


@pytest.mark.parametrize(
    "before, call, after",
    [
        ("model = net(); opt = make(model)\n", "make", "model = net(); ON; opt = make(model)\n"),
        ("\topt = make(model); rate = f(opt)\n", "make", "\tON\n\topt = make(model); rate = f(opt)\n"),
        ("for é in a: opt = make(é); é = 1\n", "make", "for é in a: ON; opt = make(é); é = 1\n"),
    ],
)
def test_of_several_statements_on_a_line_the_one_that_runs(before, call, after):
    head, after = ("if a:\n", f"if a:\n{after}") if before.startswith("\t") else ("", after)
    text = ScriptText("train.py", head + before)
    text.put_before(at(1 + bool(head), len(before[: before.index(call)].encode())), ["ON"])
    assert text.changed() == after


FUSED = {"given": "fused=True", "without": ("fused", "foreach")}
BNB = {"renamed": "bnb.AdamW8bit", "without": ("fused", "foreach")}


@pytest.mark.parametrize(
    "before, change, after",
    [
        ("o = optim.AdamW(m.parameters(), lr=f(1))", FUSED, "o = optim.AdamW(m.parameters(), lr=f(1), fused=True)"),
        ("o = AdamW(\n    p(),\n    lr=1,\n)", FUSED, "o = AdamW(\n    p(),\n    lr=1, fused=True,\n)"),
        ("o = AdamW([*a, *b])", FUSED, "o = AdamW([*a, *b], fused=True)"),
        ("o = AdamW(p, foreach=False, lr=1)", FUSED, "o = AdamW(p, lr=1, fused=True)"),
        ("o = AdamW(fused=False, params=p)", FUSED, "o = AdamW(params=p, fused=True)"),
        ("é = torch.optim.AdamW(p, lr=1)", BNB, "é = bnb.AdamW8bit(p, lr=1)"),
        ("o = wrap(AdamW(p, fused=True))", BNB, "o = wrap(bnb.AdamW8bit(p))"),
    ],
)
def test_the_call_of_an_optimizer_is_changed(before, change, after):
    text = ScriptText("train.py", before)
    text.in_call(at(1), "AdamW", **change)
    assert text.changed() == after


@pytest.mark.parametrize(
    "before", ["o = make(p)", "o = AdamW(p), AdamW(q)", "o = AdamW(p, **more)", "o = AdamW(x for x in p)"]
)
def test_a_call_that_may_be_any_is_left_alone(before):
    with pytest.raises(InputError):
        text = ScriptText("train.py", before)
        text.in_call(at(1), "AdamW", **FUSED)
        text.changed()


@pytest.mark.parametrize("before", ["a = 1\nb = 2\n", "a = 1\r\nb = 2\r\n", "a = 1\nb = 2", "a = 1\n\x0cb = 2\n"])
def test_the_diff_can_be_applied(tmp_path, before):
    text = ScriptText("train.py", before)
    text.put_before(at(2), ["ON"])
    (tmp_path / "train.py").write_bytes(before.encode())
    made = diff("train.py", before, text.changed()).encode()
    subprocess.run(["git", "apply", "-p0"], cwd=tmp_path, input=made, check=True)
    assert (tmp_path / "train.py").read_bytes().decode() == text.changed()
