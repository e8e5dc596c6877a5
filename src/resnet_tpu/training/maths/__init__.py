"""The mathematics of a step: loss, mixing, masking, schedule, optimizer, state, and the step itself."""
