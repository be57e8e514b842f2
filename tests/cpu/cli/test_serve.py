"""`snugfit serve` as it is used: typed in a shell, opened in a browser, ended with Ctrl-C; it names no file for a page."""

import json
import signal
import subprocess
import sys
import time
import urllib.request

import patience
import pytest
from benchmarks.browser import browser, missing
from command_line import MODEL_FILE, environment, run_command

from snugfit.cli import options, parse, serve
from snugfit.errors import InputError


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server for a small model of a file, and its log once it has ended."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "model.py").write_text(MODEL_FILE)
    words = ["serve", "model.py:build", "--image-size", "8", "--batch-size", "16", "--device", "rtx-3090", "--json"]
    free = ("checkpoint", "microbatch_size")  # a search that is soon over
    words += [f"--forbid={info.name}" for info in options.recipe_fields() if info.name not in free]
    process = subprocess.Popen(
        [sys.executable, "-m", "snugfit", *words], cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    said = ""
    while not said.endswith("}\n"):
        said += process.stdout.readline() or pytest.fail(process.stderr.read())
    yield json.loads(said)["url"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=patience.SECONDS)
    assert (process.returncode, out) == (0, "")
    assert all(
        line.startswith(("snugfit: GET /TOKEN/", "snugfit: POST /TOKEN/answers")) for line in err.splitlines()
    ), err


def asked(url, **wanted):
    body = json.dumps({"tab": "a", "asked": wanted}).encode()
    request = urllib.request.Request(url + "answers", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=patience.SECONDS) as answer:
        for line in answer:
            yield json.loads(line)


def test_an_estimate_comes_first_and_then_the_plan(running):
    given = {"model": "model.py:build", "image_size": "8", "batch_size": "16", "device": "rtx-3090", "budget": "1GiB"}
    answer = list(asked(running, **given))
    assert [found for found in answer if "error" in found] == []
    pages = [found["page"]["documents"][0] for found in answer if "page" in found]
    assert [one["kind"] for one in pages] == ["estimate", "plan"]
    assert "batch of 16 x" in pages[0]["sections"]["facts"]["rows"][0][1] and "dial" in pages[1]["sections"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"model": "model.py:other"}, "give torchvision:NAME or timm:NAME, or model.py:build"),
        ({"model": "hf:/etc"}, "give torchvision:NAME"),
        ({"model": "timm:hf-hub:a/b"}, "give torchvision:NAME"),
        ({"model": "torchvision:../x"}, "give torchvision:NAME"),
        ({"model": "torchvision:resnet18", "device": "my-machine.yaml"}, "device is 'my-machine.yaml'"),
        ({"model": "torchvision:resnet18", "weights": "/etc/passwd"}, "asks for 'weights', which it may not"),
        ({"model": "torchvision:resnet18", "batch_size": "many"}, "batch_size is 'many'"),
        ({}, "model must be given"),
    ],
)
def test_a_page_may_not_ask_for_files_or_nonsense(wanted, said):
    args = parse(["serve", "model.py:build"])
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        list(serve._answers(wanted, args, None, None))


def test_the_first_card_may_be_written_short_or_be_a_file(tmp_path):
    assert serve._named("rtx-3060") == "rtx-3060-12gb"
    own = tmp_path / "own.yaml"
    own.write_text("like: rtx-3090")
    assert serve._named(str(own)) == str(own)


def test_what_belongs_to_the_first_model_is_none_of_another_ones():
    args = parse(["serve", "model.py:build", "--model-arg", "width=64", "--task", "causal-lm"])
    assert serve._typed({"model": "model.py:build"}, args).model_arg == ["width=64"]
    other = serve._typed({"model": "torchvision:resnet18"}, args)
    assert not other.model_arg and other.task is None


@pytest.mark.parametrize(
    "words, said",
    [
        (["torchvision:resnet19"], "torchvision"),
        (["absent.py:build"], "absent.py"),
        (["torchvision:resnet18", "--budget", "0"], "budget '0' is not understood"),
    ],
)
def test_what_is_wrong_is_told_before_a_page_is(words, said, tmp_path):
    done = run_command("serve", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
def test_a_changed_batch_is_shown(running):
    with browser() as driver:
        driver.get(running)

        def shown(text):
            until = time.monotonic() + patience.SECONDS
            while text not in driver.find_element("id", "page").text:
                assert time.monotonic() < until, driver.find_element("id", "live").text
                time.sleep(0.05)

        shown("batch of 16 x")
        axe = pytest.importorskip("axe_core_python.selenium").Axe()
        assert [one["id"] for one in axe.run(driver)["violations"] if one["impact"] in ("serious", "critical")] == []
        field = driver.find_element("id", "field-batch_size")
        field.clear()
        field.send_keys("32")
        shown("batch of 32 x")
        field.send_keys("0000000000000")
        until = time.monotonic() + patience.SECONDS
        while not driver.find_elements("css selector", "#live p.error"):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert driver.get_log("browser") == []
