"""For people who test what they build on this library, and the runtimes that they write for it.

A sandbox in memory, that can be slow and faulty; and `check_runtime`, which sees whether a runtime
keeps its promises. `trio_skills.testing.strategies`, which needs Hypothesis, has strategies for
skill folders, uploads, plans and source archives. `docs/testing.md` shows them all.
"""

from trio_skills.testing._conformance import (
    CHECKS as CHECKS,
)
from trio_skills.testing._conformance import (
    BrokenPromiseError as BrokenPromiseError,
)
from trio_skills.testing._conformance import (
    Check as Check,
)
from trio_skills.testing._conformance import (
    ConformanceError as ConformanceError,
)
from trio_skills.testing._conformance import (
    Factory as Factory,
)
from trio_skills.testing._conformance import (
    check_runtime as check_runtime,
)
from trio_skills.testing._memory import (
    Call as Call,
)
from trio_skills.testing._memory import (
    Fault as Fault,
)
from trio_skills.testing._memory import (
    Faults as Faults,
)
from trio_skills.testing._memory import (
    Latency as Latency,
)
from trio_skills.testing._memory import (
    MemoryFile as MemoryFile,
)
from trio_skills.testing._memory import (
    MemoryRuntime as MemoryRuntime,
)
from trio_skills.testing._memory import (
    PackingMemoryRuntime as PackingMemoryRuntime,
)
