"""Sizes that a config of transformers states, under the names that its many kinds have for them.

A model of several parts keeps them in a config for each part; the one that a size belongs to is asked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_IMAGES = ("image_size", "img_size", "input_image_size")
_VISION, _SOUND, _TEXT = ("vision_config", "backbone_config"), ("audio_config",), ("text_config", "decoder")
_LONGEST_SOUND = 3000
"""Moments of 10 ms: half a minute, what speech models are trained on."""
_FEATURES = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")


def image_sides(config: Any) -> tuple[int, int] | None:
    """Returns height and width of the images, or None where nothing says them."""
    found = _field(config, _IMAGES, _VISION)
    if isinstance(found, int):
        return found, found
    if isinstance(found, dict) and {"height", "width"} <= set(found):
        return int(found["height"]), int(found["width"])
    if isinstance(found, list | tuple) and len(found) >= 2:
        return int(found[-2]), int(found[-1])
    return None


def image_channels(config: Any) -> int:
    """Returns the channels of the images: 3 where nothing says them."""
    return _number(config, ("num_channels", "in_channels", "in_chans"), _VISION) or 3


def clip_frames(config: Any) -> int | None:
    """Returns how many frames a clip has, or None where nothing says it."""
    return _number(config, ("num_frames", "frames_per_clip"), _VISION)


def sound_features(config: Any) -> int | None:
    """Returns how many numbers a model takes for a time step of sound, None if it takes the wave itself."""
    return _number(config, _FEATURES, _SOUND)


def sound_length(config: Any) -> int | None:
    """Returns how many time steps of sound a model takes, where that is stated."""
    if sound_features(config) is None:
        return None
    found = _number(config, ("max_source_positions",), _SOUND)
    if found is not None:
        return min(2 * found, _LONGEST_SOUND)  # the encoder's second convolution halves them
    return _number(config, ("max_length",), _SOUND)


def target_limit(config: Any) -> int | None:
    """Returns how many tokens a separate decoder writes at most, or None."""
    return _number(config, ("max_target_positions", "decoder_max_position_embeddings"), _TEXT)


def placeholder_token(config: Any) -> int | None:
    """Returns the token that stands for a piece of an image in a text, or None."""
    return _number(config, ("image_token_id", "image_token_index"), ())


def _number(config: Any, names: tuple[str, ...], parts: tuple[str, ...]) -> int | None:
    found = _field(config, names, parts)
    return found if isinstance(found, int) else None


def _field(config: Any, names: tuple[str, ...], parts: tuple[str, ...]) -> Any:
    for part in _parts(config, parts):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def _parts(config: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        part = getattr(config, name, None)
        if part is not None:
            yield part
    yield config
    encoder = getattr(config, "encoder", None)
    if encoder is not None and not isinstance(encoder, dict | str):
        yield encoder
