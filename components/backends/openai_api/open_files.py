"""How many connections this process may have open."""

import logging
import sys

OWN_FILES = 64  # files of the run, pipes and libraries
_LOG = logging.getLogger(__name__)


def connections_within(wanted: int) -> int:
    """`wanted`, or as many as the limit of open files leaves room for once it is raised."""
    if sys.platform == "win32":  # it has no such limit, and no such module
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    raised = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    except (OSError, ValueError):
        _LOG.debug("the limit of open files stays at %d", soft)
    room = max(1, min(wanted, soft - OWN_FILES))
    if room < wanted:
        text = "only %d requests at once (backend.pace.most is %d): ulimit -n is %d"
        _LOG.warning(text, room, wanted, soft)
    return room
