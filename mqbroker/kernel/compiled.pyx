# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""See `mqbroker.kernel`. No byte is read or written that was not compared with the end of its buffer before."""

include "bytes.pxi"
include "records.pxi"
include "frames.pxi"
include "sends.pxi"
include "pulls.pxi"
include "codec.pxi"
include "clients.pxi"
include "producers.pxi"
include "sockets.pxi"
include "clock.pxi"
include "tail.pxi"
