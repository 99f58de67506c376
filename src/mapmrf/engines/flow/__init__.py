"""Maximum flow, and binary models as minimum cuts."""
