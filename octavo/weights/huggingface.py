"""The Hugging Face hub by `huggingface_hub`, which honours HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and HF_HOME."""

from __future__ import annotations

import glob
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import tqdm

from octavo.errors import LoadError
from octavo.weights.hub import CountBytes, HubUnreachableError, first_line
from octavo.weights.hub_files import HubId

logger = logging.getLogger(__name__)

_ATTEMPTS = 3  # each resumes what it can; older versions of the library give up at the first broken connection
# The library's HTTP client depends on its version (requests, httpx, httpx2). HfHubHTTPError derives from that client's
# base error, from which its connection errors derive as well.
_HTTP_ERRORS: tuple[type[Exception], ...] = (OSError, *HfHubHTTPError.__bases__)


class HuggingFaceHub:
    """See `Hub`. Downloads into the library's own cache, which other programs share."""

    def __init__(self, cache_dir: str | None) -> None:
        self._cache_dir = cache_dir

    def list_files(self, model: HubId) -> dict[str, int]:
        """Name -> bytes of the repository's files."""
        try:
            found = huggingface_hub.HfApi().model_info(model.repo, revision=model.revision, files_metadata=True)
        except HFValidationError:
            raise LoadError(f"{model.repo!r} is neither an existing path nor a valid hub id") from None
        except _HTTP_ERRORS as error:
            raise _refusal(error, model) or _unreachable(error) from None
        return {file.rfilename: file.size or 0 for file in found.siblings or ()}

    def download(self, model: HubId, files: Sequence[str], count: CountBytes | None) -> Path:
        """The snapshot directory, with `files` in it."""
        options: dict[str, Any] = {} if count is None else {"tqdm_class": _counting_bar(count)}
        patterns = [glob.escape(name) for name in files]
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                found = huggingface_hub.snapshot_download(
                    model.repo, revision=model.revision, cache_dir=self._cache_dir, allow_patterns=patterns, **options
                )
                return Path(found)
            except _HTTP_ERRORS as error:
                refusal = _refusal(error, model)
                if refusal is not None:
                    raise refusal from None
                reason = first_line(error)
                logger.warning("downloading %s broke off: %s", model.repo, reason)
        raise LoadError(f"downloading {model.repo} broke off ({reason}); start again, finished files are kept")

    def cached(self, model: HubId) -> Path | None:
        """The snapshot directory of an earlier download."""
        try:
            found = huggingface_hub.snapshot_download(
                model.repo,
                revision=model.revision,
                cache_dir=self._cache_dir,
                allow_patterns=["config.json"],
                local_files_only=True,
            )
        except LocalEntryNotFoundError:
            return None
        return Path(found)


def _refusal(error: Exception, model: HubId) -> LoadError | None:
    """What the hub answered, if it answered no; None when there was no answer, or a fault of the hub's own."""
    if not isinstance(error, HfHubHTTPError):
        return None
    repo, endpoint = model.repo, huggingface_hub.constants.ENDPOINT
    has_token = huggingface_hub.get_token() is not None
    if isinstance(error, GatedRepoError):
        then = "with the account of the token in use" if has_token else "and set HF_TOKEN to a token of that account"
        return LoadError(f"{repo} is gated: accept its terms at {endpoint}/{repo} {then}")
    if isinstance(error, RevisionNotFoundError):
        return LoadError(f"{repo} has no revision {model.revision!r} at {endpoint}; check --revision")
    if isinstance(error, RepositoryNotFoundError):
        token = "to which HF_TOKEN gives no access" if has_token else "which needs HF_TOKEN"
        return LoadError(f"there is no model {repo} at {endpoint}, or it is a private one, {token}; check the name")
    if error.response.status_code in (401, 403):
        return LoadError(f"{endpoint} refused HF_TOKEN for {repo}: set it to a valid token with read access, or unset it")
    return None


def _unreachable(error: Exception) -> HubUnreachableError:
    if isinstance(error, OfflineModeIsEnabled):
        return HubUnreachableError("offline mode is on: unset HF_HUB_OFFLINE to download it, or give a local path")
    endpoint = huggingface_hub.constants.ENDPOINT
    reason = first_line(error)
    return HubUnreachableError(
        f"{endpoint} cannot be reached ({reason}): check the network or HF_ENDPOINT, or give a local path"
    )


def _counting_bar(count: CountBytes) -> type[Any]:
    """A progress bar that shows nothing and tells `count` the bytes. The library opens several bars, of which one counts
    what is written to disk; where it counts only files, nothing is told."""

    base: Any = tqdm

    class CountingBar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._is_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if self._is_bytes and n:
                count(int(n))

    return CountingBar
