"""Pages about runs: one run, or several side by side. A page is one file and asks nothing of the net."""
