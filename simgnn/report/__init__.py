"""Reports: results as text, as HTML pages, and as traces for Perfetto."""
