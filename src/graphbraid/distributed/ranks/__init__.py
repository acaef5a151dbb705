"""The ranks of a job: their meeting, their messages, and the detection of a lost rank."""
