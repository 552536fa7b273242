import logging

# PEFT imports bitsandbytes wherever it is installed, and on a CPU it warns about kernels that it cannot use
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
