"""The plan that the README shows: eight billion parameters on a card of 24 GB.

python -m benchmarks.first_plan       (minutes; writes benchmarks/results/first_plan.json)
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from benchmarks.results_file import write

LINE = (
    "snugfit plan hf:examples/configs/llama-8b.json --task causal-lm --seq-len 2048 --batch-size 8 \\\n"
    "    --adapter lora --quantize nf4 --precision bf16-mixed --device rtx-4090"
)


def block(results: dict[str, Any]) -> str:
    """The command and the head of its answer, as a block of the README."""
    head, *sections = results["text"].split("\n\n")
    other = next(one for one in sections if one.startswith("With another budget"))
    machine = results["machine"]
    said = f"Printed on {machine['date']} by a machine without a GPU; left out is why each technique is on or off."
    return f"```console\n$ {results['line']}\n{head}\n...\n{other.rstrip()}\n```\n\n{said}"


def words() -> list[str]:
    """What is typed behind `snugfit`."""
    return LINE.replace("\\\n", "").split()[1:]


def main() -> None:
    """Runs the command as it is typed."""
    ran = subprocess.run([sys.executable, "-m", "snugfit", *words()], capture_output=True, text=True, check=True)
    write("first_plan", {"line": LINE, "text": ran.stdout})


if __name__ == "__main__":
    main()
