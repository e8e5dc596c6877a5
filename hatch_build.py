"""Build hook: compiles the optional libraries in C if there is a compiler and what they need."""

import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = {
    "src/resnet_tpu/data/pixels/native": "JPEGs will be decoded more slowly",
    "src/resnet_tpu/kernels/native": "training on a CPU will be slower",
}


class NativeBuildHook(BuildHookInterface):
    """Compiles into the package, so that both editable installations and wheels have the libraries."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles each library for a wheel; continues without those that cannot be compiled."""
        if self.target_name != "wheel":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        for folder, without in LIBRARIES.items():
            self._build(folder, without, build_data, is_editable=version == "editable")

    def _build(self, folder: str, without: str, build_data: dict[str, Any], *, is_editable: bool) -> None:
        builder = runpy.run_path(str(Path(self.root) / folder / "build.py"))
        try:
            library = builder["build"]()
        except builder["BuildError"] as error:
            builder["LIBRARY"].unlink(missing_ok=True)  # made from earlier sources
            self.app.display_warning(f"Building without the library in {folder}: {without}.\n{error}")
            return
        if is_editable:
            return
        # Any Python that runs the package can load the library, but only on a platform like this one.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(f"/{library.relative_to(Path(self.root).resolve())}")
