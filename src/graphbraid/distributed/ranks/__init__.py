"""The ranks of a job: how they find each other, what they tell each other, and how a lost one is noticed."""
