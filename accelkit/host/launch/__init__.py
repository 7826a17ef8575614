"""Topology, plan, staging, backends, supervision, outcome."""
