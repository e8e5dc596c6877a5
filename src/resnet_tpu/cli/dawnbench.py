"""`resnet-tpu bench dawnbench`."""

import dataclasses

from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import configure, groups_for_trainings
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.options.overrides import Layer
from resnet_tpu.performance.dawnbench.options import DawnbenchOptions, read_job


@Command(
    "resnet-tpu bench dawnbench",
    "Run it again to continue; options that you leave out keep their values.",
    examples=(
        "resnet-tpu bench dawnbench --recipe=v5e-8 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run",
        "resnet-tpu bench dawnbench --use_fast_lr --data_dir=imagenet --data_dir_small=imagenet160 --model_dir=run",
        "resnet-tpu bench dawnbench --mode=eval --model_dir=gs://BUCKET/run    # while --mode=train runs elsewhere",
    ),
    groups=[Group("the job", DawnbenchOptions), *groups_for_trainings()],
)
def dawnbench(given: Given) -> None:
    """Train with a checkpoint per epoch, evaluate each in another process, write DAWNBench's results.tsv."""
    before = read_job(configure(given.values).run.model_dir) or Layer("", {})
    known = {name: value for name, value in before.values.items() if name in OPTIONS}
    config = configure(given.values, Layer(before.origin, known))
    config.data.require_images()

    from resnet_tpu.performance.dawnbench import job

    job.dawnbench(config, dataclasses.replace(given, values={**before.values, **given.values}).fill(DawnbenchOptions))
