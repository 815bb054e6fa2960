"""For people who test what they build on this library: a sandbox in memory, that can be faulty.

`trio_skills.testing.strategies`, which needs Hypothesis, has strategies for skill folders, uploads
and plans.
"""

from trio_skills.testing._memory import (
    Call as Call,
)
from trio_skills.testing._memory import (
    Fault as Fault,
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
