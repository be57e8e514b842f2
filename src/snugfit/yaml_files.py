"""YAML files: those of `field: value` lines that people write by hand, and the tables that come with snugfit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snugfit.errors import InputError, message_of


def read_table(name: str) -> dict[str, Any]:
    """Returns row name -> fields of a table that comes with snugfit."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, an eighth of the time of every command's start
    table: dict[str, Any] = yaml.load((Path(__file__).parent / name).read_text(encoding="utf-8"), loader)
    return table


def read_yaml(path: str | Path, what: str, *, example: str) -> dict[str, Any]:
    """Reads `field: value` lines; `InputError` for a file that is none. `what` and `example` are for messages."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a field that appears twice; YAML's own loader silently takes the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(self.construct_object(key, deep=deep))
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{name} is said twice, and only one of the two can count", key.start_mark
                    )
                seen.add(name)
            return super().construct_mapping(node, deep)

    named, todo = f"{what} {str(path)!r}", f"Write `field: value` lines, for example `{example}`."
    try:
        given = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)  # a SafeLoader: plain data only
    except OSError as error:
        raise InputError(f"{named} cannot be read: {error.strerror or error}. Give an existing file.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{named} is not YAML, as it is not UTF-8 text: {error.reason} at byte {error.start}. {todo}"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{named}{place} is not YAML: {error.problem or error.context}. {todo}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date of month 13 is a ValueError
        raise InputError(f"{named} is not YAML: {message_of(error)}. {todo}") from error
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InputError(f"{named} holds a {type(given).__name__} and no fields. {todo}")
    return given
