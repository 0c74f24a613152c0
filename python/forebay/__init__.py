"""Training state on NVMe, in RAM or both: layers that are announced, leased, given gradients and updated; the update
kernels alone; and, in `forebay.torch`, optimizers for PyTorch. `import forebay` needs neither PyTorch nor NumPy.
"""

from forebay._library import Group
from forebay._library import version as __version__
from forebay.errors import (
    BadInputError,
    CorruptError,
    DoesNotFitError,
    EnvironmentProblem,
    ForebayError,
    InternalError,
    NotSupportedError,
    NumericalError,
    OutOfMemoryError,
    StoppedError,
    StorageError,
    UsageError,
)
from forebay.inventory import Inventory, Tensor
from forebay.kernels import Kernels, Run
from forebay.layers import Layers, Snapshot, StepGradients
from forebay.lease import Lease
from forebay.ranks import Ranks
from forebay.tensors import TensorLease, Tensors

__all__ = [
    "BadInputError", "CorruptError", "DoesNotFitError", "EnvironmentProblem", "ForebayError", "Group", "InternalError",
    "Inventory", "Kernels", "Layers", "Lease", "NotSupportedError", "NumericalError", "OutOfMemoryError", "Ranks",
    "Run", "Snapshot", "StepGradients", "StoppedError", "StorageError", "Tensor", "TensorLease", "Tensors",
    "UsageError", "__version__",
]
