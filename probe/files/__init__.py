"""Results in files that say where they come from, and the check whether such a file still holds."""
