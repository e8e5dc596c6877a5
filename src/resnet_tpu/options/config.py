"""All options of a run: one name each, grouped by concern, checked before any work.

Outside (command line, YAML, override strings, `config.json`) an option is one flat name. In code it is a field of one
of the frozen groups below: `config.train.train_batch_size`. Names and defaults are those of the original program
"ResNet-50 on TPU" wherever it had the option.
"""

import dataclasses
import itertools
import math
import typing
from dataclasses import dataclass
from typing import Any, Literal

from resnet_tpu.errors import UserError, check_kind, nearest
from resnet_tpu.options.fields import FilePath, Option, Rgb, numbers_in, option, options_of
from resnet_tpu.options.lengths import Length


@dataclass(frozen=True)
class DataConfig:
    """Which images, how many, and how they become batches."""

    data_dir: FilePath = option(
        "",
        "TFRecords named train-*, validation-*, test-*; or a folder with a subfolder of images per class; or a CSV "
        "file. 'null': zeros instead of images; 'synthetic': coloured noise that a network can learn. Both "
        "are for measuring speed.",
    )
    image_size: int = option(224, "Side of the square image the network sees, in pixels.", at_least=8)
    num_label_classes: int | None = option(
        None,
        "Number of classes. Default: counted from the data, else 1000. With 1001, labels start at 0, the background.",
        at_least=2,
    )
    num_train_images: int | None = option(None, "Training images in an epoch. Default: counted.", at_least=1)
    num_eval_images: int | None = option(
        None, "Validation images to evaluate, evenly spaced. Default: all.", at_least=1
    )
    num_test_images: int | None = option(None, "Test images to predict, evenly spaced. Default: all.", at_least=1)
    min_crop_area: float = option(
        0.1,
        "Smallest fraction of a training image that its random crop may cover, as far as an aspect ratio of 3:4 to 4:3 "
        "allows. Raise it if the edges of images matter.",
        at_least=0,
        at_most=1,
    )
    crop_padding: int | None = option(
        None,
        "Instead of random crops: resize the central square to image_size, add this many black pixels on each side, "
        "and cut out a random window of image_size. 4 is usual for CIFAR.",
        at_least=0,
    )
    crop_pct: float = option(
        0.875,
        "Fraction of the shorter side that evaluation and prediction see: the central square.",
        at_least=0.01,
        at_most=1,
    )
    random_flip: bool = option(True, "Mirror half of the training images. Turn it off for text and digits.")
    augment_name: Literal["autoaugment", "randaugment"] | None = option(
        None,
        "Change training images at random after the crop. autoaugment: by learned policies. randaugment: by "
        "randaug_num_layers operations.",
    )
    randaug_num_layers: int | None = option(
        None, "Operations that randaugment applies to an image. Default: 2.", at_least=0
    )
    randaug_magnitude: int | None = option(
        None, "Strength of randaugment's operations, 0 to 10 (more is possible). Default: 9.", at_least=0
    )
    augment_flavor: Literal["tf", "corrected"] = option(
        "tf",
        "How the operations of augment_name are computed. tf: as in the original. corrected: Contrast scales around "
        "the mean grey, and Solarize does not wrap around.",
    )
    random_erasing: float = option(
        0.0, "Fraction of the training images in which a random rectangle is replaced by noise.", at_least=0, at_most=1
    )
    resize_method: Literal["bicubic", "bilinear"] = option(
        "bicubic", "How crops are resized to image_size: with the kernel of that name, TensorFlow 1's or Pillow's."
    )
    eval_preprocessing: Literal["tf", "pil"] = option(
        "tf",
        "How evaluation and prediction turn a photo into the network's input. tf: resize the central square with "
        "TensorFlow 1's kernel, as the original does. pil: resize the whole photo with Pillow, antialiased, then cut "
        "out the centre, as timm and torchvision do; their weights set this option themselves.",
    )
    num_parallel_calls: int | None = option(
        None, "Threads or processes that decode images. Default: one per CPU core.", at_least=1
    )
    input_workers: Literal["threads", "processes"] | None = option(
        None,
        "What decodes images. Processes take seconds to start, but do not compete for Python's lock. That pays off "
        "with many cores, augmentation, or formats other than JPEG. Default: processes if training uses more than 8 "
        "workers and reads files on this machine, else threads.",
    )
    input_pipeline: Literal["optimized", "basic"] = option(
        "optimized",
        "basic: one image at a time, on one thread, only when the device asks; shows what a good pipeline is worth.",
    )
    cache: Literal["none", "records", "decoded"] = option(
        "none",
        "Keep the training images in memory from the first epoch on. records: as stored, if they are in a bucket; "
        "files on this machine are cached by the operating system anyway. decoded: as pixels, with the shorter side "
        "at most cache_short_side; the fastest, for data that fit in memory.",
    )
    cache_short_side: int | None = option(
        None, "Pixels to which cache=decoded shrinks the shorter side. Default: 8/7 of image_size.", at_least=8
    )
    cache_memory: float | None = option(
        None, "Most memory that the cache may take, in GB. Default: half of what is free at the start.", at_least=0
    )
    cache_folder: FilePath = option(
        "",
        "Folder on this machine that keeps what is read from TFRecords in a bucket, if the data fill at most half of "
        "the free space there. Default: under ~/.cache. 'none': keep nothing and read from the bucket every time.",
    )
    data_order: Literal["auto", "records", "pieces"] = option(
        "auto",
        "Order of the training images. records: each epoch is a new permutation of all images. pieces: a permutation "
        "of 4 MB pieces; each is read with one request, and its images are spread over the batches of the next steps. "
        "auto: pieces for TFRecords in a bucket that neither cache_folder nor cache keeps, else records. A resumed "
        "run keeps its order.",
    )
    lth_use_random_label: bool = option(
        False, "Use random labels, drawn from the hash of each image's file name, as the original's pruning fork does."
    )
    skip_bad_records: bool = option(
        False, "Count and skip damaged records and undecodable images, instead of stopping at the first one."
    )
    bigtable_instance: str = option(
        "", "Read the images from this instance of Cloud Bigtable, one tf.train.Example per row, instead of data_dir."
    )
    bigtable_project: str = option("", "Project of the instance. Default: gcp_project.")
    bigtable_table: str = option("imagenet", "Table in the Bigtable instance.")
    bigtable_train_prefix: str = option("train_", "Prefix of the keys of training rows; an index follows.")
    bigtable_eval_prefix: str = option("validation_", "Prefix of the keys of validation rows.")
    bigtable_test_prefix: str = option("test_", "Prefix of the keys of test rows.")
    bigtable_column_family: str = option("tfexample", "Column family of the examples.")
    bigtable_column_qualifier: str = option("example", "Column of the examples within that family.")
    gcp_project: str = option("", "Google Cloud project. Default: that of the credentials.")

    @property
    def location(self) -> str:
        """Where the images are: `data_dir`, or `bigtable://INSTANCE/TABLE`; empty if neither is given."""
        if self.bigtable_instance:
            return f"bigtable://{self.bigtable_instance}/{self.bigtable_table}"
        return self.data_dir

    def require_images(self) -> None:
        """Raises UserError when the options do not say where the images are."""
        if not self.location:
            do = "Give --data_dir=FOLDER, or --data_dir=null to measure speed without images."
            raise UserError("data_dir", "nothing", "TFRecords or a folder of images per class", do)

    @property
    def images_per_epoch(self) -> int:
        """`num_train_images`; 1 until they are counted."""
        return self.num_train_images or 1

    @property
    def cached_short_side(self) -> int:
        """Shorter side in pixels to which photos in the cache are shrunk: enough for crops of `image_size`."""
        return self.cache_short_side or round(self.image_size * 8 / 7)

    @property
    def train_crop(self) -> dict[str, Any]:
        """The keyword arguments of `pixels.preprocess.train_image` that determine its crop."""
        names = ("min_crop_area", "crop_padding", "random_flip", "resize_method")
        return {name: getattr(self, name) for name in names}

    @property
    def eval_crop(self) -> dict[str, Any]:
        """The keyword arguments of `pixels.preprocess.eval_image` that determine its crop."""
        return {
            "resize_method": self.resize_method, "crop_pct": self.crop_pct, "preprocessing": self.eval_preprocessing
        }  # fmt: skip

    def num_images(self, split: Literal["train", "validation", "test"]) -> int | None:
        """The number of images of a split that the options ask for; None for all."""
        counts = {"train": self.num_train_images, "validation": self.num_eval_images, "test": self.num_test_images}
        return counts[split]


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    resnet_depth: int = option(
        50, "18, 34, 50, 101, 152, 200, 270, 350 or 420; or a CIFAR network: 8, 20, 32, 44, 56 or 110."
    )
    resnet_width: int | None = option(
        None, "Channels after the stem. Default: 64 (16 for the CIFAR networks).", at_least=1
    )
    inner_channels: str = option(
        "",
        "Channels of the inner convolutions of each block, in order, such as 14,16,12. `resnet-tpu compact` sets "
        "this. Default: derived from resnet_width.",
    )
    stem: Literal["auto", "imagenet", "small"] = option(
        "auto",
        "First layers of the network. imagenet: a 7x7 convolution of stride 2 and a max-pool. small: a 3x3 "
        "convolution of stride 1, no pool. auto: small for images under 64 px, and in the CIFAR networks, which "
        "have no other.",
    )
    precision: Literal["bfloat16", "float32"] = option(
        "bfloat16", "Type of activations and of the arithmetic of convolutions. Parameters are always float32."
    )
    kernels: Literal["auto", "plain", "cpu", "gpu", "fused"] = option(
        "auto",
        "How training computes the layers. plain: one by one, by XLA. cpu: with the library in C. gpu: with fewer "
        "passes over memory. fused: each norm together with the layer next to it. auto: what `resnet-tpu tune` found "
        "to be fastest; without that, cpu on a CPU that has it, else plain.",
    )
    batch_norm_scope: Literal["replica", "global"] = option(
        "replica",
        "Images whose batch-norm statistics are computed together: those on each device (as in the original) or the "
        "whole batch.",
    )
    batch_norm_group_size: int = option(
        1, "Neighbouring devices that share their batch-norm statistics, with batch_norm_scope=replica.", at_least=1
    )
    bn_momentum: float | None = option(
        None,
        "Fraction of the running batch-norm statistics that each step keeps. Default: 0.9 (0.997 for the CIFAR "
        "networks).",
        at_least=0,
        at_most=1,
    )
    freeze_batch_norm: bool = option(
        False, "Train with the running batch-norm statistics, and change neither them nor batch norm's parameters."
    )
    pre_activation: bool = option(False, "Batch norm and ReLU before each convolution instead of after (version 2).")
    norm_act_layer: Literal["bn_relu", "evonorm_b0", "evonorm_s0"] = option(
        "bn_relu", "Normalisation and activation. The EvoNorms need pre_activation."
    )
    use_resnetd_stem: bool = option(False, "Three 3x3 convolutions instead of the 7x7 of the stem (ResNet-D).")
    resnetd_shortcut: bool = option(False, "Average pooling before the projections of stride 2 (ResNet-D).")
    replace_stem_max_pool: bool = option(False, "A 3x3 convolution of stride 2 instead of the stem's max-pool.")
    se_ratio: float | None = option(
        None,
        "Add squeeze-and-excite to each block, with this fraction of its channels. Only from depth 50 on, without "
        "pre_activation.",
        at_least=0,
        at_most=1,
    )
    dropblock_groups: str = option(
        "",
        "Groups of blocks, from 1 to 4, in which DropBlock acts in training, such as 3,4. Needs dropblock_keep_prob. "
        "Only from depth 50 on.",
    )
    dropblock_keep_prob: float | None = option(
        None,
        "Fraction of activations that DropBlock keeps in group 4 at the end of training; each earlier group drops a "
        "quarter of what the next one does. The fraction starts at 1 and falls to this.",
        at_least=0,
    )
    dropblock_size: int = option(
        7, "Side of the squares that DropBlock drops, in positions of the feature map.", at_least=1
    )
    drop_connect_rate: float | None = option(
        None,
        "Fraction of images that skip a block's residual branch in training (stochastic depth) in the last group; "
        "fewer in earlier groups. Only from depth 50 on, without pre_activation.",
        at_least=0,
    )
    dropout_rate: float | None = option(None, "Fraction of features dropped before the classifier.", at_least=0)
    pool_padding: Literal["same", "symmetric"] = option(
        "same", "Padding of the stem's max-pool. same: uneven, as in TensorFlow. symmetric: as in PyTorch."
    )
    project_first_group: bool = option(
        True,
        "Whether the first group's shortcut is a projection in depths 18 and 34 and in the CIFAR networks too; "
        "PyTorch has none there.",
    )
    mean_rgb: Rgb = option(
        (0.485, 0.456, 0.406), "Mean colour that is subtracted from the images, from 0 to 1. Default: ImageNet's."
    )
    stddev_rgb: Rgb = option(
        (0.229, 0.224, 0.225), "Standard deviation that the images are then divided by. Default: ImageNet's."
    )
    weights_origin: str = option(
        "",
        "Where the initial weights came from: a name, its revision, a checksum. Filled in if the weights record it.",
    )
    weights_licence: str = option(
        "", "Licence of the weights, by its short name such as apache-2.0. Filled in if they record it."
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """Loss, optimizer and learning rate."""

    base_learning_rate: float = option(
        0.1, "Learning rate for a batch of 256; scaled by train_batch_size/256.", at_least=0
    )
    learning_rate_schedule: Literal["step", "cosine", "constant"] = option(
        "step",
        "step: warm-up, then divided by 10 at 1/3, 2/3 and 8/9 of the run. cosine: warm-up, then down to 0 along a "
        "cosine. constant: no decay.",
    )
    warmup_steps: Length | None = option(
        None,
        "Length of the linear warm-up of cosine and constant. Default: 1/18 of the run for cosine, 0 for constant.",
    )
    learning_rate_epochs: float | None = option(
        None,
        "Length in epochs from which the step schedule computes its boundaries. Default: train_steps / "
        "floor(num_train_images / batch). The original's pruning fork always uses 90.",
        at_least=0,
    )
    learning_rate_boundaries: str = option(
        "",
        "Epochs at which the step schedule changes, such as 4,21,35,43: the end of the warm-up, then each division of "
        "the rate by 10. Default: computed from learning_rate_epochs.",
    )
    lottery_force_learning_rate: float | None = option(
        None, "Use this learning rate in every step, whatever the schedule and the batch size.", at_least=0
    )
    momentum: float = option(0.9, "Momentum coefficient.", at_least=0)
    nesterov: bool = option(True, "Use Nesterov momentum, as the original does.")
    weight_decay: float = option(1e-4, "L2 coefficient on all parameters but batch norm's.", at_least=0)
    decay_batch_norm: bool = option(False, "Apply weight_decay to batch norm's scale and bias too.")
    enable_lars: bool = option(
        False, "LARS with its polynomial schedule instead of momentum SGD; for batches of 16384 and more."
    )
    poly_rate: float = option(0.0, "Peak learning rate of LARS. Default 0: chosen by train_batch_size.", at_least=0)
    label_smoothing: float = option(0.0, "Fraction of the target spread evenly over all classes.", at_least=0)
    mixup_alpha: float = option(
        0.0,
        "Blend pairs of images and their labels, by a fraction drawn from Beta(alpha, alpha). 0: no mixup.",
        at_least=0,
    )
    cutmix_alpha: float = option(
        0.0,
        "Paste a rectangle of another image into each image, its area drawn from Beta(alpha, alpha), and mix the "
        "labels by area. With mixup as well, one of the two is picked at random. 0: no cutmix.",
        at_least=0,
    )
    moving_average_decay: float = option(
        0.0,
        "Keep a moving average of the weights with this decay, and evaluate with it; needs bn_momentum 0. 0: none.",
        at_least=0,
    )
    gradient_accumulation_steps: int = option(
        1, "Parts into which each batch is split, computed one after the other to save memory.", at_least=1
    )
    freeze: str = option(
        "",
        "Parameters that training does not change: name patterns such as stem/*,group[12]/*. `convert --inspect` "
        "lists the names.",
    )
    head_learning_rate_multiplier: float = option(
        1.0, "Factor on the learning rate of the classifier alone.", at_least=0
    )

    @property
    def weight_decay_in_loss(self) -> float:
        """The factor of the L2 loss; 0 with LARS, which decays the weights itself."""
        return 0.0 if self.enable_lars else self.weight_decay

    @property
    def keeps_average(self) -> bool:
        """Whether a moving average of the weights is kept."""
        return self.moving_average_decay > 0


@dataclass(frozen=True)
class TrainConfig:
    """How long, how often, and what is kept."""

    train_batch_size: int = option(1024, "Images per optimizer step, over all devices.", at_least=1)
    train_steps: Length = option(112590, "Total length of the run, in steps or epochs (90epochs).")
    steps_per_eval: Length = option(1251, "Interval between evaluations in train_and_eval.", at_least=1)
    iterations_per_loop: Length = option(
        1251,
        "Steps or epochs between two points at which the host logs and records metrics.",
        at_least=1,
    )
    save_checkpoints_steps: Length | None = option(
        None,
        "Interval between checkpoints. Default: max(5000, iterations_per_loop), and at every evaluation.",
        at_least=1,
    )
    keep_checkpoint_max: int = option(5, "How many of the newest checkpoints to keep, besides the best.", at_least=1)
    lottery_checkpoint_iters: str = option(
        "", "Steps whose checkpoints are kept for good, such as 0,11259; `prune` can rewind to them."
    )
    log_step_count_steps: int = option(64, "Steps between two refreshes of the progress line.", at_least=1)
    skip_host_call: bool = option(
        False, "Record loss and learning rate for the last step of each loop only, not for every step."
    )
    seed: int = option(0, "Determines the initial weights, data order and crops.", at_least=0)
    resnet_checkpoint: FilePath = option(
        "",
        "Start from these weights when model_dir is empty: a TF1 checkpoint of the original, a .safetensors "
        "or .pth file of torchvision or timm, a model_dir, or a name: see `resnet-tpu models`.",
    )
    profile_every_n_steps: int = option(
        0, "Steps between two captures for TensorBoard's Profile tab. 0: none.", at_least=0
    )
    tpu_profile_duration: int = option(2000, "Length of one capture, in ms.", at_least=1)


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation, prediction and export."""

    eval_batch_size: int = option(
        1024, "Images per evaluation step, over all devices. The last batch is padded.", at_least=1
    )
    predict_batch_size: int | None = option(None, "Images per prediction step. Default: eval_batch_size.", at_least=1)
    eval_timeout: int | None = option(
        None, "Seconds to wait for the next checkpoint when following a run. Default: no limit.", at_least=0
    )
    export_moving_average: bool = option(
        True, "Predict with and export the moving average of the weights, if training kept one."
    )
    export_dir: FilePath = option("", "Write the trained model here, in a time-stamped folder. Default: no export.")
    export_forms: str = option(
        "",
        "Forms to write, separated by commas: stablehlo, onnx, int8, savedmodel. Default: stablehlo, and onnx and "
        "savedmodel if their packages are installed.",
    )
    model_name: str = option("resnet", "Name of the model in the export and on the server.")
    inference_batch_sizes: str = option("8", "Batch sizes to warm up a server with, such as 1,8,32.")
    add_warmup_requests: bool = option(
        False, "Write requests of these sizes to the SavedModel, so that TensorFlow Serving warms itself up."
    )


@dataclass(frozen=True)
class RunConfig:
    """Where the run lives and what it does."""

    model_dir: FilePath = option("", "Folder of checkpoints, metrics and reports. An existing run in it is continued.")
    mode: Literal["train", "eval", "train_and_eval", "predict"] = option("train_and_eval", "What to do.")
    num_cores: int | None = option(None, "Use at most this many devices. Default: all.", at_least=1)
    coordinator_address: str = option(
        "", "host:port of process 0, if there are several processes. Default: detected on Cloud TPU, Slurm and GKE."
    )
    num_processes: int | None = option(None, "Processes that train together. Default: detected likewise.", at_least=1)
    process_id: int | None = option(None, "Number of this process, from 0. Default: detected likewise.", at_least=0)
    coordinator_timeout: int = option(
        300,
        "Seconds that processes wait for each other, at the start and whenever they synchronise later.",
        at_least=1,
    )
    heartbeat_timeout: int = option(
        30, "Seconds without a sign of life after which a process counts as lost, and all others stop.", at_least=5
    )
    use_tpu: bool = option(True, "False: run on GPU or CPU, even if there is a TPU.")

    def require_model_dir(self) -> None:
        """Raises UserError when no `model_dir` is given."""
        if not self.model_dir:
            raise UserError("model_dir", "nothing", "a folder for checkpoints and metrics", "Give --model_dir=FOLDER.")


@dataclass(frozen=True)
class LotteryConfig:
    """The flags of the original's pruning fork; the command `prune` does the same with fewer."""

    lottery_results_dir: FilePath = option(
        "", "Folder for the names checkpoint_iter_<step> and the file density_ratio."
    )
    lottery_pruning_method: str = option("prune_global_20", "How to prune; see `resnet-tpu prune --help`.")
    lottery_prune_at: FilePath = option(
        "", "Checkpoint to prune: DIR/checkpoint_iter_<step>, ..._final or reinitialize."
    )
    lottery_reset_to: FilePath = option(
        "", "Checkpoint from which to continue training, under the masks made from lottery_prune_at; or reinitialize."
    )
    lottery_reset_global_step_to: FilePath = option(
        "", "Checkpoint from whose step training continues, instead of the step of lottery_reset_to."
    )
    lottery_force_reprune: bool = option(False, "Start over even if model_dir has the same masks.")
    lth_prediction_result_dir: FilePath = option(
        "", "mode=predict: predict the validation images, and pickle the results into `predictions` in this folder."
    )


@dataclass(frozen=True)
class Config:
    """Every option of a run, in groups; `Config().replace(train_steps=100)` sets options by their names alone."""

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    lottery: LotteryConfig = dataclasses.field(default_factory=LotteryConfig)

    def flat(self) -> dict[str, Any]:
        """All options by name."""
        return {
            field.name: getattr(group, field.name)
            for group in (getattr(self, group.name) for group in dataclasses.fields(self))
            for field in dataclasses.fields(group)
        }

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {name: value for name, value in self.flat().items() if value != OPTIONS[name].default}

    def __repr__(self) -> str:
        """An expression that creates this `Config`, with only the options in `changed`."""
        lines = "".join(f"    {name}={value!r},\n" for name, value in self.changed().items())
        return f"Config().replace(\n{lines})" if lines else "Config()"

    def replace(self, /, **options: Any) -> "Config":
        """A copy with some options, by their flat names, changed and checked.

        Raises UserError for an unknown name, a value of the wrong kind or out of range.
        """
        groups: dict[str, Any] = {}
        for name, value in options.items():
            if name not in OPTIONS:
                raise UserError("Option", name, "a known option", f"See --help.{nearest(name, OPTIONS)}")
            found = OPTIONS[name]
            group = groups.get(found.group, getattr(self, found.group))
            groups[found.group] = dataclasses.replace(group, **{name: found.convert(value)})
        return dataclasses.replace(self, **groups)


def require_config(given: object) -> None:
    """Raises UserError for anything but a `Config`, such as the path of a run."""
    do = "Make one: find_recipe(NAME).replace(data_dir=..., model_dir=...); that of a run is load_model(PATH).config."
    check_kind("config", given, Config, do)


OPTIONS: dict[str, Option] = {
    name: found
    for group in dataclasses.fields(Config)
    for name, found in options_of(typing.cast("type", group.default_factory), group.name).items()
}
"""Every option by its flat name, in the order of `Config`."""

OF_ONE_START = ("coordinator_address", "num_processes", "process_id")
"""Options that are not saved with a run: they describe its processes, which may differ when it is resumed."""


VARIANT = ("pre_activation", "norm_act_layer", "use_resnetd_stem", "resnetd_shortcut", "replace_stem_max_pool")
"""Options that, together with depth, width and squeeze-and-excite, determine a network's layers."""

PREPROCESSING = ("image_size", "crop_pct", "resize_method", "eval_preprocessing")
"""Options that, with the mean and deviation of the colours, define how photos are preprocessed for a network."""


def epoch_boundaries(text: str) -> list[float]:
    """The epochs in `learning_rate_boundaries`; none if empty. Raises UserError unless they are >= 0 and ascending."""
    epochs = numbers_in(text, float)
    if epochs is None or not all(low <= high < math.inf for low, high in itertools.pairwise([0.0, *epochs])):
        expected = "epochs in ascending order such as 4,21,35,43"
        raise UserError("learning_rate_boundaries", repr(text), expected, "Change the value.")
    return epochs
