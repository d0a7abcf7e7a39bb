"""The page of a prediction, of a run, or of both: what it says first, and a section for each figure."""
