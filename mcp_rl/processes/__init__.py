"""Our own child processes: started so that they and all they start end with us, marked, and found again if they did
not."""
