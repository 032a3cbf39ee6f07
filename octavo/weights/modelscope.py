"""ModelScope's hub by the `modelscope` package (an extra), which honours MODELSCOPE_ENDPOINT and MODELSCOPE_API_TOKEN."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.weights.hub import CountBytes, HubUnreachableError, first_line
from octavo.weights.hub_files import HubId


class ModelScopeHub:
    """See `Hub`. Downloads into the package's own cache."""

    def __init__(self, cache_dir: str | None) -> None:
        """LoadError naming the extra if the package is not installed."""
        self._cache_dir = cache_dir
        try:
            self._library: Any = importlib.import_module("modelscope")
            self._api: Any = importlib.import_module("modelscope.hub.api")
            self._callback: Any = importlib.import_module("modelscope.hub.callback")
            errors = importlib.import_module("modelscope.hub.errors")
        except ModuleNotFoundError as error:
            raise LoadError(
                f"--hub modelscope needs the package modelscope: pip install 'octavo[modelscope]' ({error})"
            ) from None
        declared = (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception))
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError, *declared)

    def list_files(self, model: HubId) -> dict[str, int]:
        """Name -> bytes of the repository's files."""
        try:
            found = self._api.HubApi().get_model_files(model.repo, revision=model.revision or "master", recursive=True)
        except self._errors as error:
            raise _explain(error, model) from None
        return {file["Path"]: int(file.get("Size") or 0) for file in found}

    def download(self, model: HubId, files: Sequence[str], count: CountBytes | None) -> Path:
        """The snapshot directory, with `files` in it."""
        options = {} if count is None else {"progress_callbacks": [self._counting_callback(count)]}
        try:
            found = self._library.snapshot_download(
                model.repo, revision=model.revision, cache_dir=self._cache_dir, allow_patterns=list(files), **options
            )
        except self._errors as error:
            explained = _explain(error, model)
            if isinstance(explained, HubUnreachableError):
                explained = LoadError(
                    f"downloading {model.repo} broke off ({first_line(error)}); start again, finished files are kept"
                )
            raise explained from None
        return Path(found)

    def cached(self, model: HubId) -> Path | None:
        """The snapshot directory of an earlier download."""
        try:
            found = self._library.snapshot_download(
                model.repo, revision=model.revision, cache_dir=self._cache_dir, local_files_only=True
            )
        except self._errors:
            return None
        return Path(found)

    def _counting_callback(self, count: CountBytes) -> type[Any]:
        base: Any = self._callback.ProgressCallback

        class CountingCallback(base):  # type: ignore[misc]
            def update(self, size: int) -> None:
                count(size)

        return CountingCallback


def _explain(error: Exception, model: HubId) -> LoadError:
    """The package's error as one line. Its versions differ in error classes, but all carry the HTTP status."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return LoadError(f"ModelScope refused access to {model.repo}: set MODELSCOPE_API_TOKEN to a token that may read it")
    if status == 404 or type(error).__name__ in ("NotExistError", "NoValidRevisionError"):
        revision = f" of revision {model.revision!r}" if model.revision else ""
        return LoadError(f"ModelScope has no model {model.repo}{revision}, or it is private; check the name")
    return HubUnreachableError(
        f"ModelScope cannot be reached ({first_line(error)}): check the network, or give a local path"
    )
