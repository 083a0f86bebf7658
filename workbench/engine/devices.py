"""Where instances go: which devices may be used, what each instance of ``instance_group`` gets.

Source: core ``backend_model.cc`` (PrepareInstances), ``model_config_utils.cc`` (NormalizeInstanceGroup). The devices
are records (``telemetry.Device``): NVML's, or a list from elsewhere (``EngineOptions.gpus``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.backends.base import InstanceSpec
from workbench.backends.host_policy import HostPolicy, check_setting, without_effect
from workbench.config.validation import MIN_COMPUTE_CAPABILITY
from workbench.telemetry.devices import Device, find_devices


@dataclass(frozen=True, slots=True)
class Gpus:
    """The numbers of the GPUs that models of a backend may be placed on, and the compute capability they must have."""

    numbers: tuple[int, ...] = ()
    minimum: float = MIN_COMPUTE_CAPABILITY


class Placement:
    """The devices and host policies of one engine.

    Args:
        given: the devices, numbers or records; None asks NVML.
        minimum: ``--min-supported-compute-capability``.
        policies: ``--host-policy``: name -> setting -> value.

    Raises:
        Unsupported: a policy has a setting that there is not (Triton's text).
    """

    def __init__(
        self,
        given: Sequence[int | Device] | None = None,
        minimum: float = MIN_COMPUTE_CAPABILITY,
        policies: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        found = find_devices() if given is None else given
        self.devices = {
            device.index: device for device in (Device(each) if isinstance(each, int) else each for each in found)
        }
        self.minimum = minimum
        self._policies = {name: HostPolicy(name, dict(settings)) for name, settings in (policies or {}).items()}
        for policy in self._policies.values():
            for setting in policy.settings:
                check_setting(setting)

    def gpus(self, *, in_process: bool = False) -> Gpus:
        """The usable GPUs; ``in_process``: for frameworks in the server's own process.

        A process can use one MIG slice: in the server's it is the first one, and only where there is no whole GPU.
        """
        usable = [device for device in self.devices.values() if self._is_supported(device)]
        if in_process:
            usable = [device for device in usable if not device.is_slice] or usable[:1]
        return Gpus(tuple(sorted(device.index for device in usable)), self.minimum)

    def _is_supported(self, device: Device) -> bool:
        return device.compute_capability is None or device.compute_capability >= self.minimum

    def policy(self, name: str) -> HostPolicy:
        """The policy of this name; one that nobody has defined changes nothing, as in Triton."""
        return self._policies.get(name, HostPolicy(name))

    def notes(self) -> Iterator[str]:
        """What a person should know at the start: devices that are not used and why, policies without effect."""
        for device in self.devices.values():
            if not self._is_supported(device):
                yield (
                    f"{device.describe()}: not used, the least is {self.minimum:.1f} "
                    "(--min-supported-compute-capability)"
                )
        slices = [device.index for device in self.devices.values() if device.is_slice]
        if len(slices) > 1:
            yield (
                f"GPUs {slices[0]} to {slices[-1]} are MIG slices: a process can use one of them, so each instance of "
                "a Python model in a process of its own gets its slice alone, as device 0; frameworks in the server's "
                f"process use GPU {slices[0]} only"
            )
        if self._policies and (text := without_effect()):
            yield text

    def undefined(self, config: Any) -> Iterator[tuple[int, str]]:
        """Instance groups that name a host policy without settings: their index and the name."""
        for index, group in enumerate(config.instance_group):
            if group.host_policy and group.host_policy not in self._policies:
                yield index, group.host_policy

    def specs(self, config: Any, first_index: int = 0) -> list[InstanceSpec]:
        """The instances of a normalised configuration, named ``<group>_<n>``; a GPU group has ``count`` on each GPU.

        The order is Triton's: the first instance on every GPU, then the second one, and so on.
        """
        found: list[InstanceSpec] = []
        for group in config.instance_group:
            kind = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
            numbers = list(group.gpus) if kind == "KIND_GPU" and group.gpus else [0]
            for number in range(max(1, group.count)):
                for gpu in numbers:
                    device = self.devices.get(gpu) if kind == "KIND_GPU" else None
                    found.append(
                        InstanceSpec(
                            f"{group.name}_{number}",
                            kind,
                            gpu,
                            first_index + len(found),
                            self.policy(group.host_policy or _usual_policy(kind, gpu)),
                            device.uuid if device is not None and device.is_slice else "",
                            group.passive,
                            len(numbers) > 1,
                        )
                    )
        return found


def _usual_policy(kind: str, gpu: int) -> str:
    """The policy of an instance whose group names none: by its kind, on GPUs by its device."""
    return f"gpu_{gpu}" if kind == "KIND_GPU" else kind.removeprefix("KIND_").lower()
