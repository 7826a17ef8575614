"""The catalogue of images/, build contexts and their digests, builds."""
