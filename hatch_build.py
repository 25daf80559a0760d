"""Wheels hold the native library where cargo is, and say for which platform; else they are pure.

A release also tells PyPI where the repository is: ``$TORCHTRIAGE_URL``, which the workflow of releases sets.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class PageOnPyPI(MetadataHookInterface):
    """Links between the pages of a repository lead nowhere on PyPI: there they need its address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description and the links beside it."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        url = os.environ.get("TORCHTRIAGE_URL", "").rstrip("/")
        metadata["urls"] = {}
        if url:
            tag = f"v{metadata['version']}"
            metadata["urls"] = {
                "Source": url,
                "Documentation": f"{url}/tree/{tag}/docs",
                "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }
            text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\1{url}/raw/{tag}/", text)
            text = re.sub(r"((?<!!)\[[^\]]*\]\()(?![a-z]+:|#)", rf"\1{url}/blob/{tag}/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the library for wheels; an editable install takes what ``make native`` made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the wheel."""
        script = Path(self.root, "native", "build.py")
        if self.target_name != "wheel" or version == "editable" or not script.exists():
            return
        spec = importlib.util.spec_from_file_location("native_build", script)
        assert spec is not None
        assert spec.loader is not None
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
        try:
            library = native.build()
        except native.BuildError as error:
            self.app.display_warning(f"without the native scanner, which cargo cannot build:\n{error}")
            return
        if library is not None:
            build_data["force_include"][str(library)] = f"torchtriage/core/trace/{native.NAME}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(library.read_bytes())}"


def platform_tag(library: bytes) -> str:
    """Return the oldest platform that the library runs on, as wheels name it."""
    machine = platform.machine()
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", library)
    if platform.system() == "Linux" and needed:
        # 2.17 is the oldest that anybody still has
        major, minor = max((2, 17), *((int(one), int(two)) for one, two in needed))
        return f"manylinux_{major}_{minor}_{machine}"
    if platform.system() == "Darwin":
        return "macosx_11_0_arm64" if machine == "arm64" else f"macosx_10_12_{machine}"
    return re.sub(r"[-.]", "_", sysconfig.get_platform())
