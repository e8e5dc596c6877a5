"""Advice on what to change if a plan does not fit, or could be better."""

import dataclasses
import math

from resnet_tpu.performance.plan.host import Host
from resnet_tpu.performance.plan.plan import Plan, Step

FEW_IMAGES = 32
"""With fewer images, a device is poorly utilised."""


_SMALLER = {
    "--recompress --quality=90": (1.37, 0.54),
    "--short_side=256": (1.75, 0.40),
    "--short_side=256 --quality=90": (1.97, 0.29),
}
"""Ways to `prepare` ImageNet's photos: the factor by which images/s increase, and the remaining fraction of the bytes;
measured, see `benchmarks/figures.md`."""


def advise(plan: Plan) -> list[str]:
    """Advice in sentences; empty if there is none."""
    advice = []
    if plan.train and not plan.train.fits:
        advice += _fit_training(plan, plan.train)
    if plan.eval and not plan.eval.fits:
        advice.append("Lower eval_batch_size.")
    if plan.train and plan.train.fits and plan.train.batch_per_device < FEW_IMAGES and plan.devices > 1:
        few = plan.train.batch_per_device
        advice.append(f"With {few} images per device the matrix units wait: use a smaller slice or a larger batch.")
    if plan.train and plan.train.images_per_second and plan.host and plan.input_wait:
        advice.append(_feed(plan.host, plan.train.images_per_second / plan.topology.hosts))
    if plan.devices < plan.topology.devices:
        advice.append(
            f"num_cores leaves {plan.topology.devices - plan.devices} of {plan.topology.devices} devices idle, "
            "but all chips are paid for."
        )
    return advice


def _feed(host: Host, wanted: float) -> str:
    """Advice that brings a host's images/s up to `wanted`."""
    given = host.most_images_per_sec
    gap = f"A host gives {given:,.0f} of the {wanted:,.0f} images/s that its chips take: {host.limit} is the limit."
    for way, (speed, size) in _SMALLER.items():
        smaller = dataclasses.replace(host, images_per_sec=speed * host.images_per_sec, image_kb=size * host.image_kb)
        if (given := smaller.most_images_per_sec) >= wanted:
            return f"{gap} `resnet-tpu prepare {way}` makes that about {given:,.0f} with photos like ImageNet's."
    if host.images_per_sec >= wanted:
        return f"{gap} Keep the data on a disk of the host that has room for all of them (cache_folder)."
    return f"{gap} Make the input faster (docs/input.md), or take chips that are slower or spread over more hosts."


def _fit_training(plan: Plan, step: Step) -> list[str]:
    """A batch that may fit, assuming memory proportional to it, and the resources that the whole batch would need."""
    choices = ["a larger slice"]
    if step.needed:
        share = step.needed / plan.topology.device_memory
        parts = 2 * step.parts
        while parts < share * step.parts:
            parts *= 2
        if step.batch_per_device % parts == 0:
            choices.insert(0, f"gradient_accumulation_steps={parts}")
        unit = math.lcm(8, step.parts)
        if per_device := int(step.batch_per_device / share) // unit * unit:
            choices.insert(0, f"train_batch_size={per_device * plan.devices}")
    return [f"Try {' or '.join(choices)}."]
