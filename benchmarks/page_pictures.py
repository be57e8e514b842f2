"""Pictures of the page for the documents, and how long a browser takes to show it, by Chromium without a window.

    python -m benchmarks.page_pictures

It makes the README's plan (an 8B on an RTX 4090) and two estimates of ViT-L/16, which takes two minutes, and writes
`docs/figures/report-*.png`.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import first_plan
from benchmarks.browser import browser, load, missing, see_as
from snugfit.cli import main as snugfit

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
WORK = ("torchvision:vit_l_16", "--batch-size", "64", "--precision", "bf16-mixed", "--device", "rtx-4090", "--json")
DOCUMENTS = {
    "plan.json": (*first_plan.words(), "--json"),
    "before.json": ("estimate", *WORK),
    "after.json": ("estimate", *WORK, "--checkpoint", "all"),
}
PICTURES = {
    "plan-light": ("plan.json", 1280, 2650, False),
    "plan-dark": ("plan.json", 1280, 2650, True),
    "plan-phone-light": ("plan.json", 400, 1900, False),
    "plan-phone-dark": ("plan.json", 400, 1900, True),
    "change-light": ("before.json after.json", 1280, 1720, False),
}
"""Name -> documents, width, height, and whether it is dark."""
_MOST_WIDE = 960
LOADS = 5


def make(folder: Path) -> None:
    """Writes the documents and their pages."""
    for name, words in DOCUMENTS.items():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert snugfit(words) == 0
        (folder / name).write_text(printed.getvalue(), encoding="utf-8")
    os.chdir(folder)  # the command to copy names the file as it was given
    for names in {names for names, *_ in PICTURES.values()}:
        assert snugfit(["report", *names.split(), "-o", _page(names)]) == 0


def _page(names: str) -> str:
    return names.replace(" ", "-") + ".html"


def turn(driver: Any) -> float:
    """Returns the seconds in which the dial answers, on average over all its positions."""
    milliseconds: float = driver.execute_script(
        """const slider = document.querySelector("input[id^=dial]"), count = +slider.max + 1, begin = performance.now();
        for (let i = 0; i < count; i++) { slider.value = i; slider.dispatchEvent(new Event("input")); }
        return (performance.now() - begin) / count;"""
    )
    return milliseconds / 1000


def main() -> None:
    if missing():
        raise SystemExit(missing())
    from PIL import Image

    with tempfile.TemporaryDirectory() as made, browser() as driver:
        folder = Path(made)
        make(folder)
        for name, (names, width, height, dark) in PICTURES.items():
            see_as(driver, width=width, height=height, dark=dark)
            times = sorted(load(driver, (folder / _page(names)).as_uri()) for _ in range(LOADS))
            picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            picture.thumbnail((_MOST_WIDE, height), Image.Resampling.LANCZOS)
            path = FIGURES / f"report-{name}.png"
            picture.quantize(256, kmeans=4, dither=Image.Dither.NONE).save(path, optimize=True)
            print(f"{path.name}: {path.stat().st_size // 1000} kB; loaded in {times[0]:.2f} to {times[-1]:.2f} s")
            if name == "plan-light":
                print(f"the dial answers in {1000 * turn(driver):.1f} ms")


if __name__ == "__main__":
    main()
