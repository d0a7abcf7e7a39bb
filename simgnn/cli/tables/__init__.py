"""What commands print: tables and JSON."""
