"""The release of the package; devices and coordinators tell each other."""

__version__ = "0.1.0"
