"""What to change where a plan does not fit, or could be better."""

from resnet_tpu.performance.plan.plan import Plan, Step

FEW_IMAGES = 32
"""On a device; with fewer it is badly used."""


def advise(plan: Plan) -> list[str]:
    """Sentences; none when there is nothing to say."""
    advice = []
    if plan.train and not plan.train.fits:
        advice += _fit_training(plan, plan.train)
    if plan.eval and not plan.eval.fits:
        advice.append("Lower eval_batch_size.")
    if plan.train and plan.train.fits and plan.train.batch_per_device < FEW_IMAGES and plan.devices > 1:
        few = plan.train.batch_per_device
        advice.append(f"With {few} images per device the matrix units wait: use a smaller slice or a larger batch.")
    if plan.train and plan.train.images_per_second and plan.host_images_per_sec and plan.input_wait:
        wanted = plan.train.images_per_second / plan.topology.hosts
        advice.append(
            f"A host gives {plan.host_images_per_sec:,.0f} images/s of the {wanted:,.0f} that its chips take. Make the "
            "input faster (docs/input.md), or take chips that are slower or spread over more hosts."
        )
    if plan.devices < plan.topology.devices:
        advice.append(
            f"num_cores leaves {plan.topology.devices - plan.devices} of {plan.topology.devices} devices idle, "
            "but all chips are paid for."
        )
    return advice


def _fit_training(plan: Plan, step: Step) -> list[str]:
    """The batch that may fit, if memory goes by it; and what the whole batch would need."""
    choices = ["a larger slice"]
    if step.needed:
        share = step.needed / plan.topology.device_memory
        parts = 2
        while parts < share:
            parts *= 2
        if step.batch_per_device % parts == 0:
            choices.insert(0, f"gradient_accumulation_steps={parts}")
        if per_device := int(step.batch_per_device / share) // 8 * 8:
            choices.insert(0, f"train_batch_size={per_device * plan.devices}")
    return [f"Try {' or '.join(choices)}."]
