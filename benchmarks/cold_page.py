"""The page on how long answers take, from its results."""

from __future__ import annotations

from typing import Any

_HEAD = """# How long an answer takes

What is typed is answered by two processes: the command, which imports no torch, and a worker, which builds the model without
weights, records its step and ends with the command. Cold means that both start from nothing; from Python the worker stays,
and its second answer takes the recording and the replays alone. Made from `benchmarks/results/cold_answers.json` by
`make docs`; `python -m benchmarks.cold_answers` measures again.

Seconds are those of the processor, user and system, of all processes of a command, and the least of the runs. On two quiet
cores the wall time of an estimate is a little less, because the two processes mostly wait for each other, and that of a plan
about half, because it has two workers (four, where there are four cores), which simulate what will likely be asked for next
while they have nothing else to do. Other processes that want the cores add to the
seconds; the line under each table says how many did.
"""


def cold_page(results: dict[str, Any]) -> str:
    """Returns the page.

    Args:
        results: Content of `cold_answers.json`.
    """
    parts = [_HEAD]
    if "commands" in results:
        parts += ["## Estimates, cold\n", _commands(results["commands"]["rows"]), _where(results["commands"])]
    if "imports" in results:
        parts += ["## What imports take\n", _imports(results["imports"]["rows"]), _where(results["imports"])]
    if "parts" in results:
        parts += ["## Where the seconds of a cold estimate go\n", _parts(results["parts"]["rows"])]
        parts += [
            "\nMeasured in one process, one part after the other; as a command, the first row and the last four are the "
            "command's, which waits for the worker between them.",
            _where(results["parts"]),
        ]
    if "plans" in results:
        parts += ["## Plans, cold\n", _plans(results["plans"]["rows"]), _where(results["plans"])]
    return "\n".join(parts)


def _commands(rows: dict[str, Any]) -> str:
    lines = ["| typed | seconds of processor |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{row['typed']}` | {row['processor_seconds']:.1f} |" for row in rows.values())])


def _imports(rows: dict[str, float]) -> str:
    lines = ["| `import` | seconds of processor |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {seconds:.1f} |" for name, seconds in rows.items())])


def _parts(rows: dict[str, dict[str, float]]) -> str:
    lines = ["| part | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    names = list(next(iter(rows.values())))
    return "\n".join(
        [*lines, *(f"| {name} | {' | '.join(f'{row[name]:.2f}' for row in rows.values())} |" for name in names)]
    )


def _plans(rows: dict[str, Any]) -> str:
    lines = ["| typed | recipes simulated | seconds of processor | seconds to wait |", "|---|---|---|---|"]
    return "\n".join(
        [
            *lines,
            *(
                f"| `{row['typed']}` | {row['simulations']} | {row['processor_seconds']:.0f} | {row['wall_seconds']:.0f} |"
                for row in rows.values()
            ),
        ]
    )


def _where(part: dict[str, Any]) -> str:
    machine = part["machine"]
    return (
        f"\n{machine['processor']}, torch {machine['torch']}, {machine['date']}; runs: {part['repeats']}; processes that "
        f"wanted its two cores at the beginning: {part['load_average']:.0f}.\n"
    )
