"""The settings that define a ResNet, and the standard networks by depth."""

from dataclasses import dataclass
from typing import Literal

NormAct = Literal["bn_relu", "evonorm_b0", "evonorm_s0"]
PoolPadding = Literal["same", "symmetric"]
EPSILON = 1e-5
"""Every norm adds this to the variance."""
SITES_OF_BOTTLENECK = 5
"""How many places of a block may drop something: the shortcut, the outputs of three convolutions, the whole branch."""


def evonorm_groups(features: int) -> int:
    """The number of channel groups of EvoNorm S0: 32, or the next smaller number that divides `features`."""
    return next(count for count in range(32, 0, -1) if features % count == 0)


@dataclass(frozen=True)
class Architecture:
    """Everything that defines a network. Most fields are named like options; 0, 1.0 or () turns a feature off."""

    blocks_per_group: tuple[int, ...]
    bottleneck: bool
    width: int  # channels of the stem and of the first group's 3x3 convolutions; doubles with each group
    inner_channels: tuple[int, ...] = ()  # of a narrowed network, block by block: see `inner`
    small_stem: bool = False  # 3x3 stride 1 and no pool, for small images
    zero_scale: bool = True  # last batch norm of every branch starts at 0: a new block is the identity
    bn_momentum: float = 0.9
    batch_norm_groups: int = 1
    freeze_batch_norm: bool = False
    pre_activation: bool = False
    norm_act_layer: NormAct = "bn_relu"
    use_resnetd_stem: bool = False
    resnetd_shortcut: bool = False
    replace_stem_max_pool: bool = False
    pool_padding: PoolPadding = "same"
    project_first_group: bool = True
    se_ratio: float = 0.0
    dropblock_groups: tuple[int, ...] = ()
    dropblock_keep_prob: float = 1.0
    dropblock_size: int = 7
    drop_connect_rate: float = 0.0
    dropout_rate: float = 0.0

    def features(self, group: int) -> int:
        """Output channels of the blocks of `group`, counted from 1."""
        return self.width * 2 ** (group - 1) * (4 if self.bottleneck else 1)

    @property
    def num_features(self) -> int:
        """Channels that reach the classifier."""
        return self.features(len(self.blocks_per_group))

    def dropblock_fraction(self, group: int) -> float:
        """Fraction of activations that DropBlock drops in `group` (from 1) at the end of training.

        It is 1 - dropblock_keep_prob in group 4, a quarter of that in group 3, and so on.
        """
        return (1 - self.dropblock_keep_prob) / 4 ** (4 - group) if group in self.dropblock_groups else 0.0

    def drop_connect_in(self, group: int) -> float:
        """Fraction of images that skip the branch of each block of `group` (from 1) in training."""
        return self.drop_connect_rate * (group + 1) / 5

    @property
    def num_inner(self) -> int:
        """Convolutions of a block whose output only the block itself uses: all but the last."""
        return 2 if self.bottleneck else 1

    def inner(self, group: int, block: int) -> tuple[int, ...]:
        """Channels after each inner convolution (see `num_inner`) of block `block` in group `group`, both from 1."""
        if not self.inner_channels:
            return (self.width * 2 ** (group - 1),) * self.num_inner
        first = self._blocks_before(group, block) * self.num_inner
        return self.inner_channels[first : first + self.num_inner]

    def first_site(self, group: int, block: int) -> int:
        """The number of the first site of block `block` in group `group`, both from 1.

        A site is where training may drop something at random. Only bottleneck blocks have any, SITES_OF_BOTTLENECK
        each. A site keeps its number, and so draws the same values, whether or not others drop anything.
        """
        return self._blocks_before(group, block) * SITES_OF_BOTTLENECK if self.bottleneck else 0

    @property
    def dropout_site(self) -> int:
        """The number of the site of dropout, after those of all blocks."""
        return self.first_site(len(self.blocks_per_group) + 1, 1)

    def _blocks_before(self, group: int, block: int) -> int:
        return sum(self.blocks_per_group[: group - 1]) + block - 1

    @property
    def has_plain_branches(self) -> bool:
        """Whether the branch of a block consists of convolutions with batch norms and nothing else."""
        drops = any(self.dropblock_fraction(group) for group in self.dropblock_groups) or self.drop_connect_rate
        return not (self.pre_activation or self.se_ratio or self.resnetd_shortcut or drops)


CIFAR_DEPTHS = (8, 20, 32, 44, 56, 110)
"""Depths of the networks for small images, 6n + 2: arXiv:1512.03385, section 4.2."""

ARCHITECTURES = {
    **{
        depth: Architecture(
            (depth // 6,) * 3, bottleneck=False, width=16, small_stem=True, zero_scale=False, bn_momentum=0.997
        )
        for depth in CIFAR_DEPTHS
    },
    18: Architecture((2, 2, 2, 2), bottleneck=False, width=64),
    34: Architecture((3, 4, 6, 3), bottleneck=False, width=64),
    50: Architecture((3, 4, 6, 3), bottleneck=True, width=64),
    101: Architecture((3, 4, 23, 3), bottleneck=True, width=64),
    152: Architecture((3, 8, 36, 3), bottleneck=True, width=64),
    200: Architecture((3, 24, 36, 3), bottleneck=True, width=64),
    270: Architecture((4, 29, 53, 4), bottleneck=True, width=64),
    350: Architecture((4, 36, 72, 4), bottleneck=True, width=64),
    420: Architecture((4, 44, 87, 4), bottleneck=True, width=64),
}
"""The networks of the papers, by `resnet_depth`."""
