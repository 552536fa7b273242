"""For all tests: one quiet torch thread, set before torch is imported. Threads that spin for each other make a busy
machine ten times slower, and results are bit-identical only at the same number of threads."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell that starts us in the background has SIGINT ignored, and what we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
