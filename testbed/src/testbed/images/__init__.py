"""Container images for the demos and tests, made from Debian packages without any registry.

    entries    what a file, directory or link in an image is
    recipes    the images, as data
    debs       which packages a layer needs, by apt's own resolver, and where their files are
    compiling  our own small C programs
    rootfs     packages and entries become a layer
    oci        layers become an image layout that ``ctr images import`` takes
    cache      where finished images lie, safe against a second build and against interruption
    build      from a recipe's name to the path of its image

The same packages give the same digests, bit for bit: entries are sorted, owners are numbers, times are zero.
"""

from __future__ import annotations

from testbed.images.build import build_image, build_images
from testbed.images.recipes import RECIPES

__all__ = ["RECIPES", "build_image", "build_images"]
