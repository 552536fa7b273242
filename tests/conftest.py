"""For all tests: one quiet torch thread, set before torch is imported. Threads that spin for each other make a busy
machine ten times slower, and results are bit-identical only at the same number of threads."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
