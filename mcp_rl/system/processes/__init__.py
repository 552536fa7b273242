"""Child processes: started under a watchdog, marked, and found again if they outlive this process."""
