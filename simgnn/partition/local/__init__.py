"""The part of a partitioned graph that one rank holds, with local ids."""
