"""The published shapes of Llama 3, as configs of transformers."""

import json
from pathlib import Path

_CONFIGS = Path(__file__).parents[1] / "examples" / "configs"
LLAMA_8B, LLAMA_70B = (
    json.loads((_CONFIGS / f"{name}.json").read_text(encoding="utf-8")) for name in ("llama-8b", "llama-70b")
)
