"""The self-test that `kit test` runs on every rank, in the image and on the topology that the user has."""
