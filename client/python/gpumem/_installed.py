# SPDX-License-Identifier: Apache-2.0
"""Detects that this package has been installed twice.

The distribution is named libgpumem. A distribution named gpumem may also bring a folder gpumem,
such as a wheel of an earlier release. It has overwritten files of this package or will: one of the
two wins, and removing either breaks the other.
"""
import os
import warnings


def _brings_package(info: str) -> bool:
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8") as record:
            return any(line.startswith("gpumem/") for line in record)
    except (OSError, UnicodeDecodeError):
        return False


def check(folder: str) -> None:
    """Warns if a distribution named gpumem in `folder`, which contains this package, also brings
    it. Lists the folder, and reads a file only if there is such a distribution."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if (name.startswith("gpumem-") and name.endswith(".dist-info")
                and _brings_package(os.path.join(folder, name))):
            warnings.warn(
                f"the package gpumem in {folder} has mixed files of two distributions, libgpumem "
                f"and {name[:-len('.dist-info')]}: run \"pip uninstall gpumem "
                "libgpumem\", then install the wheel of libgpumem again by its file's name",
                RuntimeWarning, stacklevel=3)
