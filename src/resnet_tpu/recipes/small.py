"""Recipes for images of 32 px and less, with the CIFAR networks."""

from resnet_tpu.recipes.family import Family

DIGITS = Family(
    summary="ResNet-20 on scanned digits, 6 epochs: half a minute on 2 CPU cores.",
    details=(
        "`demo` runs this recipe. A digit fills its image and differs from its mirror image, so crops are large and "
        "nothing is mirrored."
    ),
    members={
        "digits": {
            "resnet_depth": 20,
            "image_size": 32,
            "min_crop_area": 0.7,
            "random_flip": False,
            "precision": "float32",
            "bn_momentum": 0.9,
            "train_batch_size": 64,
            "eval_batch_size": 64,
            "train_steps": "6epochs",
            "steps_per_eval": "1epochs",
            "iterations_per_loop": "1epochs",
            "learning_rate_schedule": "cosine",
            "base_learning_rate": 0.4,
            "label_smoothing": 0.1,
            "weight_decay": 2e-4,
        }
    },
)


CIFAR = Family(
    summary="ResNet-20 on CIFAR-10, 182 epochs with the rates of the pruning paper's CIFAR program.",
    details=(
        "These are 71108 steps of batch 128 at rate 0.1 from the first step, a tenth of it from epoch 91 and a "
        "hundredth from 136 on; plain momentum; L2 of 2e-4, on batch norm too. Training images are shifted by up to 4 "
        "pixels and mirrored; evaluation sees whole images. All are normalised by the mean and standard deviation of "
        "the data set; the paper normalises each image by its own. Source: arXiv:2003.02389."
    ),
    members={
        "cifar": {
            "resnet_depth": 20,
            "image_size": 32,
            "precision": "float32",
            "train_batch_size": 128,
            "eval_batch_size": 1000,
            "train_steps": 71108,
            "steps_per_eval": "1epochs",
            "iterations_per_loop": "1epochs",
            "base_learning_rate": 0.2,
            "learning_rate_boundaries": "0,91,136",
            "momentum": 0.9,
            "nesterov": False,
            "weight_decay": 2e-4,
            "decay_batch_norm": True,
            "crop_padding": 4,
            "crop_pct": 1.0,
            "mean_rgb": (0.4914, 0.4822, 0.4465),
            "stddev_rgb": (0.2470, 0.2435, 0.2616),
        }
    },
)
