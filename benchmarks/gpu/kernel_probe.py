"""What single kernels of a card take inside themselves and keep: convolutions, recurrent layers, attention, sums and others.

    python -m benchmarks.gpu.kernel_probe OUT.json [--seconds 60]

Each call runs twice; the second counts. Inside is what was taken above that which is left when it is over.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Call = tuple[str, dict[str, Any], Callable[[], Any]]


def measured(call: Callable[[], Any]) -> dict[str, int]:
    """Returns bytes that a call takes inside itself, and keeps."""
    for _ in range(2):
        out = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        out = call()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
    del out
    now, most = stats["requested_bytes.all.current"], stats["requested_bytes.all.peak"]
    return {"inside": most - now, "kept": now - before}


class _Convolutions(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.convolution.default:
            x, weight, bias, *rest = args
            self.found.setdefault((tuple(x.shape), tuple(weight.shape), bias is not None, json.dumps(rest)))
        return func(*args, **(kwargs or {}))


def convolutions_of(name: str) -> list[Any]:
    """Returns the different convolutions of a subject's forward pass at its batch size."""
    from benchmarks.gpu.subjects import SUBJECTS

    subject = SUBJECTS[name]
    model = subject.build("cuda").to("meta")
    with torch.device("meta"):
        batch = subject.batch("cuda", subject.samples["cuda"])
    seen = _Convolutions()
    with seen, torch.no_grad():
        model(batch[0])
    return list(seen.found)


def convolutions(models: list[str], dtypes: list[torch.dtype], last: bool) -> Iterator[Call]:
    known = set()
    for name in models:
        for key in convolutions_of(name):
            if key in known:
                continue
            known.add(key)
            shape, weight_shape, biased, rest = key
            stride, padding, dilation, transposed, output_padding, groups = json.loads(rest)
            for dtype in dtypes:
                layout = torch.channels_last if last else torch.contiguous_format
                x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout)
                w = torch.randn(weight_shape, device="cuda", dtype=dtype).to(memory_format=layout)
                b = torch.randn(weight_shape[0], device="cuda", dtype=dtype) if biased else None
                about = {
                    "model": name, "x": shape, "w": weight_shape, "bias": biased, "stride": stride, "padding": padding,
                    "dilation": dilation, "groups": groups, "dtype": str(dtype), "channels_last": last,
                }  # fmt: skip
                rest_ = (stride, padding, dilation, transposed, output_padding, groups)
                yield "convolution", about, lambda x=x, w=w, b=b, r=rest_: aten.convolution(x, w, b, *r)
                grad = torch.randn_like(aten.convolution(x, w, b, *rest_))
                for mask in ([True, False, False], [False, True, False], [True, True, biased]):
                    yield (
                        "convolution_backward",
                        {**about, "mask": mask},
                        lambda g=grad, x=x, w=w, r=rest_, m=mask: aten.convolution_backward(
                            g, x, w, [w.shape[0]] if m[2] else None, *r, m
                        ),
                    )


def recurrent() -> Iterator[Call]:
    shapes = list(itertools.product((1, 2, 3), (False, True), (64, 200, 512, 1024), (1, 8, 64), (16, 128), (1, 2)))
    kinds = ("LSTM", "GRU", "RNN")
    for number, (layers, both, hidden, batch, length, factor) in enumerate(shapes):
        for dtype in (torch.float32, torch.float16):
            kind = kinds[number % 3] if number % 2 else "LSTM"
            if hidden * batch * length > 2**22 and layers == 3:
                continue
            made = getattr(torch.nn, kind)(hidden * factor, hidden, layers, bidirectional=both, batch_first=True)
            made = made.to("cuda", dtype)
            x = torch.randn(batch, length, hidden * factor, device="cuda", dtype=dtype, requires_grad=True)
            about = {
                "kind": kind, "layers": layers, "both": both, "hidden": hidden, "input": hidden * factor,
                "batch": batch, "length": length, "dtype": str(dtype),
            }  # fmt: skip
            yield "recurrent", about, lambda m=made, x=x: m(x)
            yield "recurrent evaluation", about, lambda m=made, x=x: _evaluated(m, x)
            out = made(x)[0]
            grad = torch.randn_like(out)
            wanted = [x, *made.parameters()]
            yield (
                "recurrent backward",
                about,
                lambda o=out, g=grad, w=wanted: torch.autograd.grad(o, w, g, retain_graph=True),
            )


