"""`snugfit merge`: the adapter of a run and the weights that it was trained beside, as one plain model.

Examples:
  snugfit merge runs/llama-chats -o merged
  snugfit merge runs/llama-chats -o merged --json

RUN_DIR is the directory of a finished run with --adapter. Where it packed its weights (--quantize), the full ones are read
again from where training started, a layer at a time. A merged hf: model loads with AutoModelForCausalLM.from_pretrained.
"""

from __future__ import annotations

import argparse

from snugfit.cli import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit merge`."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=output.some_path, help="directory of a finished run")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=output.some_path, required=True, help="a folder that is not there yet"
    )
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Merges, and says what was written."""
    from snugfit.runs.merging import merge_run

    return output.print_result(merge_run(args.run_dir, args.output), as_json=args.json)
