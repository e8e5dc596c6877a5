"""Recipes for data sets of a few thousand photos, such as one of five kinds of flowers."""

from resnet_tpu.recipes.family import Family

FLOWERS = Family(
    summary="ResNet-50 on 224 px photos, from scratch, 90 epochs: for one GPU or TPU.",
    details="Starting from a network trained on ImageNet (recipe `finetune`) is quicker, and usually better.",
    members={
        "flowers": {
            "resnet_depth": 50,
            "image_size": 224,
            "train_batch_size": 128,
            "eval_batch_size": 128,
            "train_steps": "90epochs",
            "steps_per_eval": "5epochs",
            "iterations_per_loop": "1epochs",
            "save_checkpoints_steps": "5epochs",
            "learning_rate_schedule": "cosine",
            "warmup_steps": "5epochs",
            "label_smoothing": 0.1,
            "weight_decay": 5e-4,
        }
    },
)


FINETUNE = Family(
    summary=(
        "Fine-tunes a network trained on ImageNet for other classes in 15 epochs; the classifier learns ten times "
        "faster."
    ),
    details=(
        "--init_from selects weights other than torchvision's ResNet-50; on the command line, the network, image size "
        "and preprocessing then follow those weights. The recipe suits every device: batch norm sees the whole batch, "
        "however many devices share it, and float32 is fast enough everywhere; --precision=bfloat16 is faster on "
        "devices that compute in it."
    ),
    members={
        "finetune": {
            "resnet_checkpoint": "resnet50",
            "precision": "float32",
            "train_batch_size": 32,
            "eval_batch_size": 32,
            "train_steps": "15epochs",
            "steps_per_eval": "1epochs",
            "iterations_per_loop": "1epochs",
            "learning_rate_schedule": "cosine",
            "warmup_steps": "1epochs",
            "base_learning_rate": 0.04,
            "head_learning_rate_multiplier": 10,
            "label_smoothing": 0.1,
            "min_crop_area": 0.25,
            "batch_norm_scope": "global",
        }
    },
)


FLOWERS_CPU = Family(
    summary="ResNet-18 on 96 px photos, from scratch, 20 epochs: for a few CPU cores.",
    details=(
        "On 800 photos of five kinds of flowers it took 4 to 5 minutes on 2 cores, and reached a test accuracy of 66 %."
    ),
    members={
        "flowers_cpu": {
            "resnet_depth": 18,
            "image_size": 96,
            "precision": "float32",
            "train_batch_size": 32,
            "eval_batch_size": 64,
            "train_steps": "20epochs",
            "steps_per_eval": "1epochs",
            "iterations_per_loop": 20,
            "save_checkpoints_steps": "1epochs",
            "learning_rate_schedule": "cosine",
            "warmup_steps": "1epochs",
            "base_learning_rate": 0.4,
            "label_smoothing": 0.1,
            "weight_decay": 5e-4,
        }
    },
)
