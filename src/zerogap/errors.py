"""All exceptions that this package raises on purpose.

::

    ZerogapError
    ├── ConfigError (ValueError)        a recipe, flag or environment variable
    ├── DataError (ValueError)          a dataset line, a chat template, a tokenizer
    ├── ModelError (ValueError)         a checkpoint: missing, surplus or misshapen tensors
    ├── CheckpointError                 a run's own checkpoint
    ├── RunFolderError                  a run's folder: in use, full, or not writable
    ├── WeightSyncError                 engine and trainer hold different weights, or incomplete ones
    │   └── UnknownWeightVersion        a version whose weights or digest are not available
    ├── KernelError                     a kernel that cannot be built or called
    ├── MissingExtra (ImportError)      an optional dependency; names what to install
    ├── BenchmarkError                  a benchmark process failed, or a baseline cannot be used
    ├── NumericsError                   NaN or infinity where a number must be finite
    │   └── RecheckError                two computations of one log-prob differ, and exact numerics promise that they do not
    ├── MismatchError                   the gap stays above its budget, and no remedy is left
    ├── EngineError
    │   ├── InvalidRequest (ValueError) wrong sampling parameters or ids
    │   ├── RequestTooLong (ValueError) does not fit the context or the KV cache
    │   ├── OutOfPages                  the KV cache cannot hold one sequence
    │   └── EngineStateError            a call that the current state forbids
    └── RolloutError
        ├── EnvironmentFailed
        ├── RewardFailed
        └── GenerationFailed

A message says what was given, why it cannot work and what to do. All are picklable: they hold only their message.
"""


class ZerogapError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(ZerogapError, ValueError):
    """A recipe, flag or environment variable cannot be used."""


class DataError(ZerogapError, ValueError):
    """A dataset, tokenizer or chat template cannot be used."""


class ModelError(ZerogapError, ValueError):
    """A checkpoint or model configuration cannot be used."""


class CheckpointError(ZerogapError):
    """A run's checkpoint is incomplete or belongs to another run."""


class RunFolderError(ZerogapError):
    """A run's folder is in use by another process, or a file in it cannot be written."""


class WeightSyncError(ZerogapError):
    """Engine and trainer hold different weights, or the engine's are incomplete."""


class UnknownWeightVersion(WeightSyncError):
    """A version whose weights or digest are not available, or no longer."""


class KernelError(ZerogapError):
    """A kernel cannot be built, loaded or called with these tensors."""


class MissingExtra(ZerogapError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""


class BenchmarkError(ZerogapError):
    """A benchmark process failed, or a baseline cannot be used."""


class NumericsError(ZerogapError):
    """A NaN or infinity where a number must be finite."""


class RecheckError(NumericsError):
    """Two computations of one log-prob differ where exact numerics promise the same bits."""


class MismatchError(ZerogapError):
    """The gap between engine and trainer stays above its budget, and no remedy is left."""


class EngineError(ZerogapError):
    """The inference engine cannot do what was asked."""


class InvalidRequest(EngineError, ValueError):
    """A generation request is malformed."""


class RequestTooLong(EngineError, ValueError):
    """A request does not fit the model's context or the KV cache."""


class OutOfPages(EngineError):
    """The KV cache has no page left and nothing can be retracted."""


class EngineStateError(EngineError):
    """The engine's current state does not allow the call."""


class RolloutError(ZerogapError):
    """A rollout could not be completed."""


class EnvironmentFailed(RolloutError):
    """The environment raised or timed out."""


class RewardFailed(RolloutError):
    """A reward function raised, timed out or returned a value that is not a finite number."""


class GenerationFailed(RolloutError):
    """The generator raised or returned an aborted sample."""
