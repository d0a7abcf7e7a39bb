"""What a run leaves behind: the files of each rank, the tables and the result that rank 0 makes of them."""
