"""Syncs of which both ends keep the rows as last sent, so that only chosen ones travel."""
