"""Tables of docs/planning.md and docs/text.md, from the results of `plans`, `plan_quality` and `text_training`."""

from __future__ import annotations

from typing import Any

from snugfit.recipe import Recipe
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds


def _where(results: dict[str, Any], command: str) -> str:
    machine = results["machine"]
    return f"`python -m benchmarks.{command}`, {machine['date']}, torch {machine['torch']}, {machine['processor']}."


def plans_table(results: dict[str, Any]) -> str:
    """Budgets against cards: predicted time of a step and the plan's recipe."""
    cards = list(dict.fromkeys(row["card"] for row in results["rows"]))
    lines = [
        f"{results['model']}, effective batch {results['effective_batch']}, AdamW, {results['precision']}, host budget "
        f"{format_bytes(results['host_budget_bytes'])}. Predictions, no measurement on these cards.",
        "",
        "| budget | " + " | ".join(f"{card}: step | recipe" for card in cards) + " |",
        "|---" * (1 + 2 * len(cards)) + "|",
    ]
    for budget in dict.fromkeys(row["budget_gib"] for row in results["rows"]):
        cells = []
        for card in cards:
            row = next(row for row in results["rows"] if (row["card"], row["budget_gib"]) == (card, budget))
            if "error" in row:
                cells += ["-", "does not fit"]
                continue
            recipe = Recipe.from_mapping({**row["recipe"], "precision": "fp32"})
            cells += [format_seconds(row["step_seconds"]), f"`{recipe_in_words(recipe)}`"]
        lines.append(f"| {budget} GiB | " + " | ".join(cells) + " |")
    yes = {True: "yes", False: "NO"}
    lines += [
        "",
        f"Every plan's replay goes through: {yes[results['all_fit']]}. Time never falls with the budget: "
        f"{yes[results['time_never_falls_with_the_budget']]}.",
    ]
    if results["cold"]:
        took = ", ".join(f"{row['seconds']:g} s ({row['card']})" for row in results["cold"])
        gib = results["cold"][0]["budget_gib"]
        lines.append(f"`snugfit plan` for {gib} GiB from a cold start took {took} on two cores.")
    if results["fine_grained"]:
        lines += [
            "",
            "With the microbatch pinned to the whole batch and nothing on the host, so that only checkpointing is left:",
            "",
            "| budget | checkpoint | step | all or nothing | faster by |",
            "|---|---|---|---|---|",
        ]
        for row in results["fine_grained"]:
            choice = row["checkpoint"] if isinstance(row["checkpoint"], str) else f"{len(row['checkpoint'])} blocks"
            seconds = format_seconds(row["step_seconds"]), format_seconds(row["all_or_nothing_seconds"])
            lines.append(
                f"| {row['budget_gib']} GiB on {row['card']} | {choice} | {seconds[0]} | {seconds[1]} | "
                f"{row['faster_percent']:.1f} % |"
            )
    return "\n".join([*lines, "", _where(results, "plans")])


def quality_table(results: dict[str, Any]) -> str:
    """Each plan against the best recipe of a list."""
    lines = ["| model | budget | recipes that fit, of | plan over the best |", "|---|---|---|---|"]
    for row in results["rows"]:
        over = row["over_best_percent"]
        share = f"{row['share']:.0%} of plain, {format_bytes(row['budget_bytes'])}"
        lines.append(
            f"| {row['model']} | {share} | {row['listed_that_fit']} of {row['listed']} | "
            f"{'nothing fits' if over is None else f'{over:+.2f} %'} |"
        )
    lines += _large_rows(results.get("large", []))
    for row in results["timed"]:
        lines.append(
            f"\nThe {len(row['recipes'])} recipes nearest the plan, {row['model']}, timed: rank correlation of predicted "
            f"and measured {row['rank_correlation']:.2f}, predicted over measured {row['median_ratio']:.2f} (median)."
        )
    return "\n".join([*lines, "", _where(results, "plan_quality")])


def _large_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Large models: the plan beside the best that was found by hand."""
    if not rows:
        return []
    lines = [
        "",
        "Large models on small cards, against the best by hand (`benchmarks/by_hand.py`):",
        "",
        "| model, card | by hand, of | plan: step | recipe | plan over by hand |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        recipe = recipe_in_words(Recipe.from_mapping(row["plan"]))
        lines.append(
            f"| {row['model']}, {row['device']} | {format_seconds(row['best_seconds'])}, {row['listed']} | "
            f"{format_seconds(row['plan_seconds'])} | `{recipe}` | {row['over_best_percent']:+.2f} % |"
        )
    machines = dict.fromkeys((row["machine"]["date"], row["machine"]["processor"]) for row in rows)
    days = "; ".join(f"{date}, {processor}" for date, processor in machines)
    return [*lines, "", f"`python -m benchmarks.plan_quality --large`, {days}."]


def training_table(results: dict[str, Any]) -> str:
    """What small language models learn by each recipe, and their memory beside the prediction."""
    lines = [
        "| model | recipe | loss, first to last updates | held out | measured | predicted |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        accuracy, loss = row.get("validation_accuracy"), row.get("validation_loss")
        held_out = f"accuracy {accuracy:.1%}" if accuracy is not None else f"loss {loss:.2f}"
        lines.append(
            f"| {row['model']} | {row['name']} | {row['first_loss']:.2f} to {row['last_loss']:.2f} | {held_out} | "
            f"{format_bytes(row['measured_bytes'])} | {100 * (row['ratio'] - 1):+.2f} % |"
        )
    return "\n".join([*lines, "", _where(results, "text_training")])
