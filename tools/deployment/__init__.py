"""A deployment under trial: real processes over a seed log and stores of its own."""
