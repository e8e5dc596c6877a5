"""`resnet-tpu bench dawnbench`."""

from collections.abc import Sequence

from resnet_tpu.cli.arguments import Parser, fill
from resnet_tpu.cli.run_options import add_training_options, check_data, configure_training
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.options.fields import options_of
from resnet_tpu.options.overrides import Layer
from resnet_tpu.performance.bench.dawnbench_options import DawnbenchOptions, read_job


def dawnbench(arguments: Sequence[str]) -> None:
    """Train with a checkpoint per epoch, evaluate each in another process, write DAWNBench's results.tsv."""
    parser = Parser(
        "resnet-tpu bench dawnbench",
        f"{dawnbench.__doc__}\n\nRun it again to go on; options that are left out are then as before.",
        examples=(
            "resnet-tpu bench dawnbench --recipe=v5e-8 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run",
            "resnet-tpu bench dawnbench --use_fast_lr --data_dir=imagenet --data_dir_small=imagenet160 --model_dir=run",
            "resnet-tpu bench dawnbench --mode=eval --model_dir=gs://BUCKET/run    # beside --mode=train elsewhere",
        ),
    )
    own_options = options_of("dawnbench", DawnbenchOptions)
    parser.add_options("the job", own_options.values())
    add_training_options(parser)
    given = parser.parse(arguments)
    before = read_job(given.get("model_dir", ""))
    known = before.values if before else {}
    layers = [Layer(before.origin, {name: known[name] for name in known if name in OPTIONS})] if before else []
    options = {name: value for name, value in {**known, **given}.items() if name in own_options}
    config = configure_training(given, layers)
    check_data(config, without="to measure speed without images")

    from resnet_tpu.performance.bench import dawnbench as job

    job.dawnbench(config, fill(DawnbenchOptions, options))
