import logging

# PEFT imports it wherever it is installed, and on CPUs it logs the kernels that it misses
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
