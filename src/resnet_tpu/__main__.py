"""`python -m resnet_tpu` is the command `resnet-tpu`."""

import sys

from resnet_tpu.cli import main

sys.exit(main())
