"""Running cases on platforms: a worker process for each platform, fed by a campaign that nothing kills.

``worker``, ``execution`` and ``evidence`` run in the child and need only torch and numpy.
"""
