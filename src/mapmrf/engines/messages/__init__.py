"""Message passing: max-product, sequential and cluster passes (bp, trbp, trws, adsal, mplp, mplp_c)."""
