"""Syncs in which both ends keep the rows as last sent, so that only chosen rows travel."""
