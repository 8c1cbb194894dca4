"""From a finding to a script that shows it and a text that reports it; see ``minimizing`` and ``making``."""
