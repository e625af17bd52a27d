"""Whether a vendor's kernels are right: samples of every operator, judged beside the reference in float64."""
