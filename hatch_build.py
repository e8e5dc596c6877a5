"""Build hook: compiles the optional library of src/resnet_tpu/data/native where a compiler and libjpeg-turbo are."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/resnet_tpu/data/native"


class NativeBuildHook(BuildHookInterface):
    """Compiles into the package, so that an editable installation has the library as well as a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Goes on without the library when it cannot be compiled."""
        if self.target_name != "wheel":
            return
        builder = runpy.run_path(str(Path(self.root) / NATIVE / "build.py"))
        try:
            library = builder["build"]()
        except builder["BuildError"] as error:
            self.app.display_warning(f"Building without the library in C, JPEGs will be decoded more slowly.\n{error}")
            return
        if version == "editable":
            return
        # Any Python that runs the package can load it, but no other system than one like this.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(f"/{library.relative_to(Path(self.root).resolve())}")
