"""Which version of raftq this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("raftq")
except PackageNotFoundError:  # A checkout that is not installed has no metadata.
    VERSION = "0.0.0"
