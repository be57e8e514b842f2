"""The page in a real browser, used as people use it: slider, keys, pointer, phone, dark, screen reader."""

import json
import time
from pathlib import Path

import pytest
from benchmarks.browser import MOST_SECONDS, browser, load, missing, see_as
from benchmarks.results_file import RESULTS

from snugfit.cli import main
from snugfit.errors import DoesNotFitError
from snugfit.planner.budgets import Budgets
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds

DOCS = Path(__file__).parents[3] / "docs"
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
PAGES = {
    "plan": ["plan.json"], "cards": ["cards.json"], "gpus": ["gpus.json"], "run": ["run"], "ladder": ["ladder"],
    "stopped": ["stopped"],
    "change": ["before.json", "after.json"], "plans": ["plan.json", "plan.json"], "ladders": ["predicted", "ladder"],
}  # fmt: skip


@pytest.fixture(scope="session")
def driver():
    with browser() as found:
        yield found


@pytest.fixture(scope="session")
def pages(documents):
    for name, words in PAGES.items():
        main(["report", *(str(documents / word) for word in words), "-o", str(documents / f"{name}.html")])
    return documents


@pytest.fixture
def visit(driver, pages):
    """A function that opens a page; in the end the console must have said nothing."""

    def opened(name, **seen):
        see_as(driver, **{"width": 1280, **seen})
        load(driver, (pages / f"{name}.html").as_uri())
        return driver

    yield opened
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert driver.execute_script("return typeof document_was_run") == "undefined"


def css(driver, selector):
    from selenium.webdriver.common.by import By

    return driver.find_elements(By.CSS_SELECTOR, selector)


