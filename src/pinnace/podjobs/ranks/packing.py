"""Writes a part of a container as a tar to its standard output, as root of the container's node.

python -m pinnace.podjobs.ranks.packing PID --layers DIRECTORY…       an image's layers merged, topmost first
python -m pinnace.podjobs.ranks.packing PID --path PATH [--name NAME]  a directory, or one name in it
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pinnace.sandbox.entering import become_root_of
from pinnace.sandbox.linux import CLONE_NEWNS, MS_RDONLY, MS_REC, MS_SLAVE, mount, unshare

PACK = ("tar", "--create", "--numeric-owner", "--xattrs", "--xattrs-include=user.overlay.*", "--sparse",
        "--warning=no-file-changed", "--warning=no-file-ignored", "--warning=no-file-removed")  # fmt: skip
MERGED = "/run/pinnace/layers"


def merge(layers: list[str]) -> str:
    """Mount layers as one directory, in a mount namespace of our own. Returns its path."""
    if len(layers) == 1:
        return layers[0]
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    Path(MERGED).mkdir(exist_ok=True)
    mount("overlay", MERGED, "overlay", MS_RDONLY, f"lowerdir={':'.join(layers)},userxattr")
    return MERGED


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="pinnace-packing")
    parser.add_argument("pid", type=int)
    parser.add_argument("--layers", nargs="+")
    parser.add_argument("--path")
    parser.add_argument("--name", default=".")
    args = parser.parse_args(argv)
    become_root_of(args.pid)
    where = merge(args.layers) if args.layers else args.path
    os.execvp(PACK[0], [*PACK, "--directory", where, args.name])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
