"""Records a run: the files of each rank, and the tables and the result that rank 0 makes of them."""
