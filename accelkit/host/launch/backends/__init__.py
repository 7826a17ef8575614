"""The places where ranks can run, a file each."""
