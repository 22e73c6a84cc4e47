"""Upload to the hub, only when the user asks for it."""

from pathlib import Path

from pellucid.model_names import FolderError


def push(path: Path, repo: str) -> str:
    """Upload a folder, or a file, to the repository OWNER/NAME, and return its address. A new repository is private.

    huggingface_hub finds the credentials (`hf auth login`). Raises FolderError if the hub refuses; local files stay.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    refusals = (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled, OSError)
    try:
        api = HfApi()
        url = api.create_repo(repo, private=True, exist_ok=True)
        if path.is_dir():
            api.upload_folder(repo_id=repo, folder_path=path)
        else:
            api.upload_file(repo_id=repo, path_or_fileobj=path, path_in_repo=path.name)
    except refusals as error:
        why = str(error).splitlines()[0][:200]
        raise FolderError(f"{path} was written, but could not be uploaded to the hub as {repo}: {why}") from None
    return str(url)
