"""The pytest plug-in that ships with accelkit."""
