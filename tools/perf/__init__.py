"""The parts of bps_perf that replay training steps.

model     the tensors of a network and when a step needs them (tools/models)
bound     how fast a step can be at best, over a link of a known rate
replay    the step itself: computation slept through, communication for real
"""
