"""TPU slices as Google Cloud rents them: names, hosts, zones, and their names in each service."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.performance.plan.topology import TPU_SLICES, Topology, find_tpu_slice


@dataclass(frozen=True, kw_only=True)
class _Rented:
    """Google Cloud's names and zones for a TPU generation."""

    prefix: str  # of slice names
    runtime: str  # software of a TPU VM
    single: tuple[str, ...]  # zones of slices with a single host
    several: tuple[str, ...]  # zones of larger ones
    gke: str = ""  # label of a node with these chips; empty: not on GKE
    vertex: str = ""  # family of machine types on Vertex AI; empty: not there


_V5E = ("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b")
_V5P = ("us-central1-a", "us-east5-a", "europe-west4-b")
_V6E = (
    "us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b",
    "southamerica-west1-a",
)  # fmt: skip

_RENTED = {
    "v2": _Rented(
        prefix="v2",
        runtime="tpu-ubuntu2204-base",
        vertex="cloud-tpu",
        single=("us-central1-b", "us-central1-c", "europe-west4-a", "asia-east1-c"),
        several=("us-central1-a", "europe-west4-a"),
    ),
    "v3": _Rented(
        prefix="v3",
        runtime="tpu-ubuntu2204-base",
        vertex="cloud-tpu",
        single=("us-central1-a", "us-central1-b", "europe-west4-a"),
        several=("europe-west4-a",),
    ),
    "v4": _Rented(
        prefix="v4",
        runtime="tpu-ubuntu2204-base",
        gke="tpu-v4-podslice",
        single=("us-central2-b",),
        several=("us-central2-b",),
    ),
    "v5e": _Rented(
        prefix="v5litepod",
        runtime="v2-alpha-tpuv5-lite",
        gke="tpu-v5-lite-podslice",
        vertex="ct5lp-hightpu",
        single=_V5E,
        several=_V5E,
    ),
    "v5p": _Rented(prefix="v5p", runtime="v2-alpha-tpuv5", gke="tpu-v5p-slice", single=_V5P, several=_V5P),
    "v6e": _Rented(
        prefix="v6e",
        runtime="v2-alpha-tpuv6e",
        gke="tpu-v6e-slice",
        vertex="ct6e-standard",
        single=_V6E,
        several=_V6E,
    ),
}
"""Sources, as of 2026: Cloud TPU's documentation, "TPU regions and zones" and "TPU software versions", for
asia-northeast1-b "Request Cloud TPUs using Flex-start"; Google Kubernetes Engine's, "Plan TPUs in GKE"; Vertex AI's,
"Configure compute resources". Zones that Google reserves for single customers are omitted. For two zones we found
no source: europe-west4-b for v5e, and southamerica-west1-a for v6e."""


@dataclass(frozen=True)
class Slice:
    """A TPU slice that can be rented."""

    topology: Topology

    @property
    def accelerator_type(self) -> str:
        """Its name on Cloud TPU, such as v5litepod-8."""
        return f"{self._rented.prefix}-{self.topology.cores}"

    @property
    def shape(self) -> str:
        """Its grid of chips, such as 2x4."""
        return self.topology.name.partition(":")[2]

    @property
    def hosts(self) -> int:
        """The number of its machines; training runs on each of them."""
        return self.topology.hosts

    @property
    def chips_per_host(self) -> int:
        """The number of chips of each machine."""
        return self.topology.chips // self.topology.hosts

    @property
    def runtime(self) -> str:
        """The software of its machines on Cloud TPU."""
        return self._rented.runtime

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones in which it can be rented, as far as known."""
        return self._rented.single if self.hosts == 1 else self._rented.several

    @property
    def gke_label(self) -> str:
        """GKE's name for its chips. Raises UserError if GKE does not offer them."""
        return self._offered("GKE", lambda rented: rented.gke)

    @property
    def vertex_family(self) -> str:
        """The family of its machine types on Vertex AI. Raises UserError if Vertex AI has none."""
        return self._offered("Vertex AI", lambda rented: rented.vertex)

    @property
    def _rented(self) -> _Rented:
        return _RENTED[self.topology.generation.name]

    def _offered(self, service: str, name_in: Callable[[_Rented], str]) -> str:
        """The name that `service` has for these chips. Raises UserError, naming those that it has, if there is none."""
        if name := name_in(self._rented):
            return name
        having = ", ".join(generation for generation, rented in _RENTED.items() if name_in(rented))
        do = "Choose one of them, or `resnet-tpu submit tpu_vm`."
        raise UserError("--tpu_type", self.accelerator_type, f"a slice that {service} has: one of {having}", do)

    def check_location(self, kind: Literal["zone", "region"], location: str) -> None:
        """Raises UserError if this slice is not known to be offered in a zone, or in any zone of a region."""
        known = self.zones if kind == "zone" else tuple(dict.fromkeys(_region(zone) for zone in self.zones))
        if location not in known:
            hint = nearest(location, known, count=1)
            do = f"Choose one, or pass --nocheck_zone where Google has added it since.{hint}"
            expected = f"one with {self.accelerator_type}: {', '.join(known)}"
            raise UserError(f"--{kind}", location or "nothing", expected, do)


def find_slice(name: str) -> Slice:
    """The slice called `name`: v5litepod-8 as on Cloud TPU, v5e-8 as in our recipes, v5e:2x4 as in the compiler.

    Raises UserError, naming the nearest, if there is none.
    """
    if found := find_tpu_slice(name):
        return Slice(found)
    known = [Slice(topology).accelerator_type for topology in TPU_SLICES.values()]
    hint = " That scale tier was a v2-8." if name == "BASIC_TPU" else nearest(name, known)
    raise UserError("--tpu_type", name or "nothing", "a TPU slice such as v5litepod-8 or v4-32", f"Choose one.{hint}")


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]