def wait_for(condition):
    until = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def serious(driver):
    """What a checker of accessibility finds, with everything unfolded."""
    axe = pytest.importorskip("axe_core_python.selenium").Axe()
    driver.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    found = axe.run(driver)["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("name", PAGES)
def test_every_page_draws_itself_for_wide_and_narrow_windows(visit, name):
    for width, dark in ((1280, False), (400, True)):
        driver = visit(name, width=width, dark=dark)
        charts = css(driver, ".chart")
        assert charts and all(css(chart, "svg") and chart.get_attribute("aria-label") for chart in charts)
        assert driver.execute_script("return document.documentElement.scrollWidth") == width
        assert (dark and name != "plan") or serious(driver) == []
        ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")


def test_the_slider_says_what_the_plan_answers(visit, documents):
    from selenium.webdriver.common.keys import Keys

    kept = Budgets.from_mapping(json.loads((documents / "plan.json").read_text())["budgets"])
    driver = visit("plan")
    (slider,) = css(driver, "section input[type=range][id^=dial]")
    data = json.loads(driver.execute_script("return document.getElementById('data').textContent"))
    positions = data["documents"][0]["sections"]["dial"]["positions"]

    def read(field):
        return "".join(one.text for one in css(driver, f"[data-field={field}]"))

    answers = [position["answer"] for position in positions]
    changes = {at for at in range(1, len(positions)) if answers[at] != answers[at - 1]}
    seen, here = set(), 0
    slider.send_keys(Keys.HOME)
    for at in sorted({*range(0, len(positions), 15), *changes, len(positions) - 1}):
        slider.send_keys(Keys.ARROW_RIGHT * (at - here))
        here, size = at, positions[at]["budget_bytes"]
        assert css(driver, ".budget output")[0].text == format_bytes(size)
        try:
            answer = kept.at(size)
        except DoesNotFitError:
            assert not read("need") and "Nothing that was simulated fits" in css(driver, ".answer")[0].text
        else:
            assert read("recipe") == recipe_in_words(answer.recipe)
            assert read("need") == f"{format_bytes(answer.need_bytes)} (simulated)"
            assert read("total").startswith(format_bytes(answer.total_bytes))
            assert read("step").startswith(f"{format_seconds(answer.step_seconds)} (simulated)")
            assert read("margin").startswith(format_bytes(answer.margin_bytes))
            assert read("fidelity") == str(answer.fidelity)
            assert recipe_in_words(answer.recipe) in slider.get_attribute("aria-valuetext")
            assert bool(read("faster")) == (answer.faster is not None)
            assert (f"--budget {size // 2**20}MiB") in css(driver, ".copy code")[0].text
            seen.add(answer.recipe)
    assert len(seen) == len(kept.points) >= 3


def test_the_dial_stays_where_it_was_put_when_it_gets_dark(visit):
    from selenium.webdriver.common.keys import Keys

    driver = visit("plan")
    (slider,) = css(driver, "section input[type=range][id^=dial]")
    planned = css(driver, ".budget output")[0].text
    assert any(f"of the plan for {planned}" in one.text for one in css(driver, "p.faint"))
    slider.send_keys(Keys.END)
    last = css(driver, ".budget output")[0].text
    see_as(driver, width=1280, dark=True)
    wait_for(lambda: css(driver, "section input[type=range][id^=dial]")[0] != slider)
    assert css(driver, ".budget output")[0].text == last != planned
    assert any(f"of the plan for {planned}" in one.text for one in css(driver, "p.faint"))


def test_hovering_names_what_is_under_the_pointer(visit):
    from selenium.webdriver import ActionChains

    driver = visit("plan", height=4000)
    data = json.loads(driver.execute_script("return document.getElementById('data').textContent"))
    timeline = data["documents"][0]["sections"]["timeline"]
    frontier, treemap, chart = css(driver, ".chart")
    ActionChains(driver).move_to_element_with_offset(chart, 200, 20).perform()
    (tip,) = css(chart, ".tip")
    assert any(format_bytes(total) in tip.text for total in timeline["total"]) and "of step" in tip.text
    ActionChains(driver).move_to_element_with_offset(treemap, -100, 0).perform()
    (tip,) = css(treemap, ".tip")
    assert "</script>" in tip.text and "%" in tip.text
    assert css(frontier, "svg")


def test_everything_can_be_done_with_keys(visit):
    from selenium.webdriver.common.keys import Keys

    driver = visit("plan", height=1500)

    def tiles():
        return driver.execute_script("return document.querySelectorAll('.chart')[1].textContent")

    done, before, body = set(), tiles(), driver.switch_to.active_element
    for _ in range(40):
        body.send_keys(Keys.TAB)
        here = driver.switch_to.active_element
        kind = here.get_attribute("type") or here.tag_name
        if kind == "radio" and "radio" not in done:
            here.send_keys(Keys.ARROW_RIGHT)
            assert (
                tiles() != before and "by category" in driver.switch_to.active_element.find_element("xpath", "..").text
            )
        elif kind == "summary" and "summary" not in done:
            here.send_keys(Keys.ENTER)
            (table,) = css(driver, "details[open] table")
            assert table.text.startswith("from a budget of")
        elif kind == "button" and "button" not in done:
            here.send_keys(Keys.SPACE)
            wait_for(lambda here=here: here.text == "Copied")
        elif kind == "range" and here.get_attribute("id").startswith("moment"):
            here.send_keys(Keys.HOME)
            assert (
                here.get_attribute("aria-valuetext") == css(driver, f"output[for={here.get_attribute('id')}]")[0].text
            )
            done.add("moment")
        done.add(kind)
        body = here
        if here.tag_name == "body":
            break
    assert {"range", "radio", "summary", "button", "moment"} <= done


def test_numbers_are_written_as_everywhere(visit):
    driver = visit("ladder")
    sizes = [0, 1, 1023, 1024, 1152, 10 * 2**20, 9 * 2**27, 2**30 - 1, 23.5 * 2**30, 999.4 * 2**20, 2**43, -(2**30)]
    times = [3e-6, 0.0244, 0.35731, 0.9994, 0.9996, 12.94, 99.94, 100, 3599.6, 6100]
    written = driver.execute_script(
        "return [arguments[0].map(bytes), arguments[1].map(seconds)]", [int(size) for size in sizes], times
    )
    assert written[0] == [format_bytes(int(size)) for size in sizes]
    assert written[1][1:] == [format_seconds(time) for time in times[1:]]


def test_the_gallery_shows_what_is_asked_for(driver):
    rows = json.loads((RESULTS / "gallery.json").read_text())["rows"]
    card, model = rows[-1]["card"], rows[-1]["model"]
    see_as(driver, width=400)
    driver.get((DOCS / "gallery" / "index.html").as_uri())
    wait_for(lambda: len(css(driver, "#rows > div")) == len(rows))
    for name, value in (("card", card), ("model", model)):
        css(driver, f"#{name}")[0].send_keys(value)  # by keyboard
        wait_for(lambda name=name, value=value: css(driver, f"#{name}")[0].get_attribute("value") == value)
    wanted = [row for row in rows if (row["card"], row["model"]) == (card, model)]
    wait_for(lambda: len(css(driver, "#rows > div")) == len(wanted))
    assert [one.text for one in css(driver, "#rows code")] == [row["command"] for row in wanted]
    assert serious(driver) == [] and driver.get_log("browser") == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 400
    see_as(driver, width=400, dark=True)
    assert serious(driver) == []
