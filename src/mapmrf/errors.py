"""The exceptions of mapmrf: one family, so that `except MapMRFError` catches every user error."""


class MapMRFError(Exception):
    """Base of every error that a user can cause; its text is one clear line."""


class GraphError(MapMRFError, ValueError):
    """The arrays handed over do not describe a factor graph."""


class FormatError(MapMRFError, ValueError):
    """A file cannot be read as the format it should be."""


class OptionError(MapMRFError, ValueError):
    """An option does not exist or has an impossible value."""


class UnsupportedModel(MapMRFError, ValueError):
    """The chosen method cannot work on this model."""


class UnknownName(MapMRFError, LookupError):
    """No method, format, variable or state has this name."""
