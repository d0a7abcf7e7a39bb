"""Show hardware profiles as text, and compare two profiles."""
