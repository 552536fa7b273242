"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str | None:
    """Return the version of the installed package; None in a checkout that is not installed."""
    try:
        return version("mcp-rl")
    except PackageNotFoundError:
        return None
