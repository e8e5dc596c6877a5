"""The mathematics of a step: network, loss, mixing, masking, schedule and its lengths, optimizer, state, the step."""
