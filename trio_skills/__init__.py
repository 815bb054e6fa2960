"""Put agent skills into sandboxes: fast, whole, and with every outcome known."""

from trio_skills._archive import (
    Archive as Archive,
)
from trio_skills._archive import (
    ArchiveInfo as ArchiveInfo,
)
from trio_skills._archive import (
    write_archive as write_archive,
)
from trio_skills._archive_cache import (
    ArchiveCache as ArchiveCache,
)
from trio_skills._archive_cache import (
    ArchiveCacheStatistics as ArchiveCacheStatistics,
)
from trio_skills._archive_cache import (
    Refresh as Refresh,
)
from trio_skills._collisions import OnCollision as OnCollision
from trio_skills._compress import Compression as Compression
from trio_skills._errors import (
    ArchiveError as ArchiveError,
)
from trio_skills._errors import (
    CommandError as CommandError,
)
from trio_skills._errors import (
    DestinationError as DestinationError,
)
from trio_skills._errors import (
    PlanError as PlanError,
)
from trio_skills._errors import (
    Problem as Problem,
)
from trio_skills._errors import (
    RuntimeOpenError as RuntimeOpenError,
)
from trio_skills._errors import (
    SourceChangedError as SourceChangedError,
)
from trio_skills._errors import (
    TransientError as TransientError,
)
from trio_skills._errors import (
    TrioSkillsError as TrioSkillsError,
)
from trio_skills._errors import (
    UploadError as UploadError,
)
from trio_skills._errors import (
    VerifyError as VerifyError,
)
from trio_skills._events import (
    Event as Event,
)
from trio_skills._events import (
    InstallEnded as InstallEnded,
)
from trio_skills._events import (
    TransferEnded as TransferEnded,
)
from trio_skills._events import (
    TransferStarted as TransferStarted,
)
from trio_skills._find import find_skills as find_skills
from trio_skills._install import install as install
from trio_skills._limits import Limits as Limits
from trio_skills._limits import LimitsStatistics as LimitsStatistics
from trio_skills._plan import (
    Plan as Plan,
)
from trio_skills._plan import (
    plan_skills as plan_skills,
)
from trio_skills._plan import (
    plan_uploads as plan_uploads,
)
from trio_skills._progress import Progress as Progress
from trio_skills._progress import ProgressTracker as ProgressTracker
from trio_skills._report import (
    InstallError as InstallError,
)
from trio_skills._report import (
    Outcome as Outcome,
)
from trio_skills._report import (
    Report as Report,
)
from trio_skills._report import (
    State as State,
)
from trio_skills._runtime import (
    Existing as Existing,
)
from trio_skills._runtime import (
    FileState as FileState,
)
from trio_skills._runtime import (
    Inspects as Inspects,
)
from trio_skills._runtime import (
    PackedResult as PackedResult,
)
from trio_skills._runtime import (
    RunResult as RunResult,
)
from trio_skills._runtime import (
    Runtime as Runtime,
)
from trio_skills._runtime import (
    SetsExecutable as SetsExecutable,
)
from trio_skills._runtime import (
    Traits as Traits,
)
from trio_skills._runtime import (
    WritesMany as WritesMany,
)
from trio_skills._skill import Skill as Skill
from trio_skills._sources import Extracts as Extracts
from trio_skills._sources import install_sources as install_sources
from trio_skills._transfers import Strategy as Strategy
from trio_skills._tree import Excluded as Excluded
from trio_skills._upload import Upload as Upload
from trio_skills.runtimes import open_runtime as open_runtime
from trio_skills.runtimes.exec import ExecRuntime as ExecRuntime
from trio_skills.runtimes.local import LocalRuntime as LocalRuntime
from trio_skills.runtimes.local import open_local as open_local
from trio_skills.runtimes.packing import Packing as Packing
from trio_skills.runtimes.ssh import SshRuntime as SshRuntime
from trio_skills.runtimes.ssh import open_ssh as open_ssh
