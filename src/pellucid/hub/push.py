"""Onto the hub, where a person asks for it and nowhere else."""

from pathlib import Path

from pellucid.hub.files import FolderError


def push(path: Path, repo: str) -> str:
    """Put a folder, or a file, into the repository OWNER/NAME, made private where it is new; its address.

    Who one is there is what huggingface_hub finds (`hf auth login`). Raises FolderError where the hub refuses; what was
    written here stays.
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
        raise FolderError(f"{path} is written and could not be put on the hub as {repo}: {why}") from None
    return str(url)
