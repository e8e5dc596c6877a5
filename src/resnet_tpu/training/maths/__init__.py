"""The mathematics of a step: loss, schedule, optimizer, state, and the step itself."""
