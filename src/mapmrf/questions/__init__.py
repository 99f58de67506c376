"""Questions about a model besides its best labelling: other good labellings, margins, marginal MAP, tuning."""