def _evaluated(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(x)


def others() -> Iterator[Call]:
    for dtype in (torch.float32, torch.bfloat16):
        about = {"dtype": str(dtype)}
        for rows, width in ((12608, 768), (4096, 2048), (100352, 96), (50176, 768)):
            shape = {**about, "rows": rows, "width": width}
            x = torch.randn(rows, width, device="cuda", dtype=dtype)
            turned = torch.randn(width, rows, device="cuda", dtype=dtype).t()
            weight = torch.ones(width, device="cuda", dtype=dtype)
            yield "sum", shape, lambda x=x: x.sum(0)
            yield "softmax", shape, lambda x=x: torch.softmax(x, -1)
            yield "softmax turned", shape, lambda x=turned: torch.softmax(x, -1)
            yield "log_softmax turned", shape, lambda x=turned: torch.log_softmax(x, -1)
            soft = torch.softmax(x, -1)
            yield "softmax_backward", shape, lambda x=x, s=soft: aten._softmax_backward_data(x, s, -1, x.dtype)
            yield (
                "softmax_backward turned",
                shape,
                lambda x=turned, s=soft: aten._softmax_backward_data(x, s, -1, x.dtype),
            )
            yield (
                "log_softmax_backward",
                shape,
                lambda x=x, s=soft: aten._log_softmax_backward_data(x, s, -1, x.dtype),
            )
            yield (
                "log_softmax_backward turned",
                shape,
                lambda x=turned, s=soft: aten._log_softmax_backward_data(x, s, -1, x.dtype),
            )
            norm = aten.native_layer_norm(x, [width], weight, weight, 1e-5)
            yield "layer_norm", shape, lambda x=x, w=weight, n=width: aten.native_layer_norm(x, [n], w, w, 1e-5)
            yield (
                "layer_norm turned",
                shape,
                lambda x=turned, w=weight, n=width: aten.native_layer_norm(x, [n], w, w, 1e-5),
            )
            for name, grad, given in (("", x, x), (" turned", turned, turned), (" grad turned", turned, x)):
                yield (
                    f"layer_norm_backward{name}",
                    shape,
                    lambda g=grad, x=given, w=weight, m=norm, n=width: aten.native_layer_norm_backward(
                        g, x, [n], m[1], m[2], w, w, [True] * 3
                    ),
                )
            picture = torch.randn(32, 56, 56, 96, device="cuda", dtype=dtype)
            yield "roll", {**about, "dims": 2}, lambda x=picture: torch.roll(x, (3, 3), (1, 2))
            yield "roll", {**about, "dims": 1}, lambda x=picture: torch.roll(x, 3, 1)
            yield "gelu turned", shape, lambda x=turned: torch.nn.functional.gelu(x)
            yield "cumsum", {**shape}, lambda x=x: x.cumsum(-1)
            yield "sort", {**shape}, lambda x=x: x.sort(-1)
            yield "topk", {**shape}, lambda x=x: x.topk(2, -1)
        for indices, words, width in ((1024, 30522, 768), (4096, 30522, 768), (8192, 512, 768), (4096, 32000, 2048)):
            ids = torch.randint(0, min(words, 900), (indices,), device="cuda")
            grad = torch.randn(indices, width, device="cuda", dtype=dtype)
            shape = {**about, "indices": indices, "words": words, "width": width}
            yield (
                "embedding_dense_backward",
                shape,
                lambda g=grad, i=ids, w=words: aten.embedding_dense_backward(g, i, w, -1, False),
            )
        for batch, length, width, heads in ((64, 197, 768, 12), (8, 512, 1024, 16)):
            shape = {**about, "batch": batch, "length": length, "width": width, "heads": heads}
            module = torch.nn.MultiheadAttention(width, heads, batch_first=True).to("cuda", dtype).eval()
            x = torch.randn(batch, length, width, device="cuda", dtype=dtype)
            yield "multihead evaluation", shape, lambda m=module, x=x: _inferred(m, x)
            layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True).to("cuda", dtype).eval()
            yield "encoder layer evaluation", shape, lambda m=layer, x=x: _inferred_layer(m, x)
            for causal, masked, grouped in itertools.product((False, True), repeat=3):
                if causal and masked:
                    continue
                size = width // heads
                made = [
                    torch.randn(batch, heads // (4 if grouped and n else 1), length, size, device="cuda", dtype=dtype,
                                requires_grad=True)
                    for n in range(3)
                ]  # fmt: skip
                mask = torch.ones(batch, 1, length, length, device="cuda", dtype=torch.bool) if masked else None
                kwargs = {"is_causal": causal, "attn_mask": mask, "enable_gqa": grouped}
                what = {**shape, "causal": causal, "masked": masked, "grouped": grouped}
                run = lambda q=made, k=kwargs: torch.nn.functional.scaled_dot_product_attention(*q, **k)  # noqa: E731
                what["node"] = type(run().grad_fn).__name__
                yield "attention", what, run
                out = run()
                grad = torch.randn_like(out)
                yield (
                    "attention backward",
                    what,
                    lambda o=out, g=grad, q=made: torch.autograd.grad(o, q, g, retain_graph=True),
                )


def _inferred(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(x, x, x, need_weights=False)


def _inferred_layer(module: Any, x: Any) -> Any:
    with torch.no_grad():
        return module(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each group")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    few, many = [torch.float32, torch.bfloat16], [torch.bfloat16, torch.float32, torch.float16]
    groups = {
        "others": others(),
        "recurrent": recurrent(),
        "resnet": convolutions(["resnet50"], many, False),
        "nets": convolutions(
            ["regnet_y_400mf", "convnext_tiny", "densenet121", "efficientnet_b0", "mobilenetv3"], few, False
        ),
        "last": convolutions(["resnet50"], few, True),
    }  # fmt: skip
    for group, calls in groups.items():
        end = time.monotonic() + args.seconds
        try:
            for name, about, call in calls:
                if time.monotonic() > end:
                    print(group, "was stopped", file=sys.stderr)
                    break
                try:
                    rows.append({"call": name, **about, **measured(call)})
                except Exception as error:
                    rows.append({"call": name, **about, "error": str(error)[:200]})
        except Exception as error:
            print(group, type(error).__name__, str(error)[:300], file=sys.stderr)
        torch.cuda.empty_cache()
        print(group, len(rows), round(end - time.monotonic(), 1), "s left", flush=True)
        args.out.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


if __name__ == "__main__":
    main()
