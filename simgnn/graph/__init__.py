"""Graphs: how they are read, generated, stored and measured."""
