"""End this process when the one that started it is gone, however that one ended.

The parent holds the write end of our standard input and never writes; the system closes it when the parent dies.
"""

import os
import signal
import threading
import time

GRACE_S = 10.0


def end_with_stdin() -> None:
    """Watch standard input; at its end ask this process to stop, and after a while make it."""

    def watch() -> None:
        while os.read(0, 4096):  # the file descriptor: a lock of sys.stdin would hang the interpreter's shutdown
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
