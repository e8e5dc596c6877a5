"""Recipes for a few thousand photos of one's own, such as the five kinds of flowers."""

from resnet_tpu.config import Config


def flowers() -> Config:
    """`resnet-tpu train --recipe=flowers --data_dir=flower_photos --model_dir=runs/flowers`.

    ResNet-50 on 224 px photos, from scratch, 90 epochs: for one GPU or TPU. Starting from a network trained on
    ImageNet (--resnet_checkpoint=PATH --train_steps=15epochs) is quicker, and as a rule better.
    """
    return Config().replace(
        resnet_depth=50,
        image_size=224,
        train_batch_size=128,
        eval_batch_size=128,
        train_steps="90epochs",
        steps_per_eval="5epochs",
        iterations_per_loop="1epochs",
        save_checkpoints_steps="5epochs",
        learning_rate_schedule="cosine",
        warmup_steps="5epochs",
        label_smoothing=0.1,
        weight_decay=5e-4,
    )


def flowers_cpu() -> Config:
    """`resnet-tpu train --recipe=flowers_cpu --data_dir=flower_photos --model_dir=runs/flowers`.

    ResNet-18 on 96 px photos, from scratch, 20 epochs: for a few CPU cores. On 800 photos of five kinds of flowers it
    took 4 to 5 minutes on 2 cores, to a test accuracy of 66 %.
    """
    return Config().replace(
        resnet_depth=18,
        image_size=96,
        precision="float32",
        train_batch_size=32,
        eval_batch_size=64,
        train_steps="20epochs",
        steps_per_eval="1epochs",
        iterations_per_loop=20,
        save_checkpoints_steps="1epochs",
        learning_rate_schedule="cosine",
        warmup_steps="1epochs",
        base_learning_rate=0.4,
        label_smoothing=0.1,
        weight_decay=5e-4,
    )
