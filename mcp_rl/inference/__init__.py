import logging

# it is imported by PEFT wherever it is installed, and says on CPUs which kernels it might have had
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
