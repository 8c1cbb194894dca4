"""Imported by a worker process: makes the device known and arms the faults that the environment names."""

import os

from sortlib.simdev.device import load
from sortlib.simdev.injection import fault
from sortlib.simdev.platforms import VARIABLE

load()
for variable in sorted(name for name in os.environ if name.startswith(VARIABLE)):
    for name in filter(None, os.environ[variable].split(",")):
        fault(name)
