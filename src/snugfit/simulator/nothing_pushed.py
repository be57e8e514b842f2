"""Hugging Face's hub in a script that is only looked at: what it pushes goes nowhere, and who it is, is answered.

With `push_to_hub=True` a trainer makes its repository before it trains; `notebook_login()` at the top asks a person.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from snugfit.attributes import Change

_NAME = "user"
_WHO = {
    "type": "user", "id": "0", "name": _NAME, "fullname": _NAME, "orgs": [],
    "auth": {"type": "access_token", "accessToken": {"displayName": "simulated", "role": "write"}},
}  # fmt: skip
_PUSHES = ("create_commit", "upload_file", "upload_folder", "upload_large_folder")
_SETS = ("create_branch", "create_tag", "delete_file", "delete_files", "delete_folder", "update_repo_settings")


def nothing_pushed() -> list[Change]:
    """Returns the replacements of what changes a repository of the hub, where its library is installed."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return []
    from huggingface_hub import hf_api

    def repository(_: Any, repo_id: str, *, repo_type: str | None = None, **__: Any) -> Any:
        kind = "" if repo_type in (None, "model") else f"{repo_type}s/"
        return hf_api.RepoUrl(f"https://huggingface.co/{kind}{repo_id if '/' in repo_id else f'{_NAME}/{repo_id}'}")

    def pushed(_: Any, *__: Any, run_as_future: bool = False, **more: Any) -> Any:
        """Returns what a commit is known by; as a future, one that is done."""
        message = str(more.get("commit_message") or "")
        commit = hf_api.CommitInfo(
            commit_url=f"https://huggingface.co/{_NAME}/{_NAME}/commit/0", commit_message=message,
            commit_description="", oid="0",
        )  # fmt: skip
        if not run_as_future:
            return commit
        done: Future[Any] = Future()
        done.set_result(commit)
        return done

    answers: dict[str, Callable[..., Any]] = {
        "create_repo": repository,
        "whoami": lambda *_, **__: _WHO,
        **dict.fromkeys(_PUSHES, pushed),
        **dict.fromkeys(_SETS, lambda *_, **__: None),
    }
    changes: list[Change] = []
    for name, answer in answers.items():
        changes.append((hf_api.HfApi, name, answer))
        if hasattr(hf_api, name):  # a method of an object that the library made of its class
            changes.append((hf_api, name, answer.__get__(hf_api.api)))
    import huggingface_hub
    from huggingface_hub import _login

    for name in ("interpreter_login", "login", "notebook_login"):
        owners = [
            _login,
            *([huggingface_hub] if name in vars(huggingface_hub) else []),
        ]  # which gets it when asked for it
        changes += [(owner, name, lambda *_, **__: None) for owner in owners]
    return changes
